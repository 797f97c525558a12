"""The callable that stands in for the eager program: one function in, one node on the tape.

Stage: aot.  In: a ``Joint`` and its compiled forward and backward, functions from a list of arrays to a list of arrays.
Out: a function of tensors, generated for this graph so that a call does nothing it could have known before.  It calls
the forward, makes tensors of the results, hangs one node with one backward behind them, writes inputs that eager would
have written, and makes again the views that eager would have handed out.  Read next: ``autograd``.
"""

from __future__ import annotations

import copy
import itertools
import linecache
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from compiler import cache
from compiler.aot.ahead import Forward
from compiler.aot.joint import Joint, Mutation
from compiler.aot.overlap import base_array
from compiler.aot.trace import Chain
from compiler.ir import meta
from compiler.sym.expr import expr_of
from tinytorch import dispatch, tape
from tinytorch.device import array_module
from tinytorch.loans import Kept, copied, lend, settle
from tinytorch.ops.opdef import Op
from tinytorch.tensor import Storage, Tensor

Raw = Callable[[list[Any]], Sequence[Any]]

_serial = itertools.count()
WORD = 2**64 - 1

#: The row that compiled nodes carry: a name for ``grad_fn``, never run.
COMPILED = Op(name="compiled_function", kind="extern", infer=lambda *metas: metas, doc="a compiled region on the tape")


@dataclass
class Saved:
    """Where the backward finds one of its inputs: primal ``index``, forward output ``index``, extra value ``index`` ..."""

    kind: str  # primal | base | state | output | extra | size
    index: Any
    of: Saved | None = None  # an extra value: the primal or output in whose memory it may lie


@dataclass
class Compiled:
    """What ``runtime`` wires together.  ``double`` gives gradients with a history of their own, for create_graph."""

    joint: Joint
    forward: Raw
    backward: Raw | None = None
    saved: list[Saved] = field(default_factory=list)
    extras: int = 0  # outputs of ``forward`` after the joint's forward outputs
    double: Callable[..., Any] | None = None
    donated: list[bool] = field(default_factory=list)  # which of ``saved`` the backward may overwrite
    ahead: Forward | None = None  # ``forward``, where it may give the gradients too
    hold: bool = False  # keep all inputs for second derivatives, also those that nobody else keeps


