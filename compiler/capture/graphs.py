"""Recording: one operation on tensors becomes one node, and runs once on fakes.

Stage: capture.  In: a public function or a Tensor method, and values.  Out: a ``call_function`` or ``call_method`` node
and the value of its result.  What comes out without tensors is metadata, known now, and leaves no node.
An exception that the operation raises on fakes is the program's own.  Read next: ``tracer``, which owns the graph.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.capture import breaks
from compiler.capture.values.array import ArrayValue
from compiler.capture.values.base import ConstantValue, NotConstantError, Value, realize
from compiler.capture.values.mapping import DictValue
from compiler.capture.values.number import NumberValue
from compiler.capture.values.objects import ObjectValue, Observed, OpaqueValue
from compiler.capture.values.sequence import ListValue, SliceValue, TupleValue
from compiler.capture.values.tensor import SymIntValue, TensorValue
from compiler.errors import Unsupported
from compiler.ir import meta
from compiler.sym.env import SymInt
from tinytorch import autograd, dispatch
from tinytorch.dtypes import float64, int64
from tinytorch.ops.opdef import Op
from tinytorch.tensor import Tensor

if TYPE_CHECKING:
    from compiler.capture.tracer import Tracer
    from compiler.ir.graph import Node

#: Modules whose functions are leaves of a captured graph.
LEAF_MODULES = (
    "tinytorch.functions", "tinytorch.nn.functional", "tinytorch.ops", "tinytorch.methods", "tinytorch.linalg",
    "tinytorch.fft", "tinytorch.special", "tinytorch.optim.functional",
)  # fmt: skip


def is_graph_function(fn: Any) -> bool:
    """Whether a call of ``fn`` is a node rather than inlined."""
    if isinstance(fn, Op) or getattr(fn, "_tt_leaf", False):
        return True
    return fn is autograd.grad or (getattr(fn, "__module__", None) or "").startswith(LEAF_MODULES)


def call(tx: Tracer, target: Callable[..., Any], args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``target(*args, **kwargs)`` as a node."""
    return _record(tx, target, None, args, kwargs)


