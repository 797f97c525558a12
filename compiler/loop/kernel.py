"""From a group of nests to one ``Kernel``: weave the loops, then write the statements once.

Stage: loop.  In: a ``Group`` and the buffers that others need.  Out: a ``Kernel`` and the names of its buffers.
``weave`` joins loops of different nests where no dependency forbids; ``Writer`` puts every statement as far out as its
operands allow, computes equal ones once, passes values from store to load in registers, and drops stores nobody reads.
Read next: ``tidy`` (merging contiguous loops, canonical names), ``order``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from compiler.loop import deps, ir
from compiler.loop.emit import Names
from compiler.loop.fuse import Group, combinable, outer_reduction
from compiler.loop.ir import Int
from compiler.loop.nest import Axis, Nest
from compiler.loop.program import Program, fill_of
from compiler.loop.sizes import hint
from compiler.loop.value import HEAVY
from compiler.sym.expr import Expr, Symbol, as_int, lift
from compiler.sym.ranges import Interval, extent
from compiler.sym.simplify import simplify
from tinytorch.dtypes import DType

#: A full reduction larger than this is cut into independent parts joined by a combining store.
SPLIT_FROM = 1 << 15
PARTS = 64
#: A value needed again in a later loop of the row is computed again if it has at most so many elementary functions
#: and loads; else it goes through memory.
AGAIN_HEAVY, AGAIN_LOADS, AGAIN_OPS = 2, 4, 24


# --- reductions that cannot finish inside: combining stores ---------------------------------------------------------
def with_combining_store(nest: Nest) -> Nest:
    """The reduce loops outside of the last map loop (or outermost, if all reduce) become map loops over a combining
    store; those inside stay and make the value it adds."""
    last = max((n for n, a in enumerate(nest.axes) if a.kind == "map"), default=0)
    axes = tuple(replace(a, kind="map") if n <= last else a for n, a in enumerate(nest.axes))
    (post,) = nest.post
    assert isinstance(post, ir.Store) and nest.init is not None and nest.update is not None
    store = replace(post, mode=nest.init.combine)  # type: ignore[arg-type]
    if any(a.kind == "reduce" for a in axes):
        return replace(nest, axes=axes, post=(store,))
    store = replace(store, value=nest.update.values[0])
    return replace(nest, axes=axes, body=(*nest.body, store), init=None, update=None, post=())


def split_full_reductions(group: Group, program: Program) -> Group:
    """Cut the outermost loop of large full reductions so that parts of it can run side by side."""
    if not group.nests[0].axes or not any(_is_large_full(n) for n in group.nests):
        return group
    outer = next(n for n in group.nests if _is_large_full(n)).axes[0]
    if group.spine[:1] != (outer.name,) or not isinstance(outer.extent, int) or outer.extent <= 2 * PARTS:
        return group
    parts = next((p for p in range(PARTS, 4 * PARTS) if outer.extent % p == 0), None)
    parts = parts or next((p for p in range(PARTS, 8, -1) if outer.extent % p == 0), None)
    return group if parts is None else group.split(outer.name, outer.extent // parts, program.names)


def _is_large_full(nest: Nest) -> bool:
    reduced = nest.axes and all(a.kind == "reduce" for a in nest.axes)
    return bool(reduced) and combinable(nest) and hint(nest.numel) >= SPLIT_FROM


# --- weaving ---------------------------------------------------------------------------------------------------------
class Weaver:
    """Joins the loop nests of a group level by level; ``names`` of axes are unified as loops are joined."""

    def __init__(self, nests: Sequence[Nest], spine: tuple[str, ...], fresh: Names) -> None:
        self.nests = {n.number: n for n in nests}
        self.spine = spine
        self.fresh = fresh
        self.opened: set[str] = set()

    def weave(self, items: list[tuple[int, int]]) -> list[Any]:
        """``items``: (nest number, how many of its axes are open).  Gives a list of ``(axis, subtree)`` and of
        ``("init" | "body" | "post", nest number)``."""
        segments: list[tuple[Axis | None, list[tuple[int, int]]]] = []
        for number, depth in items:
            nest = self.nests[number]
            if depth == len(nest.axes):  # before any loop it does not need, so as not to stand between two
                needed = [k for k, (_, ns) in enumerate(segments) if any(_needs(nest, self.nests[n]) for n, _ in ns)]
                segments.insert(max(needed, default=-1) + 1, (None, [(number, depth)]))
                continue
            axis = nest.axes[depth]
            at = self._joinable(segments, number, depth)
            if at is None:
                if axis.name in self.opened:  # the same loop in principle, but it has to be run again
                    axis = replace(axis, name=self.fresh("x"))
                    self.nests[number] = nest.renamed({nest.axes[depth].name: axis.name})
                self.opened.add(axis.name)
                segments.append((axis, [(number, depth + 1)]))
                continue
            shared, inside = segments[at]
            assert shared is not None
            self.nests[number] = nest.renamed({axis.name: shared.name}) if axis.name != shared.name else nest
            inside.append((number, depth + 1))
        out: list[Any] = []
        for loop, inside in segments:
            if loop is None:
                out.append(("body", inside[0][0]))
                continue
            begun = [n for n, d in inside if self.begins(n, d - 1)]
            out += [("init", n) for n in begun]
            kinds = {self.nests[n].axes[d - 1].kind for n, d in inside}
            kind = "scan" if "scan" in kinds else "reduce" if "reduce" in kinds else "map"
            out.append((replace(loop, kind=kind), self.weave(inside)))
            out += [("post", n) for n in begun]
        return out

    def begins(self, number: int, depth: int) -> bool:
        """Is the loop at ``depth`` the outermost of those over which the nest reduces?"""
        nest = self.nests[number]
        return nest.update is not None and all(a.kind == "map" for a in nest.axes[:depth]) and nest.axes[depth].kind != "map"

    def _joinable(self, segments: list[tuple[Axis | None, list[tuple[int, int]]]], number: int, depth: int) -> int | None:
        nest = self.nests[number]
        axis = nest.axes[depth]
        for at in range(len(segments) - 1, -1, -1):
            shared, inside = segments[at]
            if shared is not None and deps.same(shared.extent, axis.extent) and all(
                self._may_share(self.nests[n], d - 1, nest, depth) for n, d in inside
            ) and (axis.name in self.spine or any(list(deps.shared_buffers(self.nests[n], nest)) for n, _ in inside)):  # fmt: skip
                return at
            if any(_needs(nest, self.nests[n]) for n, _ in inside):
                return None
        return None

    def _may_share(self, a: Nest, da: int, b: Nest, db: int) -> bool:
        """May the loop of ``a`` at depth ``da`` also be that of the later nest ``b`` at ``db``?"""
        kinds = {a.axes[da].kind, b.axes[db].kind}
        if "scan" in kinds and kinds != {"scan"}:
            return False
        for buffer in {w.buffer for w in a.writes} & {r.buffer for r in b.reads}:
            if (a.axes[da].name, b.axes[db].name) not in deps.in_step(a, b, buffer, [a.axes[da]], [b.axes[db]]):
                return False
        return True


def _needs(b: Nest, a: Nest) -> bool:
    made = {w.buffer for w in a.writes}
    return any(x.buffer in made for x in b.accesses)


# --- writing ---------------------------------------------------------------------------------------------------------
@dataclass
class Block:
    stmts: list[ir.Stmt] = field(default_factory=list)


class Writer:
    """Writes a woven tree as statements.  ``blocks[d]`` is the body being filled at loop depth ``d``."""

    def __init__(self, nests: dict[int, Nest], program: Program, private: frozenset[str]) -> None:
        self.nests = nests
        self.program = program
        self.private = private  # buffers that no other task needs
        self.blocks: list[Block] = [Block()]
        self.ranges: dict[Symbol, Interval] = dict(program.ranges)
        self.depth: dict[str, int] = {}  # name -> the block that defines it
        self.known: list[dict[Any, tuple[str, DType]]] = [{}]  # per block: key -> name
        self.stored: list[dict[tuple[str, Expr], ir.Value]] = [{}]  # per block: (buffer, index) -> value
        self.env: dict[str, ir.Value] = {}
        self.dtypes: dict[str, DType] = {}
        self.makers = {w.buffer: n for n in nests.values() for w in n.writes}

    def tree(self, tree: list[Any]) -> None:
        for head, what in tree:
            if isinstance(head, Axis):
                self.loop(head, what)
            elif head == "init":
                init = self.nests[what].init
                assert init is not None
                for name, dtype in zip(init.names, init.dtypes, strict=True):
                    self.define(name, len(self.blocks) - 1, dtype)
                self.put(init)
            elif head == "body":
                self.innermost(self.nests[what])
            elif not self.nests[what].scan:
                for s in self.nests[what].post:
                    self.statement(s)

    def innermost(self, nest: Nest) -> None:
        for s in nest.body:
            self.statement(s)
        if nest.update is None:
            return
        self.put(replace(nest.update, values=tuple(self.resolve(v) for v in nest.update.values)))
        if nest.scan:  # the running value is read in the same iteration
            self.depth.update((name, len(self.blocks) - 1) for name in nest.update.names)
            for s in nest.post:
                self.statement(s)

    def loop(self, axis: Axis, inside: list[Any]) -> None:
        if isinstance(axis.extent, int) and axis.extent == 0:
            return  # what is inside never happens, and must not be moved out to where it would
        self.ranges[axis.symbol] = extent(axis.extent)
        self.depth[axis.name] = len(self.blocks)
        self.blocks.append(Block())
        self.known.append({})
        self.stored.append({})
        self.tree(inside)
        body = tuple(self.blocks.pop().stmts)
        self.known.pop()
        self.stored.pop()
        if body:
            self.put(ir.Loop(axis.name, axis.extent, axis.kind, body))  # type: ignore[arg-type]

    def put(self, s: ir.Stmt, depth: int | None = None) -> None:
        self.blocks[-1 if depth is None else depth].stmts.append(s)

    def define(self, name: str, depth: int, dtype: DType) -> None:
        self.depth[name] = depth
        self.dtypes[name] = dtype

    # --- statements ---
    def statement(self, s: ir.Stmt) -> None:
        if isinstance(s, ir.Store):
            self.store(s)
        elif isinstance(s, ir.Check):
            cond = self.resolve(s.cond)
            if cond is not True:
                value = None if s.value is None else self.resolve(s.value)
                made = ir.Check(str(cond), s.message, value)
                self.pure(made, ("check", cond, s.message, value), (cond, value), None)
        elif isinstance(s, ir.Load):
            self.load(s)
        elif isinstance(s, ir.Index):
            e = self.index(s.expr)
            self.env[s.name] = self.pure(replace(s, expr=e), ("index", lift(e)), _names(e), None)
        elif isinstance(s, ir.Let):
            args = tuple(self.resolve(a) for a in s.args)
            key = (s.fn, s.dtype, *((type(a), repr(a)) for a in args))
            self.env[s.name] = self.pure(replace(s, args=args), key, [a for a in args if isinstance(a, str)], s.dtype)
        else:
            raise TypeError(s)

    def store(self, s: ir.Store) -> None:
        index = self.index(s.index)
        value = self.resolve(s.value)
        mask = None if s.mask is None else self.resolve(s.mask)
        self.put(replace(s, index=index, value=value, mask=mask))
        if s.mode == "set" and mask is None:
            self.stored[-1][s.buffer, lift(index)] = value

    def load(self, s: ir.Load) -> None:
        index = self.index(s.index)
        mask = None if s.mask is None else self.resolve(s.mask)
        maker = self.makers.get(s.buffer)
        if maker is not None:
            for known in reversed(self.stored):
                if mask is None and (s.buffer, lift(index)) in known:
                    self.env[s.name] = known[s.buffer, lift(index)]
                    return
            again = None if mask is not None else self.compute_again(maker, s, index)
            if again is not None:
                self.env[s.name] = again
                return
        key = ("load", s.buffer, lift(index), mask, repr(s.other))
        needs = [*_names(index), *([mask] if isinstance(mask, str) else [])]
        made = replace(s, index=index, mask=mask)  # type: ignore[arg-type]
        self.env[s.name] = self.pure(made, key, needs, s.dtype, here=maker is not None)

    def pure(self, s: Any, key: Any, needs: Iterable[Any], dtype: DType | None, *, here: bool = False) -> str:
        """Write ``s`` in the outermost block where its operands exist, unless an equal statement is in sight."""
        for known in self.known:
            if key in known:
                return known[key][0]
        depth = len(self.blocks) - 1
        if not here:
            depth = max((self.depth.get(n, 0) for n in needs if isinstance(n, str)), default=0)
        name = getattr(s, "name", "")
        if name and name in self.depth:  # the same statement written a second time, in another loop
            name = self.program.names("v")
            s = replace(s, name=name)
        self.known[depth][key] = (name, dtype)  # type: ignore[assignment]
        if name:
            self.depth[name] = depth
        self.put(s, depth)
        return str(name)

    def compute_again(self, maker: Nest, s: ir.Load, index: Int) -> ir.Value | None:
        """The value that ``maker`` stored there in an earlier loop, computed here once more if that is cheap."""
        lets = [x for x in maker.body if isinstance(x, ir.Let)]
        heavy = sum(x.fn in HEAVY for x in lets)
        if s.buffer not in self.private or not maker.pointwise or len(maker.writes) != 1 or heavy > AGAIN_HEAVY:
            return None
        if len(lets) > AGAIN_OPS or len(maker.reads) > AGAIN_LOADS:
            return None
        (write,) = maker.writes
        places: dict[Expr, Int] = {}
        for axis in maker.axes:
            e = deps._decoded(maker, write, axis, lift(index), _Here(self.ranges))  # type: ignore[arg-type]
            if e is None:
                return None
            places[axis.symbol] = e
        if simplify(write.index.subs(places), self.ranges) is not lift(index):
            return None
        before = dict(self.env)
        result: ir.Value | None = None
        for stmt in maker.body:
            if isinstance(stmt, ir.Store):
                result = self.resolve(stmt.value)
            elif isinstance(stmt, ir.Load):
                self.load(replace(stmt, index=as_int(lift(stmt.index).subs(places))))
            elif isinstance(stmt, ir.Index):
                self.statement(replace(stmt, expr=as_int(lift(stmt.expr).subs(places))))
            else:
                self.statement(stmt)
        self.env = before
        return result

    # --- operands ---
    def resolve(self, v: ir.Value) -> Any:
        return self.env.get(v, v) if isinstance(v, str) else v

    def index(self, e: Int) -> Int:
        """Simplified, with value names replaced by what they became."""
        e = lift(e)
        renamed = {s: self.env[s.name] for s in e.free_symbols if self.env.get(s.name, s.name) != s.name}
        if renamed:
            e = e.subs({s: Symbol(v) if isinstance(v, str) else lift(int(v)) for s, v in renamed.items()})
        return as_int(simplify(e, self.ranges))


class _Here:
    """Stands for a nest where only its ranges are asked."""

    def __init__(self, ranges: dict[Symbol, Interval]) -> None:
        self.ranges = ranges


def _names(e: Int) -> list[str]:
    return [s.name for s in lift(e).free_symbols]


# --- putting it together ---------------------------------------------------------------------------------------------
@dataclass
class Built:
    """A kernel's body before it gets canonical names."""

    body: tuple[ir.Stmt, ...]
    fills: dict[str, Any]
    group: Group


