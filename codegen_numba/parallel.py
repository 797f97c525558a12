"""Loops whose iterations are independent, said to LLVM: ``independent()`` as the first line of a loop in kernel source.

Stage: codegen_numba, a part of ``front``.  In: the branch that closes a loop, and the loop's blocks.  Out: metadata, by which
LLVM's vectoriser takes that no iteration touches what another writes, and neither proves it nor tests it at run time.
For Numba the word means nothing, as it changes nothing but speed.  Read next: ``streams`` (who knows it), ``front``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from typing import Any

from llvmlite import ir

WORD = "independent"


def is_promised(body: Sequence[ast.stmt]) -> bool:
    """Does a loop's body begin with the word?"""
    match body[0]:
        case ast.Expr(ast.Call(ast.Name(name))):
            return name == WORD
    return False


def promise(back: ir.Instruction, blocks: Iterable[ir.Block]) -> None:
    """All accesses are of one group, and the branch ``back`` says that those of this group do not meet."""
    module = back.parent.function.module
    group = Distinct(module)
    text = module.add_metadata([ir.MetaDataString(module, "llvm.loop.parallel_accesses"), group])
    back.set_metadata("llvm.loop", Distinct(module, text))
    for block in blocks:
        for x in block.instructions:
            if isinstance(x, ir.LoadInstr | ir.StoreInstr):
                x.set_metadata("llvm.access.group", group)


class Distinct(ir.MDValue):  # type: ignore[misc]
    """A node like no other; one that holds others begins with itself, as LLVM wants loops named."""

    def __init__(self, module: ir.Module, *operands: Any) -> None:
        super().__init__(module, operands, str(len(module.metadata)))

    def descr(self, buf: list[str]) -> None:
        inside = [x.get_reference() for x in (self, *self.operands)] if self.operands else []
        buf += (f"distinct !{{{', '.join(inside)}}}", "\n")

    __eq__, __hash__ = object.__eq__, object.__hash__

