"""Which tensor function computes what a NumPy function of that name does.  Stage: capture.  Read next: ``values.array``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tinytorch as torch

Compute = Callable[..., Any]


def _axis(fn: Compute) -> Compute:
    """A reduction whose ``axis`` and ``keepdims`` are ``dim`` and ``keepdim``."""

    def run(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
        if axis is None:
            out = fn(x.reshape(-1), dim=0)
            return out.reshape([1] * x.ndim) if keepdims else out
        return fn(x, dim=axis, keepdim=keepdims)

    return run


def _single(fn: Compute) -> Compute:
    """As ``_axis`` for reductions over one dimension."""
    return lambda x, axis=None: fn(x.reshape(-1), dim=0) if axis is None else fn(x, dim=axis)


def _spread(fn: Compute) -> Compute:
    def run(x: Any, axis: Any = None, ddof: int = 0, keepdims: bool = False) -> Any:
        if axis is None:
            return fn(x.reshape(-1), dim=0, correction=ddof)
        return fn(x, dim=axis, correction=ddof, keepdim=keepdims)

    return run


def _reshape(x: Any, *shape: Any) -> Any:
    sizes = shape[0] if len(shape) == 1 else shape
    return x.reshape(sizes)


def _transpose(x: Any, *axes: Any) -> Any:
    order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
    return x.permute(*(order if order else reversed(range(x.ndim))))


#: NumPy's name -> the tensor function; ``np.name`` and ``array.name`` both, where they exist.
FUNCTIONS: dict[str, Compute] = {
    **{name: getattr(torch, name) for name in (
        "add subtract multiply divide true_divide floor_divide remainder fmod negative exp exp2 expm1 log log2 log10 log1p"
        " sqrt square sin cos tan sinh cosh tanh maximum minimum fmax fmin floor ceil trunc sign not_equal less"
        " less_equal greater greater_equal logical_and logical_or logical_xor logical_not isnan isinf isfinite hypot"
        " logaddexp copysign reciprocal deg2rad rad2deg matmul"
    ).split()},
    "equal": torch.eq, "mod": torch.remainder, "power": torch.pow, "absolute": torch.abs, "abs": torch.abs, "positive": torch.positive,
    "arcsin": torch.asin, "arccos": torch.acos, "arctan": torch.atan, "arctan2": torch.atan2,
    "bitwise_and": torch.bitwise_and, "bitwise_or": torch.bitwise_or, "bitwise_xor": torch.bitwise_xor, "invert": torch.bitwise_not,
    "sum": _axis(torch.sum), "mean": _axis(torch.mean), "amax": _axis(torch.amax), "amin": _axis(torch.amin),
    "max": _axis(torch.amax), "min": _axis(torch.amin), "prod": _single(torch.prod), "argmax": _single(torch.argmax),
    "argmin": _single(torch.argmin), "cumsum": _single(torch.cumsum), "cumprod": _single(torch.cumprod),
    "any": _single(torch.any), "all": _single(torch.all), "std": _spread(torch.std), "var": _spread(torch.var),
    "reshape": _reshape, "transpose": _transpose, "ravel": lambda x: x.reshape(-1), "flatten": lambda x: x.reshape(-1).clone(),
    "expand_dims": lambda x, axis: x.unsqueeze(axis), "squeeze": lambda x, axis=None: x.squeeze() if axis is None else x.squeeze(axis),
    "swapaxes": lambda x, a, b: x.transpose(a, b), "copy": lambda x: x.clone(), "dot": torch.matmul,
    "concatenate": lambda xs, axis=0: torch.cat(list(xs), dim=axis), "stack": lambda xs, axis=0: torch.stack(list(xs), dim=axis),
    "vstack": lambda xs: torch.vstack(list(xs)), "hstack": lambda xs: torch.hstack(list(xs)),
    "where": torch.where, "clip": lambda x, a_min=None, a_max=None: x.clamp(a_min, a_max),
    "zeros_like": torch.zeros_like, "ones_like": torch.ones_like, "flip": lambda x, axis=None: x.flip(
        list(range(x.ndim)) if axis is None else axis), "tile": lambda x, reps: x.tile(reps if isinstance(reps, tuple) else (reps,)),
    "outer": torch.outer, "triu": torch.triu, "tril": torch.tril, "trace": torch.trace, "diagonal": torch.diagonal,
    "broadcast_to": torch.broadcast_to, "atleast_1d": lambda x: x.reshape(1) if x.ndim == 0 else x, "asarray": lambda x: x,
    "array": lambda x: x.clone(),
}  # fmt: skip
for _name, _fn in list(FUNCTIONS.items()):
    if _fn.__name__ in ("<lambda>", "run"):
        _fn.__name__ = _fn.__qualname__ = f"np_{_name}"
    _fn.__dict__.setdefault("_tt_leaf", True) if hasattr(_fn, "__dict__") else None
