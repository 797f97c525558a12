"""``Graph`` of ``Node``s: the one data structure between capture and the loop IR.

Stage: ir.  In: calls to ``placeholder``, ``call_function`` ...  Out: a list of nodes in execution order, that knows
who uses what.  Mirrors ``torch.fx``.  Read next: ``meta`` (what nodes carry), ``printer`` (a graph as a Python
program), ``interp`` (what a graph means), ``verify`` (when a graph is right).

Nodes of each ``op``:

    placeholder    an input; ``target`` its name
    get_attr       an attribute of the module; ``target`` its dotted name
    call_function  ``target(*args, **kwargs)``; after ahead-of-time autograd the target is an ``Op`` row
    call_method    ``args[0].target(*args[1:], **kwargs)``
    output         ``args[0]`` is returned

The nodes form a ring of ``_prev``/``_next`` links with the graph's ``_root`` between last and first: inserting and
erasing are O(1), also while one iterates.
"""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

from compiler.ir.lint import lint

OpKind: TypeAlias = "Literal['placeholder', 'get_attr', 'call_function', 'call_method', 'output', 'root']"
OPS = ("placeholder", "get_attr", "call_function", "call_method", "output")


class Node:
    """One step of a graph.  ``args`` and ``kwargs`` hold nodes, constants, and tuples, lists, dicts, slices of these."""

    __slots__ = ("_args", "_erased", "_inputs", "_kwargs", "_next", "_prev", "graph", "meta", "name", "op", "target", "users")  # fmt: skip

    def __init__(
        self, graph: Graph, name: str, op: OpKind, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        self.graph = graph
        self.name = name
        self.op = op
        self.target = target
        self.meta: dict[str, Any] = {}
        self.users: dict[Node, None] = {}  # an ordered set: in order of first use
        self._inputs: dict[Node, None] = {}
        self._erased = False  # an erased node keeps its links, so that an iteration standing on it finds its way
        self._prev: Node = self
        self._next: Node = self
        self._args: tuple[Any, ...] = ()
        self._kwargs: dict[str, Any] = {}
        self._set(args, kwargs)

    # --- arguments ---
    @property
    def args(self) -> tuple[Any, ...]:
        return self._args

    @args.setter
    def args(self, args: tuple[Any, ...]) -> None:
        self._set(args, self._kwargs)

    @property
    def kwargs(self) -> dict[str, Any]:
        return self._kwargs

    @kwargs.setter
    def kwargs(self, kwargs: Mapping[str, Any]) -> None:
        self._set(self._args, kwargs)

    @property
    def all_input_nodes(self) -> list[Node]:
        """The nodes this one reads, each once, in order of appearance."""
        return list(self._inputs)

    def _set(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        for n in self._inputs:
            n.users.pop(self, None)
        self._inputs = {}

        def use(n: Node) -> Node:
            self._inputs[n] = None
            n.users[self] = None
            return n

        self._args = map_nodes(tuple(args), use)
        self._kwargs = map_nodes(dict(kwargs), use)

    def replace_all_uses_with(
        self, new: Node, delete_user_cb: Callable[[Node], bool] = lambda user: True, *, propagate_meta: bool = False
    ) -> list[Node]:
        """Let every user (that ``delete_user_cb`` accepts) read ``new`` instead; returns those users."""
        if propagate_meta:
            new.meta = {**self.meta, **new.meta}
        changed = [user for user in list(self.users) if delete_user_cb(user)]
        for user in changed:
            user.replace_input_with(self, new)
        return changed

    def replace_input_with(self, old: Node, new: Node) -> None:
        def swap(n: Node) -> Node:
            return new if n is old else n

        self._set(map_nodes(self._args, swap), map_nodes(self._kwargs, swap))

    def update_arg(self, i: int, arg: Any) -> None:
        self.args = (*self._args[:i], arg, *self._args[i + 1 :])

    def update_kwarg(self, key: str, arg: Any) -> None:
        self.kwargs = {**self._kwargs, key: arg}

    # --- place ---
    @property
    def next(self) -> Node:
        return self._next

    @property
    def prev(self) -> Node:
        return self._prev

    def prepend(self, x: Node) -> None:
        """Put ``x`` right before this node."""
        if x.graph is not self.graph:
            raise ValueError(f"cannot move {x} into another graph: use node_copy")
        if x is not self:
            x._unlink()
            x._prev, x._next = self._prev, self
            x._prev._next = self._prev = x

    def append(self, x: Node) -> None:
        """Put ``x`` right after this node."""
        if x is not self:
            self._next.prepend(x)

    def _unlink(self) -> None:
        self._prev._next, self._next._prev = self._next, self._prev

    # --- questions ---
    def is_impure(self) -> bool:
        """Whether dropping this node, though unused, would change what a caller can see."""
        if self.op in ("placeholder", "output"):
            return True
        return bool(self.meta.get("impure")) or _is_impure(self.op, self.target)

    @property
    def stack(self) -> list[tuple[str, int, str, str]]:
        """The user's frames this came from, innermost last: (file, line, function, source text)."""
        return list(self.meta.get("stack") or ())

    def format_node(self) -> str:
        shown = f"%{self.name} : [num_users={len(self.users)}] = {self.op}"
        if self.op == "output":
            return f"return {self.args[0]}"
        call = f", args = {self.args}, kwargs = {self.kwargs}" if self.op.startswith("call") else ""
        return f"{shown}[target={self.target}]({call.lstrip(', ')})" if call else f"{shown}[target={self.target}]"

    def __repr__(self) -> str:
        return self.name

    def __lt__(self, other: Node) -> bool:
        """Whether this node stands before ``other``.  Walks the graph: for tests and rare questions."""
        n = self._next
        while n.op != "root" and n is not other:
            n = n._next
        return n is other


#: ``impure(op, target)`` of nodes whose effect is not their value; other rooms add what they know.
IMPURE: list[Callable[[str, Any], bool]] = [
    lambda op, target: op == "call_method" and target.endswith("_") and not target.endswith("__"),
    lambda op, target: op == "call_function" and getattr(target, "__name__", "") in ("print", "setitem", "write"),
]


def _is_impure(op: str, target: Any) -> bool:
    return any(test(op, target) for test in IMPURE)


def map_nodes(arg: Any, fn: Callable[[Node], Any]) -> Any:
    """``arg`` with ``fn`` applied to every node in it; containers are rebuilt as their own kind."""
    kind = type(arg)
    if kind is Node:
        return fn(arg)
    if kind in _PLAIN:
        return arg
    if kind is tuple or kind is list:
        return kind([map_nodes(a, fn) for a in arg])
    if isinstance(arg, Node):
        return fn(arg)
    if isinstance(arg, dict):
        return {k: map_nodes(v, fn) for k, v in arg.items()}
    if isinstance(arg, slice):
        return slice(map_nodes(arg.start, fn), map_nodes(arg.stop, fn), map_nodes(arg.step, fn))
    if isinstance(arg, tuple):  # a Size or a named tuple
        items = [map_nodes(a, fn) for a in arg]
        return type(arg)(*items) if hasattr(arg, "_fields") else type(arg)(items)
    return arg


_PLAIN = frozenset((str, int, float, bool, type(None)))


def nodes_in(arg: Any) -> list[Node]:
    """The nodes inside an argument, with repetitions, in order."""
    found: list[Node] = []
    map_nodes(arg, lambda n: found.append(n) or n)  # type: ignore[func-returns-value]
    return found


class Namespace:
    """Hands out names: valid identifiers, each once, ``add``, ``add_1``, ``add_2`` in order of asking."""

    def __init__(self, reserved: Iterable[str] = ("ops", "torch", "self", "forward")) -> None:
        self.used: set[str] = set(reserved)
        self._count: dict[str, int] = {}

    def create_name(self, candidate: str) -> str:
        base = re.sub(r"\W", "_", candidate) or "_unnamed"
        if base[0].isdigit():
            base = "_" + base
        if keyword.iskeyword(base) or base in _BUILTINS:
            base += "_1" if base not in self.used else ""
        name = base
        stem, _, digits = base.rpartition("_")
        if name in self.used and stem and digits.isdigit():
            base = stem
        n = self._count.get(base, 0)
        while name in self.used:
            n += 1
            name = f"{base}_{n}"
        if n:
            self._count[base] = n
        self.used.add(name)
        return name


_BUILTINS = frozenset(dir(builtins))


class NodeList:
    """``graph.nodes``: iterate, reverse, count, index; the node at hand may be erased or moved meanwhile."""

    def __init__(self, root: Node) -> None:
        self._root = root

    def __iter__(self) -> Iterator[Node]:
        n = self._root._next
        while n is not self._root:
            if not n._erased:
                yield n
            n = n._next

    def __reversed__(self) -> Iterator[Node]:
        n = self._root._prev
        while n is not self._root:
            if not n._erased:
                yield n
            n = n._prev

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, i: int) -> Node:
        return list(self)[i]


class Graph:
    """A program of nodes in execution order.  Mirrors ``torch.fx.Graph``."""

    def __init__(self) -> None:
        self._root = Node(self, "", "root", "root", (), {})
        self._at = self._root  # new nodes go right before this one
        self._names = Namespace()
        self._last_input: Node | None = None  # as far as ``input`` knows: looking for it each time would be a walk each time

    @property
    def nodes(self) -> NodeList:
        return NodeList(self._root)

    # --- making nodes ---
    def create_node(
        self,
        op: OpKind,
        target: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> Node:
        """A new node at the insert point, named ``name`` or after its target."""
        if op not in OPS:
            raise ValueError(f"no node op {op!r}: one of {', '.join(OPS)}")
        node = Node(self, self._names.create_name(name or _name_of(op, target)), op, target, args, kwargs or {})
        for n in node.all_input_nodes:
            if n.graph is not self:
                node._set((), {})
                raise ValueError(f"argument {n} of {target} belongs to another graph")
        self._at.prepend(node)
        return node

    def placeholder(self, name: str, default: Any = ...) -> Node:
        """An input.  Comes after the other inputs if the insert point is at the end."""
        self._last_input = None
        return self.create_node("placeholder", name, () if default is ... else (default,), name=name)

    def input(self, name: str) -> Node:
        """A further input, after those there are, wherever new nodes go now."""
        last = self._last_input
        if last is None or last._erased:
            last = next((n for n in reversed(self.nodes) if n.op == "placeholder"), None)
        with self.inserting_after(last) if last is not None else self.inserting_before():
            node = self.placeholder(name)
        self._last_input = node
        return node

    def get_attr(self, qualified_name: str, name: str | None = None) -> Node:
        return self.create_node("get_attr", qualified_name, name=name)

    def call_function(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> Node:
        return self.create_node("call_function", target, args, kwargs, name)

    def call_method(
        self, target: str, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None, name: str | None = None
    ) -> Node:
        return self.create_node("call_method", target, args, kwargs, name)

    def output(self, result: Any) -> Node:
        return self.create_node("output", "output", (result,))

    def node_copy(self, node: Node, arg_transform: Callable[[Node], Any] = lambda n: n) -> Node:
        """A copy of a node of any graph, its arguments mapped by ``arg_transform``, its meta shared item by item."""
        args = map_nodes(node.args, arg_transform)
        new = self.create_node(node.op, node.target, args, map_nodes(node.kwargs, arg_transform), node.name)
        new.meta = dict(node.meta)
        return new

    def graph_copy(self, other: Graph, val_map: dict[Node, Any]) -> Any:
        """Copy all of ``other`` in, using and filling ``val_map``; returns the mapped output value instead of a node."""
        for node in other.nodes:
            if node.op == "output":
                return map_nodes(node.args[0], val_map.__getitem__)
            if node not in val_map:
                val_map[node] = self.node_copy(node, val_map.__getitem__)
        return None

    def copy(self) -> tuple[Graph, dict[Node, Node]]:
        """An equal graph and the map from old nodes to new ones."""
        new = Graph()
        mapping: dict[Node, Node] = {}
        for node in self.nodes:
            mapping[node] = new.node_copy(node, mapping.__getitem__)
        return new, mapping

    def __deepcopy__(self, memo: Any) -> Graph:
        return self.copy()[0]

    # --- placing and removing ---
    @contextmanager
    def inserting_before(self, node: Node | None = None) -> Iterator[None]:
        """New nodes of the block go before ``node`` (None: at the start)."""
        before, self._at = self._at, self._root._next if node is None else node
        try:
            yield
        finally:
            self._at = before

    @contextmanager
    def inserting_after(self, node: Node | None = None) -> Iterator[None]:
        """New nodes of the block go after ``node``, in order (None: at the end)."""
        before, self._at = self._at, self._root if node is None else node._next
        try:
            yield
        finally:
            self._at = before

    def erase_node(self, node: Node) -> None:
        """Remove an unused node; RuntimeError names the users if there are any."""
        if node.users:
            raise RuntimeError(f"cannot erase {node}: still used by {', '.join(map(str, node.users))}")
        if node._erased:
            raise RuntimeError(f"{node} is not in the graph any more")
        if self._at is node:
            self._at = node._next
        node._set((), {})
        node._unlink()
        node._erased = True

    def eliminate_dead_code(self, is_impure: Callable[[Node], bool] = Node.is_impure) -> bool:
        """Erase unused pure nodes, last first; True if any was."""
        changed = False
        for node in reversed(self.nodes):
            if not node.users and not is_impure(node):
                self.erase_node(node)
                changed = True
        return changed

    def rename(self, node: Node, name: str) -> None:
        """Call ``node`` ``name``, or the next free name after it."""
        if node.name != name:
            self._names.used.discard(node.name)
            node.name = self._names.create_name(name)

    # --- asking ---
    @property
    def placeholders(self) -> list[Node]:
        return [n for n in self.nodes if n.op == "placeholder"]

    @property
    def output_node(self) -> Node:
        last = self._root._prev
        if last.op != "output":
            raise RuntimeError("the graph has no output node at its end")
        return last

    def find_nodes(self, *, op: str, target: Any = None) -> list[Node]:
        return [n for n in self.nodes if n.op == op and (target is None or n.target is target or n.target == target)]

    def lint(self) -> None:
        """Raise ``VerifyError`` if the graph breaks its invariants (``verify``)."""
        lint(self)

    def __str__(self) -> str:
        lines = [n.format_node() for n in self.nodes]
        return "graph():\n" + "".join(f"    {line}\n" for line in lines)


def _name_of(op: str, target: Any) -> str:
    if op == "get_attr":
        return str(target)
    name = target if isinstance(target, str) else getattr(target, "name", None) or getattr(target, "__name__", "call")
    return str(name).strip("_") or "call"