class _Writer:
    """Lines of the function under construction and the objects they name."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {}

    def add(self, text: str) -> None:
        self.lines.append(text)

    def name(self, stem: str, value: Any) -> str:
        for have, v in self.names.items():
            if v is value and have.startswith(stem):
                return have
        text = f"{stem}{len(self.names)}"
        self.names[text] = value
        return text


def build(compiled: Compiled) -> Callable[..., list[Any]]:
    """The function of tensors.  Its text is in ``linecache`` and in the attribute ``source``."""
    text, names = _text(compiled)
    filename = f"<compiled_{next(_serial)}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    exec(cache.bytecode(text, filename), names)
    fn: Callable[..., list[Any]] = names["call"]
    if compiled.joint.late:
        fn = _recording(fn)
    fn.source = text  # type: ignore[attr-defined]
    fn.atomic = True  # type: ignore[attr-defined]  # inputs and random streams change after the forward, which may raise
    return fn


def _recording(fn: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """A program that begins with gradients off and switches them on: its writes and views have the history that they had
    in the trace, whatever is set where it is called."""

    def call(*args: Any) -> list[Any]:
        with tape.grad_mode(True):
            return fn(*args)

    return call


def _text(c: Compiled) -> tuple[str, dict[str, Any]]:
    joint, w = c.joint, _Writer()
    w.names.update(
        new=object.__new__, Tensor=Tensor, Node=tape.Node, Storage=Storage, COMPILED=COMPILED, forward=c.forward,
        write=write, mode=tape.mode, look=look, array_module=array_module, backward=_backward_of(c) if joint.training else None,
        base_array=base_array, ref=weakref.ref, Kept=Kept, copied=copied, lend=lend, settle=settle, states=states, part=part,
    )  # fmt: skip
    args = [f"x{i}" for i in range(len(joint.primals))]
    tensors = [isinstance(p, Tensor) for p in joint.primals]
    arrays = [f"{a}._data" if t else a for a, t in zip(args, tensors, strict=True)]
    for n, base in enumerate(joint.bases):
        device = w.name("device", joint.primals[base.lead].device)
        w.add(f"b{n} = base_array(x{base.lead}._data, {base.before}, {base.numel}, {device})")
        arrays.append(f"b{n}")
    _sizes(w, c, args)
    arrays += _states(w, joint)
    _settle_loans(w, joint)
    outs = [f"o{k}" for k in range(joint.forward_outputs)] + [f"e{k}" for k in range(c.extras)]
    outs += ["*ahead"] if c.ahead is not None else []
    w.add(f"{_unpack(outs)}forward([{', '.join(arrays)}])")
    for generator, used in joint.drawn:
        w.add(f"{w.name('generator', generator)}.offset += {_size(used)}")
    tensors_out = _made(joint)
    for k in tensors_out:
        _wrap(w, joint, k)
    if joint.training:
        _node(w, c, args, tensors_out)
    for m in joint.mutations:
        _epilogue(w, joint, m)
    _results(w, joint)
    body = "".join(f"    {line}\n" for line in w.lines)
    return f"def call({', '.join(args)}):\n{body}", w.names


def _states(w: _Writer, joint: Joint) -> list[str]:
    """One state per draw; those of one generator are rows of one array."""
    groups: dict[int, list[int]] = {}
    for i, d in enumerate(joint.draws):
        groups.setdefault(id(d.generator), []).append(i)
    for members in groups.values():
        first = joint.draws[members[0]]
        shifts = "".join(f"{_size(joint.draws[i].shift)}, " for i in members)
        names = "".join(f"r{i}, " for i in members)
        w.add(f"{names}= states({w.name('generator', first.generator)}, ({shifts}))")
    return [f"r{i}" for i in range(len(joint.draws))]


def states(generator: Any, shifts: tuple[int, ...]) -> Any:
    """The generator's state moved on by each of ``shifts``: int64 arrays [seed, offset], in the host's memory."""
    seed, offset = generator.seed_value, generator.offset
    return np.array([(seed, (offset + s) & WORD) for s in shifts], np.uint64).view(np.int64)


def _unpack(names: list[str]) -> str:
    return "".join(f"{n}, " for n in names).rstrip() + " = " if names else ""


def _made(joint: Joint) -> list[int]:
    """The forward outputs that become tensors: all but values written to inputs outside of the history."""
    untracked = {m.output for m in joint.mutations if not m.tracked}
    return [k for k in range(joint.forward_outputs) if k not in untracked]


def _wrap(w: _Writer, joint: Joint, k: int) -> None:
    w.add(f"t{k} = new(Tensor)")
    w.add(f"t{k}._data = o{k}")
    w.add(f"t{k}.device = {w.name('device', joint.devices[k])}")


# --- sizes ------------------------------------------------------------------------------------------------------------
def _sizes(w: _Writer, c: Compiled, args: list[str]) -> None:
    """Bind the size symbols that views, draws and saved sizes mention."""
    joint = c.joint
    chains = [r.chain for r in joint.results] + [m.chain for m in joint.mutations]
    wanted = {s.name for chain in chains for _, params in chain for s in meta.symbols_in(params)}
    wanted |= {s.name for r in joint.results for s in meta.symbols_in(r.value)}
    wanted |= {s.name for d in joint.draws for s in meta.symbols_in(d.shift)}
    wanted |= {s.name for _, used in joint.drawn for s in meta.symbols_in(used)}
    wanted |= {x.name for s in c.saved if s.kind == "size" for x in meta.symbols_in(s.index)}
    where = {p.name: i for i, p in enumerate(joint.module.graph.placeholders)}
    for symbol, (p, dim) in meta.size_sources(joint.module.graph).items():
        if symbol in wanted:
            w.add(f"{symbol} = {args[where[p.name]]}" + ("" if dim is None else f"._data.shape[{dim}]"))


def _size(value: Any) -> str:
    e = expr_of(value)
    return str(value) if e is None else str(e)


def _literal(w: _Writer, value: Any) -> str:
    """A parameter of a view row as text."""
    if expr_of(value) is not None or isinstance(value, int):
        return _size(value)
    if isinstance(value, tuple):
        return "(" + "".join(_literal(w, v) + ", " for v in value) + ")"
    return w.name("constant", value)


def _settle_loans(w: _Writer, joint: Joint) -> None:
    """Before inputs are written: what others keep of them without a right is theirs as a copy."""
    written: dict[int, None] = {}
    for m in joint.mutations:
        members = [x.index for x in joint.bases[m.primal].members] if m.base else [m.primal]
        written.update(dict.fromkeys(members))
    for i in written:
        w.add(f"if x{i}._storage is not None and x{i}._storage.loans is not None: settle(x{i}._storage)")


# --- the node ---------------------------------------------------------------------------------------------------------
def _node(w: _Writer, c: Compiled, args: list[str], made: list[int]) -> None:
    joint = c.joint
    wanted = [i for i, g in enumerate(joint.gradients) if g is not None]
    if joint.error is not None:  # the backward will raise; let it be reached from every input that requires grad
        wanted = [i for i, p in enumerate(joint.primals) if isinstance(p, Tensor) and p.requires_grad]
    edges = ", ".join(f"x{i} if x{i}._node is None and x{i}._base is None else x{i}._edge()" for i in wanted)
    w.add(f"node = Node(COMPILED, (), [{edges}], ())")
    w.add(f"node.outputs = {len(joint.tangents)}")
    for number, k in enumerate(joint.tangents):
        w.add(f"t{k}._node = node")
        w.add(f"t{k}._number = {number}")
        w.add(f"t{k}._requires_grad = True")
    names = {"primal": "x{}._data", "base": "b{}", "state": "r{}", "output": "o{}", "extra": "e{}"}
    values = []
    for s in c.saved:
        text = _size(s.index) if s.kind == "size" else names[s.kind].format(s.index)
        number = s.kind == "primal" and not isinstance(joint.primals[s.index], Tensor)
        overwritten = any(m.primal == s.index and s.kind == ("base" if m.base else "primal") for m in joint.mutations)
        values.append(f"x{s.index}" if number else f"copied({text})" if overwritten else text)
    alive, lent = _versioned(c, made)
    primals = f"({''.join(_held(c, i, a) + ', ' for i, a in enumerate(args))})" if c.double is not None else "()"
    states = "".join(f"r{i}, " for i in range(len(joint.draws)))
    shapes = "".join(f"o{k}.shape, " for k in joint.tangents)
    ahead = ", ahead" if c.ahead is not None else ""
    w.add(f"kept = {'Kept(' if lent else ''}[{', '.join(values)}]{')' if lent else ''}")
    for place, name in lent:
        w.add(f"lend({name}, kept, {place})")
    w.add(f"node.whole = backward(kept, ({shapes}), {primals}, ({states}){ahead})")
    if alive:
        w.add(f"node.saved = [{', '.join(alive)}]")


def _held(c: Compiled, i: int, name: str) -> str:
    """What the node keeps of an input for second derivatives.  What is alive anyway (leaves, saved tensors) it holds;
    the rest it only refers to, so as not to keep memory that eager would have freed."""
    x = c.joint.primals[i]
    saved = any(s.kind == "primal" and s.index == i for s in c.saved)
    return name if c.hold or not isinstance(x, Tensor) or saved or (x.requires_grad and x.is_leaf) else f"ref({name})"


def _versioned(c: Compiled, made: list[int]) -> tuple[list[str], list[tuple[int, str]]]:
    """Saved tensors that the user holds too.  Of those that eager keeps as well: (tensor, version) pairs, checked when the
    backward runs.  The others may be written to, and are lent: (place among the saved, name)."""
    pairs, lent = [], []
    mutated = {m.primal for m in c.joint.mutations if not m.base}
    for place, saved in enumerate(c.saved):
        s = saved.of or saved
        if s.kind == "primal" and s.index not in mutated and isinstance(c.joint.primals[s.index], Tensor):
            if s.index in c.joint.held:
                pairs.append(f"(x{s.index}, 0 if x{s.index}._storage is None else x{s.index}._storage.version)")
            else:
                lent.append((place, f"x{s.index}"))
        elif s.kind == "output" and s.index in made:
            if s.index in c.joint.held_outputs:
                pairs.append(f"(t{s.index}._alias(), 0)")
            else:
                lent.append((place, f"t{s.index}"))
    return pairs, lent


def _backward_of(c: Compiled) -> Callable[..., Any]:
    """``backward(saved, primals, states)`` gives the node's function from cotangents to gradients."""
    joint = c.joint
    wanted = [(i, g) for i, g in enumerate(joint.gradients) if g is not None]
    order = {k: n for n, k in enumerate(dict.fromkeys(g for _, g in wanted))}
    where = [(order[g], joint.depends.get(g, frozenset())) for _, g in wanted]
    handed_on = {order[g]: joint.handed_on[g] for _, g in wanted if g in joint.handed_on}
    devices = {order[g]: joint.devices[g] for _, g in wanted}
    layouts = [Layout(t) for t in joint.cotangents]
    run, double, error = c.backward, c.double, joint.error
    tangents = range(len(joint.tangents))
    donated = [i for i, given in enumerate(c.donated) if given]
    known = c.ahead.gradients if c.ahead is not None else lambda *_: None

    def backward(saved: list[Any], shapes: Any, primals: tuple[Tensor, ...], states: tuple[Any, ...], ahead: Any = ()) -> Any:
        def whole(cotangents: list[Any], create_graph: bool, retain_graph: bool) -> list[Any]:
            if error is not None:
                raise copy.copy(error)  # each with a traceback of its own
            absent = {j for j in tangents if cotangents[j] is None}
            if create_graph:
                assert double is not None
                return _masked(double(primals, states, cotangents, shapes), where, absent)
            given: Sequence[Any] | None = known(cotangents[0], ahead, retain_graph)
            if given is None:
                assert run is not None
                kept = list(saved)
                if retain_graph:  # a later backward wants them as they are
                    for i in donated:
                        kept[i] = copied(kept[i])
                given = run(kept + [x.array(g, shape) for x, g, shape in zip(layouts, cotangents, shapes, strict=True)])
            made = {n: Tensor._wrap(given[n], device) for n, device in devices.items()}
            for n, j in handed_on.items():
                made[n] = cotangents[j] if cotangents[j] is not None else made[n]
            return _masked(made, where, absent)

        return whole

    return backward


