"""Fake tensors: everything about a tensor but its values.

Stage: all of the compiler.  In: real tensors, or shapes.  Out: tensors whose ``_data`` is a ``FakeArray``; under
``dispatch.use(FakeInterp())`` every operation runs its row's ``infer`` and nothing else, and the ordinary tape works.
Mirrors ``torch._subclasses.FakeTensor``.  Read next: ``compiler.aot``, which traces on these.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from compiler.errors import Unsupported
from compiler.ir.graph import Graph, map_nodes
from compiler.sym.env import ShapeEnv
from tinytorch import dispatch
from tinytorch.defaults import defaults
from tinytorch.device import Device, canonical
from tinytorch.dtypes import DType
from tinytorch.ops.opdef import Meta, Op
from tinytorch.tensor import Tensor

_ids = itertools.count()
_FIXED = frozenset((int,))
_NUMBERS = (int, float, bool, complex)


class FakeStorage:
    """The identity of memory: fakes that share it alias."""

    __slots__ = ("address", "id")

    def __init__(self, address: int | None = None) -> None:
        self.id = next(_ids)
        self.address = address  # of the real memory's first seen byte, to place aliases against each other

    def __repr__(self) -> str:
        return f"storage {self.id}"


class FakeArray:
    """An ndarray without elements.  ``strides`` and ``offset`` in bytes; sizes may be ``SymInt``s."""

    __slots__ = ("dtype", "meta", "offset", "shape", "storage", "strides")
    is_fake = True

    def __init__(
        self,
        shape: Sequence[Any],
        dtype: np.dtype[Any],
        strides: Sequence[Any] | None = None,
        storage: FakeStorage | None = None,
        offset: Any = 0,
    ) -> None:
        self.shape = tuple(shape)
        self.dtype = dtype if isinstance(dtype, np.dtype) else np.dtype(dtype)
        self.meta: Meta | None = None  # as rows see it, once one has
        self.strides = contiguous_strides(self.shape, self.dtype.itemsize) if strides is None else tuple(strides)
        self.storage = FakeStorage() if storage is None else storage
        self.offset = offset

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> Any:
        n: Any = 1
        for s in self.shape:
            n = n * s
        return n

    @property
    def nbytes(self) -> Any:
        return self.size * self.itemsize

    def __repr__(self) -> str:
        return f"FakeArray({self.dtype.name}[{', '.join(map(str, self.shape))}], strides={self.strides}, {self.storage})"

    def _no_values(self, *args: Any, **kwargs: Any) -> Any:
        raise Unsupported(
            "data-dependent-value",
            "the value of a tensor is needed while compiling, and a fake tensor has none",
            "keep the decision on tensors (torch.where), or let the graph break here",
        )

    __array__ = __bool__ = __int__ = __float__ = __index__ = __getitem__ = item = tolist = astype = _no_values


def contiguous_strides(shape: Sequence[Any], itemsize: int) -> tuple[Any, ...]:
    out: list[Any] = []
    step: Any = itemsize
    for size in reversed(shape):
        out.append(step)
        step = step * size
    return tuple(reversed(out))


def is_fake(t: Any) -> bool:
    return isinstance(t, Tensor) and getattr(t._data, "is_fake", False)


def fake_tensor(
    shape: Sequence[Any], dtype: DType, device: str | Device | None = None, *, strides: Sequence[Any] | None = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """A fresh fake; ``strides`` in elements."""
    item = dtype.np.itemsize
    in_bytes = None if strides is None else [s * item for s in strides]
    t = Tensor._wrap(FakeArray(shape, dtype.np, in_bytes), canonical(device))
    t._requires_grad = requires_grad
    return t


def fake_like(
    tensor: Tensor,
    shape_env: ShapeEnv | None = None,
    *,
    source: Any = None,
    dynamic: Sequence[int] | Mapping[int, tuple[int, int | float]] = (),
    storages: MutableMapping[int, FakeStorage] | None = None,
) -> Tensor:
    """A fake of a tensor's shape, strides, dtype, device and ``requires_grad``, a leaf of its own.

    ``dynamic`` lists the dimensions to make symbolic in ``shape_env``, or maps them to their (min, max).
    ``storages``, shared between calls, makes fakes of tensors that share memory share a ``FakeStorage``.
    """
    data = tensor._data
    shape = list(data.shape)
    for d in dynamic:
        if shape_env is None:
            raise ValueError("dynamic dimensions need a shape_env")
        low, high = dynamic[d] if isinstance(dynamic, Mapping) else (2, math.inf)
        where = None if source is None else (source, d % len(shape))
        shape[d] = shape_env.create_symbol(data.shape[d], where, min=low, max=high)
    strides = symbolic_strides(data.shape, data.strides, shape, data.dtype.itemsize)
    storage, offset = _storage_of(tensor, storages)
    t = Tensor._wrap(FakeArray(shape, data.dtype, strides, storage, offset), tensor.device)
    t._requires_grad = tensor.requires_grad
    return t


def symbolic_strides(sizes: Sequence[int], strides: Sequence[int], shape: Sequence[Any], itemsize: int) -> list[Any]:
    """Strides that follow from the symbolic ``shape`` as the real ones follow from ``sizes``: products from the inside
    out, in order of stride.  A stride that no product explains stays the number it is."""
    out: list[Any] = list(strides)
    if all(isinstance(s, int) for s in shape):
        return out
    known: dict[int, Any] = {itemsize: itemsize}
    for d in sorted(range(len(sizes)), key=lambda d: (abs(strides[d]), sizes[d])):
        out[d] = known.get(strides[d], strides[d])
        known.setdefault(strides[d] * sizes[d], out[d] * shape[d])
    return out


def _storage_of(tensor: Tensor, storages: MutableMapping[int, FakeStorage] | None) -> tuple[FakeStorage, int]:
    data = tensor._data
    if isinstance(data, FakeArray):
        return data.storage, data.offset
    if storages is None or tensor._storage is None:
        return FakeStorage(), 0
    address = data.__array_interface__["data"][0] if isinstance(data, np.ndarray) else int(data.data.ptr)
    storage = storages.setdefault(id(tensor._storage), FakeStorage(address))
    return storage, address - (storage.address or 0)


class FakeInterp:
    """A ``dispatch`` interpreter that only infers.  Real tensors may join in; their values are never read."""

    def __init__(self) -> None:
        self.inferred: dict[Any, Any] = {}  # of pointwise rows: layers repeat

    def run(self, op: Op, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
        device = dispatch.common_device(op, args, params)
        metas = [_meta_of(a) for a in args]
        found = op.infer(*metas, **params) if params or op.kind != "pointwise" else self._pointwise(op, metas)
        if op.kind == "view":
            return self._view(op, args[0], found, params)
        if isinstance(found, Meta):
            return self._fresh(found, device)
        return tuple(self._fresh(m, device) for m in found)

    def _pointwise(self, op: Op, metas: list[Any]) -> Any:
        """The result of a row, as before for the same operands.  With symbols nothing is kept: to compare them is to guard."""
        key: list[Any] = [op, defaults.now]
        for m in metas:
            if type(m) is Meta and _FIXED.issuperset(map(type, m.shape)) and _FIXED.issuperset(map(type, m.strides or ())):
                key.append(m)
            elif type(m) in _NUMBERS:
                key += (type(m), m)  # True is 1, and is 1.0
            else:
                return op.infer(*metas)
        known = tuple(key)
        found = self.inferred.get(known)
        if found is None:
            found = self.inferred[known] = op.infer(*metas)
        return found

    def _fresh(self, meta: Meta, device: Device) -> Tensor:
        np_dtype = meta.dtype.np
        strides = None if meta.strides is None else [s * np_dtype.itemsize for s in meta.strides]
        return Tensor._wrap(FakeArray(meta.shape, np_dtype, strides), device)

    def _view(self, op: Op, x: Tensor, meta: Meta, params: dict[str, Any]) -> Tensor:
        np_dtype = meta.dtype.np
        item = np_dtype.itemsize
        storage, offset = (x._data.storage, x._data.offset) if isinstance(x._data, FakeArray) else (FakeStorage(), 0)
        assert meta.strides is not None, op
        data = FakeArray(meta.shape, np_dtype, [s * item for s in meta.strides], storage, offset + meta.offset * item)
        return Tensor._view(x, data, op, params)

    def write(self, dst: Tensor, src: Tensor) -> None:
        """Values change, nothing that a fake knows."""

    def draw(self, generator: Any, numel: Any, device: Device) -> tuple[Tensor, Any]:
        return Tensor._wrap(FakeArray((2,), np.dtype(np.int64)), device), 0


def _meta_of(a: Any) -> Any:
    """``dispatch.meta_of``, made once for each fake."""
    data = a._data if isinstance(a, Tensor) else None
    if type(data) is not FakeArray:
        return dispatch.meta_of(a)
    if data.meta is None:
        data.meta = dispatch.meta_of(a)
    return data.meta


def infer_node(op: Op, args: tuple[Any, ...], params: Mapping[str, Any]) -> Any:
    """The fake value of one call on fakes, without recording it on the tape."""
    return FakeInterp().run(op, args, dict(params))


def propagate(graph: Graph, *, again: bool = False) -> None:
    """Give every row call its ``meta["val"]`` from those of its inputs; with ``again`` also where there is one."""
    for node in graph.nodes:
        if node.op != "call_function" or ("val" in node.meta and not again):
            continue
        if any("val" not in n.meta for n in node.all_input_nodes):
            continue
        args, kwargs = map_nodes((node.args, node.kwargs), lambda n: n.meta["val"])
        node.meta["val"] = infer_node(node.target, args, kwargs) if isinstance(node.target, Op) else args[0][args[1]]
