"""The loop compiler: from a functional graph of op rows to a ``Plan`` of fused kernels.

Stage: loop (TorchInductor's part).  In: ``compiler.aot``'s graphs.  Out: plans for ``codegen_numba``/``codegen_cupy``.
Reading order: ``ir``, ``printer``, ``interp``, ``sizes``, ``value``, ``nest``, ``program``, ``lower``,
``pointwise``, ``reductions``, ``rules``, ``deps``, ``fuse``, ``kernel``, ``tidy``, ``order``, ``memory``, ``host``.
"""

from compiler.loop.host import compile_graph

__all__ = ["compile_graph"]