def _masked(values: Any, where: Sequence[tuple[int, frozenset[int]]], absent: set[int]) -> list[Any]:
    """Gradients in the order of the edges; None for one that only absent cotangents would have reached."""
    if not absent:
        return [values[n] for n, _ in where]
    return [values[n] if needs - absent else None for n, needs in where]


class Layout:
    """How a backward wants a cotangent to lie: the dimensions from the outermost in memory to the innermost."""

    def __init__(self, like: Tensor) -> None:
        data = like._data
        self.order = tuple(sorted(range(len(data.shape)), key=lambda d: (-meta.hint(data.strides[d]), d)))
        self.back = tuple(sorted(self.order, key=self.order.__getitem__))
        self.plain = self.order == tuple(range(len(self.order)))
        self.dtype = data.dtype
        self.xp = array_module(like.device)

    def array(self, g: Tensor | None, shape: Sequence[int]) -> Any:
        """The array of ``g``, copied if it lies otherwise; zeros of ``shape`` for an absent one."""
        if g is None:
            found = self.xp.zeros(tuple(shape[d] for d in self.order), self.dtype)
            return found if self.plain else found.transpose(self.back)
        found = g._data if self.plain else g._data.transpose(self.order)
        if found.flags.c_contiguous:
            return g._data
        copy = self.xp.array(found, order="C")
        return copy if self.plain else copy.transpose(self.back)


