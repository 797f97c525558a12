"""What tensors mean to the program: attributes, methods, ``backward``, and the functions that must not be nodes.

Stage: capture.  See ``registry`` and ``graphs``.  Read next: ``polyfills``.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from compiler.capture import breaks, graphs
from compiler.capture.models.registry import model
from compiler.capture.protocol import calls, classes, operators
from compiler.capture.values.base import FALSE, NONE, TRUE, ConstantValue, Lazy, Value, realize
from compiler.capture.values.function import UserFunction
from compiler.capture.values.mapping import DictValue
from compiler.capture.values.number import NumberValue, SpecializeError
from compiler.capture.values.sequence import ListValue, TupleValue
from compiler.capture.values.tensor import TensorValue
from compiler.fake import is_fake
from tinytorch import autograd, dispatch, tracing
from tinytorch.dtypes import float64, int64
from tinytorch.nn.linear import LazyLinear
from tinytorch.nn.parameter import Parameter
from tinytorch.optim.optimizer import Optimizer
from tinytorch.tensor import Tensor

if TYPE_CHECKING:
    from compiler.capture.emit import Emitter
    from compiler.capture.tracer import Tracer

#: Methods that change what a tensor is, or need its values.
_NOT_IN_GRAPH = frozenset(
    "register_hook retain_grad register_post_accumulate_grad_hook detach_ resize_ set_ apply_ data_ptr"
    " share_memory_ __reduce_ex__ __array__".split()
)
_TURNS = frozenset("t_ transpose_ squeeze_ unsqueeze_".split())  # of what the trace made; outside it would have to show
_NEEDS_VALUE = frozenset("item tolist numpy __bool__ __int__ __float__ __complex__ __index__ is_nonzero equal allclose".split())


# --- attributes -------------------------------------------------------------------------------------------------------
def attribute(tx: Tracer, t: TensorValue, name: str) -> Value | None:
    """``t.name``; None where the class decides (methods)."""
    if name in t.attrs:
        written = t.attrs[name]
        if written is None:
            tx.raise_(AttributeError, f"'{t.kind.__name__}' object has no attribute '{name}'")
        return realize(tx, written)
    if name == "grad":
        return _read_grad(tx, t)
    if name == "__class__":
        return tx.constant(t.kind)
    if name == "device":
        return tx.constant(t.fake.device)
    own = {} if t.obj is None else t.obj.__dict__
    if name in own and not hasattr(Tensor, name):
        assert t.source is not None
        return realize(tx, Lazy(own[name], t.source.attr(name)))
    found = classes.lookup(tx, t.kind, name)
    if found is None:
        if t.source is not None and t.obj is not None:
            tx.guard("KEY", f"{name!r} not in {{0}}", t.source.attr("__dict__"))
        tx.raise_(AttributeError, f"'{t.kind.__name__}' object has no attribute '{name}'")
    raw = found[1]
    if isinstance(raw, property):
        return graphs.call(tx, getattr, [t, ConstantValue(name)], {})
    if isinstance(raw, FunctionType | classmethod | staticmethod):
        return None
    if name in ("_data", "_storage"):
        breaks.unsupported(breaks.ATTRIBUTE, f"Tensor.{name}")
    if name in ("_requires_grad", "_base", "_node") or not name.startswith("_"):
        return tx.from_python(getattr(t.fake, name))
    return tx.from_python(getattr(t.obj if t.obj is not None else t.fake, name))


def _read_grad(tx: Tracer, t: TensorValue) -> Value:
    if t.source is None or t.obj is None:
        return NONE
    grad = realize(tx, Lazy(t.obj.grad, t.source.attr("grad")))
    t.attrs["grad"] = grad
    return grad


def set_attribute(tx: Tracer, t: TensorValue, name: str, new: Value | None) -> None:
    """``t.name = new``: the gradient and the program's own attributes are replayed, the rest is not for a graph."""
    if name == "requires_grad" and new is not None:
        requires_grad(tx, t, realize(tx, new))
        return
    if name in ("data", "names") or name.startswith("_"):
        breaks.unsupported(breaks.NOT_IN_GRAPH, f"assignment to Tensor.{name}")
    tx.effects.touch(t)
    if name == "grad" and isinstance(new, ConstantValue) and new.value is None and t.source is not None and not tx.may_raise:
        tx.released.append((t, t.attrs.get(name)))
    t.attrs[name] = new


def released(tx: Tracer, emit: Emitter) -> list[str]:
    """What translated code forgets before the graph runs, to have its memory: gradients that the program drops at its
    beginning (``zero_grad``), if no operation takes them.  A graph that raises later finds nothing else changed."""
    free = [t for t, old in tx.released if not isinstance(old, TensorValue) or old.node is None]
    return [f"{emit.read(t.source)}.grad = None" for t in dict.fromkeys(free) if t.source is not None]


