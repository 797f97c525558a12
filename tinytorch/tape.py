"""The tape: who made each tensor, and the backward loop.

Stage: eager (and ahead-of-time autograd, which runs this very code on fake tensors).  In: recorded calls.  Out:
gradients.  A ``Node`` is one recorded call; its functions, made by the row's vjp rule, map the cotangent of an output
to that of each input, and what they close over is exactly what is kept alive for backward.  The engine owns
un-broadcasting, casts, accumulation, and absent cotangents.  Read next: ``ops.pointwise`` for the rules.

Nodes carry a running number; an input's number is always smaller than its user's, so a heap on the number visits every
node after all of its users: no recursion and no sorting pass.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeAlias

from tinytorch import dtypes
from tinytorch.ops.opdef import TABLE, Op

if TYPE_CHECKING:
    from tinytorch.tensor import Tensor

Vjp: TypeAlias = Callable[[Any], Any]


_TENSOR: Any = None  # ``Tensor``: its module, which imports this one, puts it here


class _Mode(threading.local):
    interpreter: Any = None  # who computes (``dispatch``)
    grad = True
    inference = False
    anomaly = False
    running: Node | None = None  # the node whose vjp rules run at the moment


mode = _Mode()
_numbers = itertools.count()


class Node:
    """One recorded call.  ``edges[i]``: None, a leaf tensor, or (node, output number) that made input i."""

    __slots__ = ("op", "fns", "edges", "metas", "outputs", "number", "saved", "out_alias", "hooks", "pre_hooks",
                 "retain", "stack", "out_metas", "whole", "__weakref__")  # fmt: skip

    def __init__(self, op: Op, fns: Sequence[Vjp | None], edges: Sequence[Any], metas: Sequence[Any]) -> None:
        self.op = op
        self.fns: Sequence[Vjp | None] | None = fns
        self.edges = edges
        self.metas = metas  # (shape, NumPy dtype) of each differentiable input
        self.outputs = 1
        self.out_metas: Any = ()
        self.number = next(_numbers)
        self.saved: list[tuple[Tensor, int]] = []  # what the functions close over, with its version then
        self.out_alias: Any = None
        self.hooks: list[Any] = []
        self.pre_hooks: list[Any] = []
        self.retain: dict[int, Tensor] | None = None
        self.whole: Callable[[list[Any], bool], Sequence[Any]] | None = None  # (cotangents, create_graph) -> gradients
        self.stack: str | None = None

    def __lt__(self, other: Node) -> bool:
        return self.number > other.number

    def name(self) -> str:
        return "".join(part.capitalize() for part in self.op.name.split("_")) + "Backward0"

    def __repr__(self) -> str:
        return f"<{self.name()}>"

    @property
    def next_functions(self) -> tuple[tuple[Any, int], ...]:
        """As in PyTorch: (node or leaf, output number) per input."""
        return tuple(e if isinstance(e, tuple) else (e, 0) for e in self.edges)

    def release(self) -> None:
        """Drop what is saved; a second backward then raises."""
        self.fns, self.saved, self.out_alias, self.whole = None, [], None, None


# --- recording --------------------------------------------------------------------------------------------------------
def record(op: Op, args: tuple[Any, ...], params: dict[str, Any], out: Any) -> None:
    """Put a node behind ``out`` (a tensor or a tuple), if it is differentiable."""
    vjp = op.vjp
    if vjp is None:
        return
    outs = out if isinstance(out, tuple) else (out,)
    if not any(o._data.dtype.kind in "fcV" for o in outs):
        return
    alias = tuple([o._alias() for o in outs]) if op.rule_reads_out else ()
    before, mode.grad = mode.grad, False
    try:
        fns = list(vjp((alias if isinstance(out, tuple) else alias[0]) if alias else None, *args, **params))
    finally:
        mode.grad = before
    attach(op, fns, args, outs, alias)


def attach(op: Op, fns: list[Vjp | None], args: Sequence[Any], outs: Sequence[Tensor], alias: Sequence[Tensor]) -> Node:
    """Make the node with these vjp functions and hang it behind ``outs``."""
    edges: list[Any] = []
    metas: list[Any] = []
    saved: list[tuple[Tensor, int]] = []
    have = len(fns)
    for i, a in enumerate(args):
        fn = fns[i] if i < have else None
        if fn is not None and wants_grad(a):
            node = a._node
            edges.append(a if node is None else (node, a._number))
            data = a._data
            metas.append((data.shape, data.dtype))
            _closed_over(fn, saved)
        else:
            edges.append(None)
            metas.append(None)
            if i < have:
                fns[i] = None  # drop the closure: what only it saved is not kept
    node = Node(op, fns, edges, metas)
    node.saved = saved
    if alias and any(t is k for t, _ in saved for k in alias):
        node.out_alias = alias
    if len(outs) > 1:
        node.outputs = len(outs)
        node.out_metas = tuple((o.shape, o.dtype, o.device) for o in outs)
    if mode.anomaly:
        node.stack = _forward_stack()
    for i, o in enumerate(outs):
        if o._data.dtype.kind in "fcV":
            o._set_history(node, i)
    return node


def wants_grad(a: Any) -> bool:
    """``a.requires_grad``, with a view's history brought up to date."""
    if not isinstance(a, _TENSOR):
        return False
    if a._base is not None:
        a._sync_view()
    return a._requires_grad


