"""``Op``: all that the system knows of one operator, as one row.

Stage: eager, read by every later one.  In: the arguments of a row.  Out: a callable ``Op`` in ``TABLE``.
No stage keeps a second list of operators.  Read next: ``pointwise``, ``reduce``, ``views`` (the rows), ``dispatch``.

An op takes its tensors by position and everything else by keyword: ``ops.sum(x, dim=(1,), keepdim=False)``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from tinytorch import dtypes
from tinytorch.dtypes import DType

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
    ufunc       name of a NumPy ufunc equal to ``body``, the fast way for eager
    vjp         ``vjp(out, *args, **params)`` gives one function (or None) per positional argument from the cotangent
                of the output to that of the argument.  What these functions close over is what backward saves, so
                take shapes and types outside of them.  Broadcasting, casts and accumulation are the engine's work
    recompute   what the partitioner may do in backward: free (views), cheap (pointwise), save (never again)
    types       the pointwise type rule
    data_dependent  shapes depend on values: eager skips ``infer``, which raises for everybody else
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
    doc: str = ""

    def __post_init__(self) -> None:
        if self.infer is None and self.kind == "pointwise":
            object.__setattr__(self, "infer", lambda *metas, **params: pointwise_infer(self, metas, params))
        if self.name in TABLE:
            raise ValueError(f"operator {self.name!r} has a row already")
        TABLE[self.name] = self

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
        elif x is None:  # an absent bound
            continue
        else:
            level, dtype = 2, scalar_dtype(x)
        have = found[level]
        found[level] = dtype if have is None else dtypes.promote_types(have, dtype)
    result: DType | None = None
    for level, dtype in enumerate(found):
        if dtype is None:
            continue
        if result is None or dtypes.category(dtype) > dtypes.category(result):
            # a weak float meeting an integer tensor brings the default float, as in PyTorch
            if level == 2 and result is not None and dtype.kind == "c" and result.is_floating_point:
                dtype = result.to_complex()
            result = dtype
    return result or dtypes.get_default_dtype()


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
    shape = broadcast_shapes(*[m.shape for m in metas if isinstance(m, Meta)])
    return Meta(shape, compute_types(op, metas)[1])
