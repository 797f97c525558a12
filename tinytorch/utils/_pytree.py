"""``torch.utils._pytree`` under its own name: see ``tinytorch.pytree``."""

from tinytorch.pytree import (
    TreeSpec,
    register_pytree_node,
    tree_flatten,
    tree_leaves,
    tree_map,
    tree_map_only,
    tree_structure,
    tree_unflatten,
)

__all__ = [
    "TreeSpec", "register_pytree_node", "tree_flatten", "tree_leaves", "tree_map", "tree_map_only", "tree_structure",
    "tree_unflatten",
]  # fmt: skip