def _closed_over(fn: Any, found: list[tuple[Tensor, int]]) -> None:
    """Add the tensors that a vjp function holds in its cells, also through functions it calls, with their versions."""
    for cell in getattr(fn, "__closure__", None) or ():
        try:
            content = cell.cell_contents
        except ValueError:  # an empty cell: the rule took another branch
            continue
        if isinstance(content, _TENSOR):
            found.append((content, content._version))
        elif isinstance(content, tuple | list):
            found.extend((t, t._version) for t in content if isinstance(t, _TENSOR))
        elif isinstance(content, FunctionType) and content is not fn:
            _closed_over(content, found)


def _forward_stack() -> str:
    import traceback

    return "".join(traceback.format_stack()[:-4])


def mark_inference(out: Any) -> None:
    """What inference mode made can never be recorded."""
    for t in out if isinstance(out, tuple) else (out,):
        t._inference = True


def keep_old_value(dst: Tensor, src: Tensor) -> None:
    """Before ``dst[...] = src``: if the rule that made ``src`` saved ``dst`` (``x.mul_(y)``), let it hold a copy."""
    node = src._node
    if node is None or node.fns is None or not any(t is dst for t, _ in node.saved):
        return
    with grad_mode(False):
        copy = TABLE["clone"](dst)
    copy._requires_grad, copy._node, copy._number = dst._requires_grad, dst._node, dst._number
    for fn in node.fns:
        _replace_in_cells(fn, dst, copy)
    node.saved = [(copy, copy._version) if t is dst else (t, v) for t, v in node.saved]


def _replace_in_cells(fn: Any, old: Tensor, new: Tensor) -> None:
    for cell in getattr(fn, "__closure__", None) or ():
        content = cell.cell_contents
        if content is old:
            cell.cell_contents = new
        elif isinstance(content, FunctionType) and content is not fn:
            _replace_in_cells(content, old, new)


def check_write(dst: Tensor) -> None:
    """RuntimeError for an in-place change that autograd could not follow."""
    if mode.grad and dst.requires_grad and dst._is_leaf_or_view_of_leaf():
        what = "a view of a leaf Variable" if dst._base is not None else "a leaf Variable"
        raise RuntimeError(f"{what} that requires grad is being used in an in-place operation.")


def rebase(dst: Tensor, src: Tensor) -> None:
    """After ``dst[...] = src``: what made src's value now made dst's; a view passes the news to its base."""
    if not mode.grad or not (src.requires_grad or dst.requires_grad):
        return
    base = dst._base
    if base is None:
        if src.requires_grad and src._node is None:  # a leaf: the copy is another tensor, made by copying
            attach(TABLE["clone"], [lambda g: g], (src,), (dst,), ())
        elif src.requires_grad:
            dst._set_history(*src._made_by())
        else:
            dst._forget_history()
        return
    chain = dst._chain
    old = base._alias_with_history()
    base_fns: list[Vjp | None] = [_zero_region(chain), lambda g: _apply_chain(g, chain)]
    attach(TABLE["copy_slices"], base_fns, (old, src), (base,), ())
    dst._view_version = -1  # its history is read again from the base at the next use


def _apply_chain(t: Any, chain: Sequence[tuple[Op, dict[str, Any]]]) -> Any:
    for op, params in chain:
        t = op(t, **params)
    return t


def _zero_region(chain: Sequence[tuple[Op, dict[str, Any]]]) -> Vjp:
    def vjp(g: Any) -> Any:
        out = TABLE["clone"](g)
        region = _apply_chain(out, chain)
        region.zero_()
        return out

    return vjp


# --- modes ------------------------------------------------------------------------------------------------------------
@contextmanager
def grad_mode(enabled: bool) -> Iterator[None]:
    before, mode.grad = mode.grad, enabled
    try:
        yield
    finally:
        mode.grad = before


