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
from tinytorch.ops.rules import Kept

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
_new = object.__new__
INFERENCE_SAVED = (
    "Inference tensors cannot be saved for backward. To work around you can make a clone to get a normal tensor and use it "
    "in autograd."
)


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
    """One recorded call.  ``edges[i]``: None, a leaf tensor, or (node, output number) that made input i.

    ``fns`` are the vjp functions, one per input (None where no gradient is wanted).  Where a rule says beforehand what its
    functions keep (``ops.rules``), the node keeps just these arguments, and the functions are made when first asked for.
    """

    # Defaults on the class: most nodes never own most of these.
    outputs: int = 1
    out_metas: Any = ()
    out_alias: Any = None
    hooks: Any = ()
    pre_hooks: Any = ()
    watched: dict[int, Watch] | None = None  # who wants to see the cotangent of an output
    #: (cotangents, create_graph, retain_graph) -> gradients of all inputs at once
    whole: Callable[[list[Any], bool, bool], Sequence[Any]] | None = None
    stack: str | None = None
    _args: Sequence[Any] | None = None  # what the rule will be called with
    _versions: Sequence[int] = ()  # of the tensors among them
    _fns: Sequence[Vjp | None] | None = None
    _saved: Sequence[tuple[Tensor, int]] = ()

    def __init__(self, op: Op, fns: Sequence[Vjp | None], edges: Sequence[Any], metas: Sequence[Any]) -> None:
        self.op = op
        self._fns = fns
        self.edges = edges
        self.metas = metas  # (shape, NumPy dtype) of each differentiable input
        self.number = next(_numbers)

    @property
    def fns(self) -> Sequence[Vjp | None] | None:
        """None once released."""
        if self._fns is None and self._args is not None:
            made = self.op.vjp(None if self.out_alias is None else self.out_alias[0], *self._args)  # type: ignore[misc]
            self._fns = [None if e is None else fn for e, fn in zip(self.edges, made, strict=False)]
        return self._fns

    @property
    def saved(self) -> Sequence[tuple[Tensor, int]]:
        """What is kept alive for backward, with its version when it was recorded."""
        if self._args is None:
            return self._saved
        kept = [a for a in (*self._args, *(self.out_alias or ())) if isinstance(a, _TENSOR)]
        return list(zip(kept, self._versions, strict=True))

    @saved.setter
    def saved(self, value: Sequence[tuple[Tensor, int]]) -> None:
        self._saved = value

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
        self._fns = self._args = self.out_alias = self.whole = None
        self._saved = ()

    def replace(self, old: Tensor, new: Tensor) -> None:
        """Keep ``new``, of the same value, instead of ``old``."""
        if self._args is not None:
            assert self._fns is None
            self._versions = [new._version if t is old else v for t, v in self.saved]
            self._args = [new if a is old else a for a in self._args]
            return
        for fn in self._fns or ():
            _replace_in_cells(fn, old, new)
        self._saved = [(new, new._version) if t is old else (t, v) for t, v in self._saved]


# --- recording --------------------------------------------------------------------------------------------------------
def record(op: Op, args: tuple[Any, ...], params: dict[str, Any], out: Any) -> None:
    """Put a node behind ``out`` (a tensor or a tuple), if it is differentiable."""
    vjp = op.vjp
    if vjp is None:
        return
    kept = op.kept
    if kept is not None and not params and len(kept) == 1 << len(args) and type(out) is not tuple and out._base is None:
        if out._data.dtype.kind in "fcV":  # V is bfloat16
            _record_arguments(op, args, kept, out)
        return
    many = isinstance(out, tuple)
    outs = out if many else (out,)
    if not any([o._data.dtype.kind in "fcV" for o in outs]):
        return
    alias = tuple([o._alias() for o in outs]) if op.rule_reads_out else ()
    mode.grad, before = False, mode.grad
    try:
        fns = vjp((alias if many else alias[0]) if alias else None, *args, **params)
    finally:
        mode.grad = before
    attach(op, fns, args, outs, alias)


