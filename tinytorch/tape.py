"""The tape: who made each tensor.

Stage: eager (and ahead-of-time autograd, which runs this very code on fake tensors).  In: recorded calls.  Out: nodes.
A ``Node`` is one recorded call; its functions, made by the row's vjp rule, map the cotangent of an output to that of
each input, and what they close over is exactly what is kept alive for backward.  Writes rebase: what made the new value
is from then on what made the tensor.  Read next: ``engine`` (the backward loop), ``ops.pointwise`` (the rules).
"""

from __future__ import annotations

import itertools
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeAlias

from tinytorch import dtypes
from tinytorch.hooks import HookList, RemovableHandle
from tinytorch.ops.opdef import TABLE, Op

if TYPE_CHECKING:
    from tinytorch.tensor import Tensor

_PACKAGE = __file__.rpartition("tape.py")[0]

Vjp: TypeAlias = Callable[[Any], Any]


_TENSOR: Any = None  # ``Tensor``: its module, which imports this one, puts it here


class _Mode(threading.local):
    interpreter: Any = None  # who computes (``dispatch``)
    grad = True
    inference = False
    anomaly = False
    check_nan = True
    autocast: tuple[tuple[str, dtypes.DType], ...] | None = None  # (device type, type for products) pairs (``amp``)
    sdpa: Any = None  # the attention backends that are allowed (``nn.functional.sdp_backend``); None is the default
    running: Node | None = None  # the node whose vjp rules run at the moment


mode = _Mode()
_numbers = itertools.count()


class Watch:
    """Who wants to see the cotangent of one output: hooks, and the tensor that retains it."""

    __slots__ = ("_keeper", "hooks")

    def __init__(self) -> None:
        self.hooks: dict[int, Any] = {}
        self._keeper: Any = None

    @property
    def keeper(self) -> Tensor | None:
        return None if self._keeper is None else self._keeper()

    def keep_for(self, t: Tensor | None) -> None:
        self._keeper = None if t is None else weakref.ref(t)


class AccumulateGrad:
    """The end of a path, as ``next_functions`` shows it: adds to the ``grad`` of ``variable``."""

    def __init__(self, variable: Tensor) -> None:
        self.variable = variable
        self.next_functions: tuple[Any, ...] = ()

    def name(self) -> str:
        return "torch::autograd::AccumulateGrad"

    def __repr__(self) -> str:
        return "<AccumulateGrad>"


class Node:
    """One recorded call.  ``edges[i]``: None, a leaf tensor, or (node, output number) that made input i."""

    # Defaults on the class: most nodes never own most of these.
    fns: Sequence[Vjp | None] | None
    saved: Sequence[tuple[Tensor, int]] = ()  # what the functions close over, with its version then
    outputs: int = 1
    out_metas: Any = ()
    out_alias: Any = None
    hooks: Any = ()
    pre_hooks: Any = ()
    watched: dict[int, Watch] | None = None  # who wants to see the cotangent of an output
    #: (cotangents, create_graph, retain_graph) -> gradients of all inputs at once
    whole: Callable[[list[Any], bool, bool], Sequence[Any]] | None = None
    stack: str | None = None

    def __init__(self, op: Op, fns: Sequence[Vjp | None], edges: Sequence[Any], metas: Sequence[Any]) -> None:
        self.op = op
        self.fns = fns
        self.edges = edges
        self.metas = metas  # (shape, NumPy dtype) of each differentiable input
        self.number = next(_numbers)

    def __lt__(self, other: Node) -> bool:
        return self.number > other.number

    # --- PyTorch's face of a node -------------------------------------------------------------------------------
    def name(self) -> str:
        return "".join(part.capitalize() for part in self.op.name.split("_")) + "Backward0"

    def __repr__(self) -> str:
        return f"<{self.name()}>"

    @property
    def next_functions(self) -> tuple[tuple[Any, int], ...]:
        """(node, output number) per input; leaves by an ``AccumulateGrad``, None for inputs without gradient."""
        return tuple(
            e if isinstance(e, tuple) else (None if e is None else AccumulateGrad(e), 0) for e in self.edges
        )

    def register_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(grad_inputs, grad_outputs)`` after the node ran; what it returns replaces the former."""
        self.hooks = self.hooks or HookList()
        return self.hooks.add(hook)

    def register_prehook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(grad_outputs)`` before the node runs; what it returns replaces them."""
        self.pre_hooks = self.pre_hooks or HookList()
        return self.pre_hooks.add(hook)

    # --- the life of a node -------------------------------------------------------------------------------------
    def watch(self, number: int) -> Watch:
        if self.watched is None:
            self.watched = {}
        return self.watched.setdefault(number, Watch())

    def release(self) -> None:
        """Drop what is saved; a second backward then raises."""
        self.fns, self.saved, self.out_alias, self.whole = None, [], None, None