# --- backward ---------------------------------------------------------------------------------------------------------
def backward(
    roots: Sequence[Tensor],
    cotangents: Sequence[Tensor | None],
    *,
    retain_graph: bool = False,
    create_graph: bool = False,
    inputs: Sequence[Tensor] | None = None,
    accumulate: bool = True,
) -> list[Tensor | None]:
    """Run the tape backward from ``roots``.

    With ``accumulate`` the gradients of leaves (or of ``inputs``) are added to their ``.grad``.  Otherwise the
    gradients of ``inputs`` are returned, None where there is no path.
    """
    run = _Run(inputs, create_graph)
    with grad_mode(create_graph):
        for root, g in zip(roots, cotangents, strict=True):
            run.send(root._edge(), seed(root, g))
        try:
            run.loop(retain_graph)
        finally:
            mode.running = None
        if not accumulate:
            return [run.captured.get(_key(t._edge())) for t in inputs or ()]
        targets = inputs if inputs is not None else list(run.leaves.values())
        given = {id(g) for g in cotangents}  # what callers hold is not taken over
        for t in targets:
            g = run.captured.get(_key(t._edge())) if inputs is not None else run.leaf_grads.get(id(t))
            if g is not None:
                accumulate_grad(t, g, fresh=id(g) not in given, create_graph=create_graph)
                given.add(id(g))
    return []


def seed(root: Tensor, g: Tensor | None) -> Tensor:
    """The cotangent a root starts with; RuntimeError as in PyTorch."""
    if not root.requires_grad:
        raise RuntimeError("element 0 of tensors does not require grad and does not have a grad_fn")
    if g is None:
        if root.numel() != 1:
            raise RuntimeError("grad can be implicitly created only for scalar outputs")
        return TABLE["full"](shape=tuple(root.shape), value=1.0, dtype=root.dtype, device=root.device)
    if tuple(g.shape) != tuple(root.shape):
        raise RuntimeError(
            f"Mismatch in shape: grad_output[0] has a shape of {g.shape} and output[0] has a shape of {root.shape}."
        )
    return g


def accumulate_grad(t: Tensor, g: Tensor, *, fresh: bool, create_graph: bool) -> None:
    """``t.grad += g``; the first gradient is taken over, or copied where another holds the same memory."""
    if t.grad is None:
        owned = g if create_graph else g.detach()
        t.grad = owned if fresh and g._base is None else owned.clone()
    elif create_graph:
        t.grad = t.grad + g
    else:
        with grad_mode(False):
            t.grad.add_(g)
    for hook in list(getattr(t, "_post_hooks", None) or ()):
        hook(t)


def _key(edge: Any) -> tuple[int, int]:
    return (id(edge[0]), edge[1]) if isinstance(edge, tuple) else (id(edge), -1)


