"""``Tensor``: an array, a device, and a place on the tape.

Stage: eager.  In: NumPy, CuPy or fake arrays.  Out: tensors whose every operation goes through ``dispatch.call``.
This file holds what a tensor *is* (memory, views, versions, history); what it can *do* is attached by ``methods``.
Read next: ``tape``, ``methods``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, cast

from tinytorch import dtypes, engine, tape
from tinytorch.device import Device
from tinytorch.dtypes import DType
from tinytorch.hooks import HookList, RemovableHandle
from tinytorch.ops.opdef import TABLE, Op

Chain: TypeAlias = tuple[tuple[Op, dict[str, Any]], ...]

_new = object.__new__


class Storage:
    """The memory that a tensor and its views share: its identity, and how often it was written."""

    version = 0
    loans: list[Any] | None = None  # who keeps arrays of it that a writer has to copy first (``tinytorch.loans``)
    read_only = False  # an array that its owner does not let be written to; then ``loans`` is never None


def address(data: Any) -> int:
    """Where the first element of a NumPy or CuPy array lies."""
    return int(data.ctypes.data if hasattr(data, "ctypes") else data.data.ptr)


class Size(tuple):  # type: ignore[type-arg]
    """``torch.Size``: a tuple of ints that prints its name and counts elements."""

    __slots__ = ()

    def numel(self) -> Any:
        n: Any = 1
        for s in self:
            n = n * s
        return n

    def __repr__(self) -> str:
        return f"tinytorch.Size({list(self)})"

    def __getitem__(self, i: Any) -> Any:
        got = super().__getitem__(i)
        return Size(got) if isinstance(i, slice) else got

    def __add__(self, other: Any) -> Size:
        return Size(super().__add__(tuple(other)))


class Tensor:
    """A multi-dimensional array with a gradient.  Mirrors ``torch.Tensor``.

    ``_data`` is a NumPy or CuPy array, or a fake one; views share its memory.  A view knows its ``_base`` and the
    ``_chain`` of view calls that leads there, so that a write through it can reach the base's history.
    """

    # Defaults on the class keep making a tensor cheap: most tensors never own most of these.
    _data: Any
    device: Device
    grad: Tensor | None = None
    _requires_grad: bool = False
    _node: Any = None
    _number: int = 0
    _storage: Storage | None = None
    _base: Tensor | None = None
    _chain: Chain = ()
    _back: Chain = ()  # of a base that was turned in place (``t_``): from how it lies now to what its views' chains begin at
    _view_version: int = 0
    _hooks: dict[int, Any] | None = None
    _post_hooks: Any = None
    _retains_grad: bool = False
    _inference: bool = False
    name: str | None = None
    _is_one: bool = False  # a cotangent that the engine made and nobody else has seen

    if TYPE_CHECKING:  # what ``methods`` attaches

        data: Any

        def __getattr__(self, name: str) -> Any: ...

        __add__ = __sub__ = __mul__ = __truediv__ = __floordiv__ = __mod__ = __pow__ = __matmul__ = cast(Any, None)
        __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rfloordiv__ = __rmod__ = __rpow__ = cast(Any, None)
        __iadd__ = __isub__ = __imul__ = __itruediv__ = __ifloordiv__ = __imod__ = __ipow__ = cast(Any, None)
        __and__ = __or__ = __xor__ = __lshift__ = __rshift__ = __rmatmul__ = cast(Any, None)
        __iand__ = __ior__ = __ixor__ = __lt__ = __le__ = __gt__ = __ge__ = cast(Any, None)
        __neg__ = __pos__ = __abs__ = __invert__ = __getitem__ = __setitem__ = __len__ = __iter__ = cast(Any, None)
        __bool__ = __int__ = __float__ = __index__ = __contains__ = cast(Any, None)

    @staticmethod
    def _wrap(data: Any, device: Device) -> Tensor:
        t = object.__new__(Tensor)
        t._data = data
        t.device = device
        return t

    @staticmethod
    def _view(of: Tensor, data: Any, op: Op, params: dict[str, Any]) -> Tensor:
        """A tensor over part of the memory of ``of``."""
        t = object.__new__(Tensor)
        t._data = data
        t.device = of.device
        if of._storage is None:
            of._storage = Storage()
        t._storage = of._storage
        if of._inference:
            t._inference = True
        t._base = of if of._base is None else of._base
        t._chain = (*of._chain, (op, params))
        t._view_version = t._storage.version
        return t

    # --- memory --------------------------------------------------------------------------------------------------
    @property
    def shape(self) -> Size:
        return Size(self._data.shape)

    @property
    def dtype(self) -> DType:
        return dtypes.from_numpy(self._data.dtype)

    @property
    def ndim(self) -> int:
        return len(self._data.shape)

    def stride(self, dim: int | None = None) -> Any:
        """Strides in elements."""
        data = self._data
        item = data.dtype.itemsize
        strides = tuple(s // item for s in data.strides)
        return strides if dim is None else strides[dim]

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self._data.shape[dim]

    def is_contiguous(self, memory_format: Any = None) -> bool:
        """Whether rows lie one after another in memory."""
        shape, strides = self._data.shape, self._data.strides
        step: Any = self._data.dtype.itemsize
        for size, stride in zip(reversed(shape), reversed(strides), strict=True):
            if not (type(size) is int and size == 1):
                if type(size) is int and size == 0:
                    return True
                if stride != step:
                    return any(type(s) is int and s == 0 for s in shape)
                step = step * size
        return True

    def storage_offset(self) -> Any:
        """Elements before the first one, in the memory that the base owns."""
        if self._base is None or hasattr(self._data, "is_fake"):
            return 0
        return (address(self._data) - address(self._base._data)) // self._data.itemsize

    def numel(self) -> Any:
        return self.shape.numel()

    def dim(self) -> int:
        return len(self._data.shape)

    @property
    def _version(self) -> int:
        return 0 if self._storage is None else self._storage.version

    def _bump_version(self) -> None:
        if self._storage is None:
            self._storage = Storage()
        self._storage.version += 1

    def _alias(self) -> Tensor:
        """The same memory and version, with no history: what a vjp rule may keep of an output without a cycle."""
        t = self.detach()
        t._requires_grad = self._requires_grad
        return t

    def detach(self) -> Tensor:
        """The same memory and version counter without the history."""
        storage = self._storage
        if storage is None:
            storage = self._storage = Storage()
        t: Tensor = _new(Tensor)
        t._data, t.device, t._storage = self._data, self.device, storage
        if self._inference:
            t._inference = True
        return t

    # --- history -------------------------------------------------------------------------------------------------
    @property
    def requires_grad(self) -> bool:
        if self._base is not None:
            self._sync_view()
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.requires_grad_(value)

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        if requires_grad and not self._is_differentiable():
            raise RuntimeError("only Tensors of floating point dtype can require gradients")
        if requires_grad and self._inference and not tape.mode.inference:
            raise RuntimeError(
                "Setting requires_grad=True on inference tensor outside InferenceMode is not allowed."
            )
        if not requires_grad and self._node is not None:
            raise RuntimeError(
                "you can only change requires_grad flags of leaf variables. If you want to use a computed variable in a "
                "subgraph that doesn't require differentiation use var_no_grad = var.detach()."
            )
        self._requires_grad = bool(requires_grad)
        return self

    @property
    def grad_fn(self) -> Any:
        return self._made_by()[0]

    @property
    def is_leaf(self) -> bool:
        return self._made_by()[0] is None

    def _is_differentiable(self) -> bool:
        return self._data.dtype.kind in "fc" or self._data.dtype.name == "bfloat16"

    def _is_leaf_or_view_of_leaf(self) -> bool:
        base = self._base
        if self._node is None and self._requires_grad:
            return True
        return base is not None and base._node is None and base._requires_grad

    def _made_by(self) -> tuple[Any, int]:
        if self._base is not None:
            self._sync_view()
        return self._node, self._number

    def _edge(self) -> Any:
        """Where a cotangent of this tensor goes: (node, output number), or the tensor itself if a leaf."""
        node, number = self._made_by()
        return self if node is None else (node, number)

    def _set_history(self, node: Any, number: int) -> None:
        if self._retains_grad and self._node is not None:
            self._node.watch(self._number).keep_for(None)
        self._node, self._number, self._requires_grad = node, number, True
        if self._base is not None:
            self._view_version = self._version
        if self._hooks is not None:  # of the value before: they stay with the node that made it
            self._hooks = None
        if self._retains_grad and node is not None:
            node.watch(number).keep_for(self)

    def _forget_history(self) -> None:
        self._node, self._number, self._requires_grad = None, 0, False

    def _alias_with_history(self) -> Tensor:
        t = self._alias()
        t._node, t._number = self._node, self._number
        return t

    def _sync_view(self) -> None:
        """A view whose base was written since takes its history from the base again, as the same view of it."""
        base = self._base
        assert base is not None
        version = self._version
        if self._view_version == version:
            return
        self._view_version = version
        if not base._requires_grad or base._node is None:
            return
        from tinytorch import dispatch

        with dispatch.use(None) if not hasattr(self._data, "is_fake") else dispatch.keep():
            t: Any = base._alias_with_history()
            with tape.grad_mode(True):
                for op, params in (*base._back, *self._chain):
                    t = op(t, **params)
        self._node, self._number = t._node, t._number
        self._requires_grad = t._requires_grad

    # --- autograd ------------------------------------------------------------------------------------------------
    def backward(
        self,
        gradient: Tensor | None = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        """Accumulate gradients into the leaves.  Mirrors ``torch.Tensor.backward``."""
        if inputs is not None and isinstance(inputs, Tensor):
            inputs = [inputs]
        keep = create_graph if retain_graph is None else retain_graph
        engine.backward([self], [gradient], retain_graph=keep, create_graph=create_graph, inputs=inputs)

    def register_hook(self, hook: Any) -> Any:
        """Call ``hook(grad)`` when the gradient of this tensor is known; what it returns replaces the gradient."""
        if not self.requires_grad:
            raise RuntimeError("cannot register a hook on a tensor that doesn't require gradient")
        node, number = self._made_by()
        if self._hooks is None:
            self._hooks = {} if node is None else node.watch(number).hooks
        handle = RemovableHandle(self._hooks)
        self._hooks[handle.id] = hook
        return handle

    def register_post_accumulate_grad_hook(self, hook: Any) -> Any:
        """Call ``hook(tensor)`` after the gradient of this leaf was accumulated."""
        if not self.is_leaf:
            raise RuntimeError("post accumulate grad hooks cannot be registered on non-leaf tensors")
        self._post_hooks = self._post_hooks or HookList()
        return self._post_hooks.add(hook)

    def retain_grad(self) -> None:
        """Let ``grad`` be kept also though this tensor is no leaf."""
        if not self.requires_grad:
            raise RuntimeError("can't retain_grad on Tensor that has requires_grad=False")
        node, number = self._made_by()
        if node is not None:
            self._retains_grad = True
            node.watch(number).keep_for(self)

    @property
    def retains_grad(self) -> bool:
        return self._retains_grad

    # --- in-place ------------------------------------------------------------------------------------------------
    def _take_result(self, out: Tensor) -> Tensor:
        """``self[...] = out``, the way every ``name_`` method works: shapes must agree, types must not widen."""
        if out._data.shape != self._data.shape:
            raise RuntimeError(
                f"output with shape {list(self.shape)} doesn't match the broadcast shape {list(out.shape)}"
            )
        if out.dtype is not self.dtype and dtypes.category(out.dtype) > dtypes.category(self.dtype):
            raise RuntimeError(
                f"result type {out.dtype.title} can't be cast to the desired output type {self.dtype.title}"
            )
        return self._assign(out)

    def _write_result(self, result: Tensor) -> Tensor:
        """What ``out=`` does with a result: shapes must agree (empty tensors take the new shape), types may widen."""
        if tuple(self.shape) != tuple(result.shape):
            if self.numel():
                raise RuntimeError(
                    f"out= of shape {list(self.shape)} does not match the result's shape {list(result.shape)}; "
                    "only an empty out= is resized"
                )
            self._data = TABLE["empty"](shape=tuple(result.shape), dtype=self.dtype, device=self.device)._data
        if result.requires_grad or self.requires_grad:
            if tape.mode.grad:
                raise RuntimeError(
                    "functions with out=... arguments don't support automatic differentiation, but one of the "
                    "arguments requires grad."
                )
        if dtypes.category(result.dtype) > dtypes.category(self.dtype):
            raise RuntimeError(
                f"result type {result.dtype.title} can't be cast to the desired output type {self.dtype.title}"
            )
        return self._assign(result)

    def _assign(self, value: Tensor) -> Tensor:
        from tinytorch import dispatch

        if value.dtype is not self.dtype:
            value = TABLE["cast"](value, dtype=self.dtype)
        dispatch.write(self, value)
        return self


tape._TENSOR = Tensor
