"""``save`` and ``load`` without pickle: nothing in a file can run.

Stage: eager.  In: tensors, numbers, strings and None inside dicts, lists and tuples.  Out: a ``.safetensors`` file (by the
``safetensors`` package) or, for any other name, NumPy's ``.npz``.  The structure goes as JSON beside the arrays; a flat dict
of tensors is stored under its own keys, so that other programs read it too.  Mirrors ``torch.save`` and ``torch.load``.
"""

from __future__ import annotations

import io
import json
import os
import tempfile
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np

from tinytorch import dtypes
from tinytorch.device import canonical, cpu
from tinytorch.dtypes import DType
from tinytorch.nn.module import Module
from tinytorch.nn.parameter import Parameter
from tinytorch.tensor import Size, Tensor

_STRUCTURE = "__structure__"
Target = str | os.PathLike[str] | IO[bytes]


# --- out --------------------------------------------------------------------------------------------------------------
def save(obj: Any, f: Target) -> None:
    """Write ``obj`` to a path or a binary file.

    TypeError for what is neither tensor, number, string, None nor a dict, list or tuple of these; a Module is saved by its
    ``state_dict()``.  Tensors that share memory are written one by one.
    """
    tensors: dict[str, Tensor] = {}
    structure = json.dumps(_describe(obj, "", tensors))
    name = f if isinstance(f, str | os.PathLike) else getattr(f, "name", "")
    safe = str(name).endswith(".safetensors")
    payload = (_safetensors_bytes if safe else _npz_bytes)(structure, tensors)
    if not isinstance(f, str | os.PathLike):
        f.write(payload)
        return
    path = Path(f)
    with tempfile.NamedTemporaryFile(dir=path.parent or ".", prefix=path.name, delete=False) as out:
        out.write(payload)
    os.chmod(out.name, 0o666 & ~_umask())
    os.replace(out.name, path)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _describe(obj: Any, key: str, tensors: dict[str, Tensor]) -> Any:
    """``obj`` as JSON, its tensors put into ``tensors`` under the path that leads to them."""
    if obj is None or isinstance(obj, bool | int | str):
        return obj
    if isinstance(obj, float):
        return {"float": obj.hex()}
    if isinstance(obj, Tensor):
        name = key or "tensor"
        while name in tensors:
            name += "_"
        tensors[name] = obj
        kind = "parameter" if isinstance(obj, Parameter) else "tensor"
        where = {} if obj.device is cpu else {"device": str(obj.device)}
        return {kind: name, "dtype": obj.dtype.name, "requires_grad": obj.requires_grad, **where}
    if isinstance(obj, DType):
        return {"dtype": obj.name}
    if isinstance(obj, dict):
        pairs = [[_key(k), _describe(v, f"{key}.{k}" if key else str(k), tensors)] for k, v in obj.items()]
        return {"ordered" if isinstance(obj, OrderedDict) else "dict": pairs}
    if isinstance(obj, list | tuple):
        members = [_describe(v, f"{key}.{i}" if key else str(i), tensors) for i, v in enumerate(obj)]
        return {"size": members} if isinstance(obj, Size) else {"list" if isinstance(obj, list) else "tuple": members}
    hint = ": save its state_dict()" if isinstance(obj, Module) or hasattr(obj, "state_dict") else ""
    raise TypeError(f"save: cannot write a {type(obj).__name__} at {key or 'the top'}{hint}; files hold data, not code")


def _key(key: Any) -> Any:
    if not isinstance(key, str | int) or isinstance(key, bool):
        raise TypeError(f"save: dict keys are strings or ints, got {key!r}")
    return key


def _array(t: Tensor) -> Any:
    """The values as a contiguous NumPy array."""
    data = t.detach().to(device="cpu")._data
    return np.ascontiguousarray(data).reshape(tuple(t.shape))


def _npz_bytes(structure: str, tensors: dict[str, Tensor]) -> bytes:
    """bfloat16, which ``.npz`` has no name for, goes as its bits."""
    out = io.BytesIO()
    arrays: dict[str, Any] = {k: _array(t).view(np.uint16) if t.dtype is dtypes.bfloat16 else _array(t) for k, t in tensors.items()}
    arrays[_STRUCTURE] = np.frombuffer(structure.encode(), np.uint8)
    np.savez(out, **arrays)
    return out.getvalue()


