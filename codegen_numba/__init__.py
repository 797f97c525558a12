"""CPU kernels: loop nests as Numba source, compiled by Numba's front half and LLVM.

Stage: codegen.  In: a ``Plan`` of ``compiler.loop``.  Out: ``build(plan, config)``, a callable over NumPy arrays.
Reading order: ``build``, ``schedule``, ``emit``, ``accumulate``, ``spell``, ``intrinsics``, ``math``, ``trig``,
``llvm``, ``compile``, ``pool``, ``runtime``.
"""

from codegen_numba.build import build
from codegen_numba.built import Built

__all__ = ["Built", "build"]
