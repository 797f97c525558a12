"""Constant offsets move from the indices of a kernel into the addresses it is given.

Stage: codegen_numba.  In: a kernel.  Out: the kernel counted from the least constant of each buffer's indices, and
those constants.  The steps of an unrolled loop differ in little else, so they come to share one piece of machine code.
Read next: ``build``.
"""

from __future__ import annotations

from dataclasses import replace

from codegen_numba import analysis
from codegen_numba.analysis import Body
from compiler.loop.ir import Int, Kernel, Load, Loop, Stmt, Store, walk


def rebase(kernel: Kernel) -> tuple[Kernel, dict[str, int]]:
    """The kernel, and by how many elements each of its buffers is to be moved."""
    least: dict[str, int] = {}
    for s in walk(kernel.body):
        if isinstance(s, Load | Store):
            constant = s.index if isinstance(s.index, int) else s.index.split()[0]
            least[s.buffer] = min(least.get(s.buffer, constant), constant)
    moved = {b: n for b, n in least.items() if n}
    return (replace(kernel, body=_moved(kernel.body, moved)), moved) if moved else (kernel, {})


def _moved(body: Body, by: dict[str, int]) -> Body:
    out: list[Stmt] = []
    for s in body:
        if isinstance(s, Loop):
            s = replace(s, body=_moved(s.body, by))
        elif isinstance(s, Load | Store) and s.buffer in by:
            s = replace(s, index=_less(s.index, by[s.buffer]))
        out.append(s)
    return tuple(out)


def _less(index: Int, n: int) -> Int:
    out = index - n
    value = analysis.known(out)
    return out if value is None else value
