"""Programs that were traced before, in this process or an earlier one: no trace, no lowering, only their plan.

Stage: aot.  In: a captured graph, its example inputs, and a ``Memory`` that finds compiled functions again.  Out: what the
runtime needs, from disk.  Between a captured graph and its plan nothing is decided but by the graph, the inputs' layouts,
the modes of the thread and our own code, so these make the key.  A program with anything else in it (a function that is not
ours, an object as an argument, a generator of its own, symbolic sizes, constants) is traced each time, and so is a loss
that makes its gradients ahead.  Mirrors PyTorch's ``AOTAutogradCache``.  Read next: ``runtime``.
"""

from __future__ import annotations

import marshal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from compiler import cache as disk
from compiler import logs
from compiler.aot.aliasing import Given
from compiler.aot.joint import Joint, Mutation
from compiler.aot.runtime import Compiled, Raw, Saved
from compiler.aot.trace import Draw
from compiler.fake import FakeArray, is_fake
from compiler.ir.graph import Graph, Node
from compiler.ir.module import GraphModule
from tinytorch import dtypes, tape
from tinytorch.defaults import defaults
from tinytorch.device import Device, emulated
from tinytorch.dtypes import DType
from tinytorch.functions.misc import are_deterministic_algorithms_enabled, get_float32_matmul_precision
from tinytorch.ops.opdef import TABLE, Op
from tinytorch.rng import default_generator
from tinytorch.tensor import Tensor

#: Whose functions may stand in a graph that is kept: their text is in the key, or they never change.
OURS = ("tinytorch", "_operator", "builtins")
_MARKS = ("recompute", "region", "impure")


@dataclass(frozen=True)
class Memory:
    """How a backend finds compiled functions again.

    ``settings``: all that it decides by, for the key.  ``again``: from the value of a function's attribute ``kept``, which
    prints as Python, the function, or None if that is not possible any more.
    """

    settings: Any
    again: Callable[[Any], Raw | None]


class _Unknown(Exception):  # noqa: N818 - a signal
    """Something whose text does not say all of it."""


# --- keys -------------------------------------------------------------------------------------------------------------
def key_of(gm: Any, examples: Sequence[Any], memory: Memory) -> str:
    """The name of a captured program, or "" for one that is not kept."""
    if not isinstance(gm, GraphModule) or gm.attributes or disk.folder() is None:
        return ""
    if any(map(logs.enabled, ("joint", "partition", "loops", "memory"))):  # somebody wants to see what the stages say
        return ""
    try:
        parts = [*_modes(), *_inputs(examples), *map(_line, gm.graph.nodes)]
    except (_Unknown, TypeError) as e:
        logs.log("cache", f"the program {gm.class_name} is traced each time: {e}")
        return ""
    return disk.key_of("graph", disk.sources_hash("tinytorch"), disk.sources_hash("compiler"), memory.settings, parts)


def _modes() -> Iterator[str]:
    m = tape.mode
    yield _text((m.grad, m.inference, m.autocast, m.sdpa, m.anomaly, m.check_nan, m.running is None, *defaults.now))
    yield f"{emulated()} {get_float32_matmul_precision()} {are_deterministic_algorithms_enabled()} {np.__version__}"


def _inputs(examples: Sequence[Any]) -> Iterator[str]:
    """Layouts, and who shares memory with whom."""
    numbers: dict[int, int] = {}
    for x in examples:
        if not is_fake(x):
            raise _Unknown(f"an input is no tensor: {type(x).__name__}")
        data = x._data
        if not all(type(n) is int for n in (*data.shape, *data.strides, data.offset)):
            raise _Unknown("symbolic sizes")
        same, memory = (numbers.setdefault(id(o), len(numbers)) for o in (data, data.storage))
        history = x.requires_grad, x.is_leaf, x._base is not None or getattr(x, "_view_input", False)
        yield f"{data.shape} {data.strides} {data.offset} {x.dtype} {x.device} {same} {memory} {history}"


def _line(node: Node) -> str:
    marks = [(k, node.meta[k]) for k in _MARKS if k in node.meta]
    where = _text(tuple(tuple(node.meta.get("stack") or ())[-1:]))
    target = node.target if node.op in ("placeholder", "output") else _method(node.target) if node.op == "call_method" else _function(node.target)
    return f"{node.name} {node.op} {target} {_text(node.args)} {_text(node.kwargs)} {_text(marks)} {where}"


@cache
def _function(fn: Any) -> str:
    """A function's full name, if that is enough to find it again and it is ours."""
    if isinstance(fn, Op):
        made_of = [f for f in (fn.body, fn.infer, fn.kernel, fn.vjp) if callable(f)]
        if TABLE.get(fn.name) is fn and all(f.__module__.partition(".")[0] in OURS for f in made_of):
            return f"row {fn.name}"
        raise _Unknown(f"a row that is not ours: {fn.name}")
    module, path = getattr(fn, "__module__", None) or "", getattr(fn, "__qualname__", "")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    if found is not fn or module.partition(".")[0] not in OURS:
        raise _Unknown(f"a function that is not ours: {fn}")
    return f"{module}.{path}"


