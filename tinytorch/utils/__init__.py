"""``tinytorch.utils``: data loading, checkpointing, hooks, trees.

Stage: eager.  Mirrors ``torch.utils``.  Read next: ``data``, ``checkpoint``.
"""

from tinytorch import hooks
from tinytorch.utils import _pytree, checkpoint, data

__all__ = ["_pytree", "checkpoint", "data", "hooks"]
