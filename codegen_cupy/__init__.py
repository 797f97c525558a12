"""CUDA codegen: a ``Plan`` becomes CUDA C++ text, the text machine code, the machine code a callable.

Stage: codegen.  In: ``compiler.loop.ir.Plan``.  Out: a callable over CuPy arrays (NumPy arrays under the emulator).
Read next: ``spell`` (one spelling per scalar function), ``onehot``, ``online``, ``phases`` (nests made cheaper),
``choice`` (which loop becomes blocks, threads, vectors; ``tune`` measures), ``body``, ``neighbours`` (statements), ``pointwise``,
``rows``, ``columns`` (the loops around them), ``program`` (the host side), ``emulate`` (the same text on a CPU).
"""

from __future__ import annotations

from typing import Any


def build(plan: Any, config: Any = None) -> Any:
    """The callable of a plan: ``(list of arrays, sizes) -> list of arrays``.  See ``program.build``."""
    from codegen_cupy.program import build as build_program

    return build_program(plan, config)


__all__ = ["build"]
