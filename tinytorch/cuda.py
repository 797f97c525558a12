"""``tinytorch.cuda``: what programs ask of the GPU.  Mirrors ``torch.cuda``; CuPy does the work.

Stage: eager.  Without a GPU ``is_available()`` is False and everything that needs one raises; under
``TT_CUDA_EMULATE=1`` the device is NumPy memory and there is nothing to wait for.  Read next: ``device``.
"""

from __future__ import annotations

from typing import Any

from tinytorch import late, rng
from tinytorch.device import Device, array_module, canonical, cuda_available, emulated


def is_available() -> bool:
    """Whether ``device="cuda"`` would work here."""
    return cuda_available()


def device_count() -> int:
    if not cuda_available():
        return 0
    return 1 if emulated() else int(_runtime().getDeviceCount())


def _runtime() -> Any:
    return array_module(Device("cuda")).cuda.runtime


def current_device() -> int:
    return 0 if emulated() else int(_runtime().getDevice())


def set_device(device: Any) -> None:
    if not emulated():
        _runtime().setDevice(canonical(device).index or 0)


def synchronize(device: Any = None) -> None:
    """Wait until the GPU has done all it was given; raises what it found wrong (an index out of range)."""
    if not emulated():
        array_module(Device("cuda")).cuda.Device(None if device is None else canonical(device).index).synchronize()
    late.look(everywhere=True)


def get_device_name(device: Any = None) -> str:
    if emulated():
        return "emulated"
    return str(_runtime().getDeviceProperties(canonical(device or "cuda").index or 0)["name"].decode())


def get_device_capability(device: Any = None) -> tuple[int, int]:
    if emulated():
        return 0, 0
    text = array_module(Device("cuda")).cuda.Device(canonical(device or "cuda").index or 0).compute_capability
    return int(text[:-1]), int(text[-1])


def memory_allocated(device: Any = None) -> int:
    return 0 if emulated() else int(array_module(Device("cuda")).get_default_memory_pool().used_bytes())


def empty_cache() -> None:
    """Give unused memory back to the driver."""
    if cuda_available() and not emulated():
        array_module(Device("cuda")).get_default_memory_pool().free_all_blocks()


def manual_seed(seed: int) -> None:
    """All devices draw from one stream, so this seeds them all."""
    rng.default_generator.manual_seed(seed)


manual_seed_all = manual_seed