# --- inputs written in place, results ---------------------------------------------------------------------------------
def _epilogue(w: _Writer, joint: Joint, m: Mutation) -> None:
    if m.tracked:
        w.add(f"write(x{m.primal}, t{m.output}, {m.writes})")
        return
    x = f"x{joint.bases[m.primal].lead}" if m.base else f"x{m.primal}"
    place = f"b{m.primal}" if m.base else f"{x}._data"
    if m.chain:
        device = w.name("device", joint.primals[m.primal].device)
        w.add(f"part({place}, {_chain(w, m.chain)}, array_module({device}))[...] = o{m.output}")
    else:  # the plan may have written there itself
        w.add(f"if o{m.output} is not {place}: {place}[...] = o{m.output}")
    w.add(f"if {x}._storage is None: {x}._storage = Storage()")
    w.add(f"{x}._storage.version += {m.writes}")


def part(array: Any, chain: Any, xp: Any) -> Any:
    """The part of an array that a chain of view rows shows."""
    for op, params in chain:
        array = op.kernel(xp, array, **params)
    return array


def write(dst: Tensor, src: Tensor, writes: int) -> None:
    """The write that eager made, history and all; the version moves as often as eager's did."""
    dispatch.write(dst, src)
    storage = dst._storage
    assert storage is not None
    storage.version += writes - 1
    if dst._base is None:
        return
    dst._view_version = -1


def look(t: Tensor, chain: Any, detached: bool, requires_grad: bool) -> Tensor:
    """The view of ``t`` that eager handed out."""
    if detached:
        t = t.detach()
    if chain:
        with tape.grad_mode(tape.mode.grad and requires_grad):
            for op, params in chain:
                t = op(t, **params)
    return t


def _results(w: _Writer, joint: Joint) -> None:
    texts: list[str] = []
    for n, r in enumerate(joint.results):
        if r.kind == "constant":
            texts.append(_size(r.value) if expr_of(r.value) is not None else w.name("constant", r.value))
        elif r.kind == "same":
            texts.append(texts[r.index])
        else:
            source = f"{'x' if r.kind == 'input' else 't'}{r.index}"
            if r.whole:
                texts.append(source)
            else:
                w.add(f"y{n} = look({source}, {_chain(w, r.chain)}, {r.detached}, {r.requires_grad})")
                texts.append(f"y{n}")
    w.add(f"return [{', '.join(texts)}]")


def _chain(w: _Writer, chain: Chain) -> str:
    if not any(True for _, params in chain for _ in meta.symbols_in(params)):
        return w.name("chain", chain)
    steps = []
    for op, params in chain:
        texts = ", ".join(f"{key!r}: {_literal(w, v)}" for key, v in params.items())
        steps.append(f"({w.name('op_', op)}, {{{texts}}})")
    return "(" + ", ".join(steps) + ",)"
