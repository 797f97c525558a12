"""``Op``: all that the system knows of one operator, as one row.

Stage: eager, read by every later one.  In: the arguments of a row.  Out: a callable ``Op`` in ``TABLE``.
No stage keeps a second list of operators.  Read next: ``pointwise``, ``reduce``, ``views`` (the rows), ``dispatch``.

An op takes its tensors by position and everything else by keyword: ``ops.sum(x, dim=(1,), keepdim=False)``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from tinytorch import dtypes
from tinytorch.dtypes import DType
from tinytorch.ops import rules

Shape = tuple[Any, ...]  # of int, or of symbolic ints that behave like int
Kind = Literal["pointwise", "reduce", "scan", "view", "index", "contract", "random", "create", "extern"]


class Meta(NamedTuple):
    """What is known of a tensor without its values; ``strides`` and ``offset`` in elements.

    As a result of ``infer``: ``strides=None`` means a new contiguous tensor; views give theirs, with the offset
    counted from the input's first element.
    """

    shape: Shape
    dtype: DType
    strides: Shape | None = None
    offset: Any = 0


#: How a pointwise row picks types. same: promote; float: promote, integers to the default float; bool: compute as
#: promoted, give bool; first: all tensors like the first.
TypeRule = Literal["same", "float", "bool", "first", "custom"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Op:
    """One operator.

    kind        which lowering and which default ``infer`` and ``kernel`` apply
    body        pointwise: ``body(s, *scalars, **params)`` over a scalar handler.  view: ``body(index, shape, **params)``
                maps an index of the output to one of the input.  reduce: the combine's name (``loop.ir.COMBINES``)
    infer       ``infer(*metas, **params)`` gives a Meta (or a tuple); works on symbolic ints; raises the user's errors
    kernel      ``kernel(xp, *arrays, **params)`` on NumPy or CuPy arrays; pointwise rows get theirs from ``body``
    ufunc       name of a NumPy ufunc equal to ``body`` on floats, the fast way for eager
    vjp         ``vjp(out, *args, **params)`` gives one function (or None) per positional argument from the cotangent
                of the output to that of the argument.  What these functions close over is what backward saves, so
                take shapes and types outside of them.  Broadcasting, casts and accumulation are the engine's work
    recompute   what the partitioner may do in backward: free (views), cheap (pointwise), save (never again)
    types       the pointwise type rule
    data_dependent  shapes depend on values: eager skips ``infer``, which raises for everybody else
    checks      may raise for what its operands hold: an index out of range, a matrix without an inverse
    samples     ``samples(make)`` yields (args, params) of good inputs; ``errors`` of inputs that must raise
    """

    name: str
    kind: Kind
    body: Any = None
    infer: Callable[..., Any] = field(default=None)  # type: ignore[assignment]
    kernel: Callable[..., Any] | None = None
    ufunc: str | None = None
    vjp: Callable[..., Sequence[Callable[[Any], Any] | None]] | None = None
    recompute: Literal["free", "cheap", "save"] = "cheap"
    types: TypeRule = "same"
    samples: Callable[..., Any] | None = None
    errors: Callable[..., Any] | None = None
    outputs: int = 1
    data_dependent: bool = False
    checks: bool = False
    doc: str = ""
    quick: Any = field(default=None, init=False)  # the NumPy ufunc itself, for ``eager.quick``

    def __post_init__(self) -> None:
        if self.infer is None and self.kind == "pointwise":
            object.__setattr__(self, "infer", lambda *metas, **params: pointwise_infer(self, metas, params))
        if self.kind == "pointwise" and self.ufunc is not None:
            object.__setattr__(self, "quick", getattr(np, self.ufunc))
        if self.name in TABLE:
            raise ValueError(f"operator {self.name!r} has a row already")
        TABLE[self.name] = self

    @cached_property
    def rule_reads_out(self) -> bool:
        """Whether the vjp rule looks at the output at all."""
        return rules.reads_out(self.vjp)

    @cached_property
    def kept(self) -> list[rules.Kept] | None:
        """Which arguments are kept for each choice of inputs that want a gradient; None: the rule must run to know."""
        return rules.kept_arguments(self.vjp)

    def __call__(self, *args: Any, **params: Any) -> Any:
        return CALL(self, args, params)

    def __repr__(self) -> str:
        return f"ops.{self.name}"

    def __reduce__(self) -> tuple[Any, ...]:
        return TABLE.__getitem__, (self.name,)

    @property
    def where(self) -> tuple[str, int]:
        """File and line of the row's body, for error messages and docs."""
        code = inspect.unwrap(self.body or self.infer).__code__
        return code.co_filename, code.co_firstlineno


TABLE: dict[str, Op] = {}


def CALL(op: Op, args: tuple[Any, ...], params: dict[str, Any]) -> Any:  # noqa: N802 - rebound by ``dispatch``
    raise RuntimeError("tinytorch.dispatch is not imported")


# --- shapes and types of pointwise rows -------------------------------------------------------------------------------
def broadcast_shapes(*shapes: Shape) -> Shape:
    """NumPy's and PyTorch's broadcasting, on ints or symbolic ints; RuntimeError naming the first dimension that fails."""
    rank = max((len(s) for s in shapes), default=0)
    out: list[Any] = [1] * rank
    for shape in shapes:
        for i, size in enumerate(shape, rank - len(shape)):
            if _is_one(out[i]):
                out[i] = size
            elif not _is_one(size) and size != out[i]:
                raise RuntimeError(
                    f"The size of tensor a ({out[i]}) must match the size of tensor b ({size}) "
                    f"at non-singleton dimension {i}"
                )
    return tuple(out)


