"""Writing: a woven tree as statements, each as far out as its operands allow.

Stage: loop.  In: a tree from ``weave`` and the buffers that nobody else needs.  Out: statements.  Equal ones are written
once, and a value goes from its store to its load in a register; what a later loop needs again and is cheap, is computed
again.  Read next: ``kernel`` (both put together).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from compiler.loop import deps, ir
from compiler.loop.ir import Int
from compiler.loop.nest import Axis, Nest
from compiler.loop.program import Program
from compiler.loop.value import HEAVY
from compiler.sym.expr import Expr, Symbol, as_int, lift
from compiler.sym.ranges import Interval, extent
from compiler.sym.simplify import simplify
from tinytorch.dtypes import DType

#: A value needed again in a later loop of the row is computed again if it has at most so many elementary functions
#: and loads; else it goes through memory.
AGAIN_HEAVY, AGAIN_LOADS, AGAIN_OPS = 2, 4, 24


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