def _method(name: str) -> str:
    if (getattr(getattr(Tensor, name), "__module__", None) or "").partition(".")[0] not in OURS:
        raise _Unknown(f"a method that is not ours: {name}")
    return name


def _text(x: Any) -> str:
    """An argument; what a graph takes as it is must say in its text all that it is."""
    kind = type(x)
    if kind in _PLAIN:
        return repr(x)
    if kind is Node:
        return f"%{x.name}"
    if isinstance(x, tuple | list):
        return f"{kind.__name__}({', '.join(map(_text, x))})"
    if kind is dict:
        return f"{{{', '.join(f'{k!r}: {_text(v)}' for k, v in x.items())}}}"
    if kind is slice:
        return f"slice({_text(x.start)}, {_text(x.stop)}, {_text(x.step)})"
    raise _Unknown(f"an argument of type {kind.__name__}")


_PLAIN = frozenset((str, int, float, bool, complex, bytes, type(None), type(Ellipsis), DType, Device))


# --- what is kept -----------------------------------------------------------------------------------------------------
@dataclass
class Record:
    """What is not in the plan.  It is kept as the bytecode of its own ``repr``, if that gives an equal one."""

    forward: Any  # the names under which ``Memory`` finds them
    backward: Any
    forward_outputs: int
    devices: list[Device]
    results: list[Given]
    mutations: list[Mutation]
    requires: list[bool]
    draws: list[tuple[int, Device]]  # of the default generator: shift, device of the state
    drawn: int | None
    tangents: list[int]
    gradients: list[int | None]
    handed_on: dict[int, int]
    cotangents: list[tuple[Any, Any, DType, Device]]  # shape, strides in bytes
    depends: dict[int, frozenset[int]]
    saved: list[Saved]
    extras: int
    donated: list[bool]
    held: frozenset[int]
    held_outputs: frozenset[int]
    late: bool


#: What a record and a ``Joint`` have in common.
_AS_THEY_ARE = (
    "forward_outputs", "devices", "results", "mutations", "requires", "tangents", "gradients", "handed_on", "depends", "held",
    "held_outputs", "late",
)  # fmt: skip
_NAMES: dict[str, Any] = {
    "Record": Record, "Given": Given, "Mutation": Mutation, "Saved": Saved, "ops": SimpleNamespace(**TABLE), "inf": float("inf"),
    "tinytorch": SimpleNamespace(**dtypes.BY_NAME), "device": lambda type, index=None: Device(type, index),
}  # fmt: skip


def keep(key: str, compiled: Compiled) -> None:
    """Remember a program under its key, if all there is to it can be written down."""
    joint = compiled.joint
    forward, backward = (getattr(raw, "kept", None) for raw in (compiled.forward, compiled.backward))
    own = [d.generator for d in joint.draws if d.generator is not default_generator]
    if forward is None or joint.error is not None or joint.bases or own or len(joint.drawn) > 1:
        return
    if joint.training and (backward is None or any(s.kind == "size" for s in compiled.saved)):
        return
    record = Record(
        forward=forward,
        backward=backward,
        draws=[(d.shift, d.state.device) for d in joint.draws],
        drawn=joint.drawn[0][1] if joint.drawn else None,
        **{name: getattr(joint, name) for name in _AS_THEY_ARE},
        cotangents=[(t._data.shape, t._data.strides, t.dtype, t.device) for t in joint.cotangents],
        saved=compiled.saved,
        extras=compiled.extras,
        donated=compiled.donated,
    )
    try:
        code = compile(repr(record), "<record>", "eval")
        if _read(code) != record:
            return
    except (SyntaxError, NameError, AttributeError, TypeError):
        return
    disk.put("graph", key, marshal.dumps(code))


def _read(code: Any) -> Any:
    return eval(code, dict(_NAMES))  # noqa: S307 - printed by ``keep``


def find(key: str, examples: Sequence[Any], memory: Memory) -> Compiled | None:
    """The program kept under a key, for these inputs; without ``double``."""
    found = disk.get("graph", key)
    if found is None:
        return None
    record = _read(marshal.loads(found))
    forward = memory.again(record.forward)
    backward = memory.again(record.backward) if record.tangents else None
    if forward is None or (record.tangents and backward is None):
        return None
    logs.log("cache", f"the program {key[:12]} was kept: no trace, no lowering")
    joint = Joint(
        module=GraphModule({}, Graph(), "Kept"),
        primals=list(examples),
        draws=[Draw(default_generator, shift, Tensor._wrap(FakeArray((2,), np.dtype(np.int64)), d)) for shift, d in record.draws],
        drawn=[] if record.drawn is None else [(default_generator, record.drawn)],
        **{name: getattr(record, name) for name in _AS_THEY_ARE},
        cotangents=[Tensor._wrap(FakeArray(shape, d.np, strides), device) for shape, strides, d, device in record.cotangents],
    )
    return Compiled(joint, forward, backward, record.saved, record.extras, donated=record.donated)
