"""The text of a phase: Numba source that a person can read and LLVM can vectorise.

Stage: codegen_numba.  In: a ``Phase`` of a kernel.  Out: a ``Source`` and what each of its parameters is.
Buffers are C pointers indexed in elements.  A reduction along contiguous memory runs in blocks: inside a block the
terms may be regrouped (so LLVM keeps several vectors of partial sums), and the sums of blocks are joined in float64
(or with the rounding error carried along), which keeps the error below that of a pairwise sum.
Read next: ``accumulate``, ``compile``.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from codegen_numba import analysis, bypass, memo, random_rows, schedule, spell, streams
from codegen_numba.accumulate import Accumulators, identity
from codegen_numba.analysis import Body, Keep, Recall
from codegen_numba.compile import Source
from codegen_numba.schedule import Phase, Private, Tune
from codegen_numba.strips import Strip
from compiler.loop.ir import Check, Index, Init, Int, Kernel, Let, Load, Loop, Stmt, Store, Update
from compiler.sym.expr import Add, Const, Expr, FloorDiv, Max, Min, Mod, Mul, Symbol
from compiler.sym.ranges import Interval, extent, nonnegative
from tinytorch.dtypes import DType, bool_, float64, int64

#: Words of kernel source that no buffer or value may be called.
RESERVED = frozenset(("start", "stop", "part", "parts", "numel", "bad", "bad_value", "error", "range", "t"))


@dataclass(frozen=True)
class Argument:
    """What to pass: a kernel buffer, work memory, a size, the error word, a private copy, its length, or how many there are."""

    kind: str  # buffer | work | size | error | private | numel | parts
    name: str = ""


@dataclass
class Text:
    """Lines with indentation."""

    lines: list[str] = field(default_factory=list)
    depth: int = 1

    def __call__(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self(head)
        self.depth += 1
        before = len(self.lines)
        yield
        if len(self.lines) == before:
            self("pass")
        self.depth -= 1


class Emitter:
    """Writes one phase."""

    def __init__(self, kernel: Kernel, phase: Phase, strict: bool, tune: Tune) -> None:
        self.kernel, self.phase, self.strict, self.tune = kernel, phase, strict, tune
        self.out = Text()
        self.buffers = {b.name: b for b in (*kernel.params, *phase.work)}
        self.privates: dict[str, Private] = {p.buffer.name: p for p in phase.privates}
        self.dtypes: dict[str, DType] = {}
        self.renamed: dict[str, str] = {}
        self.ranges: dict[Symbol, Interval] = {Symbol(s): Interval(1) for s in kernel.sizes}
        self.axes: list[str] = []
        self.used: list[str] = []  # buffers, in order of first use
        self.messages: list[str] = []
        self.origin: tuple[str, ...] = ()
        self.tiles: dict[int, str] = {}  # accesses that go by way of a turned tile
        self.tile_place = ""
        self.rows: dict[str, str] = {}  # draws whose words are filled ahead
        self.around = bypass.results(kernel, tune.around)
        self.ahead: tuple[Loop | None, list[str]] = (None, [])  # what to do before a loop
        self.strips: dict[int, str] = {}  # stores that go to a scratch row first, by the place in it
        self.accumulators = Accumulators(self)

    # --- names and literals ---
    def name(self, name: str) -> str:
        known = self.renamed.get(name)
        if known is None:
            known = name
            while known in RESERVED or keyword.iskeyword(known) or known in spell.WORDS:
                known += "_"
            self.renamed[name] = known
        return known

    def buffer(self, name: str) -> str:
        if name not in self.used:
            self.used.append(name)
        return self.name(name)

    def value(self, v: Any, dtype: DType) -> str:
        return self.name(v) if isinstance(v, str) else spell.literal(v, dtype)

    # --- index arithmetic ---
    def index(self, e: Int) -> str:
        """An integer expression; quotients of what is never negative are the machine's own."""
        if not isinstance(e, Expr):
            return str(e)
        return self._sum(e)

    def _sum(self, e: Expr) -> str:
        if isinstance(e, Add):
            parts = [("-" if c < 0 else "+", self._term(m, abs(c))) for m, c in e.terms]
            parts += [("-" if e.const < 0 else "+", str(abs(e.const)))] if e.const else []
            parts.sort(key=lambda p: p[0] == "-")
            head = parts[0][1] if parts[0][0] == "+" else "-" + parts[0][1]
            return " ".join([head, *(f"{sign} {text}" for sign, text in parts[1:])])
        return self._factor(e)

    def _term(self, m: Expr, c: int) -> str:
        text = self._factor(m)
        return text if c == 1 else f"{c} * {text}"

    def _factor(self, e: Expr) -> str:
        match e:
            case Const():
                return str(e.value)
            case Symbol():
                return self.name(e.name)
            case Mul():
                text = " * ".join(self._closed(a) for a in e.atoms)
                return text if e.coef == 1 else f"{e.coef} * {text}"
            case FloorDiv() | Mod():
                sure = nonnegative(e.num, self.ranges) and nonnegative(e.den, self.ranges)
                words = ("quotient", "floordiv") if isinstance(e, FloorDiv) else ("remainder", "mod")
                return f"{words[0] if sure else words[1]}({self._sum(e.num)}, {self._sum(e.den)})"
            case Min() | Max():
                word = "least" if isinstance(e, Min) else "greatest"
                text = self._sum(e.args[0])
                for a in e.args[1:]:
                    text = f"{word}({text}, {self._sum(a)})"
                return text
        return f"({self._sum(e)})"

    def _closed(self, e: Expr) -> str:
        return f"({self._sum(e)})" if isinstance(e, Add) else self._factor(e)

    # --- statements ---
    def row_body(self, stmts: tuple[Stmt, ...]) -> None:
        """Statements and loops side by side: what one loop computes at a price is kept for the next."""
        stmts = memo.remember(stmts, self.kernel.writes)
        for s in analysis.walk(stmts):
            if isinstance(s, Keep):
                self.out(f"{self.name(s.row)} = scratch_{_kept_as(s.dtype)}({s.length})")
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

    def body(self, stmts: Iterable[Stmt]) -> None:
        stmts = tuple(stmts)
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
        args = [self.value(a, bool_ if s.fn == "where" and n == 0 else operand) for n, a in enumerate(s.args)]
        text = spell.literal(s.args[0], s.dtype) if s.fn == "const" else self.spelled(s, args, operand)
        self.out(f"{self.name(s.name)} = {text}")

    def spelled(self, s: Let, args: list[str], operand: DType) -> str:
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
            self.out(f"{name} = {text}")
            return
        self.out(f"{name} = {spell.literal(s.other, s.dtype)}")
        self.out(f"if {self.name(s.mask)}:")
        self.out(f"    {name} = {text}")

    def store(self, s: Store) -> None:
        b = self.buffers[s.buffer]
        source = self.dtypes.get(s.value, b.dtype) if isinstance(s.value, str) else b.dtype
        value = self.value(s.value, b.dtype)
        if source is not b.dtype:
            value = spell.cast(value, source, b.dtype)
        if s.mode == "set":
            tile = self.tiles.get(id(s))
            place = f"{tile}[{self.tile_place}]" if tile else self.strips.get(id(s))
            place = place or f"{self.buffer(s.buffer)}[{self.index(s.index)}]"
            line = f"{place} = {spell.to_memory(value, b.dtype)}"
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
        for piece in streams.apart(body):
            found = [s for s in piece if self.goes_around(s, axis)]
            if found and not random_rows.draws(piece, axis):
                self.loop_around(axis, piece, low, high, found)
                continue
            with self.straight(axis, piece, low, high):
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

    # --- phases ---
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
        return Source(name, text, params, contract=not self.strict, alias=alias), arguments, tuple(self.messages)

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
        with self.out.block(f"for {axis} in range(quotient(start, {n}), quotient(stop + {n} - 1, {n})):"):
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
                with self.out.block(f"for {column} in range({column}_0, {column}_1):"):
                    self.tile_place = f"({row} - {row}_0) * {wide} + {column} - {column}_0"
                    self.body(self.phase.body)
            for s in turned:
                if isinstance(s, Store):
                    self.out(f"turn_out({self._tile_arguments(s, across, inner)[1]})")

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


def _kept_as(dtype: DType) -> str:
    """A value keeps its register type in a scratch row; bools become bytes."""
    return "uint8" if dtype is bool_ else spell.register_type(dtype)


#: The vocabulary name of each combining store.
MODES = {"add": "add", "mul": "mul", "max": "maximum", "min": "minimum"}
