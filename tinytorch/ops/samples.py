"""Good, edge and error inputs of every row, from which tests and docs are made.

Stage: tests and docs; importing this file hangs ``samples`` and ``errors`` on the rows.  In: ``make(*shape)``, which
gives a tensor of the type under test with ordinary values, and its ``index``, ``bool``, ``positive``, ``unit`` kin.
Out: (args, params) pairs.  Values stay away from kinks, so that finite differences may be taken at them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tinytorch import dtypes
from tinytorch.ops.opdef import TABLE

Sample = tuple[tuple[Any, ...], dict[str, Any]]
Samples = Callable[[Any], Iterator[Sample]]


def samples_of(*names: str) -> Callable[[Samples], Samples]:
    """Hang a generator of good inputs on rows."""

    def hang(fn: Samples) -> Samples:
        for name in names:
            object.__setattr__(TABLE[name], "samples", fn)
        return fn

    return hang


def errors_of(*names: str) -> Callable[[Samples], Samples]:
    """Hang a generator of inputs that must raise on rows."""

    def hang(fn: Samples) -> Samples:
        for name in names:
            object.__setattr__(TABLE[name], "errors", fn)
        return fn

    return hang


# --- pointwise --------------------------------------------------------------------------------------------------------
@samples_of(
    "neg", "abs", "sign", "square", "exp", "exp2", "expm1", "sin", "cos", "atan", "sinh", "cosh", "tanh", "asinh", "erf",
    "sigmoid", "relu", "floor", "ceil", "trunc", "round", "isnan", "logical_not", "clone", "contiguous", "conj", "gelu_tanh",
)  # fmt: skip
def unary(make: Any) -> Iterator[Sample]:
    yield (make(2, 3),), {}
    yield (make(),), {}
    yield (make(0, 2),), {}
    yield (make(3, 2).t(),), {}
    yield (make(4, 4)[::2, 1:],), {}
    yield (make(3, 1).expand(3, 2),), {}


@samples_of("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "sqrt_or_zero")
def unary_positive(make: Any) -> Iterator[Sample]:
    yield (make.positive(2, 3),), {}
    yield (make.positive(3, 2).t(),), {}
    yield (make.positive(),), {}


@samples_of("asin", "acos", "atanh", "tan")
def unary_unit(make: Any) -> Iterator[Sample]:
    yield (make.unit(2, 3),), {}
    yield (make.unit(3, 2).t(),), {}


@samples_of("acosh")
def unary_above_one(make: Any) -> Iterator[Sample]:
    yield (make.positive(2, 3) + 1,), {}


@samples_of(
    "add", "sub", "mul", "maximum", "minimum", "clamp_min", "clamp_max", "eq", "ne", "lt", "le", "gt", "ge", "copysign",
    "atan2",
)  # fmt: skip
def binary(make: Any) -> Iterator[Sample]:
    yield (make(2, 3), make(2, 3) + 0.21), {}
    yield (make(2, 1, 3), make(4, 1) + 0.21), {}
    yield (make(2, 3), 2), {}
    yield (make(3, 2).t(), make(2, 3) + 0.21), {}
    yield (make(3), make() + 0.21), {}
    yield (make(0, 3), make(3)), {}


@samples_of("gelu_tanh_grad")
def slope(make: Any) -> Iterator[Sample]:
    yield (make(2, 3), make(2, 3) + 0.21), {}
    yield (make(2, 1, 3), make(4, 1) + 0.21), {}
    yield (make(3, 2).t(), make(2, 3) + 0.21), {}
    yield (make(0, 3), make(3)), {}


@samples_of("div", "fmod", "mod", "floordiv")
def division(make: Any) -> Iterator[Sample]:
    yield (make(2, 3), make.positive(2, 3)), {}
    yield (make(2, 1, 3), make.positive(4, 1)), {}
    yield (make(2, 3), 3), {}
    yield (make(3, 2).t(), make.positive(2, 3)), {}


@samples_of("pow")
def power(make: Any) -> Iterator[Sample]:
    yield (make.positive(2, 3), make.unit(2, 3) + 1.3), {}
    yield (make.positive(2, 3), 3), {}
    yield (2, make.unit(2, 3)), {}


@samples_of("overwrite")
def overwrite(make: Any) -> Iterator[Sample]:
    yield (make(2, 3), make(3)), {}
    yield (make(2, 3), make(2, 3)), {}


@errors_of("overwrite")
def overwrite_errors(make: Any) -> Iterator[Sample]:
    yield (make(2, 3), make(2)), {}


@errors_of("add", "mul", "div", "atan2")
def shapes_that_do_not_fit(make: Any) -> Iterator[Sample]:
    yield (make(2, 3), make(4)), {}


@samples_of("where")
def where(make: Any) -> Iterator[Sample]:
    yield (make.bool(2, 3), make(2, 3), make(2, 3)), {}
    yield (make.bool(2, 1), make(3), make(2, 3)), {}
    yield (make.bool(2, 3), make(2, 3), 0.0), {}
    yield (make.bool(2, 3), 1.0, make(3, 2).t()), {}


@samples_of("cast")
def cast(make: Any) -> Iterator[Sample]:
    for to in (dtypes.float64, dtypes.float32, dtypes.int64):
        yield (make(2, 3),), {"dtype": to}
    yield (make(3, 2).t(),), {"dtype": dtypes.float64}


@samples_of("bit_and", "bit_or", "bit_xor")
def bits(make: Any) -> Iterator[Sample]:
    yield (make.index(9, 2, 3), make.index(9, 3)), {}
    yield (make.bool(2, 3), make.bool(2, 3)), {}
    yield (make.index(9, 2, 3), 5), {}


@errors_of("bit_and", "bit_or", "bit_xor")
def bits_of_floats(make: Any) -> Iterator[Sample]:
    yield (make.float(2, 3), make.index(3, 2, 3)), {}


@errors_of("shl", "shr")
def shifts_that_are_none(make: Any) -> Iterator[Sample]:
    yield from bits_of_floats(make)
    yield (make.bool(2, 3), make.bool(2, 3)), {}
    yield (make.bool(2, 3), True), {}


@samples_of("bit_not")
def bit_not(make: Any) -> Iterator[Sample]:
    yield (make.index(9, 2, 3),), {}
    yield (make.bool(2, 3),), {}


@samples_of("shl", "shr")
def shifts(make: Any) -> Iterator[Sample]:
    yield (make.index(9, 2, 3), make.index(4, 2, 3)), {}
    yield (make.index(9, 2, 3), 2), {}


# --- reductions and scans ---------------------------------------------------------------------------------------------
@samples_of("amax", "amin")
def reductions(make: Any) -> Iterator[Sample]:
    yield (make(2, 3, 4),), {"dim": (1,), "keepdim": False}
    yield (make(2, 3, 4),), {"dim": (0, 2), "keepdim": True}
    yield (make(2, 3),), {"dim": (0, 1), "keepdim": False}
    yield (make(),), {"dim": (), "keepdim": False}
    yield (make(4, 3, 2).transpose(0, 2),), {"dim": (1,), "keepdim": False}
    yield (make(2, 4)[:, ::2],), {"dim": (1,), "keepdim": False}
    yield (make(3, 1, 4),), {"dim": (1,), "keepdim": False}
    yield (make(1, 4, 1),), {"dim": (0, 2), "keepdim": True}


@samples_of("sum", "prod", "any", "all")
def reductions_also_of_nothing(make: Any) -> Iterator[Sample]:
    yield from reductions(make)
    yield (make(0, 3),), {"dim": (0,), "keepdim": False}
    yield (make(2, 0),), {"dim": (0,), "keepdim": False}


@errors_of("amax", "amin")
def extremes_of_nothing(make: Any) -> Iterator[Sample]:
    yield (make(0, 3),), {"dim": (0,), "keepdim": False}


@samples_of("argmax", "argmin")
def arg_reductions(make: Any) -> Iterator[Sample]:
    yield (make(2, 3),), {"dim": 1, "keepdim": False}
    yield (make(2, 3),), {"dim": 0, "keepdim": True}
    yield (make(3, 2).t(),), {"dim": 1, "keepdim": False}
    yield (make(3, 1),), {"dim": 1, "keepdim": False}


@errors_of("argmax", "argmin")
def arg_of_nothing(make: Any) -> Iterator[Sample]:
    yield (make(0, 3),), {"dim": 0, "keepdim": False}


@samples_of("var")
def variance(make: Any) -> Iterator[Sample]:
    yield (make(2, 3, 4),), {"dim": (1,), "keepdim": False, "correction": 1}
    yield (make(2, 3),), {"dim": (0, 1), "keepdim": True, "correction": 0}
    yield (make(4, 3, 2).transpose(0, 2),), {"dim": (2,), "keepdim": False, "correction": 1}
    yield (make(3, 1, 4),), {"dim": (1,), "keepdim": False, "correction": 0}
    yield (make(1, 4, 1),), {"dim": (0, 2), "keepdim": True, "correction": 0}


@samples_of("cumsum", "cumprod", "logcumsumexp", "cumargmax", "cumargmin")
def scans(make: Any) -> Iterator[Sample]:
    yield (make(2, 4),), {"dim": 1}
    yield (make(3, 2),), {"dim": 0}
    yield (make(4, 2).t(),), {"dim": 1}
    yield (make(),), {"dim": 0}
    yield (make(3, 1),), {"dim": 1}


# --- views ------------------------------------------------------------------------------------------------------------
@samples_of("expand")
def expand(make: Any) -> Iterator[Sample]:
    yield (make(2, 1),), {"shape": (2, 3)}
    yield (make(3),), {"shape": (2, 2, 3)}
    yield (make(),), {"shape": (2,)}
    yield (make(3, 1).t(),), {"shape": (2, 3)}


@errors_of("expand")
def expand_errors(make: Any) -> Iterator[Sample]:
    yield (make(2, 3),), {"shape": (2, 4)}
    yield (make(2, 3),), {"shape": (3,)}


@samples_of("permute")
def permute(make: Any) -> Iterator[Sample]:
    yield (make(2, 3, 4),), {"dims": (2, 0, 1)}
    yield (make(2, 3)[:, ::2],), {"dims": (1, 0)}
    yield (make(),), {"dims": ()}


@errors_of("permute")
def permute_errors(make: Any) -> Iterator[Sample]:
    yield (make(2, 3),), {"dims": (0, 0)}
    yield (make(2, 3),), {"dims": (0,)}


@samples_of("view")
def view(make: Any) -> Iterator[Sample]:
    yield (make(2, 3, 4),), {"shape": (6, 4)}
    yield (make(2, 6),), {"shape": (2, 3, 2)}
    yield (make(4, 6)[::2],), {"shape": (2, 2, 3)}
    yield (make(1),), {"shape": ()}
    yield (make(3, 2).t().expand(2, 2, 3),), {"shape": (2, 2, 3, 1)}
    yield (make(0, 3),), {"shape": (3, 0)}


@errors_of("view")
def view_errors(make: Any) -> Iterator[Sample]:
    yield (make(2, 3),), {"shape": (4,)}
    yield (make(2, 3).t(),), {"shape": (6,)}


@samples_of("slice")
def slices(make: Any) -> Iterator[Sample]:
    yield (make(5, 3),), {"dim": 0, "start": 1, "stop": 4, "step": 2}
    yield (make(2, 5),), {"dim": 1, "start": 2, "stop": 2, "step": 1}
    yield (make(3, 5).t(),), {"dim": 0, "start": 0, "stop": 5, "step": 3}


@samples_of("select")
def select(make: Any) -> Iterator[Sample]:
    yield (make(2, 3),), {"dim": 1, "index": 2}
    yield (make(4),), {"dim": 0, "index": 0}


@samples_of("diagonal")
def diagonal(make: Any) -> Iterator[Sample]:
    yield (make(3, 4),), {"offset": 1, "dim1": 0, "dim2": 1}
    yield (make(2, 3, 3),), {"offset": -1, "dim1": 2, "dim2": 1}
    yield (make(2, 2),), {"offset": 5, "dim1": 0, "dim2": 1}


@samples_of("unfold")
def unfold(make: Any) -> Iterator[Sample]:
    yield (make(2, 5),), {"dim": 1, "size": 3, "step": 1}
    yield (make(6, 2),), {"dim": 0, "size": 2, "step": 2}


@errors_of("unfold")
def unfold_errors(make: Any) -> Iterator[Sample]:
    yield (make(2, 3),), {"dim": 1, "size": 4, "step": 1}


@samples_of("unsqueeze")
def unsqueeze(make: Any) -> Iterator[Sample]:
    yield (make(2, 3),), {"dim": 0}
    yield (make(2, 3),), {"dim": 2}
    yield (make(3, 2).t(),), {"dim": 1}
    yield (make(),), {"dim": 0}


@samples_of("squeeze")
def squeeze(make: Any) -> Iterator[Sample]:
    yield (make(2, 1, 3, 1),), {"dims": (1, 3)}
    yield (make(2, 1, 3).transpose(0, 2),), {"dims": (1,)}
    yield (make(2, 3),), {"dims": ()}


@samples_of("real", "imag", "view_as_real")
def parts(make: Any) -> Iterator[Sample]:
    yield (make.complex(2, 3),), {}
    yield (make.complex(3, 2).t(),), {}


@samples_of("view_as_complex")
def view_as_complex(make: Any) -> Iterator[Sample]:
    yield (make.wide(3, 2),), {}


@samples_of("bitcast")
def bitcast(make: Any) -> Iterator[Sample]:
    yield (make.index(9, 2, 3),), {"dtype": dtypes.float64}


@samples_of("as_strided")
def as_strided(make: Any) -> Iterator[Sample]:
    yield (make(3, 4),), {"shape": (2, 2), "stride": (4, 1), "offset": 1}
    yield (make(6),), {"shape": (4, 3), "stride": (1, 1), "offset": 0}


# --- index rows -------------------------------------------------------------------------------------------------------
@samples_of("slice_backward")
def slice_backward(make: Any) -> Iterator[Sample]:
    yield (make(2, 3),), {"dim": 0, "size": 5, "start": 1, "stop": 4, "step": 2}


@samples_of("slice_scatter")
def slice_scatter(make: Any) -> Iterator[Sample]:
    yield (make(5, 3), make(2, 3)), {"dim": 0, "start": 1, "stop": 4, "step": 2}


@samples_of("diagonal_backward")
def diagonal_backward(make: Any) -> Iterator[Sample]:
    yield (make(3),), {"shape": (3, 4), "offset": 1, "dim1": 0, "dim2": 1}


@samples_of("unfold_backward")
def unfold_backward(make: Any) -> Iterator[Sample]:
    yield (make(2, 3, 3),), {"shape": (2, 5), "dim": 1, "size": 3, "step": 1}


@samples_of("cat")
def cat(make: Any) -> Iterator[Sample]:
    yield (make(2, 3), make(1, 3)), {"dim": 0}
    yield (make(2, 3), make(2, 1), make(2, 2)), {"dim": 1}
    yield (make(2, 3), make(0, 3)), {"dim": 0}
    yield (make(3, 2).t(), make(3, 2).t()), {"dim": 0}


@errors_of("cat")
def cat_errors(make: Any) -> Iterator[Sample]:
    yield (make(2, 3), make(2, 2)), {"dim": 0}
    yield (make(2, 3), make(3)), {"dim": 0}


@samples_of("flip")
def flip(make: Any) -> Iterator[Sample]:
    yield (make(2, 3),), {"dims": (1,)}
    yield (make(3, 2).t(),), {"dims": (0, 1)}


@samples_of("gather")
def gather(make: Any) -> Iterator[Sample]:
    yield (make(3, 4), make.index(3, 2, 4)), {"dim": 0}
    yield (make(3, 4), make.index(4, 3, 6)), {"dim": 1}


@errors_of("gather")
def gather_errors(make: Any) -> Iterator[Sample]:
    yield (make(3, 4), make.index(3, 2, 4) + 3), {"dim": 0}
    yield (make(3, 4), make.index(3, 2, 4) - 9), {"dim": 0}
    yield (make(3, 4), make.index(3, 2)), {"dim": 0}
    yield (make(3, 4), make.index(3, 2, 5)), {"dim": 0}


@samples_of("scatter_add")
def scatter_add(make: Any) -> Iterator[Sample]:
    yield (make(3, 4), make.index(3, 2, 4), make(2, 4)), {"dim": 0}
    yield (make(3, 4), make.index(4, 2, 2), make(3, 4)), {"dim": 1}


@samples_of("scatter")
def scatter(make: Any) -> Iterator[Sample]:
    yield (make(3, 4), make.index(3, 1, 4), make(1, 4)), {"dim": 0}


@errors_of("scatter", "scatter_add")
def scatter_errors(make: Any) -> Iterator[Sample]:
    yield (make(3, 4), make.index(3, 2, 4) + 3, make(2, 4)), {"dim": 0}
    yield (make(3, 4), make.index(3, 2, 4), make(1, 4)), {"dim": 0}


@samples_of("scatter_reduce")
def scatter_reduce(make: Any) -> Iterator[Sample]:
    for reduce in ("prod", "amax", "amin"):
        for own in (True, False):
            args = (make.positive(3, 4), make.index(3, 3, 4), make.positive(3, 4) + 0.17)
            yield args, {"dim": 0, "reduce": reduce, "include_self": own}


@samples_of("index_select")
def index_select(make: Any) -> Iterator[Sample]:
    yield (make(3, 4), make.index(3, 5)), {"dim": 0}
    yield (make(3, 4), make.index(4, 2, 2)), {"dim": 1}


@errors_of("index_select")
def index_select_errors(make: Any) -> Iterator[Sample]:
    yield (make(3, 4), make.index(3, 5) - 3), {"dim": 0}
    yield (make(3, 4), make.index(3, 5) + 3), {"dim": 0}


@samples_of("index_add")
def index_add(make: Any) -> Iterator[Sample]:
    yield (make(3, 4), make.index(3, 5), make(5, 4)), {"dim": 0}
    yield (make(3, 4), make.index(4, 2, 2), make(3, 2, 2)), {"dim": 1}


@errors_of("index_add")
def index_add_errors(make: Any) -> Iterator[Sample]:
    yield (make(3, 4), make.index(3, 5), make(4, 4)), {"dim": 0}


@samples_of("index")
def index(make: Any) -> Iterator[Sample]:
    yield (make(3, 4), make.index(3, 5)), {"dim": 0}
    yield (make(3, 4, 2), make.index(4, 3, 1) - 2, make.index(2, 2)), {"dim": 1}
    yield (make(3, 4), make.index(3)), {"dim": 0}


@errors_of("index")
def index_errors(make: Any) -> Iterator[Sample]:
    yield (make(3, 4), make.index(3, 5) + 3), {"dim": 0}
    yield (make(3, 4), make.index(3, 5), make.index(4, 2)), {"dim": 0}


@samples_of("index_put")
def index_put(make: Any) -> Iterator[Sample]:
    yield (make(3, 4), make(4), make.index(3)), {"dim": 0, "accumulate": False}
    yield (make(3, 4), make(5, 4), make.index(3, 5)), {"dim": 0, "accumulate": True}
    yield (make(3, 4), make(), make.index(3, 2), make.index(4, 2)), {"dim": 0, "accumulate": True}


@errors_of("index_put")
def index_put_errors(make: Any) -> Iterator[Sample]:
    yield (make(3, 4), make(3), make.index(3, 5)), {"dim": 0, "accumulate": False}


# --- order, creation, random, the rest --------------------------------------------------------------------------------
@samples_of("argsort")
def argsort(make: Any) -> Iterator[Sample]:
    yield (make(2, 5),), {"dim": 1, "descending": False}
    yield (make(5, 2),), {"dim": 0, "descending": True}


@samples_of("nonzero", "unique")
def found(make: Any) -> Iterator[Sample]:
    yield (make.index(3, 3, 4),), {}


@samples_of("to_device")
def to_device(make: Any) -> Iterator[Sample]:
    yield (make(2, 3),), {"device": make.device}


@samples_of("full")
def full(make: Any) -> Iterator[Sample]:
    yield (), {"shape": (2, 3), "value": 1.5, "dtype": dtypes.float32, "device": make.device}
    yield (), {"shape": (), "value": True, "dtype": dtypes.bool_, "device": make.device}


@samples_of("empty")
def empty(make: Any) -> Iterator[Sample]:
    yield (), {"shape": (2, 3), "dtype": dtypes.float32, "device": make.device}


@samples_of("iota")
def iota(make: Any) -> Iterator[Sample]:
    yield (), {"size": 5, "device": make.device}
    yield (), {"size": 0, "device": make.device}


@samples_of("uniform")
def uniform(make: Any) -> Iterator[Sample]:
    yield (make.state(),), {"shape": (3, 3), "shift": 0, "dtype": dtypes.float32}
    yield (make.state(),), {"shape": (5,), "shift": 2, "dtype": dtypes.float64}


@samples_of("random_bits")
def random_bits(make: Any) -> Iterator[Sample]:
    yield (make.state(),), {"shape": (7,), "shift": 1}


@samples_of("matmul")
def matmul(make: Any) -> Iterator[Sample]:
    yield (make(2, 3), make(3, 4)), {}
    yield (make(2, 2, 3), make(2, 3, 2)), {}
    yield (make(3, 2).t(), make(4, 3).t()), {}
    yield (make(2, 0), make(0, 3)), {}


@errors_of("matmul")
def matmul_errors(make: Any) -> Iterator[Sample]:
    yield (make(2, 3), make(2, 3)), {}
    yield (make(2, 2, 3), make(3, 3, 2)), {}


@samples_of("conv")
def conv(make: Any) -> Iterator[Sample]:
    yield (make(2, 2, 5), make(3, 2, 3)), {"stride": (1,), "padding": (1,), "dilation": (1,), "groups": 1}
    params = {"stride": (2, 1), "padding": (0, 1), "dilation": (1, 2), "groups": 2}
    yield (make(1, 2, 5, 4), make(2, 1, 2, 2)), params


@errors_of("conv")
def conv_errors(make: Any) -> Iterator[Sample]:
    yield (make(2, 3, 5), make(3, 2, 3)), {"stride": (1,), "padding": (0,), "dilation": (1,), "groups": 1}
    yield (make(2, 2, 2), make(3, 2, 3)), {"stride": (1,), "padding": (0,), "dilation": (1,), "groups": 1}


@samples_of("conv_input")
def conv_input(make: Any) -> Iterator[Sample]:
    params = {"size": (6,), "stride": (2,), "padding": (1,), "dilation": (1,), "groups": 1}
    yield (make(2, 3, 3), make(3, 2, 3)), params


@samples_of("conv_weight")
def conv_weight(make: Any) -> Iterator[Sample]:
    params = {"kernel": (3,), "stride": (2,), "padding": (1,), "dilation": (1,), "groups": 1}
    yield (make(2, 2, 6), make(2, 3, 3)), params


# --- LAPACK -----------------------------------------------------------------------------------------------------------
@samples_of("inverse", "det", "cholesky")
def square(make: Any) -> Iterator[Sample]:
    yield (definite(make, 3),), {}
    yield (definite(make, 2, 2),), {}


def definite(make: Any, *shape: int) -> Any:
    """Symmetric matrices with eigenvalues above 1."""
    x = make.unit(*shape, shape[-1])
    return TABLE["matmul"](x, x.transpose(-2, -1)) + TABLE["full"](
        shape=(), value=1, dtype=x.dtype, device=x.device
    ) * TABLE["cast"](TABLE["eq"](*_grid(x)), dtype=x.dtype)


def _grid(x: Any) -> tuple[Any, Any]:
    n = TABLE["iota"](size=x.shape[-1], device=x.device)
    return n.unsqueeze(1), n


@errors_of("inverse")
def not_invertible(make: Any) -> Iterator[Sample]:
    yield (make(2, 2) * 0,), {}