def build(group: Group, program: Program, needed: frozenset[str]) -> Built:
    """Weave and write a group; ``needed`` are buffers that other tasks or the caller read."""
    group = split_full_reductions(group, program)
    fills: dict[str, Any] = {}
    nests = []
    for n in group.nests:
        if outer_reduction(n) or (_is_large_full(n) and _has_parts(n, group)):
            fills[n.writes[0].buffer] = fill_of(n.init.combine, n.init.dtypes[0])  # type: ignore[union-attr]
            n = with_combining_store(n)
        nests.append(n)
    weaver = Weaver(nests, group.spine, program.names)
    tree = weaver.weave([(n.number, 0) for n in nests])
    private = frozenset(w.buffer for n in nests for w in n.writes) - needed
    writer = Writer(weaver.nests, program, private)
    writer.tree(tree)
    body = drop_dead(tuple(writer.blocks[0].stmts), private)
    return Built(body, fills, group)


def _has_parts(n: Nest, group: Group) -> bool:
    """Is there an outermost loop, over few enough parts or rows, to run side by side?"""
    return len(n.axes) > 1 and group.spine[:1] == (n.axes[0].name,)


def drop_dead(body: tuple[ir.Stmt, ...], private: frozenset[str]) -> tuple[ir.Stmt, ...]:
    """Without stores to private buffers that nothing loads, and without values that nothing uses."""
    while True:
        loaded = {s.buffer for s in walk(body) if isinstance(s, ir.Load)}
        used = set(_used(body))
        new = _without_dead(body, private - loaded, used)
        if new == body:
            return body
        body = new


