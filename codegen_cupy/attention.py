"""Attention on the GPU: FlashAttention-2 forward and backward as CUDA text around ``mma.sync``.

Stage: codegen_cupy.  In: shapes, types and flags of the row ``attention`` (``tinytorch.ops.flash``) and a config.
Out: include-free CUDA C++ and how to launch it.  Read next: ``tinytorch.ops.flash``.
"""
