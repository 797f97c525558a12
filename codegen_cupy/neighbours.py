"""Straight-line statements for a vector of neighbouring points: wide loads and stores, and a loop over the neighbours between.

Stage: codegen.  In: an ``Emitter``, statements, the axis along which the points are neighbours.  Out: lines of C++.
Read next: ``draws`` (random words of neighbours), ``kept`` (rows in registers), ``pointwise``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from codegen_cupy import draws
from codegen_cupy.body import Emitter
from codegen_cupy.kept import Kept, read_part
from codegen_cupy.nest import Axis, divides, rest_along, used
from codegen_cupy.spell import cast, from_memory, memory_type, register_type, safe, to_memory
from compiler.loop.ir import Index, Init, Let, Load, Stmt, Store, Update
from compiler.sym.expr import lift
from tinytorch.dtypes import int64


def neighbours(
    e: Emitter, stmts: tuple[Stmt, ...], axis: Axis, vector: int, kept: Kept | None = None,
    export: Mapping[str, str] | None = None,
) -> None:  # fmt: skip
    """Statements for ``vector`` points side by side along ``axis``, which holds the first one.

    Reads of neighbours become one wide load before the loop over ``k``, writes one wide store after it; what is
    the same for all of them is computed once.  Names in ``export`` are also put into the variables it gives.
    """
    part = Section(e, stmts, axis, vector, kept, export or {})
    if vector == 1:
        part.scalar()
    else:
        part.wide()


@dataclass
class Section:
    """One straight-line piece of a loop body, written for ``vector`` neighbours."""

    e: Emitter
    stmts: tuple[Stmt, ...]
    axis: Axis
    vector: int
    kept: Kept | None
    export: Mapping[str, str]

    def scalar(self) -> None:
        for s in self.stmts:
            if isinstance(s, Load) and self._slot(s):
                self._load_kept(s)
                self.e.define(s.name, s.dtype, self._element(s, f"{self._slot(s)}[c]"))
            else:
                self.e.statement(s)
        self._export()

    def _export(self) -> None:
        for name, variable in self.export.items():
            self.e.line(f"{variable} = {self.e.text[name]};")

    def wide(self) -> None:
        e, v = self.e, self.vector
        same = self._uniform()
        packs = self._fetched(same)
        stores = [s for s in self.stmts if isinstance(s, Store) and self._packed(s, same)]
        out = {id(s): f"{safe(s.buffer)}_pack{n or ''}" for n, s in enumerate(stores)}
        for x in stores:
            e.line(f"Pack<{memory_type(e.buffers[x.buffer].dtype)}, {v}> {out[id(x)]};")
        folded = {id(s): s for s in self.stmts if isinstance(s, Update) and s.combine == "softmax" and not self._in_vector(s)}
        for u in folded.values():
            e.line(f"{register_type(e.dtype[u.names[0]])} {safe(u.names[0])}_new[{v}];")
        words = draws.in_fours(self.stmts, self.axis, v, same, dict(e.schedule.facts))
        for name in words.values():
            e.line(f"PhiloxWords {name};")
        if self.export or any(id(s) not in same for s in self.stmts):
            start = e.text[self.axis.name]
            e.pragma("unroll")
            with e.block(f"for (int k = 0; k < {v}; ++k)"):
                e.text[self.axis.name] = f"({start} + k)"
                for s in self.stmts:
                    if id(s) in words:
                        self._draw(s, words[id(s)])
                    elif id(s) in folded:
                        u = folded[id(s)]
                        e.line(f"{safe(u.names[0])}_new[k] = {e.operand(u.values[0], e.dtype[u.names[0]])};")
                    elif id(s) not in same:
                        self._one(s, packs, out)
                self._export()
        for u in folded.values():
            self._fold(u)
        for x in stores:
            store = "stream_pack" if e.schedule.stream else "store_pack"
            text, mask = f"{store}({safe(x.buffer)} + {e.index(x.index)}, {out[id(x)]});", e.mask(x)
            e.line(f"if ({mask}) {text}" if mask else text)

    def _fetched(self, same: set[int]) -> dict[str, str]:
        """Before the loop over neighbours: what is the same for all, and wide loads, whose variables are given by name."""
        e, v = self.e, self.vector
        packs: dict[str, str] = {}
        compared = {a for s in self.stmts if id(s) in same and self._steady(s) for a in used(s)}
        for s in self.stmts:
            if id(s) in same or (isinstance(s, Index) and s.name in compared):
                e.statement(s)
            elif isinstance(s, Load) and self._slot(s):
                self._load_kept(s)
            elif isinstance(s, Load) and self._packed(s, same):
                packs[s.name] = f"{safe(s.name)}_pack"
                where = f"{safe(s.buffer)} + {e.index(s.index)}"
                t, mask = memory_type(e.buffers[s.buffer].dtype), e.mask(s)
                text = f"{'load_once' if self._once(s) else 'load_pack'}<{v}>({where})"
                if mask:  # the same for all neighbours
                    text = f"{mask} ? {text} : Pack<{t}, {v}>{{}}"
                e.line(f"const Pack<{t}, {v}> {packs[s.name]} = {text};")
        return packs

    def _once(self, s: Load) -> bool:
        """Is it read at this point and no other, and never written here?"""
        e = self.e
        here = {n.name for n in lift(s.index).free_symbols}
        return e.schedule.once and s.buffer not in e.kernel.writes and all(a.name in here for a in e.nest.axes)

    def _in_vector(self, s: Update) -> bool:
        """Does each neighbour have an accumulator of its own?"""
        return "[k]" in self.e.accumulators[s.names[0]][1]

    def _fold(self, s: Update) -> None:
        """All neighbours into an online softmax at once."""
        e = self.e
        t = register_type(e.dtype[s.names[0]])
        fn = "rough_exp" if s.names[0] in e.rough else "exp" if t == "double" else "expf"
        x = e.accumulators[s.names[0]][1]
        e.line(f"{x} = with_neighbours({x}, {safe(s.names[0])}_new, []({t} x) {{ return {fn}(x); }});")

    def _one(self, s: Stmt, packs: dict[str, str], out: dict[int, str]) -> None:
        e = self.e
        if isinstance(s, Load) and s.name in packs:
            e.define(s.name, s.dtype, self._element(s, f"{packs[s.name]}.at[k]"))
        elif isinstance(s, Load) and self._slot(s):
            e.define(s.name, s.dtype, self._element(s, f"{self._slot(s)}[c].at[k]"))
        elif isinstance(s, Store) and id(s) in out:
            buffer = e.buffers[s.buffer]
            e.line(f"{out[id(s)]}.at[k] = {to_memory(e.stored_value(s, buffer), buffer.dtype)};")
        else:
            e.statement(s)

    def _draw(self, s: Stmt, words: str) -> None:
        """A random word, one of the four that every fourth neighbour draws."""
        assert isinstance(s, Let)
        seed, counter = (self.e.operand(a, int64) for a in s.args[:2])
        self.e.line(f"if (k % 4 == 0) {words} = philox_words({seed}, {counter});")
        self.e.define(s.name, s.dtype, f"{words}.at[k % 4]")

    def _element(self, s: Load, text: str) -> str:
        d = self.e.buffers[s.buffer].dtype
        return cast(from_memory(text, d), d, s.dtype)

    def _uniform(self) -> set[int]:
        """Statements (by id) that are the same for all neighbours: nothing in them depends on the axis."""
        varying = {self.axis.name} | self._carried()
        varying |= {n for s in self.stmts if isinstance(s, Update) for n in s.names}
        same: set[int] = set()
        for s in self.stmts:
            depends = bool(varying & set(used(s))) and not self._steady(s)
            if isinstance(s, (Store, Update, Init)) or depends:
                varying |= {s.name} if isinstance(s, (Let, Load, Index)) else set()
            else:
                same.add(id(s))
        return same

    def _carried(self) -> set[str]:
        """Names that hold one value for each neighbour, from a loop before this one."""
        return {n for n, text in self.e.text.items() if "[k]" in text}

    def _differing(self, same: set[int]) -> set[str]:
        """Names whose values are not the same for all neighbours."""
        return {x.name for x in self.stmts if isinstance(x, (Let, Load, Index)) and id(x) not in same} | self._carried()

    def _steady(self, s: Stmt) -> bool:
        """Does a whole vector lie on one side of a bound (of a slice, of a part of a concatenation)?"""
        if not isinstance(s, Let) or s.fn not in ("ge", "lt") or not isinstance(s.args[1], int) or s.args[1] % self.vector:
            return False
        place = next((x for x in self.stmts if isinstance(x, Index) and x.name == s.args[0]), None)
        found = rest_along(place.expr, self.axis.symbol) if place else None
        inner = {x.name for x in self.stmts if isinstance(x, (Let, Load, Index))} | self._carried()
        if found is None or found[0] != 1 or {x.name for x in found[1].free_symbols} & inner:
            return False
        return divides(self.vector, found[1], dict(self.e.schedule.facts))

    def _all_or_none(self, s: Load | Store, same: set[int]) -> bool:
        """Is the mask the same for all neighbours, and nothing but zeros read where it is not set?"""
        return s.mask not in self._differing(same) and (isinstance(s, Store) or s.other == 0)

    def _packed(self, s: Load | Store, same: set[int]) -> bool:
        """Can all neighbours be moved at once?"""
        if id(s) in self.e.staged or (isinstance(s, Store) and s.mode != "set"):
            return False
        if s.mask is not None and not self._all_or_none(s, same):
            return False
        found = rest_along(s.index, self.axis.symbol)
        if found is None or not isinstance(found[0], int) or found[0] != 1:
            return False
        if {n.name for n in lift(s.index).free_symbols} & self._differing(same):
            return False
        return divides(self.vector, found[1], dict(self.e.schedule.facts))

    # --- rows in registers ---
    def _slot(self, s: Load) -> str | None:
        return self.kept.slot(s) if self.kept else None

    def _load_kept(self, s: Load) -> None:
        assert self.kept is not None
        if self.kept.first(s):
            read_part(self.e, str(self._slot(s)), s, self.e.mask(s))
