"""``is_compiling``: lets code choose another way when it is traced instead of run.

Stage: eager.  Mirrors ``torch.compiler.is_compiling``.  Capture answers True by itself when it meets a call of this
function; ahead-of-time tracing, which runs the code under an interpreter, gets True from the body below.
"""

from __future__ import annotations

from tinytorch import dispatch


def is_compiling() -> bool:
    """Whether this code is being traced into a graph rather than run on arrays."""
    return dispatch.current.interpreter is not None