def _record_arguments(op: Op, args: tuple[Any, ...], kept: list[Kept], out: Tensor) -> None:
    """Record without running the rule: keep the arguments that its functions will hold."""
    edges: list[Any] = []
    metas: list[Any] = []
    wanted, bit = 0, 1
    for a in args:
        if isinstance(a, _TENSOR) and (a._requires_grad if a._base is None else wants_grad(a)):
            node, data = a._node, a._data
            edges.append(a if node is None else (node, a._number))
            metas.append((data.shape, data.dtype))
            wanted += bit
        else:
            edges.append(None)
            metas.append(None)
        bit += bit
    places, reads_out = kept[wanted]
    made: Node = _new(Node)
    made.op, made.edges, made.metas, made.number = op, edges, metas, next(_numbers)
    made._args = held = [None] * len(args)
    if places or reads_out:
        made._versions = versions = []
        for i in places:
            held[i] = a = args[i]
            if isinstance(a, _TENSOR):
                if a._inference:
                    raise RuntimeError(INFERENCE_SAVED)
                versions.append(0 if a._storage is None else a._storage.version)
        if reads_out:
            alias = out._alias()
            made.out_alias = (alias,)
            versions.append(alias._version)
    if mode.anomaly:
        made.stack = _forward_stack()
    if out._node is None and out._hooks is None:  # fresh: nothing to move or to tell
        out._node, out._requires_grad = made, True
    else:
        out._set_history(made, 0)


def attach(
    op: Op, fns: Sequence[Vjp | None], args: Sequence[Any], outs: Sequence[Tensor], alias: Sequence[Tensor]
) -> Node:
    """Make the node with these vjp functions (one per argument, or fewer) and hang it behind ``outs``."""
    n = len(args)
    kept: list[Vjp | None] = [None] * n  # a closure not kept here is dropped, with what only it saved
    edges: list[Any] = [None] * n
    metas: list[Any] = [None] * n
    saved: list[tuple[Tensor, int]] = []
    for i, fn in enumerate(fns):
        a = args[i]
        if fn is None or not isinstance(a, _TENSOR) or not (a._requires_grad if a._base is None else wants_grad(a)):
            continue
        node = a._node
        data = a._data
        kept[i] = fn
        edges[i] = a if node is None else (node, a._number)
        metas[i] = data.shape, data.dtype
        _closed_over(fn, saved)
    made = Node(op, kept, edges, metas)
    if saved:
        made.saved = saved
        if alias and any([t is k for t, _ in saved for k in alias]):
            made.out_alias = alias
    if len(outs) > 1:
        made.outputs = len(outs)
        made.out_metas = tuple((o.shape, o.dtype, o.device) for o in outs)
    if mode.anomaly:
        made.stack = _forward_stack()
    for i, o in enumerate(outs):
        if o._data.dtype.kind in "fcV":
            if o._base is None and o._node is None and o._hooks is None:  # fresh: nothing to move or to tell
                o._node, o._requires_grad = made, True
                if i:
                    o._number = i
            else:
                o._set_history(made, i)
    return made


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
                raise RuntimeError(INFERENCE_SAVED)
            storage = content._storage
            found.append((content, 0 if storage is None else storage.version))
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
    if node is None or not any(t is dst for t, _ in node.saved):
        return
    with grad_mode(False):
        copy = TABLE["clone"](dst)
    copy._requires_grad, copy._node, copy._number = dst._requires_grad, dst._node, dst._number
    node.replace(dst, copy)


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
    chain = (*base._back, *dst._chain)
    old = base._alias_with_history()
    strides = base.stride()
    base_fns: list[Vjp | None] = [_zero_region(chain, strides), lambda g: _apply_chain(_laid_out(g, strides), chain)]
    attach(TABLE["copy_slices"], base_fns, (old, src), (base,), ())
    dst._view_version = -1  # its history is read again from the base at the next use


def _apply_chain(t: Any, chain: Sequence[tuple[Op, dict[str, Any]]]) -> Any:
    for op, params in chain:
        t = op(t, **params)
    return t


def _laid_out(g: Any, strides: Sequence[Any]) -> Any:
    """``g`` with its dimensions in memory in the order of ``strides``: views that its base has are possible of it too."""
    if g.stride() == strides:
        return g
    order = sorted(range(len(strides)), key=lambda d: -strides[d])
    back = tuple(order.index(d) for d in range(len(order)))
    return TABLE["permute"](TABLE["contiguous"](TABLE["permute"](g, dims=tuple(order))), dims=back)


def _zero_region(chain: Sequence[tuple[Op, dict[str, Any]]], strides: Sequence[Any]) -> Vjp:
    def vjp(g: Any) -> Any:
        out = TABLE["clone"](_laid_out(g, strides))
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
