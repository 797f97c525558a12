"""Writes the statements of a kernel: lets, loads, stores and checks, for one point.

Stage: codegen.  In: loop-IR statements and the C++ names of the axes.  Out: lines of C++.
Read next: ``neighbours``, which writes them for a vector of points; ``pointwise`` and ``rows``, which write the loops around.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from codegen_cupy import index, rough
from codegen_cupy import nest as nests
from codegen_cupy.combines import Accumulator, atomic
from codegen_cupy.nest import Axis, Flat, Nest
from codegen_cupy.schedule import Schedule
from codegen_cupy.spell import cast, from_memory, literal, register_type, safe, spell, to_memory
from compiler.loop.ir import (
    Buffer,
    Check,
    Index,
    Init,
    Int,
    Kernel,
    Let,
    Load,
    Loop,
    Stmt,
    Store,
    Update,
    Value,
    walk,
)
from compiler.sym.expr import Symbol, as_int, lift
from compiler.sym.ranges import Interval, bounds
from tinytorch.dtypes import DType, bool_, float64, int64


@dataclass
class Emitter:
    """Lines of C++ and what the names in them mean.  ``text`` maps loop-IR names to C++ expressions."""

    kernel: Kernel
    nest: Nest
    schedule: Schedule
    lines: list[str] = field(default_factory=list)
    depth: int = 1
    text: dict[str, str] = field(default_factory=dict)
    dtype: dict[str, DType] = field(default_factory=dict)
    ranges: dict[Symbol, Interval] = field(default_factory=dict)
    accumulators: dict[str, tuple[Accumulator, str]] = field(default_factory=dict)
    checked: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    origin: tuple[str, ...] = ()
    store_guard: str | None = None  # a condition for every store (points beyond the last one store nothing)
    staged: dict[int, str] = field(default_factory=dict)  # loads (by id) whose value already lies in shared memory
    private: dict[int, str] = field(default_factory=dict)  # combining stores (by id) gathered in registers first

    def __post_init__(self) -> None:
        self.buffers: dict[str, Buffer] = {b.name: b for b in self.kernel.params}
        for size in self.kernel.sizes:
            self.text[size] = safe(size)
            self.ranges[Symbol(size)] = Interval(0, 2**40)
        for axis in nests.all_axes(self.nest):
            top = bounds(axis.extent, self.ranges)[1]
            self.ranges[axis.symbol] = Interval(0, max(top - 1, 0))
        for s in walk(self.nest.body):
            if isinstance(s, (Let, Load)):
                self.dtype[s.name] = s.dtype
            elif isinstance(s, Index):
                self.dtype[s.name] = int64
            elif isinstance(s, Init):
                self.dtype.update(zip(s.names, s.dtypes, strict=True))
        strict, none = self.schedule.strict, frozenset[str]()
        self.rough = none if strict else rough.rough(self.nest, self.buffers)
        self.drawn = none if strict else rough.drawn(self.nest)
        self.erfs = rough.erfs_plus_one(self.nest, self.rough) if self.rough else {}
        self.inverses = rough.above_one(self.nest) if self.rough else none

    # --- lines ---
    @property
    def int_type(self) -> str:
        return "long long" if self.schedule.wide else "int"

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text if text else "")

    def pragma(self, text: str) -> None:
        self.lines.append(f"#pragma {text}")

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """``head { ... }``, with names and checks of the inside forgotten after it."""
        self.line(f"{head} {{" if head else "{")
        self.depth += 1
        text, checked = dict(self.text), list(self.checked)
        yield
        self.text, self.checked = text, checked
        self.depth -= 1
        self.line("}")

    # --- expressions ---
    def name(self, name: str) -> str:
        """The C++ text of a value, axis or size inside an index."""
        text = self.text[name]
        if name in self.dtype and not self.schedule.wide:
            return f"(int){text}"
        return text

    def index(self, e: Int) -> str:
        return index.cxx(e, self.name, self.ranges)

    def operand(self, v: Value, d: DType) -> str:
        if isinstance(v, str):
            return self.text[v]
        text = literal(v, d)
        return f"({text})" if text.startswith("-") else text

    def operand_dtype(self, s: Let) -> DType:
        """The type in which a ``Let`` computes: that of its operands."""
        values = s.args[1:] if s.fn == "where" else s.args
        named = next((self.dtype[v] for v in values if isinstance(v, str)), None)
        if named is not None:
            return named
        if s.fn == "philox":
            return int64
        if s.dtype is bool_:  # what is asked of numbers is asked of them as they are, not of their truth
            return next((d for d, kind in ((float64, float), (bool_, bool)) if any(isinstance(v, kind) for v in values)), int64)
        return s.dtype

    # --- places ---
    def unflatten(self, axes: tuple[Axis, ...], flat: str, vector: int = 1) -> None:
        """Declare each axis from the number of the point; the last axis counts in steps of ``vector``."""
        left = flat
        lines: list[str] = []
        for i in range(len(axes) - 1, -1, -1):
            axis, step = axes[i], vector if i == len(axes) - 1 else 1
            name = safe(axis.name)
            extent: Int = axis.extent if step == 1 else as_int(lift(axis.extent) // step)
            text = left if i == 0 else f"{left} % {self._factor(extent)}"
            lines.append(f"const {self.int_type} {name} = {_scaled(text, step)};")
            left = f"{left} / {self._factor(extent)}" if i else left
        for text in reversed(lines):
            self.line(text)
        for axis in axes:
            self.text[axis.name] = safe(axis.name)

    def _factor(self, extent: Int) -> str:
        text = self.index(extent)
        return text if isinstance(extent, int) or text.isidentifier() else f"({text})"

    # --- statements ---
    def statement(self, s: Stmt) -> None:
        """One statement for one point; loops inside run in the thread."""
        if isinstance(s, Let):
            self.let(s)
        elif isinstance(s, Load):
            self.load(s)
        elif isinstance(s, Store):
            self.store(s)
        elif isinstance(s, Index):
            self.define(s.name, int64, self.wide_index(s.expr))
        elif isinstance(s, Check):
            self.check(s)
        elif isinstance(s, Init):
            self.init(s)
        elif isinstance(s, Update):
            self.update(s)
        else:
            self.serial(s)

    def define(self, name: str, d: DType, text: str) -> None:
        self.line(f"const {register_type(d)} {safe(name)} = {text};")
        self.text[name] = safe(name)

    def let(self, s: Let) -> None:
        if s.origin != self.origin:
            self.origin = s.origin
            if s.origin:
                self.line(f"// {', '.join(s.origin)}")
        src = self.operand_dtype(s)
        if s.fn == "const":
            self.define(s.name, s.dtype, literal(s.args[0], s.dtype))  # type: ignore[arg-type]
            return
        if s.name in self.erfs:
            return
        erf = next((a for a in s.args if isinstance(a, str) and a in self.erfs), None)
        if erf is not None:
            self.define(s.name, s.dtype, f"one_plus_erf({self.text[self.erfs[erf]]})")
            return
        args = [self.operand(a, src) for a in s.args]
        if s.fn == "where":
            args[0] = self.operand(s.args[0], bool_)
        is_rough = s.name in self.rough
        if is_rough and s.fn == "div" and s.args[1] in self.inverses and s.args[0] == 1.0:
            self.define(s.name, s.dtype, f"rough_inverse({args[1]})")
            return
        # what eager rounds before it goes on, in fast numerics too: random numbers, and integers that a half type cannot hold
        strict = self.schedule.strict or (s.fn == "cast" and (src.kind in "iu" or s.args[0] in self.drawn))
        self.define(s.name, s.dtype, spell(s.fn, tuple(args), src, s.dtype, strict=strict, rough=is_rough))

    def wide_index(self, e: Int) -> str:
        """An index as an int64 value: axes are widened first where 32 bits might not hold it."""
        lo, hi = bounds(e, self.ranges)
        if self.schedule.wide or (-(2**31) <= lo and hi < 2**31 and not self._values_in(e)):
            return self.index(e)
        return index.cxx(e, lambda n: f"(long long){self.text[n]}", self.ranges)

    def _values_in(self, e: Int) -> list[str]:
        return [s.name for s in lift(e).free_symbols if s.name in self.dtype]

    def mask(self, s: Load | Store) -> str | None:
        """The condition under which memory may be touched: the statement's own, and the checks an index relies on.

        Who is beyond the last point does that point's work and stores nothing; nor does it read what another team is storing.
        """
        parts = [self.text[s.mask]] if s.mask else []
        if self.store_guard and (isinstance(s, Store) or s.buffer in self.kernel.writes):
            parts.append(self.store_guard)
        if self.checked and self._values_in(s.index):
            parts += self.checked
        return " && ".join(dict.fromkeys(parts)) or None

    def load(self, s: Load) -> None:
        if id(s) in self.staged:
            self.define(s.name, s.dtype, self.staged[id(s)])
            return
        buffer = self.buffers[s.buffer]
        text = from_memory(f"{safe(s.buffer)}[{self.index(s.index)}]", buffer.dtype)
        if s.dtype is not buffer.dtype:
            text = cast(text, buffer.dtype, s.dtype)
        mask = self.mask(s)
        if mask:
            text = f"{mask} ? {text} : {literal(s.other, s.dtype)}"
        self.define(s.name, s.dtype, text)

    def store(self, s: Store) -> None:
        buffer = self.buffers[s.buffer]
        value = self.stored_value(s, buffer)
        if id(s) in self.private:
            guard = f"if ({self.store_guard}) " if self.store_guard else ""
            self.line(f"{guard}{self.private[id(s)]} += {value};")
            return
        place = f"{safe(s.buffer)}[{self.index(s.index)}]"
        text = f"{place} = {to_memory(value, buffer.dtype)};"
        if s.mode != "set":
            text = atomic(s.mode, f"&{place}", value, buffer.dtype)
        mask = self.mask(s)
        self.line(f"if ({mask}) {text}" if mask else text)

    def stored_value(self, s: Store, buffer: Buffer) -> str:
        """The value of a store in the register type of its buffer."""
        if not isinstance(s.value, str):
            return literal(s.value, buffer.dtype)
        return cast(self.text[s.value], self.dtype[s.value], buffer.dtype)

    def check(self, s: Check) -> None:
        if s.message not in self.messages:
            self.messages.append(s.message)
        cond = self.text[s.cond]
        value = self.text[s.value] if s.value else "0"
        self.line(f"if (!{cond}) fail_check(failed, {self.messages.index(s.message) + 1}, {value});")
        self.checked.append(cond)

    # --- accumulators ---
    def init(self, s: Init) -> None:
        acc = Accumulator(s.names, s.combine, s.dtypes)
        variable = safe(s.names[0])
        self.line(f"{acc.type} {variable} = {acc.start};")
        self.adopt(acc, variable)

    def adopt(self, acc: Accumulator, variable: str) -> None:
        """Let the components of an accumulator be read from a C++ variable."""
        for i, name in enumerate(acc.names):
            self.accumulators[name] = (acc, variable)
            self.text[name] = acc.component(variable, i)

    def update(self, s: Update) -> None:
        acc, variable = self.accumulators[s.names[0]]
        values = tuple(self.operand(v, d) for v, d in zip(s.values, acc.dtypes, strict=False))
        for text in acc.update(variable, values):
            self.line(text)

    def carry(self, names: Iterable[str], vector: int) -> dict[str, str]:
        """Declare variables that outlive a block for these names, one per neighbour; ``neighbours`` fills them."""
        out: dict[str, str] = {}
        for name in names:
            variable = f"{safe(name)}_all"
            self.line(f"{register_type(self.dtype[name])} {variable}{f'[{vector}]' if vector > 1 else ''};")
            out[name] = variable if vector == 1 else f"{variable}[k]"
        return out

    def serial(self, loop: Loop) -> None:
        if isinstance(loop, Flat):
            first, *rest = loop.parts
            inner = Flat(loop.axis, 0, loop.kind, loop.body, tuple(rest)) if rest else None
            self.serial(Loop(first.name, first.extent, loop.kind, (inner,) if inner else loop.body))
            return
        axis = safe(loop.axis)
        with self.block(f"for ({self.int_type} {axis} = 0; {axis} < {self.index(loop.extent)}; ++{axis})"):
            self.text[loop.axis] = axis
            for s in loop.body:
                self.statement(s)


def _scaled(text: str, step: int) -> str:
    if step == 1:
        return text
    return f"{text} * {step}" if " " not in text else f"({text}) * {step}"
