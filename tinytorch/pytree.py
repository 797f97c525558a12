"""Nested lists, tuples and dicts as a flat list of leaves and a description.  Mirrors ``torch.utils._pytree``.

Stage: all.  In: a tree.  Out: leaves in order and a ``TreeSpec`` that puts others in their places.  Named tuples,
ordered and default dicts keep their types; everything else is a leaf.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TreeSpec:
    """``kind`` is None for a leaf; ``context`` what besides the children makes the node (keys, a default factory)."""

    kind: type | None
    context: Any = None
    children: tuple[TreeSpec, ...] = ()

    @property
    def num_leaves(self) -> int:
        return 1 if self.kind is None else sum(c.num_leaves for c in self.children)

    def is_leaf(self) -> bool:
        return self.kind is None


LeafSpec = TreeSpec(None)
Flatten = Callable[[Any], tuple[Iterable[Any], Any]]
Unflatten = Callable[[list[Any], Any], Any]

#: type -> (children and context of a node, node of children and context)
NODES: dict[type, tuple[Flatten, Unflatten]] = {
    list: (lambda x: (x, None), lambda c, _: list(c)),
    tuple: (lambda x: (x, None), lambda c, _: tuple(c)),
    dict: (lambda x: (x.values(), tuple(x)), lambda c, keys: dict(zip(keys, c, strict=True))),
    OrderedDict: (lambda x: (x.values(), tuple(x)), lambda c, keys: OrderedDict(zip(keys, c, strict=True))),
    defaultdict: (
        lambda x: (x.values(), (x.default_factory, tuple(x))),
        lambda c, context: defaultdict(context[0], zip(context[1], c, strict=True)),
    ),
}


def register_pytree_node(kind: type, flatten_fn: Flatten, unflatten_fn: Unflatten, **_: Any) -> None:
    """Let instances of ``kind`` be nodes: ``flatten_fn(x)`` gives (children, context)."""
    NODES[kind] = flatten_fn, unflatten_fn


def _is_named_tuple(kind: type) -> bool:
    return issubclass(kind, tuple) and kind is not tuple and hasattr(kind, "_fields")


def tree_flatten(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], TreeSpec]:
    """(leaves, spec)."""
    leaves: list[Any] = []
    return leaves, _walk(tree, leaves, is_leaf)


def _walk(tree: Any, leaves: list[Any], is_leaf: Callable[[Any], bool] | None) -> TreeSpec:
    kind = type(tree)
    if is_leaf is not None and is_leaf(tree):
        leaves.append(tree)
        return LeafSpec
    if kind in NODES:
        children, context = NODES[kind][0](tree)
    elif _is_named_tuple(kind):
        children, context = tree, None
    else:
        leaves.append(tree)
        return LeafSpec
    return TreeSpec(kind, context, tuple(_walk(c, leaves, is_leaf) for c in children))


def tree_unflatten(leaves: Iterable[Any], treespec: TreeSpec) -> Any:
    """The tree of this shape with these leaves; ValueError unless their number is right."""
    leaves = list(leaves)
    if len(leaves) != treespec.num_leaves:
        raise ValueError(
            f"tree_unflatten(leaves, treespec): `leaves` has length {len(leaves)} but the spec refers to a pytree that "
            f"holds {treespec.num_leaves} items ({treespec})."
        )
    rest = iter(leaves)
    return _build(rest, treespec)


def _build(leaves: Any, spec: TreeSpec) -> Any:
    if spec.kind is None:
        return next(leaves)
    children = [_build(leaves, c) for c in spec.children]
    if spec.kind in NODES:
        return NODES[spec.kind][1](children, spec.context)
    return spec.kind(*children)


def tree_leaves(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    return tree_flatten(tree, is_leaf)[0]


def tree_structure(tree: Any) -> TreeSpec:
    return tree_flatten(tree)[1]


def tree_map(func: Callable[..., Any], tree: Any, *rests: Any) -> Any:
    """``func`` of every leaf (and of the leaves in the same places of the other trees)."""
    leaves, spec = tree_flatten(tree)
    others = [tree_flatten(r)[0] for r in rests]
    return tree_unflatten([func(*xs) for xs in zip(leaves, *others, strict=True)], spec)


def tree_map_only(kind: Any, func: Callable[[Any], Any], tree: Any) -> Any:
    """``func`` of every leaf of this type; the others stay."""
    return tree_map(lambda x: func(x) if isinstance(x, kind) else x, tree)


def tree_all(pred: Callable[[Any], bool], tree: Any) -> bool:
    return all(map(pred, tree_leaves(tree)))


def tree_any(pred: Callable[[Any], bool], tree: Any) -> bool:
    return any(map(pred, tree_leaves(tree)))
