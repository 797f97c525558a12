"""Models of C functions; importing the package registers them all.  Stage: capture.  Read next: ``registry``."""

from __future__ import annotations

from compiler.capture.models import (
    autograd_,
    builtins_,
    copy_,
    doors,
    heapq_,
    iterators,
    itertools_,
    mappings,
    numbers,
    numpy_,
    objects_,
    polyfills,
    random_,
    sequences,
    sets,
    tensors,
    text,
)
from compiler.capture.models.registry import get, is_pure, new_of, refuse

new = new_of

__all__ = [
    "autograd_", "builtins_", "copy_", "doors", "get", "heapq_", "is_pure", "iterators", "itertools_", "mappings",
    "new", "new_of", "numbers", "numpy_", "objects_", "polyfills", "random_", "refuse", "sequences", "sets",
    "tensors", "text",
]  # fmt: skip