# --- recording --------------------------------------------------------------------------------------------------------
def record(op: Op, args: tuple[Any, ...], params: dict[str, Any], out: Any) -> None:
    """Put a node behind ``out`` (a tensor or a tuple), if it is differentiable."""
    vjp = op.vjp
    if vjp is None:
        return
    many = isinstance(out, tuple)
    outs = out if many else (out,)
    for o in outs:
        if o._data.dtype.kind in "fcV":  # V is bfloat16
            break
    else:
        return
    alias = tuple([o._alias() for o in outs]) if op.rule_reads_out else ()
    mode.grad, before = False, mode.grad
    try:
        fns = vjp((alias if many else alias[0]) if alias else None, *args, **params)
    finally:
        mode.grad = before
    attach(op, fns, args, outs, alias)


def attach(
    op: Op, fns: Sequence[Vjp | None], args: Sequence[Any], outs: Sequence[Tensor], alias: Sequence[Tensor]
) -> Node:
    """Make the node with these vjp functions (one per argument, or fewer) and hang it behind ``outs``."""
    kept: list[Vjp | None] = []
    edges: list[Any] = []
    metas: list[Any] = []
    saved: list[tuple[Tensor, int]] = []
    for a, fn in zip(args, fns, strict=False):
        if fn is not None and isinstance(a, _TENSOR) and (wants_grad(a) if a._base is not None else a._requires_grad):
            node = a._node
            kept.append(fn)
            edges.append(a if node is None else (node, a._number))
            data = a._data
            metas.append((data.shape, data.dtype))
            if getattr(fn, "__closure__", None):
                _closed_over(fn, saved)
        else:  # the closure is dropped: what only it saved is not kept
            kept.append(None)
            edges.append(None)
            metas.append(None)
    while len(edges) < len(args):
        edges.append(None)
    node = Node(op, kept, edges, metas)
    if saved:
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
            if o._base is None and o._node is None and o._hooks is None:  # fresh: nothing to move or to tell
                o._node, o._requires_grad = node, True
                if i:
                    o._number = i
            else:
                o._set_history(node, i)
    return node


def wants_grad(a: Any) -> bool:
    """``a.requires_grad``, with a view's history brought up to date."""
    if not isinstance(a, _TENSOR):
        return False
    if a._base is not None:
        a._sync_view()
    return a._requires_grad  # type: ignore[no-any-return]


def _closed_over(fn: Any, found: list[tuple[Tensor, int]]) -> None:
    """Add the tensors that a vjp function holds in its cells, also through functions it calls, with their versions."""
    for cell in getattr(fn, "__closure__", None) or ():
        try:
            content = cell.cell_contents
        except ValueError:  # an empty cell: the rule took another branch
            continue
        if isinstance(content, _TENSOR):
            if content._inference:
                raise RuntimeError(
                    "Inference tensors cannot be saved for backward. To work around you can make a clone to get a normal "
                    "tensor and use it in autograd."
                )
            found.append((content, content._version))
        elif isinstance(content, tuple | list):
            found.extend((t, t._version) for t in content if isinstance(t, _TENSOR))
        elif isinstance(content, FunctionType) and content is not fn:
            _closed_over(content, found)


def _forward_stack() -> str:
    """The user's lines that led here; those of this package come last and are left out."""
    frames = traceback.extract_stack()
    while frames and frames[-1].filename.startswith(_PACKAGE):
        frames.pop()
    return "".join(traceback.format_list(frames))


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
    if dst._inference and not mode.inference:
        raise RuntimeError(
            "Inplace update to inference tensor outside InferenceMode is not allowed. You can make a clone to get a normal "
            "tensor before doing inplace update."
        )
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


def is_differentiable(dtype: dtypes.DType) -> bool:
    return dtype.kind in "fc"