def walk(body: Iterable[ir.Stmt]) -> Iterable[ir.Stmt]:
    for s in body:
        yield s
        if isinstance(s, ir.Loop):
            yield from walk(s.body)


def _used(body: Iterable[ir.Stmt]) -> Iterable[str]:
    for s in walk(body):
        if isinstance(s, ir.Let):
            yield from (a for a in s.args if isinstance(a, str))
        elif isinstance(s, ir.Load | ir.Store):
            yield from (x.name for x in lift(s.index).free_symbols)
            yield from (x for x in (s.mask, getattr(s, "value", None)) if isinstance(x, str))
        elif isinstance(s, ir.Index):
            yield from (x.name for x in lift(s.expr).free_symbols)
        elif isinstance(s, ir.Update):
            yield from (v for v in s.values if isinstance(v, str))
        elif isinstance(s, ir.Check):
            yield s.cond
            yield s.value or s.cond


def _without_dead(body: tuple[ir.Stmt, ...], silent: frozenset[str], used: set[str]) -> tuple[ir.Stmt, ...]:
    out: list[ir.Stmt] = []
    for s in body:
        if isinstance(s, ir.Store) and s.buffer in silent:
            continue
        if isinstance(s, ir.Let | ir.Load | ir.Index) and s.name not in used:
            continue
        if isinstance(s, ir.Init) and not used & set(s.names):
            continue
        if isinstance(s, ir.Update) and not used & set(s.names):
            continue
        if isinstance(s, ir.Loop):
            inner = _without_dead(s.body, silent, used)
            if not inner:
                continue
            s = replace(s, body=inner)
        out.append(s)
    return tuple(out)

