"""Trees of lists, tuples and dicts: flattened to their leaves, and built again.

Stage: eager.  In: nested containers.  Out: leaves and a ``TreeSpec``.  Mirrors ``torch.utils._pytree``; classes of one's own
join by ``register_pytree_node``.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Flatten = Callable[[Any], tuple[list[Any], Any]]
Unflatten = Callable[[list[Any], Any], Any]

_NODES: dict[type, tuple[Flatten, Unflatten]] = {
    list: (lambda x: (list(x), None), lambda children, _: list(children)),
    tuple: (lambda x: (list(x), None), lambda children, _: tuple(children)),
    deque: (lambda x: (list(x), x.maxlen), lambda children, maxlen: deque(children, maxlen)),
    dict: (lambda x: (list(x.values()), list(x)), lambda children, keys: dict(zip(keys, children))),
    OrderedDict: (lambda x: (list(x.values()), list(x)), lambda children, keys: OrderedDict(zip(keys, children))),
    defaultdict: (
        lambda x: (list(x.values()), (x.default_factory, list(x))),
        lambda children, c: defaultdict(c[0], zip(c[1], children)),
    ),
}


@dataclass(frozen=True)
class TreeSpec:
    """The shape of a tree; ``kind`` None is a leaf."""

    kind: type | None
    context: Any
    children: tuple[TreeSpec, ...]

    @property
    def num_leaves(self) -> int:
        return 1 if self.kind is None else sum(c.num_leaves for c in self.children)

    def is_leaf(self) -> bool:
        return self.kind is None


_LEAF = TreeSpec(None, None, ())


def register_pytree_node(cls: type, flatten_fn: Flatten, unflatten_fn: Unflatten) -> None:
    """Let trees pass through ``cls``: ``flatten_fn(x)`` gives (children, context), ``unflatten_fn`` builds it again."""
    if cls in _NODES:
        raise ValueError(f"{cls} is already registered as pytree node.")
    _NODES[cls] = flatten_fn, unflatten_fn


def _kind(x: Any, is_leaf: Callable[[Any], bool] | None) -> type | None:
    if is_leaf is not None and is_leaf(x):
        return None
    kind = type(x)
    if kind in _NODES:
        return kind
    return tuple if isinstance(x, tuple) and hasattr(x, "_fields") else None


def tree_flatten(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], TreeSpec]:
    """(leaves in order, shape)."""
    kind = _kind(tree, is_leaf)
    if kind is None:
        return [tree], _LEAF
    children, context = _NODES[kind][0](tree)
    leaves: list[Any] = []
    specs = []
    for child in children:
        below, spec = tree_flatten(child, is_leaf)
        leaves += below
        specs.append(spec)
    named = type(tree) if kind is tuple and type(tree) is not tuple else None  # a named tuple
    return leaves, TreeSpec(kind, named or context, tuple(specs))


def tree_unflatten(leaves: Any, treespec: TreeSpec) -> Any:
    """The tree of this shape with these leaves; ValueError if their number is wrong."""
    given = list(leaves)
    if len(given) != treespec.num_leaves:
        raise ValueError(
            f"tree_unflatten(leaves, treespec): `leaves` has length {len(given)} but the spec refers to a pytree that "
            f"holds {treespec.num_leaves} items"
        )
    return _build(iter(given), treespec)


def _build(leaves: Any, spec: TreeSpec) -> Any:
    if spec.kind is None:
        return next(leaves)
    children = [_build(leaves, c) for c in spec.children]
    if spec.kind is tuple and spec.context is not None:
        return spec.context(*children)
    return _NODES[spec.kind][1](children, spec.context)


def tree_leaves(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    return tree_flatten(tree, is_leaf)[0]


def tree_structure(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> TreeSpec:
    return tree_flatten(tree, is_leaf)[1]


def tree_map(func: Callable[..., Any], tree: Any, *rests: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """The tree with ``func`` applied to its leaves (and those at the same places of ``rests``)."""
    leaves, spec = tree_flatten(tree, is_leaf)
    others = [tree_flatten(r, is_leaf)[0] for r in rests]
    return tree_unflatten([func(*xs) for xs in zip(leaves, *others, strict=True)], spec)


def tree_map_only(kind: Any, func: Callable[[Any], Any], tree: Any) -> Any:
    """``tree_map`` that changes leaves of the given types only."""
    return tree_map(lambda x: func(x) if isinstance(x, kind) else x, tree)


def tree_all(pred: Callable[[Any], bool], tree: Any) -> bool:
    return all(map(pred, tree_leaves(tree)))


def tree_any(pred: Callable[[Any], bool], tree: Any) -> bool:
    return any(map(pred, tree_leaves(tree)))
