"""Attention on the CPU: blocked, with the running softmax, so that no T x S matrix ever exists.

Stage: codegen_numba.  In: arrays of the rows ``attention`` and ``attention_backward``.  Out: the same results as the
rows' own kernels, faster.  Read next: ``tinytorch.ops.flash``.
"""
