"""The backward loop: cotangents from the roots to the leaves.

Stage: eager (and ahead-of-time autograd, which runs this very code on fake tensors).  In: roots and their cotangents.
Out: gradients, accumulated into leaves or returned.  The engine owns un-broadcasting, casts, accumulation, hooks, and
absent cotangents, so that the rules of rows need not.  Read next: ``autograd.function``.

Nodes carry a running number; an input's number is always smaller than its user's, so a heap on the number visits every
node after all of its users: no recursion and no sorting pass.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tinytorch import dtypes, tape
from tinytorch.ops.opdef import TABLE
from tinytorch.tape import Node, Vjp, mode

if TYPE_CHECKING:
    from tinytorch.tensor import Tensor


def backward(
    roots: Sequence[Tensor],
    cotangents: Sequence[Tensor | None],
    *,
    retain_graph: bool = False,
    create_graph: bool = False,
    inputs: Sequence[Tensor] | None = None,
    accumulate: bool = True,
    part: bool = False,
) -> list[Tensor | None]:
    """Run the tape backward from ``roots``.

    With ``accumulate`` the gradients of leaves (or of ``inputs``) are added to their ``.grad``.  Otherwise the
    gradients of ``inputs`` are returned, None where there is no path.  A pass that is ``part`` of another ends at
    ``inputs``: what lies behind them, and their hooks, are the other's.
    """
    run = _Run(inputs, create_graph, part)
    with tape.grad_mode(create_graph):
        for root, g in zip(roots, cotangents, strict=True):
            run.send(root._edge(), seed(root, g))
        before = mode.running
        try:
            run.loop(retain_graph)
        finally:
            mode.running = before
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
        one: Tensor = TABLE["full"](shape=tuple(root.shape), value=1.0, dtype=root.dtype, device=root.device)
        one._is_one = True
        return one
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
        with tape.grad_mode(False):
            t.grad.add_(g)
    for hook in list(getattr(t, "_post_hooks", None) or ()):
        hook(t)


def _key(edge: Any) -> tuple[int, int]:
    return (id(edge[0]), edge[1]) if isinstance(edge, tuple) else (id(edge), -1)


class _Run:
    """The state of one backward pass."""

    def __init__(self, inputs: Sequence[Tensor] | None, create_graph: bool, part: bool) -> None:
        self.create_graph = create_graph
        self.part = part
        self.wanted = {_key(t._edge()): t for t in inputs or ()}
        self.only_wanted = inputs is not None
        self.captured: dict[tuple[int, int], Tensor] = {}
        self.leaves: dict[int, Tensor] = {}
        self.leaf_grads: dict[int, Tensor] = {}
        self.pending: dict[Node, list[Any]] = {}
        self.heap: list[Node] = []
        self.needed: dict[Node, bool] = {}
        if part:  # nobody need look behind
            self.needed.update({e[0]: True for e in (t._edge() for t in inputs or ()) if isinstance(e, tuple)})

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
        self.retain_graph = retain_graph
        while self.heap:
            node = heapq.heappop(self.heap)
            cotangents = self.pending.pop(node)
            self._tensor_hooks(node, cotangents)
            for i in range(node.outputs):
                if (id(node), i) in self.wanted and cotangents[i] is not None:
                    self.captured[id(node), i] = cotangents[i]
            if self.part and any((id(node), i) in self.wanted for i in range(node.outputs)):
                continue
            if self.only_wanted and not any(e is not None and self._edge_leads(e) for e in node.edges):
                continue
            for edge, g in zip(node.edges, self._run_node(node, cotangents), strict=True):
                if g is not None:
                    self.send(edge, g)
            if not retain_graph:
                node.release()
        for key, leaf in self.leaves.items():
            g = self.leaf_grads[key]
            for hook in list(leaf._hooks.values()) if leaf._hooks and self._tells(key, -1) else ():
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
                    f"expected version {version} instead."
                    + (f" Forward call:\n{node.stack}" if node.stack else "")
                )
        if self.create_graph and node.out_alias is not None:
            for i, t in enumerate(node.out_alias):
                if t._is_differentiable():
                    t._set_history(node, i)
        for hook in list(node.pre_hooks):
            for g in cotangents:
                _shown(g)
            changed = hook(tuple(cotangents))
            cotangents = list(changed) if changed is not None else cotangents
        mode.running = node
        if node.whole is not None:  # one function for all inputs, whose results fit already: compiled code
            whole: Any = node.whole
            grads = list(_call(node, lambda g: whole(g, self.create_graph, self.retain_graph), cotangents))
        else:
            grads = self._by_rules(node, node.fns, cotangents[0] if node.outputs == 1 else tuple(cotangents))
        if mode.anomaly and mode.check_nan:
            _check_nan(node, grads)
        for hook in list(node.hooks):
            changed = hook(tuple(grads), tuple(cotangents))
            grads = list(changed) if changed is not None else grads
        return grads

    @staticmethod
    def _by_rules(node: Node, fns: Sequence[Vjp | None], g: Any) -> list[Any]:
        grads = [
            None if fn is None else fit(_call(node, fn, g), *meta)
            for fn, meta in zip(fns, node.metas, strict=False)
        ]
        return grads + [None] * (len(node.edges) - len(grads))

    def _tensor_hooks(self, node: Node, cotangents: list[Any]) -> None:
        for i, watch in node.watched.items() if node.watched else ():
            if cotangents[i] is None or not self._tells(id(node), i):
                continue
            for hook in list(watch.hooks.values()):
                cotangents[i] = _hooked(hook, cotangents[i])
            keeper = watch.keeper
            if keeper is not None:
                accumulate_grad(keeper, cotangents[i], fresh=False, create_graph=self.create_graph)

    def _tells(self, key: int, number: int) -> bool:
        """Whether hooks of this place run."""
        return not (self.part and (key, number) in self.wanted)

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
                _key(e) in self.wanted or (isinstance(e, tuple) and needed[e[0]])
                for e in n.edges
                if e is not None
            )
        return needed[node]


def _call(node: Node, fn: Vjp, g: Any) -> Any:
    try:
        return fn(g)
    except Exception as e:
        if node.stack:
            e.add_note(
                f"Error detected in {node.name()}. Traceback of forward call that caused the error:\n{node.stack}"
            )
        raise


def _check_nan(node: Node, grads: Sequence[Any]) -> None:
    """Anomaly mode: RuntimeError at the first gradient with a NaN, with the forward line that made the node."""
    for i, g in enumerate(grads):
        if g is None or hasattr(g._data, "is_fake") or g._data.dtype.kind not in "fcV":
            continue
        if bool((g._data != g._data).any()):
            error = RuntimeError(f"Function '{node.name()}' returned nan values in its {i}th output.")
            error.add_note(f"Traceback of forward call that made it:\n{node.stack}")
            raise error


def _shown(g: Tensor | None) -> None:
    """A hook sees ``g`` and may write to it."""
    if g is not None and g._is_one:
        g._is_one = False


def _hooked(hook: Callable[[Tensor], Tensor | None], g: Tensor) -> Tensor:
    _shown(g)
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
        i + extra
        for i, size in enumerate(shape)
        if isinstance(size, int) and size == 1 and g.shape[i + extra] != 1
    )
    g = TABLE["sum"](g, dim=dims, keepdim=False) if dims else g
    return g if tuple(g.shape) == tuple(shape) else TABLE["view"](g, shape=tuple(shape))
