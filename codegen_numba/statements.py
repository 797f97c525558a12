"""Statements and loops as lines of kernel source.

Stage: codegen_numba, a part of ``emit``.  In: loop IR statements, with what ``memo`` made of them.  Out: lines of kernel source.
Buffers are C pointers indexed in elements.  A reduction along contiguous memory runs in blocks (``accumulate``), a straight
loop may be several (``streams``), and rows of large results go around the caches (``bypass``).
Read next: ``accumulate``, ``emit``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from codegen_numba import analysis, bypass, joined, memo, parallel, random_rows, shares, spell, streams
from codegen_numba.accumulate import Accumulators
from codegen_numba.analysis import Body, Keep, Recall
from codegen_numba.names import Names, Text
from codegen_numba.schedule import Phase, Private, Tune
from compiler.loop.ir import Check, Index, Init, Kernel, Let, Load, Loop, Stmt, Store, Update, walk
from compiler.sym.expr import Symbol
from compiler.sym.ranges import extent
from tinytorch.dtypes import DType, bool_, float64, int64

#: The vocabulary name of each combining store.
MODES = {"add": "add", "mul": "mul", "max": "maximum", "min": "minimum"}


class Statements(Names):
    """Writes what stands inside of one phase."""

    def __init__(self, kernel: Kernel, phase: Phase, strict: bool, tune: Tune) -> None:
        super().__init__(kernel.sizes)
        self.kernel, self.phase, self.strict, self.tune = kernel, phase, strict, tune
        self.out = Text()
        self.buffers = {b.name: b for b in (*kernel.params, *phase.work)}
        self.privates: dict[str, Private] = {p.buffer.name: p for p in phase.privates}
        self.dtypes: dict[str, DType] = {}
        self.exact: dict[str, str] = {}  # values in float32 registers that are numbers of a half type, and which
        self.axes: list[str] = []
        self.messages: list[str] = []
        self.origin: tuple[str, ...] = ()
        self.tiles: dict[int, str] = {}  # accesses that go by way of a turned tile
        self.tile_place = ""
        self.rows: dict[str, str] = {}  # draws whose words are filled ahead
        self.around = bypass.results(kernel, tune.around)
        self.ahead: tuple[Loop | None, list[str]] = (None, [])  # what to do before a loop
        self.strips: dict[int, str] = {}  # stores that go to a scratch row first, by the place in it
        self.accumulators = Accumulators(self)

    # --- statements ---
    def row_body(self, stmts: tuple[Stmt, ...]) -> None:
        """Statements and loops side by side: what one loop computes at a price is kept for the next."""
        if not self.strict:
            stmts = shares.mark(stmts, self.kernel.writes)
        plain, stmts = stmts, memo.remember(stmts, self.kernel.writes)
        for s in walk(stmts):
            if isinstance(s, Keep):
                self.out(f"{self.name(s.row)} = scratch_{_kept_as(s.dtype)}({s.length})")
        extent = memo.unknown(stmts)
        if extent is not None:
            with self.out.block(f"if {self.index(extent)} <= {memo.LONGEST}:"):
                self.body(stmts)
            with self.out.block("else:"):
                self.body(plain)
            return
        loops = [s for s in stmts if isinstance(s, Loop)]
        if self.around and self.phase.kind == "rows" and len(loops) > 1:
            self.ahead = (loops[-1], self.next_row(loops[0]))
        self.body(stmts)

    def next_row(self, first: Loop) -> list[str]:
        """Lines that fetch what ``first``, the first loop over a row, will read of the next."""
        row, found = self.phase.loops[-1].axis, {}
        for s in first.body:
            step = analysis.stride(s.index, row) if isinstance(s, Load) else 0
            if isinstance(s, Load) and step and analysis.stride(s.index, first.axis) == 1:
                there = analysis.at_zero(s.index, first.axis) + step
                found[s.buffer] = f"fetch({self.buffer(s.buffer)}, {self.index(there)}, {self.index(first.extent)})"
        return list(found.values())

    def body(self, stmts: Iterable[Stmt], whole: bool = True) -> None:
        """``whole``: is what these statements define read by nobody else?"""
        stmts = tuple(stmts)
        if whole and not self.strict:
            stmts = joined.join(stmts)
        for n, s in enumerate(stmts):
            match s:
                case Let():
                    self.let(s)
                case Index():
                    self.dtypes[s.name] = int64
                    self.out(f"{self.name(s.name)} = {self.index(s.expr)}")
                case Load():
                    self.load(s)
                case Store():
                    self.store(s)
                case Init():
                    self.accumulators.init(s, stmts[n + 1 :])
                case Update():
                    self.accumulators.update(s)
                case Check():
                    self.check(s)
                case Loop():
                    for line in self.ahead[1] if s is self.ahead[0] else ():
                        self.out(line)
                    self.loop(s)
                case Keep():
                    value = f"to_uint8({self.name(s.name)})" if s.dtype is bool_ else self.name(s.name)
                    self.out(f"{self.name(s.row)}[{self.name(s.axis)}] = {value}")
                case Recall():
                    self.dtypes[s.name] = s.dtype
                    place = f"{self.name(s.row)}[{self.name(s.axis)}]"
                    self.out(f"{self.name(s.name)} = {place}{' != 0' if s.dtype is bool_ else ''}")

    def let(self, s: Let) -> None:
        self.dtypes[s.name] = s.dtype
        if s.name in self.rows:
            self.out(f"{self.name(s.name)} = {self.rows[s.name]}")
            return
        operand = self.operand(s)
        if s.fn == "cast" and self.is_exact(s):
            self.out(f"{self.name(s.name)} = {self.value(s.args[0], operand)}")
            return
        args = [self.value(a, bool_ if s.fn == "where" and n == 0 else operand) for n, a in enumerate(s.args)]
        text = spell.literal(s.args[0], s.dtype) if s.fn == "const" else self.spelled(s, args, operand)
        self.out(f"{self.name(s.name)} = {text}")

    def is_exact(self, s: Let) -> bool:
        """Is this cast one of a half type's numbers to that type, or to float32?  What it gives is noted either way."""
        half = s.dtype.name if s.dtype.name in spell.HALVES else ""
        known = self.exact.get(s.args[0], "") if isinstance(s.args[0], str) else ""
        if spell.register_type(s.dtype) != "float32" or not (half or known):
            return False
        self.exact[s.name] = half or known
        return half in ("", known)

    def spelled(self, s: Let, args: list[str], operand: DType) -> str:
        if s.fn in (*joined.WORDS, shares.SHARE):
            return f"{s.fn}({', '.join(args)})"
        if s.fn == "pow" and operand.kind == "f" and s.args[1] == 2 and not isinstance(s.args[1], str):
            return f"{args[0]} * {args[0]}"
        return spell.spell(s.fn, args, operand, s.dtype, self.strict)

    def operand(self, s: Let) -> DType:
        """The type the operands have; literals alone take the result's, or their own."""
        args = s.args[1:] if s.fn == "where" else s.args
        for a in args:
            if isinstance(a, str):
                return self.dtypes[a]
        if s.dtype is not bool_ or all(isinstance(a, bool) for a in args):
            return s.dtype
        return float64 if any(isinstance(a, float) for a in args) else int64

    def load(self, s: Load) -> None:
        b = self.buffers[s.buffer]
        self.dtypes[s.name] = s.dtype
        name = self.name(s.name)
        tile = self.tiles.get(id(s))
        place = f"{tile}[{self.tile_place}]" if tile else f"{self.buffer(s.buffer)}[{self.index(s.index)}]"
        text = spell.from_memory(place, b.dtype)
        text = spell.cast(text, b.dtype, s.dtype) if s.dtype is not b.dtype else text
        if s.mask is None:
            if b.dtype.name in spell.HALVES and spell.register_type(s.dtype) == "float32":
                self.exact[s.name] = b.dtype.name
            self.out(f"{name} = {text}")
            return
        self.out(f"{name} = {spell.literal(s.other, s.dtype)}")
        self.out(f"if {self.name(s.mask)}:")
        self.out(f"    {name} = {text}")

    def store(self, s: Store) -> None:
        b = self.buffers[s.buffer]
        source = self.dtypes.get(s.value, b.dtype) if isinstance(s.value, str) else b.dtype
        value = self.value(s.value, b.dtype)
        half = b.dtype.name in spell.HALVES
        if source is not b.dtype and not (half and source.kind == "f"):  # to a half type it is rounded on its way
            value = spell.cast(value, source, b.dtype)
        exact = half and isinstance(s.value, str) and self.exact.get(s.value) == b.dtype.name
        if s.mode == "set":
            tile = self.tiles.get(id(s))
            place = f"{tile}[{self.tile_place}]" if tile else self.strips.get(id(s))
            place = place or f"{self.buffer(s.buffer)}[{self.index(s.index)}]"
            line = f"{place} = {spell.to_memory(value, b.dtype, exact)}"
        else:
            line = self.combining(s, value)
        if s.mask is None:
            self.out(line)
        else:
            with self.out.block(f"if {self.name(s.mask)}:"):
                self.out(line)

    def combining(self, s: Store, value: str) -> str:
        """``buffer[index] = combine(buffer[index], value)``, in the part's own copy if there is one."""
        b, index, private = self.buffers[s.buffer], self.index(s.index), self.privates.get(s.buffer)
        if private is None:
            place, dtype = f"{self.buffer(s.buffer)}[{index}]", b.dtype
        else:
            place, dtype = f"{self.name(private.name)}[{self.name(private.name)}_at + {index}]", private.dtype
        joined = spell.spell(MODES[s.mode], [spell.from_memory(place, dtype), value], dtype, dtype, self.strict)
        return f"{place} = {spell.to_memory(joined, dtype)}"

    def check(self, s: Check) -> None:
        """The first failure is remembered and the iteration left, before it touches memory it should not."""
        if s.message not in self.messages:
            self.messages.append(s.message)
        with self.out.block(f"if not {self.name(s.cond)}:"):
            with self.out.block("if bad == 0:"):
                self.out(f"bad = {self.messages.index(s.message) + 1}")
                if s.value is not None:
                    self.out(f"bad_value = to_int64({self.name(s.value)})")
            self.out("continue")

    # --- loops ---
    def loop(self, s: Loop) -> None:
        if s.kind == "reduce":
            self.accumulators.reduce(s)
        else:
            self.plain_loop(s)

    def plain_loop(self, s: Loop) -> None:
        if analysis.has_loop(s.body) or s.kind == "scan":
            with self.inside(s), self.out.block(f"for {self.name(s.axis)} in range({self.index(s.extent)}):"):
                self.row_body(s.body)
        else:
            with self.inside(s):
                self.straight_loops(s.axis, s.body, "0", self.index(s.extent))

    def straight_loops(self, axis: str, body: Body, low: str, high: str) -> None:
        """A map loop over a body without loops, or several if it would follow too many streams."""
        dims = (n for b in self.buffers.values() for n in b.shape)
        ranges = streams.facts(dims, {Symbol(a): self.ranges[Symbol(a)] for a in self.axes})
        for piece in streams.apart(body, axis, ranges):
            found = [s for s in piece if self.goes_around(s, axis)]
            if found and not random_rows.draws(piece, axis):
                self.loop_around(axis, piece, low, high, found)
                continue
            with self.straight(axis, piece, low, high):
                if streams.hidden(piece, axis):
                    self.out(f"{parallel.WORD}()")
                self.body(piece)

    def goes_around(self, s: Stmt, axis: str) -> bool:
        """Is it a store of a row that is not wanted in the caches?"""
        if not isinstance(s, Store) or s.buffer not in self.around or s.mask is not None:
            return False
        return analysis.stride(s.index, axis) == 1

    def loop_around(self, axis: str, body: Body, low: str, high: str, found: list[Stmt]) -> None:
        """A straight loop in strips: what it finds goes to scratch rows, and these around the caches (``bypass``)."""
        name, strip, end = self.name(axis), f"{axis}_strip", f"{axis}_end"
        stores = [s for s in found if isinstance(s, Store)]
        rows = [f"{self.name(s.buffer)}_row{n}" for n, s in enumerate(stores)]
        for s, row in zip(stores, rows, strict=True):
            self.strips[id(s)] = f"{row}[{name} - {strip}]"
            self.out(f"{row} = scratch_{spell.memory_type(self.buffers[s.buffer].dtype)}({bypass.STRIP})")
        with self.out.block(f"for {strip} in range({low}, {high}, {bypass.STRIP}):"):
            self.out(f"{end} = least({strip} + {bypass.STRIP}, {high})")
            with self.out.block(f"for {name} in range({strip}, {end}):"):
                self.body(body)
            for s, row in zip(stores, rows, strict=True):
                start = f"{self.index(analysis.at_zero(s.index, axis))} + {strip}"
                self.out(f"write_around({self.buffer(s.buffer)}, {start}, {row}, {end} - {strip})")

    @contextmanager
    def straight(self, axis: str, body: Body, low: str, high: str) -> Iterator[None]:
        """``for axis in range(low, high)`` around a body without loops; random words are filled ahead, in stretches."""
        name = self.name(axis)
        found = random_rows.draws(body, axis)
        if not found:
            with self.out.block(
                f"for {name} in range({low}, {high}):" if low != "0" else f"for {name} in range({high}):"
            ):
                yield
            return
        for d in found:
            self.out(f"{self.name(d.name)}_row = scratch_uint32({random_rows.STRETCH + 8})")
        with self.out.block(f"for {name}_2 in range({low}, {high}, {random_rows.STRETCH}):"):
            self.out(f"{name}_3 = least({name}_2 + {random_rows.STRETCH}, {high})")
            for d in found:
                word, at = self.name(d.name), Symbol(axis)
                self.out(f"{name} = {name}_2")
                self.out(f"{word}_block = {self.index(d.place // 4)}")
                self.out(f"{word}_first = {word}_block * 4 - ({self.index(d.place - at)})")
                count = f"quotient({name}_3 - {word}_first + 3, 4)"
                self.out(
                    f"philox_row({word}_row, {self.name(d.seed)}, {self.name(d.base)} + {word}_block + {self.index(d.more)}, {count})"
                )
                self.rows[d.name] = f"{word}_row[{name} - {word}_first]"
            with self.out.block(f"for {name} in range({name}_2, {name}_3):"):
                yield

    @contextmanager
    def inside(self, *loops: Loop) -> Iterator[None]:
        for s in loops:
            self.ranges[Symbol(s.axis)] = extent(s.extent)
            self.axes.append(s.axis)
        yield
        del self.axes[len(self.axes) - len(loops) :]


def _kept_as(dtype: DType) -> str:
    """A value keeps its register type in a scratch row; bools become bytes."""
    return "uint8" if dtype is bool_ else spell.register_type(dtype)