def call_method(tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``args[0].name(*args[1:])`` as a node."""
    return _record(tx, getattr(Tensor, name), name, args, kwargs)


def _record(
    tx: Tracer, fn: Callable[..., Any], method: str | None, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    numbers = [n for v in (*args, *kwargs.values()) for n in _numbers_in(tx, v)]
    fakes = [example(tx, a) for a in args]
    fake_kwargs = {k: example(tx, v) for k, v in kwargs.items()}
    out = run_on_fakes(tx, fn, fakes, fake_kwargs) if not numbers else _run_with_numbers(tx, fn, args, kwargs, numbers)
    _note_error(tx, fn)
    if not _has_tensor(out) and not tx.interp.wrote:
        return tx.from_python(out)
    nodes = tuple(argument(tx, a) for a in args)
    node_kwargs = {k: argument(tx, v) for k, v in kwargs.items()}
    if method is None:
        node = tx.graph.call_function(fn, nodes, node_kwargs)
    else:
        node = tx.graph.call_method(method, nodes, node_kwargs)
    node.meta["stack"] = tx.stack_rows()
    tx.note_acts(node)
    return wrap_output(tx, node, out)


def _note_error(tx: Tracer, fn: Callable[..., Any]) -> None:
    """An operation that may raise for what its operands hold: ``recover`` deals with it, unless that shows too late."""
    if tx.interp.may_raise or getattr(fn, "_tt_leaf", False):
        caught = tx.would_be_caught()
        if caught and tx.interp.late:
            breaks.unsupported(breaks.DATA_ERROR, tx.interp.may_raise)
        if not tx.interp.late:
            tx.may_raise = True
            tx.caught = tx.caught or caught


def _numbers_in(tx: Tracer, value: Value) -> list[NumberValue]:
    value = realize(tx, value)
    if isinstance(value, NumberValue):
        return [] if value.fixed else [value]
    if isinstance(value, TupleValue | ListValue):
        return [n for v in value.items for n in _numbers_in(tx, v)]
    return []


def _run_with_numbers(
    tx: Tracer, fn: Callable[..., Any], args: list[Value], kwargs: dict[str, Value], numbers: list[NumberValue]
) -> Any:
    """A number may stand as a tensor only where the result is what the number itself would give."""

    def hints(tx: Tracer, value: Value) -> Any:
        value = realize(tx, value)
        if isinstance(value, TensorValue):
            return value.fake
        if isinstance(value, NumberValue):
            return value.kind(3) if value.hint is None else value.hint
        return _convert(tx, value, hints)

    try:
        wanted = run_on_fakes(tx, fn, [hints(tx, a) for a in args], {k: hints(tx, v) for k, v in kwargs.items()})
        given = run_on_fakes(tx, fn, [example(tx, a) for a in args], {k: example(tx, v) for k, v in kwargs.items()})
        fits = _described(given) == _described(wanted)
    except (Observed, Unsupported):
        fits = False
    if not fits:
        numbers[0].specialize()  # comes back only for a number that was drawn, whose outcome is fixed from now on
        rest = [n for n in numbers if not n.fixed]
        if rest:
            return _run_with_numbers(tx, fn, args, kwargs, rest)
        return run_on_fakes(tx, fn, [example(tx, a) for a in args], {k: example(tx, v) for k, v in kwargs.items()})
    return given


def _described(out: Any) -> Any:
    if isinstance(out, Tensor):
        return out.dtype, tuple(out._data.shape)
    return tuple(_described(o) for o in out) if isinstance(out, tuple | list) else type(out)


def call_number(tx: Tracer, fn: Callable[..., Any], args: list[Value]) -> Value:
    """Arithmetic of Python numbers of which the graph computes one: float64 (or int64) nodes."""
    numbers = [n for a in args for n in _numbers_in(tx, a)]
    known = [n.hint if isinstance(n, NumberValue) else n.const() for n in (realize(tx, a) for a in args)]
    hint = None if any(k is None for k in known) else fn(*known)
    out = run_on_fakes(tx, fn, [example(tx, a) for a in args], {})
    kind = float if out.dtype is float64 else int
    if out.dtype not in (float64, int64) or (hint is not None and type(hint) is not kind):
        numbers[0].specialize()
    node = tx.graph.call_function(fn, tuple(argument(tx, a) for a in args))
    node.meta["stack"] = tx.stack_rows()
    node.meta["val"] = out
    places = frozenset(p for n in numbers for p in n.places)
    return NumberValue(tx.new_tensor(out, node), kind, hint, places)


def run_on_fakes(tx: Tracer, fn: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Run the real function on fakes; its exceptions become the program's, its need for values a break."""
    tx.interp.begin()
    try:
        with dispatch.use(tx.interp):
            return fn(*args, **kwargs)
    except Unsupported as e:
        _as_break(e)
    except Observed:
        raise
    except Exception as e:
        if isinstance(e, RuntimeError) and "depends on the data" in str(e):
            breaks.unsupported(breaks.DYNAMIC_OUTPUT, str(e))
        if isinstance(e, RuntimeError) and str(e).endswith("the value of a traced tensor is not known"):
            breaks.unsupported(breaks.LOOKS_AT_VALUES, f"{getattr(fn, '__name__', fn)} looks at values: {e}")
        tx.raise_native(_in_numbers(tx, fn, args, kwargs, e))


def _in_numbers(tx: Tracer, fn: Callable[..., Any], args: list[Any], kwargs: dict[str, Any], error: Exception) -> Exception:
    """The error as the program would read it: sizes that its text mentions are those of this call, and guarded."""
    words = set(re.findall(r"\w+", str(error)))
    sizes = {s for s in meta.symbols_in((args, kwargs)) if str(s) in words}
    if not sizes:
        return error
    for s in sizes:
        tx.shape_env.specialize(s, "text of an error")
    try:
        with dispatch.use(tx.interp):
            fn(*args, **kwargs)
    except Exception as e:
        return e
    return error


def _as_break(e: Unsupported) -> Any:
    rows = {"data-dependent-value": breaks.SCALAR_OUTPUT, "data-dependent-shape": breaks.DYNAMIC_OUTPUT}
    row = rows.get(e.id)
    if row is None:
        raise e
    breaks.unsupported(row, e.reason)


def wrap_output(tx: Tracer, node: Any, out: Any) -> Value:
    """The value of a node's result; parts of a tuple are ``getitem`` nodes."""
    if isinstance(out, Tensor):
        node.meta.setdefault("val", out)
        known = tx.by_fake.get(id(out))
        if known is not None:
            return known
        made = tx.new_tensor(out, node)
        if out._requires_grad and out._node is None and out._base is None:
            begin_leaf(tx, made)
        return made
    if isinstance(out, tuple | list):
        node.meta["val"] = tuple(out)
        parts: list[Value] = []
        for i, element in enumerate(out):
            if isinstance(element, Tensor) or _has_tensor(element):
                part = tx.graph.call_function(operator.getitem, (node, i))
                part.meta["stack"] = node.meta["stack"]
                parts.append(wrap_output(tx, part, element))
            else:
                parts.append(tx.from_python(element))
        return ListValue(parts) if isinstance(out, list) else TupleValue(parts, type(out))
    node.meta["val"] = out if isinstance(out, SymInt) else None
    return tx.from_python(out)


def _has_tensor(out: Any) -> bool:
    return isinstance(out, Tensor) or (isinstance(out, tuple | list) and any(_has_tensor(o) for o in out))


def example(tx: Tracer, value: Value) -> Any:
    """What the real function gets: fakes for tensors, the rest as it is."""
    value = realize(tx, value)
    if isinstance(value, TensorValue):
        return value.fake
    if isinstance(value, NumberValue) and value.fixed:
        return value.hint
    if isinstance(value, NumberValue | ArrayValue):
        return value.tensor.fake
    return _convert(tx, value, example)


def argument(tx: Tracer, value: Value) -> Any:
    """What the node gets: nodes for tensors, the rest as it is."""
    value = realize(tx, value)
    if isinstance(value, TensorValue):
        return tx.node_of(value)
    if isinstance(value, NumberValue) and value.fixed:
        return value.hint
    if isinstance(value, NumberValue | ArrayValue):
        return tx.node_of(value.tensor)
    if isinstance(value, SymIntValue):
        tx.use_symbols(value.expr)
    return _convert(tx, value, argument)


def _plain(x: Any) -> Any:
    """A number of a subclass (``IntFlag``) as a graph prints it."""
    for kind in (int, float):
        if isinstance(x, kind) and type(x) not in (kind, bool) and not isinstance(x, np.generic):
            return kind(x)
    return x


def _convert(tx: Tracer, value: Value, inner: Callable[[Tracer, Value], Any]) -> Any:
    if isinstance(value, SymIntValue):
        return value.sym
    if isinstance(value, ConstantValue):
        return _plain(value.value)
    if isinstance(value, TupleValue):
        items = [inner(tx, v) for v in value.items]
        return tuple(items) if value.kind is tuple else tuple.__new__(value.kind, items)
    if isinstance(value, ListValue):
        return [inner(tx, v) for v in value.items]
    if isinstance(value, SliceValue):
        parts = [realize(tx, v) for v in value.parts]
        return slice(*[v.specialize() if isinstance(v, NumberValue) else inner(tx, v) for v in parts])
    if isinstance(value, DictValue):
        value.know_keys(tx)
        return {realize(tx, k).const(): inner(tx, v) for k, v in value.entries.values()}
    if isinstance(value, ObjectValue | OpaqueValue) and value.real() is not None:
        breaks.unsupported(breaks.OPERATION, f"{value.describe()} as an argument of a tensor function")
    try:
        return value.const()
    except NotConstantError:
        breaks.unsupported(breaks.OPERATION, f"{value.describe()} as an argument of a tensor function")


# --- leaves that begin in the graph -----------------------------------------------------------------------------------
class LeafEscapes(Exception):  # noqa: N818 - says what happened
    """A leaf that began in the graph leaves it: no backward from outside would reach it there, so the graph has to end first."""


def begin_leaf(tx: Tracer, value: TensorValue) -> None:
    """The program makes a tensor that requires grad; ``autograd.grad`` and ``backward`` inside of the graph find it."""
    if not tx.leaves_may_begin:
        breaks.unsupported(breaks.NOT_IN_GRAPH, "a tensor of which requires_grad is set leaves the graph")
    tx.begun.append(value)


def check_leaves(tx: Tracer, outputs: Container[Node]) -> None:
    if any(t.node in outputs for t in tx.begun):
        raise LeafEscapes