def _safetensors_bytes(structure: str, tensors: dict[str, Tensor]) -> bytes:
    import safetensors.numpy

    arrays = {name: _array(t) for name, t in tensors.items()}
    return safetensors.numpy.save(arrays, {"tinytorch": structure})  # type: ignore[no-any-return]


# --- in ---------------------------------------------------------------------------------------------------------------
def load(f: Target, map_location: Any = None, *, weights_only: bool = True, mmap: bool | None = None) -> Any:
    """What ``save`` wrote, or any ``.safetensors`` or ``.npz`` file of arrays as a dict.

    ``map_location``: a device for all, a dict from device names to devices, or a function of a tensor on the CPU and the
    name of its device; without it tensors come back to the devices they were saved from.  ValueError for files of other
    kinds; files that ``torch.save`` wrote hold a pickle, which is never opened.
    """
    data = Path(f).read_bytes() if isinstance(f, str | os.PathLike) else f.read()
    place = _placer(map_location)
    if data[:2] == b"PK":
        structure, arrays = _read_npz(data)
    elif len(data) > 8 and data[8:9] == b"{":
        structure, arrays = _read_safetensors(data)
    else:
        raise ValueError("load: this is neither an .npz nor a .safetensors file")
    if structure is None:
        return {name: place(_tensor(a, dtypes.from_numpy(a.dtype)), "cpu") for name, a in arrays.items()}
    return _rebuild(json.loads(structure), arrays, place)


def _read_npz(data: bytes) -> tuple[str | None, dict[str, Any]]:
    with zipfile.ZipFile(io.BytesIO(data)) as z:
        if any(name.endswith("data.pkl") for name in z.namelist()):
            raise ValueError("load: this file holds a pickle (torch.save wrote it); convert it to .safetensors first")
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        found = {name: arrays[name] for name in arrays.files}
    structure = found.pop(_STRUCTURE, None)
    return (None if structure is None else structure.tobytes().decode()), found


_SAFE_NAMES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool", "C64": "complex64",
}  # fmt: skip


def _read_safetensors(data: bytes) -> tuple[str | None, dict[str, Any]]:
    import safetensors

    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    arrays = {}
    for name, part in safetensors.deserialize(data):
        if part["dtype"] not in _SAFE_NAMES:
            raise ValueError(f"load: tensor {name!r} has type {part['dtype']}, which is not supported")
        dtype = dtypes.BY_NAME[_SAFE_NAMES[part["dtype"]]]
        arrays[name] = np.frombuffer(bytearray(part["data"]), dtype.np).reshape(part["shape"])
    return header.get("__metadata__", {}).get("tinytorch"), arrays


def _tensor(array: Any, dtype: DType) -> Tensor:
    if dtype is dtypes.bfloat16 and array.dtype == np.uint16:
        array = array.view(dtype.np)
    return Tensor._wrap(np.array(array), cpu)


Placer = Callable[[Tensor, str], Tensor]


def _placer(map_location: Any) -> Placer:
    """(tensor on the CPU, name of the device it was saved from) -> the tensor where it is wanted."""
    if callable(map_location):
        return lambda t, saved_from: _either(map_location(t, saved_from), t, saved_from)
    if map_location is None or isinstance(map_location, dict):
        moved = map_location or {}
        return lambda t, saved_from: t.to(device=canonical(moved.get(saved_from, saved_from)))
    where = canonical(map_location)
    return lambda t, saved_from: t.to(device=where)


def _either(placed: Tensor | None, t: Tensor, saved_from: str) -> Tensor:
    """What a function made of ``t``; None means that it leaves the choice to ``load``."""
    return t.to(device=canonical(saved_from)) if placed is None else placed


def _rebuild(node: Any, arrays: dict[str, Any], place: Placer) -> Any:
    if not isinstance(node, dict):
        return node
    kind, content = next(iter(node.items()))
    if kind in ("tensor", "parameter"):
        t = place(_tensor(arrays[content], dtypes.BY_NAME[node["dtype"]]), node.get("device", "cpu"))
        return Parameter(t, node["requires_grad"]) if kind == "parameter" else t.requires_grad_(node["requires_grad"])
    if kind == "float":
        return float.fromhex(content)
    if kind == "dtype":
        return dtypes.BY_NAME[content]
    if kind in ("dict", "ordered"):
        pairs = [(k, _rebuild(v, arrays, place)) for k, v in content]
        return OrderedDict(pairs) if kind == "ordered" else dict(pairs)
    members = [_rebuild(v, arrays, place) for v in content]
    return {"list": list, "tuple": tuple, "size": Size}[kind](members)
