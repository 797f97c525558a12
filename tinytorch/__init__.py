"""tinytorch: an eager tensor library with a tape, and the door to its compiler.  ``import tinytorch as torch``.

Names, signatures, defaults, errors and results are PyTorch's for the subset in ``docs/api_subset.md``; a name outside
it raises AttributeError and says so.  Read next: ``dtypes``, ``ops.scalars``, ``ops.opdef``, ``dispatch``, ``tape``,
``tensor``, ``methods``.
"""

from __future__ import annotations

import importlib
import math as _math
from typing import Any

from tinytorch import _namesake, dispatch, dtypes, methods, ops, rng, tape
from tinytorch.device import Device as device
from tinytorch.dtypes import DType as dtype
from tinytorch.dtypes import (
    bfloat16,
    bool_,
    complex64,
    complex128,
    finfo,
    float16,
    float32,
    float64,
    get_default_dtype,
    iinfo,
    int8,
    int16,
    int32,
    int64,
    promote_types,
    set_default_dtype,
    uint8,
)
from tinytorch.functions.legacy import TYPES as _legacy_types
from tinytorch.functions.namespace import FUNCTIONS as _functions
from tinytorch.grad_mode import (
    enable_grad,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_grad_enabled,
)
from tinytorch.printing import set_printoptions
from tinytorch.rng import Generator, default_generator
from tinytorch.tensor import Size, Tensor

globals().update(_functions)
globals().update(_legacy_types)

half, double, cfloat, cdouble = float16, float64, complex64, complex128
short, long = int16, int64
inf, nan, pi, e = _math.inf, _math.nan, _math.pi, _math.e
newaxis = None
contiguous_format, preserve_format, channels_last, channels_last_3d = (
    "contiguous_format", "preserve_format", "channels_last", "channels_last_3d",
)  # fmt: skip
strided = "strided"

from tinytorch import autograd, nn  # noqa: E402 - they use the names above

#: functions of layers that have a place beside ``nn.functional`` too
_LAYERS = """
    adaptive_avg_pool1d avg_pool1d batch_norm bilinear celu celu_ conv1d conv2d conv3d conv_transpose1d conv_transpose2d
    conv_transpose3d cosine_similarity dropout embedding group_norm instance_norm layer_norm max_pool1d max_pool2d
    max_pool3d pairwise_distance pixel_shuffle pixel_unshuffle prelu relu_ rms_norm selu threshold
""".split()
globals().update({name: getattr(nn.functional, name) for name in _LAYERS if hasattr(nn.functional, name)})

#: rooms that are imported when first asked for
_ROOMS = frozenset({
    "accelerator", "amp", "backends", "compiler", "cuda", "distributions", "func", "linalg", "optim", "random", "serialization",
    "testing", "utils",
})  # fmt: skip
_FROM_ROOMS = {"save": "serialization", "load": "serialization", "autocast": "amp", "GradScaler": "amp"}


def compile(model: Any = None, **options: Any) -> Any:  # noqa: A001
    """Compile a function or module: see ``compiler.api.compile`` for the options.  Mirrors ``torch.compile``."""
    return importlib.import_module("compiler.api").compile(model, **options)


def __getattr__(name: str) -> Any:
    """Rooms load when first asked for; a missing name says that it is outside the subset."""
    if name in _ROOMS:
        return importlib.import_module(f"tinytorch.{name}")
    if name in _FROM_ROOMS:
        return getattr(importlib.import_module(f"tinytorch.{_FROM_ROOMS[name]}"), name)
    if name.startswith("__"):
        raise AttributeError(name)
    raise AttributeError(
        f"tinytorch has no {name!r}: it is outside the supported subset of PyTorch (docs/api_subset.md lists what is there)"
    )


# PyTorch's names for types that Python has too; last, for the code above means Python's
bool, int, float = bool_, int32, float32  # noqa: A001