def _is_one(size: Any) -> bool:
    """Symbolic sizes are never 1 (0 and 1 always specialise), so only a plain int can be."""
    return isinstance(size, int) and size == 1


def scalar_dtype(value: Any) -> DType:
    """The type a Python number brings when it decides: bool, int64, the default float, its complex."""
    if isinstance(value, bool):
        return dtypes.bool_
    if isinstance(value, complex):
        return dtypes.get_default_dtype().to_complex()
    if isinstance(value, float):
        return dtypes.get_default_dtype()
    return dtypes.int64


def result_type(operands: Sequence[Any]) -> DType:
    """Promote by PyTorch's rule: tensors with dimensions first, then 0-d tensors, then numbers; each later group
    counts only if its category (bool < integer < float < complex) is higher.  Operands are Metas or numbers."""
    found: list[DType | None] = [None, None, None]
    for x in operands:
        if isinstance(x, Meta):
            level, dtype = (0, x.dtype) if len(x.shape) else (1, x.dtype)
        else:
            level, dtype = 2, scalar_dtype(x)
        have = found[level]
        found[level] = dtype if have is None else dtypes.promote_types(have, dtype)
    result = _joined(found[0], _joined(found[1], found[2]))
    return result or dtypes.get_default_dtype()


def _joined(strong: DType | None, weak: DType | None) -> DType | None:
    """What two groups give: the strong one's type unless the weak one's category is higher."""
    if strong is None or weak is None:
        return strong or weak
    high, low = dtypes.category(strong), dtypes.category(weak)
    if high >= low:
        return strong
    if high == 2:  # floats meet complex numbers: their own precision, complex
        return strong.to_complex()
    return dtypes.promote_types(strong, weak)


def compute_types(op: Op, operands: Sequence[Any]) -> tuple[DType, DType]:
    """(type the operands are cast to, type of the result) of a pointwise row."""
    if op.types == "first":
        first = next(x.dtype for x in operands if isinstance(x, Meta))
        return first, first
    common = result_type(operands)
    if op.types == "float" and dtypes.category(common) < 2:
        common = dtypes.get_default_dtype()
    return common, dtypes.bool_ if op.types == "bool" else common


def pointwise_infer(op: Op, metas: Sequence[Any], params: dict[str, Any]) -> Meta:
    tensors = [m for m in metas if isinstance(m, Meta)]
    shape = broadcast_shapes(*[m.shape for m in tensors])
    return Meta(shape, compute_types(op, metas)[1], elementwise_strides(shape, tensors))


def elementwise_strides(shape: Shape, tensors: Sequence[Meta]) -> Shape | None:
    """How a pointwise result lies in memory: as its operands do, the first that decides winning; None is contiguous.

    PyTorch's rule: dimensions are sorted by stride (equal strides by size), broadcast ones (stride 0) have no say.
    """
    if all(_lies_contiguous(m) for m in tensors) or len(shape) < 2:
        return None
    if len(tensors) == 1 or all(m.strides == tensors[0].strides and m.shape == shape for m in tensors):
        if tensors[0].shape == shape and _dense(shape, tensors[0].strides or ()):
            return tensors[0].strides
    rows = [_broadcast_strides(shape, m) for m in tensors]
    order = list(range(len(shape) - 1, -1, -1))  # from the fastest dimension to the slowest
    for i in range(1, len(order)):
        at = i
        for j in range(i - 1, -1, -1):
            verdict = _slower(shape, rows, order[j], order[at])
            if verdict > 0:
                order[j], order[at] = order[at], order[j]
                at = j
            elif verdict < 0:
                break
    if order == list(range(len(shape) - 1, -1, -1)):
        return None
    strides: list[Any] = [0] * len(shape)
    step: Any = 1
    for d in order:
        strides[d] = step
        step = step * shape[d]
    return tuple(strides)


def _slower(shape: Shape, rows: Sequence[Shape], a: int, b: int) -> int:
    """1 if dimension ``a`` should be slower than ``b``, -1 if faster, 0 if no operand says."""
    for strides in rows:
        if _is_zero(strides[a]) or _is_zero(strides[b]):
            continue
        if strides[a] != strides[b]:
            return -1 if strides[a] < strides[b] else 1
        if shape[a] > shape[b]:
            return 1
    return 0


def _broadcast_strides(shape: Shape, m: Meta) -> Shape:
    extra = len(shape) - len(m.shape)
    strides = m.strides or ()
    return (0,) * extra + tuple(
        0 if _is_one(n) and not _is_one(shape[d + extra]) else s for d, (n, s) in enumerate(zip(m.shape, strides, strict=True))
    )


def _lies_contiguous(m: Meta) -> bool:
    if m.strides is None:
        return True
    step: Any = 1
    for n, s in zip(reversed(m.shape), reversed(m.strides), strict=True):
        if not _is_one(n):
            if s != step:
                return any(_is_zero(k) for k in m.shape)
            step = step * n
    return True


def _dense(shape: Shape, strides: Shape) -> bool:
    """No holes and no overlap: some order of the dimensions is contiguous."""
    step: Any = 1
    for s, n in sorted(((s, n) for s, n in zip(strides, shape, strict=True) if not _is_one(n)), key=lambda p: p[0]):
        if s != step:
            return False
        step = step * n
    return True


def _is_zero(size: Any) -> bool:
    return isinstance(size, int) and size == 0
