"""Two small kernels that every program may need: making addresses, and filling memory.

Stage: codegen_numba.  In: a buffer and a value.  Out: ``Source``s.  Read next: ``build``.
"""

from __future__ import annotations

from codegen_numba import runtime
from codegen_numba.compile import Source
from codegen_numba.layout import FIRST
from codegen_numba.spell import literal, memory_type, to_memory
from compiler.loop.ir import Buffer, Scalar

PREPARE = Source(
    "prepare",
    "def prepare(table, moves, count, start, stop, part):\n"
    "    # array objects become the addresses of their data: a field of NumPy's array struct\n"
    "    for k in range(start, stop):\n"
    f"        table[{FIRST} + k] = as_pointer(table[{FIRST} + k])[{runtime.DATA_WORD or 0}]\n"
    "    for k in range(count):\n"
    "        table[moves[3 * k]] = table[moves[3 * k + 1]] + table[moves[3 * k + 2]]\n",
    (("table", "int64"), ("moves", "int64"), ("count", "size")),
    alias=True,
    pool=True,
)


def fill_source(buffer: Buffer, value: Scalar) -> Source:
    text = to_memory(literal(value, buffer.dtype), buffer.dtype)
    kind = memory_type(buffer.dtype)
    return Source(
        f"fill_{buffer.dtype.name}",
        f"def fill_{buffer.dtype.name}(out, start, stop, part):\n"
        f"    value = {text}\n"
        "    for t in range(start, stop):\n"
        "        out[t] = value\n",
        (("out", kind),),
    )
