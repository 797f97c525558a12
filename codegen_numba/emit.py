"""The text of a phase: Numba source that a person can read and LLVM can vectorise.

Stage: codegen_numba.  In: a ``Phase`` of a kernel.  Out: a ``Source`` and what each of its parameters is.
One method for each kind of phase: how a range [start, stop) becomes loops, with a part's private copies around them.
Read next: ``statements`` (what stands inside), ``compile``.
"""

from __future__ import annotations

from dataclasses import dataclass

from codegen_numba import analysis, schedule, spell, target
from codegen_numba.accumulate import identity
from codegen_numba.compile import Source
from codegen_numba.statements import MODES, Statements
from codegen_numba.strips import Strip
from compiler.loop.ir import Int, Load, Loop, Store, walk


@dataclass(frozen=True)
class Argument:
    """What to pass: a kernel buffer, work memory, a size, the error word, a private copy, its length, or how many there are."""

    kind: str  # buffer | work | size | error | private | numel | parts
    name: str = ""


class Emitter(Statements):
    """Writes one phase."""

    def source(self, name: str) -> tuple[Source, tuple[Argument, ...], tuple[str, ...]]:
        """The phase as a function called ``name``; its arguments; the messages of its checks."""
        self.body(self.phase.prologue)
        with self.inside(*self.phase.loops):
            getattr(self, f"_{self.phase.kind}")()
        if self.strips:
            self.out("settle()")
        params, arguments = self._parameters()
        lines = ["def {}({}):".format(name, ", ".join([*(p for p, _ in params), "start", "stop", "part"]))]
        lines += self._about()
        if self.messages:
            lines += ["    bad = 0", "    bad_value = 0"]
            self.out.depth = 1
            with self.out.block("if bad != 0:"):
                self.out("error[0] = bad")
                self.out("error[1] = bad_value")
        alias = bool(self.kernel.writes & {b.name for b in self.kernel.params if b.name.startswith("arg")})
        text = "\n".join([*lines, *self.out.lines, ""])
        source = Source(name, text, params, contract=not self.strict, alias=alias, vectors=not self._is_against_the_grain())
        return source, arguments, tuple(self.messages)

    def _is_against_the_grain(self) -> bool:
        """Does a loop step back by eight elements, where the two models LLVM has of what eight neighbours moved backwards cost
        under AVX-512 disagree?  That is a failed assertion, which ends the process."""
        if not target.has("avx512f"):
            return False
        loops = [s.axis for s in walk(self.kernel.body) if isinstance(s, Loop)]
        places = [s.index for s in analysis.accesses(walk(self.kernel.body))]
        return any(analysis.stride(x, axis) == -8 for x in places for axis in loops)

    def _about(self) -> list[str]:
        """The user's lines this kernel stands for, and the graph nodes, as comments."""
        lines = [f"    # {' '.join(self.kernel.origin)}"[:110]] if self.kernel.origin else []
        return [*lines, *(f"    # {file}:{line}  {text.strip()}" for file, line, text in self.kernel.lines)]

    def _parameters(self) -> tuple[tuple[tuple[str, str], ...], tuple[Argument, ...]]:
        params: list[tuple[str, str]] = []
        arguments: list[Argument] = []
        for b in self.used:
            params.append((self.name(b), spell.memory_type(self.buffers[b].dtype)))
            arguments.append(Argument("work" if b in {w.name for w in self.phase.work} else "buffer", b))
        for p in self.phase.privates:
            params.append((self.name(p.name), spell.memory_type(p.dtype)))
            arguments.append(Argument("private", p.name))
        for s in self.kernel.sizes if self.phase.kind != "join" else ():
            params.append((self.name(s), "size"))
            arguments.append(Argument("size", s))
        if self.phase.kind == "join":
            params += [("numel", "size"), ("parts", "size")]
            arguments += [Argument("numel", self.phase.privates[0].name), Argument("parts")]
        if self.messages:
            params.append(("error", "int64"))
            arguments.append(Argument("error"))
        return tuple(params), tuple(arguments)

    def _once(self) -> None:
        self._own_copies()
        with self.out.block("for _ in range(start, stop):"):
            self.row_body(self.phase.body)

    def _rows(self) -> None:
        self._own_copies()
        loops = self.phase.loops
        with self.out.block(f"for {self.name(loops[0].axis) if len(loops) == 1 else 't'} in range(start, stop):"):
            self._unravel(loops)
            self.row_body(self.phase.body)

    def _flat(self) -> None:
        """[start, stop) over all iterations; only the first and the last row may be incomplete."""
        self._own_copies()
        *outer, inner = self.phase.loops
        if not outer:
            self.straight_loops(inner.axis, self.phase.body, "start", "stop")
            return
        n = self.index(inner.extent)
        axis = self.name(outer[0].axis) if len(outer) == 1 else "t"
        wide = n if analysis.known(inner.extent) else f"greatest({n}, 1)"  # rows of no elements are no rows
        with self.out.block(f"for {axis} in range(quotient(start, {wide}), quotient(stop + {wide} - 1, {wide})):"):
            self._unravel(tuple(outer))
            low, high = f"greatest(start - {axis} * ({n}), 0)", f"least(stop - {axis} * ({n}), {n})"
            self.straight_loops(inner.axis, self.phase.body, low, high)

    def _strips(self) -> None:
        self._own_copies()
        *outer, inner = self.phase.loops
        axis, width = self.name(inner.axis), self.tune.strip
        pieces = Loop(inner.axis, analysis.ceil_div(inner.extent, width), "map", ())
        with self.out.block("for t in range(start, stop):"):
            self._unravel((*outer, pieces), always=True)
            self.out(f"{axis}_0 = {axis} * {width}")
            self.out(f"{axis}_1 = least({axis}_0 + {width}, {self.index(inner.extent)})")
            self.accumulators.one_by_one = True
            Strip(self, inner, width).body(inner.body)

    def _tiles(self) -> None:
        """Tiles of the innermost loop and the one across it; what is contiguous across is turned in scratch memory."""
        self._own_copies()
        loops, across, inner = self.phase.loops, self.phase.across, self.phase.loops[-1].axis
        tall, wide = self.tune.tile
        tile = {across: tall, inner: wide}
        turned = schedule.turned(self.phase.body, inner, across)
        for n, s in enumerate(turned):
            self.tiles[id(s)] = f"tile{n}"
            kind = spell.memory_type(self.buffers[s.buffer].dtype)
            self.out(f"tile{n} = scratch_{kind}({tall * wide})")
        steps = [analysis.ceil_div(x.extent, tile[x.axis]) if x.axis in tile else x.extent for x in loops]
        row, column = self.name(across), self.name(inner)
        with self.out.block("for t in range(start, stop):"):
            self._unravel(tuple(Loop(x.axis, n, "map", ()) for x, n in zip(loops, steps, strict=True)), always=True)
            for x in loops:
                if x.axis in tile:
                    a = self.name(x.axis)
                    self.out(f"{a}_0 = {a} * {tile[x.axis]}")
                    self.out(f"{a}_1 = least({a}_0 + {tile[x.axis]}, {self.index(x.extent)})")
            for s in turned:
                if isinstance(s, Load):
                    self.out(f"turn_in({self._tile_arguments(s, across, inner)[0]})")
            with self.out.block(f"for {row} in range({row}_0, {row}_1):"):
                for line in self._next_tile(across, inner):
                    self.out(line)
                self.tile_place = f"({row} - {row}_0) * {wide} + {column} - {column}_0"
                found = [s for s in self.phase.body if id(s) not in self.tiles and self.goes_around(s, inner)]
                if found:
                    self.loop_around(inner, self.phase.body, f"{column}_0", f"{column}_1", found)
                else:
                    with self.out.block(f"for {column} in range({column}_0, {column}_1):"):
                        self.body(self.phase.body)
            for s in turned:
                if isinstance(s, Store):
                    self.out(f"turn_out({self._tile_arguments(s, across, inner)[1]})")

    def _next_tile(self, across: str, inner: str) -> list[str]:
        """Lines that fetch, at each row of a tile, what the row after it reads, and as much of the next tile along the
        innermost loop: no array runs on from one row or tile to the next for long enough for the machine to see it coming.
        Only what no cache holds anyway."""
        tall, wide = self.tune.tile
        row, column, out = self.name(across), self.name(inner), {}
        for s in self.phase.body if self.around else ():
            if not isinstance(s, Load) or s.mask is not None:
                continue
            start, buffer = self.index(analysis.at_zero(s.index, inner)), self.buffer(s.buffer)
            step, down = (analysis.symbolic_stride(s.index, axis) for axis in (inner, across))
            if id(s) in self.tiles and step is not None:
                each = -(-wide // tall)  # columns of the tile, which are rows of the array
                start = f"{self.index(analysis.at_zero(s.index, across, inner))} + {row}_0"
                columns = [f"({column}_1 + ({row} - {row}_0) * {each} + {n})" for n in range(each)]
                out[s.buffer] = [f"fetch_later({buffer}, {start} + {c} * ({self.index(step)}), {tall})" for c in columns]
            elif step == 1:
                out[s.buffer] = [f"fetch_later({buffer}, {start} + {column}_1, {wide})"]
                if down is not None:
                    out[s.buffer].append(f"fetch({buffer}, {start} + {self.index(down)} + {column}_0, {wide})")
        return [line for lines in out.values() for line in lines]

    def _tile_arguments(self, s: Load | Store, across: str, inner: str) -> tuple[str, str]:
        """The operands of ``turn_in`` and ``turn_out`` for the current tile."""
        buffer, tile, wide = self.buffer(s.buffer), self.tiles[id(s)], self.tune.tile[1]
        a, b = self.name(across), self.name(inner)
        step = analysis.symbolic_stride(s.index, inner)
        assert step is not None
        start = f"{self.index(analysis.at_zero(s.index, across, inner))} + {a}_0 + {b}_0 * ({self.index(step)})"
        tall, broad = f"{a}_1 - {a}_0", f"{b}_1 - {b}_0"
        stride = self.index(step)
        into = f"{buffer}, {start}, {stride}, {tile}, {wide}, {broad}, {tall}"
        out = f"{tile}, {wide}, {buffer}, {start}, {stride}, {tall}, {broad}"
        return into, out

    def _unravel(self, loops: tuple[Loop, ...], always: bool = False) -> None:
        """The axes of collapsed loops from ``t``."""
        if len(loops) == 1 and not always:
            return
        rest = "t"
        for n, s in enumerate(loops[:-1]):
            size = self._closed_product([x.extent for x in loops[n + 1 :]])
            self.out(f"{self.name(s.axis)} = quotient({rest}, {size})")
            rest = f"remainder({rest}, {size})"
        self.out(f"{self.name(loops[-1].axis)} = {rest}")

    def _closed_product(self, extents: list[Int]) -> str:
        return self.index(analysis.product(extents))

    # --- private copies ---
    def _own_copies(self) -> None:
        for p in self.phase.privates:
            name, numel = self.name(p.name), self.index(p.buffer.numel)
            self.out(f"{name}_at = part * ({numel})")
            with self.out.block(f"for t in range({numel}):"):
                self.out(f"{name}[{name}_at + t] = {spell.to_memory(identity(p.mode, p.dtype), p.dtype)}")

    def _join(self) -> None:
        """Fold the private copies into the buffer, in the order of the parts."""
        (p,) = self.phase.privates
        b = p.buffer
        name = self.name(p.name)
        place, mine = f"{self.buffer(b.name)}[t]", f"{name}[part * numel + t]"
        if b.dtype is p.dtype:
            both = [spell.from_memory(place, b.dtype), spell.from_memory(mine, b.dtype)]
            joined = spell.spell(MODES[p.mode], both, b.dtype, b.dtype, False)
            with self.out.block("for part in range(parts):"), self.out.block("for t in range(start, stop):"):
                self.out(f"{place} = {spell.to_memory(joined, b.dtype)}")
            return
        with self.out.block("for t in range(start, stop):"):
            self.out(f"v = {spell.from_memory(place, b.dtype)}")
            with self.out.block("for part in range(parts):"):
                self.out(f"v = {spell.spell(MODES[p.mode], ['v', mine], p.dtype, p.dtype, False)}")
            self.out(f"{place} = {spell.to_memory('v', b.dtype)}")
