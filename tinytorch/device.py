"""Devices: ``cpu`` is NumPy, ``cuda`` is CuPy, and under ``TT_CUDA_EMULATE=1`` a ``cuda`` of NumPy arrays.

Stage: eager.  In: a device name.  Out: ``Device`` and the array module that computes there.
Mirrors ``torch.device``.  Read next: ``tensor``.
"""

from __future__ import annotations

import os
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

from tinytorch.defaults import defaults


class Device:
    """``device("cuda:1")``: ``type`` and ``index``; one object per name, so identity is equality.

    ``with device("cuda"):`` makes it the place of new tensors inside the block.
    """

    type: str
    index: int | None
    _known: dict[tuple[str, int | None], Device] = {}
    _outer: list[Device] = []  # what the open blocks go back to

    def __new__(cls, spec: str | Device, index: int | None = None) -> Device:
        if isinstance(spec, Device):
            return spec
        kind, _, number = str(spec).partition(":")
        if kind not in ("cpu", "cuda"):
            raise RuntimeError(f"Expected one of cpu, cuda device type at start of device string: {spec}")
        place = int(number) if number else index
        found = cls._known.get((kind, place))
        if found is None:
            found = super().__new__(cls)
            found.type, found.index = kind, place
            cls._known[kind, place] = found
        return found

    def __repr__(self) -> str:
        where = "" if self.index is None else f", index={self.index}"
        return f"device(type='{self.type}'{where})"

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __enter__(self) -> Device:
        self._outer.append(get_default_device())
        set_default_device(self)
        return self

    def __exit__(self, *exc: object) -> None:
        set_default_device(self._outer.pop())

    def __reduce__(self) -> tuple[Any, ...]:
        return Device, (str(self),)


cpu = Device("cpu")
defaults.put(defaults.now[0], cpu)


def get_default_device() -> Device:
    return defaults.now[1]


def set_default_device(device: str | Device | int | None) -> None:
    """Where new tensors are made; None is the CPU.  Mirrors ``torch.set_default_device``."""
    defaults.put(defaults.now[0], cpu if device is None else canonical(device))


def emulated() -> bool:
    """Whether ``cuda`` means the CPU emulator (``TT_CUDA_EMULATE=1``)."""
    return os.environ.get("TT_CUDA_EMULATE", "") not in ("", "0")


@cache
def _cupy() -> ModuleType:
    try:
        import cupy
    except ImportError as e:
        raise RuntimeError('device "cuda" needs CuPy: pip install "tinytorch-compile[cuda12]" or "[cuda13]"') from e
    if not cupy.cuda.is_available():
        raise RuntimeError('device "cuda": no CUDA GPU is available (TT_CUDA_EMULATE=1 runs kernels on the CPU)')
    return cupy  # type: ignore[no-any-return]


def array_module(device: Device) -> Any:
    """NumPy or CuPy; RuntimeError with the remedy where there is no GPU."""
    if device.type == "cpu" or emulated():
        return np
    return _cupy()


def cuda_available() -> bool:
    """Whether ``device="cuda"`` would work here (a GPU through CuPy, or the emulator)."""
    if emulated():
        return True
    try:
        _cupy()
    except RuntimeError:
        return False
    return True


def canonical(device: str | Device | int | None) -> Device:
    """The device meant by a user's argument: none is the default, ``cuda`` the current one, ``cuda:0``."""
    if device is None:
        return defaults.now[1]
    found = Device(f"cuda:{device}" if isinstance(device, int) else device)
    return Device("cuda", 0) if found.type == "cuda" and found.index is None else found
