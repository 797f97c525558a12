"""CPU kernels: loop nests as Numba source, compiled by a front of our own, or Numba's, and LLVM.

Stage: codegen.  In: a ``Plan`` of ``compiler.loop``.  Out: ``build(plan, config)``, a callable over NumPy arrays.
Reading order: ``build``, ``schedule``, ``emit``, ``statements``, ``accumulate``, ``spell``, ``intrinsics``, ``math``, ``trig``,
``llvm``, ``compile``, ``translate``, ``front``, ``pool``, ``runtime``.
"""

from codegen_numba.build import build
from codegen_numba.built import Built

__all__ = ["Built", "build"]