# --- methods ----------------------------------------------------------------------------------------------------------
#: Methods that are more than a function of the tensor, also where the program takes them from the class.
ALWAYS_METHODS = _NOT_IN_GRAPH | _TURNS


def call_method(
    tx: Tracer, func: UserFunction, owner: TensorValue, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    """A call of a Python-defined method of a tensor."""
    fn: Any = func.obj
    name = func.name
    custom = tx.models.get(fn)
    if custom is not None:
        return custom(tx, owner, *[realize(tx, a) for a in args], **{k: realize(tx, v) for k, v in kwargs.items()})
    if not (func.globals.get("__name__") or "").startswith("tinytorch"):
        return calls.inline(tx, func, [owner, *args], kwargs)
    if name in _NOT_IN_GRAPH:
        breaks.unsupported(breaks.NOT_IN_GRAPH, f"Tensor.{name}")
    if name in _TURNS and owner.source is not None:
        breaks.unsupported(breaks.NOT_IN_GRAPH, f"Tensor.{name} of an input")
    if name in _NEEDS_VALUE:
        return number(tx, owner, name, *args)
    if getattr(Tensor, name, None) is fn:
        return graphs.call_method(tx, name, [owner, *args], kwargs)
    return graphs.call(tx, fn, [owner, *args], kwargs)


@model(Tensor.requires_grad_)
def requires_grad(tx: Tracer, t: TensorValue, requires_grad: Value = TRUE) -> Value:
    """A change of what the trace made is a node; an input stays as it is."""
    flag = operators.truth(tx, requires_grad)
    if t.fake.requires_grad == flag:
        return t
    if t.source is not None:
        breaks.unsupported(breaks.NOT_IN_GRAPH, "requires_grad of an input is changed")
    graphs.begin_leaf(tx, t)
    graphs.call_method(tx, "requires_grad_", [t, ConstantValue(flag)], {})
    tx.graph.nodes[-1].meta["impure"] = True
    return t


def number(tx: Tracer, t: TensorValue, what: str, *args: Value) -> Value:
    """The value of a tensor as a Python number: known only when the graph has run."""
    kind = {"float": float, "__float__": float, "int": int, "__int__": int}.get(what)
    if tx.config.capture_scalar_outputs and (what == "item" or kind) and t.fake.numel() == 1:
        return _number_of(tx, t, kind)
    breaks.unsupported(breaks.SCALAR_OUTPUT, f"{what} of {t.describe()}")


def _number_of(tx: Tracer, t: TensorValue, kind: type | None) -> Value:
    """``t.item()`` as a number that the graph computes."""
    is_float = t.fake.dtype.is_floating_point
    if t.fake.dtype.kind not in "fiu" or (kind is int and is_float):
        breaks.unsupported(breaks.SCALAR_OUTPUT, f"a number from {t.describe()}")
    kind = kind or (float if is_float else int)
    flat = graphs.call_method(tx, "reshape", [t, TupleValue([])], {})
    wide = graphs.call_method(tx, "to", [flat, ConstantValue(float64 if kind is float else int64)], {})
    assert isinstance(wide, TensorValue)
    detached = graphs.call_method(tx, "detach", [wide], {})
    assert isinstance(detached, TensorValue)
    return NumberValue(detached, kind, None, frozenset())


@model(tracing.is_compiling)
def is_compiling(tx: Tracer) -> Value:
    return TRUE


# --- backward ---------------------------------------------------------------------------------------------------------
@model(Tensor.backward)
def backward(
    tx: Tracer,
    loss: TensorValue,
    gradient: Value = NONE,
    retain_graph: Value = NONE,
    create_graph: Value = FALSE,
    inputs: Value = NONE,
) -> Value:
    """``loss.backward()``: one node that gives the gradients of the leaves, then their accumulation."""
    leaves = _wanted(tx, inputs) if not _is_none(inputs) else _leaves(tx, loss)
    options: dict[str, Value] = {"allow_unused": TRUE}
    if not _is_none(gradient):
        options["grad_outputs"] = gradient
    if not _is_none(retain_graph):
        options["retain_graph"] = retain_graph
    if operators.truth(tx, create_graph):
        options["create_graph"] = TRUE
    if not loss.fake.requires_grad:
        tx.raise_(RuntimeError, "element 0 of tensors does not require grad and does not have a grad_fn")
    held = {id(v.fake._data.storage) for v in tx.by_fake.values()}
    found = graphs.call(tx, autograd.grad, [loss, ListValue(list(leaves))], options)
    assert isinstance(found, TupleValue)
    for leaf, g in zip(leaves, found.items, strict=True):
        g = realize(tx, g)
        if isinstance(g, TensorValue):
            _accumulate(tx, leaf, g, held, operators.truth(tx, create_graph))
    return NONE


def _is_none(v: Value) -> bool:
    return v.is_const() and v.const() is None


def _accumulate(tx: Tracer, leaf: TensorValue, g: TensorValue, held: set[int], create_graph: bool) -> None:
    """``leaf.grad += g``; the first gradient is taken over, or copied where others hold its memory (``held``, by storage) or its
    elements overlap: what is added to it later must reach nobody else."""
    have = attribute(tx, leaf, "grad")
    if isinstance(have, TensorValue):
        if create_graph:
            set_attribute(tx, leaf, "grad", operators.binary(tx, "+", have, g))
        else:
            graphs.call_method(tx, "add_", [have, g], {})
        return
    storage, places = id(g.fake._data.storage), zip(g.fake.stride(), g.fake.shape, strict=True)
    if storage in held or any(isinstance(step, int) and step == 0 and n != 1 for step, n in places):
        copied = graphs.call_method(tx, "clone", [g], {})
        assert isinstance(copied, TensorValue)
        g, storage = copied, id(copied.fake._data.storage)
    held.add(storage)
    set_attribute(tx, leaf, "grad", g)


def _wanted(tx: Tracer, inputs: Value) -> list[TensorValue]:
    items = [inputs] if isinstance(inputs, TensorValue) else [realize(tx, v) for v in tx.protocol.unpack(tx, inputs)]
    return [t for t in items if isinstance(t, TensorValue)]


def _leaves(tx: Tracer, loss: TensorValue) -> list[TensorValue]:
    """The leaves behind ``loss``, in the order in which the graph got them."""
    found: list[TensorValue] = []
    for leaf in _walk(loss.fake):
        known = tx.by_fake.get(id(leaf))
        if known is None:
            continue
        if known.obj is not None and (known.obj._hooks or known.obj._post_hooks):
            breaks.unsupported(breaks.NOT_IN_GRAPH, "backward() into a tensor with hooks")
        found.append(known)
    order = {id(t): i for i, t in enumerate(tx.inputs)}
    return sorted(found, key=lambda t: order.get(id(t), len(order)))


def _walk(root: Tensor) -> Iterator[Tensor]:
    """Leaf tensors reachable on the tape; a break where it leads out of the trace."""
    seen: set[int] = set()
    stack = [root._edge()]
    while stack:
        edge = stack.pop()
        if edge is None:
            continue
        if not isinstance(edge, tuple):
            if id(edge) not in seen and is_fake(edge):
                seen.add(id(edge))
                yield edge
            continue
        node = edge[0]
        if id(node) in seen:
            continue
        seen.add(id(node))
        if getattr(node.op, "name", "") == "input":
            breaks.unsupported(breaks.NOT_IN_GRAPH, "backward() through an input that has a history")
        stack.extend(node.edges)


@model(Parameter)
def make_parameter(tx: Tracer, *args: Value, **kwargs: Value) -> Value:
    breaks.unsupported(breaks.NOT_IN_GRAPH, "a Parameter made inside the function")


# --- optimizers -------------------------------------------------------------------------------------------------------
_PREPARE: Any = Optimizer.prepare


@model(Optimizer.prepare)
def prepare(tx: Tracer, optimizer: Value, has_gradient: Value = NONE) -> Value:
    """State is made for real before the step that is traced, so that this step is one like all that follow."""
    obj = optimizer.real()
    if obj is None:
        return calls.inline(tx, UserFunction.wrap(tx, _PREPARE, tx.namespace.source(Optimizer.prepare)), [optimizer], {})

    def will_have(p: Tensor) -> bool:
        known = tx.by_id.get(id(p))
        if not isinstance(known, TensorValue) or "grad" not in known.attrs:
            return p.grad is not None
        given = known.attrs["grad"]
        return given is not None and not _is_none(realize(tx, given))

    had = len(obj.state)
    with dispatch.use(None):
        obj.prepare(will_have)
    if tx.others and len(obj.state) > had:  # the step of another optimizer may serve this one too
        raise SpecializeError(frozenset())
    state = tx.by_id.get(id(obj.state))
    if isinstance(state, DictValue):
        state.refresh()
    return NONE


_LEARN_SHAPE: Any = LazyLinear._learn_shape


@model(_LEARN_SHAPE)
def learn_shape(tx: Tracer, module: Value, args: Value) -> Value:
    """A lazy module becomes what it will be, for real, and the trace starts again: this call is one like all that follow."""
    obj = module.real()
    first = realize(tx, tx.protocol.unpack(tx, args)[0])
    if obj is None or not isinstance(first, TensorValue) or tx.interp.drew_from:
        breaks.unsupported(breaks.SKIPPED_CALL, "the first call of a lazy module")
    with dispatch.use(None):
        _LEARN_SHAPE(obj, (SimpleNamespace(shape=[int(s) for s in first.fake.shape]),))
    raise SpecializeError(frozenset())
