"""Protocol: what Python's operations mean on values, in the order in which CPython asks.

Stage: capture.  In: values.  Out: values.  A slot that is absent raises the program's own exception; one that is there
but implemented in C is looked up in ``capture.models``; one that is there but has no model breaks the graph.
Read next: ``instances``, ``classes``, ``special``, ``attributes``, ``calls``, ``operators``, ``iteration``.
"""

from __future__ import annotations

from compiler.capture.protocol.attributes import (
    delattr_,
    generic_delattr,
    generic_getattr,
    generic_setattr,
    getattr_,
    setattr_,
)
from compiler.capture.protocol.calls import (
    call,
    call_method,
    call_special,
    has_special,
    inline,
    isinstance_,
    special,
)
from compiler.capture.protocol.classes import lookup
from compiler.capture.protocol.iteration import iter_, mapping_entries, next_, unpack
from compiler.capture.protocol.operators import (
    binary,
    compare,
    contains,
    delitem,
    equal,
    format_,
    getitem,
    is_,
    len_,
    setitem,
    truth,
    unary,
)

__all__ = [
    "binary", "call", "call_method", "call_special", "compare", "contains", "delattr_", "delitem", "equal", "format_",
    "generic_delattr", "generic_getattr", "generic_setattr", "getattr_", "getitem", "has_special", "inline", "is_",
    "isinstance_", "iter_", "len_", "lookup", "mapping_entries", "next_", "setattr_", "setitem", "special", "truth",
    "unary", "unpack",
]  # fmt: skip
