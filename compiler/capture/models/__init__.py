"""Models of C functions; importing the package registers them all.  Stage: capture.  Read next: ``registry``."""

from __future__ import annotations

from compiler.capture.models import (
    autograd_,
    builtins_,
    doors,
    iterators,
    mappings,
    numbers,
    numpy_,
    objects_,
    polyfills,
    random_,
    sequences,
    sets,
    tensors,
)
from compiler.capture.models.registry import get, is_pure, new_of, refuse

new = new_of

__all__ = [
    "autograd_", "builtins_", "doors", "get", "is_pure", "iterators", "mappings", "new", "new_of", "numbers", "numpy_", "objects_", "polyfills", "random_",
    "refuse", "sequences", "sets", "tensors",
]  # fmt: skip