class _Run:
    """The state of one backward pass."""

    def __init__(self, inputs: Sequence[Tensor] | None, create_graph: bool) -> None:
        self.create_graph = create_graph
        self.wanted = {_key(t._edge()): t for t in inputs or ()}
        self.only_wanted = inputs is not None
        self.captured: dict[tuple[int, int], Tensor] = {}
        self.leaves: dict[int, Tensor] = {}
        self.leaf_grads: dict[int, Tensor] = {}
        self.pending: dict[Node, list[Any]] = {}
        self.heap: list[Node] = []
        self.needed: dict[Node, bool] = {}

    def send(self, edge: Any, g: Tensor) -> None:
        """Deliver a cotangent to a leaf, or add it to what a node has received so far."""
        if isinstance(edge, tuple):
            node, number = edge
            if self.only_wanted and not self._leads_to_wanted(node):
                return
            slots = self.pending.get(node)
            if slots is None:
                slots = self.pending[node] = [None] * node.outputs
                heapq.heappush(self.heap, node)
            slots[number] = g if slots[number] is None else slots[number] + g
        else:
            have = self.leaf_grads.get(id(edge))
            self.leaves[id(edge)] = edge
            self.leaf_grads[id(edge)] = g if have is None else have + g

    def loop(self, retain_graph: bool) -> None:
        while self.heap:
            node = heapq.heappop(self.heap)
            cotangents = self.pending.pop(node)
            self._tensor_hooks(node, cotangents)
            for i in range(node.outputs):
                if (id(node), i) in self.wanted and cotangents[i] is not None:
                    self.captured[id(node), i] = cotangents[i]
            if self.only_wanted and not any(e is not None and self._edge_leads(e) for e in node.edges):
                continue
            for edge, g in zip(node.edges, self._run_node(node, cotangents), strict=True):
                if g is not None:
                    self.send(edge, g)
            if not retain_graph:
                node.release()
        for key, leaf in self.leaves.items():
            g = self.leaf_grads[key]
            for hook in list(leaf._hooks.values()) if leaf._hooks else ():
                g = _hooked(hook, g)
            self.leaf_grads[key] = g
            if (key, -1) in self.wanted:
                self.captured[key, -1] = g

    def _run_node(self, node: Node, cotangents: list[Any]) -> list[Any]:
        if node.fns is None:
            raise RuntimeError(
                "Trying to backward through the graph a second time (or directly access saved tensors after they have "
                "already been freed). Saved intermediate values of the graph are freed when you call .backward() or "
                "autograd.grad(). Specify retain_graph=True if you need to backward through the graph a second time."
            )
        for t, version in node.saved:
            if t._version != version:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an inplace operation: "
                    f"[{t.device.type} {t.dtype} {list(t.shape)}], saved by {node.name()}, is at version {t._version}; "
                    f"expected version {version} instead." + (f" Forward call:\n{node.stack}" if node.stack else "")
                )
        if self.create_graph and node.out_alias is not None:
            for i, t in enumerate(node.out_alias):
                if t._is_differentiable():
                    t._set_history(node, i)
        for hook in node.pre_hooks:
            changed = hook(tuple(cotangents))
            cotangents = list(changed) if changed is not None else cotangents
        mode.running = node
        if node.whole is not None:  # one function for all inputs, whose results fit already: compiled code
            grads = list(_call(node, lambda g: node.whole(g, self.create_graph), cotangents))
        else:
            grads = self._by_rules(node, node.fns, cotangents[0] if node.outputs == 1 else tuple(cotangents))
        for hook in node.hooks:
            changed = hook(tuple(grads), tuple(cotangents))
            grads = list(changed) if changed is not None else grads
        return grads

    @staticmethod
    def _by_rules(node: Node, fns: Sequence[Vjp | None], g: Any) -> list[Any]:
        grads = [
            None if fn is None else fit(_call(node, fn, g), *meta) for fn, meta in zip(fns, node.metas, strict=False)
        ]
        return grads + [None] * (len(node.edges) - len(grads))

    def _tensor_hooks(self, node: Node, cotangents: list[Any]) -> None:
        for i, t in (node.retain or {}).items():
            if cotangents[i] is None:
                continue
            for hook in list(t._hooks.values()) if t._hooks else ():
                cotangents[i] = _hooked(hook, cotangents[i])
            if t._retains_grad:
                accumulate_grad(t, cotangents[i], fresh=False, create_graph=self.create_graph)

    def _edge_leads(self, edge: Any) -> bool:
        if _key(edge) in self.wanted:
            return True
        return isinstance(edge, tuple) and self._leads_to_wanted(edge[0])

    def _leads_to_wanted(self, node: Node) -> bool:
        """Whether some wanted input lies at or behind ``node`` (memoised, without recursion)."""
        needed = self.needed
        stack = [node]
        while stack:
            n = stack[-1]
            if n in needed:
                stack.pop()
                continue
            todo = [e[0] for e in n.edges if isinstance(e, tuple) and e[0] not in needed]
            if todo:
                stack.extend(todo)
                continue
            stack.pop()
            needed[n] = any((id(n), i) in self.wanted for i in range(n.outputs)) or any(
                _key(e) in self.wanted or (isinstance(e, tuple) and needed[e[0]]) for e in n.edges if e is not None
            )
        return needed[node]


def _call(node: Node, fn: Vjp, g: Any) -> Any:
    try:
        return fn(g)
    except Exception as e:
        if node.stack:
            e.add_note(f"Error detected in {node.name()}. Traceback of forward call that caused the error:\n{node.stack}")
        raise


def _hooked(hook: Callable[[Tensor], Tensor | None], g: Tensor) -> Tensor:
    changed = hook(g)
    return g if changed is None else changed


def fit(g: Any, shape: Any, dtype: Any) -> Any:
    """Sum a cotangent over what was broadcast, and cast it to the (NumPy) type of its input."""
    if g is None:
        return None
    data = g._data
    if data.dtype is dtype and data.shape == shape:
        return g
    if data.dtype != dtype:
        to = dtypes.from_numpy(dtype)
        if g.dtype.is_complex and not to.is_complex:
            g = TABLE["real"](g)
        if g.dtype is not to:
            g = TABLE["cast"](g, dtype=to)
    if tuple(g.shape) == tuple(shape):
        return g
    extra = len(g.shape) - len(shape)
    dims = tuple(range(extra)) + tuple(
        i + extra for i, size in enumerate(shape) if isinstance(size, int) and size == 1 and g.shape[i + extra] != 1
    )
    g = TABLE["sum"](g, dim=dims, keepdim=False) if dims else g
    return g if tuple(g.shape) == tuple(shape) else TABLE["view"](g, shape=tuple(shape))


def is_differentiable(dtype: dtypes.DType) -> bool:
    return dtype.kind in "fc"
