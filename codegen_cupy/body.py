"""Writes the statements of a kernel: lets, loads, stores and checks, for one point or for a vector of neighbours.

Stage: codegen.  In: loop-IR statements and the C++ names of the axes.  Out: lines of C++.
Read next: ``pointwise`` and ``rows``, which write the loops around them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from codegen_cupy import index
from codegen_cupy import nest as nests
from codegen_cupy.combines import Accumulator
from codegen_cupy.nest import Axis, Flat, Nest, divides, rest_along, used
from codegen_cupy.rough import rough
from codegen_cupy.schedule import Schedule
from codegen_cupy.spell import (
    HALVES,
    cast,
    from_memory,
    literal,
    memory_type,
    register_type,
    spell,
    to_memory,
)
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
)
from compiler.sym.expr import Expr, FloorDiv, Mod, Symbol, lift
from compiler.sym.ranges import Interval, bounds
from tinytorch.dtypes import DType, bool_, float64, int64

_TAKEN = set(
    "r block point at total lane warp team row rows part parts c k live base first last failed done alignas auto bool break case catch char class "
    "const continue default delete do double else enum explicit export extern false float for friend goto if inline int "
    "long mutable namespace new operator private protected public register return short signed sizeof static struct "
    "switch template this throw true try typedef typename union unsigned using virtual void volatile while and or not "
    "xor abs min max exp log sqrt sin cos tan floor ceil round trunc pow fmod erf tanh y0 y1 yn j0 j1 jn".split()
)


def safe(name: str) -> str:
    """A C++ identifier for a loop-IR name."""
    text = re.sub(r"\W", "_", name)
    return f"{text}_" if text in _TAKEN or text[0].isdigit() else text


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
        for s in nests.walk(self.nest.body):
            if isinstance(s, (Let, Load)):
                self.dtype[s.name] = s.dtype
            elif isinstance(s, Index):
                self.dtype[s.name] = int64
            elif isinstance(s, Init):
                self.dtype.update(zip(s.names, s.dtypes, strict=True))
        self.rough = frozenset[str]() if self.schedule.strict else rough(self.nest, self.buffers)
        self.drawn = frozenset[str]() if self.schedule.strict else self._drawn()
        self.erfs = self._erfs_plus_one() if self.rough else {}
        self.inverses = self._above_one() if self.rough else frozenset()

    def _drawn(self) -> frozenset[str]:
        """Random numbers on their way from words to the type they are drawn in: rounded to it, since eager draws the same."""
        out: set[str] = set()
        for s in nests.walk(self.nest.body):
            if isinstance(s, Let) and (s.fn == "philox" or (s.fn in ("shr", "cast", "mul") and s.args[0] in out)):
                out |= {s.name} if s.dtype.name not in HALVES else set()
        return frozenset(out)

    def _erfs_plus_one(self) -> dict[str, str]:
        """``erf`` values that are only ever used in ``1 + erf(x)``, which is computed as a whole: name -> x."""
        stmts = list(nests.walk(self.nest.body))
        found = {
            s.name: s.args[0] for s in stmts
            if isinstance(s, Let) and s.fn == "erf" and s.name in self.rough and isinstance(s.args[0], str)
        }  # fmt: skip
        for s in stmts:
            plus_one = isinstance(s, Let) and s.fn == "add" and 1.0 in s.args and s.name in self.rough
            for n in () if plus_one else used(s):
                found.pop(n, None)
        return found

    def _above_one(self) -> frozenset[str]:
        """Values of the form ``1 + exp(...)``: their inverse needs no care."""
        stmts = [s for s in nests.walk(self.nest.body) if isinstance(s, Let)]
        exps = {s.name for s in stmts if s.fn in ("exp", "exp2")}
        return frozenset(
            s.name for s in stmts if s.fn == "add" and any(a in exps for a in s.args) and any(_at_least_one(a) for a in s.args)
        )

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

    # --- vectors ---
    def neighbours(
        self, stmts: tuple[Stmt, ...], axis: Axis, vector: int, kept: Kept | None = None,
        export: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """Straight-line statements for ``vector`` points side by side along ``axis``, which holds the first one.

        Reads of neighbours become one wide load before the loop over ``k``, writes one wide store after it; what is
        the same for all of them is computed once.  Names in ``export`` are also put into the variables it gives.
        """
        part = Section(self, stmts, axis, vector, kept, export or {})
        if vector == 1:
            part.scalar()
        else:
            part.wide()


@dataclass
class Kept:
    """Rows held in registers: ``names`` maps (buffer, index from the loop's start) to an array with a slot per round."""

    names: dict[tuple[str, str], str]
    axes: tuple[Axis, ...] = ()  # of the loop being written
    loaded: set[tuple[str, str]] = field(default_factory=set)

    @staticmethod
    def key(s: Load, axes: tuple[Axis, ...]) -> tuple[str, str]:
        return s.buffer, str(lift(s.index).subs({a.symbol: Symbol(f"_here{n}") for n, a in enumerate(axes)}))


@dataclass
class Section:
    """One straight-line piece of a loop body, written for ``vector`` neighbours."""

    e: Emitter
    stmts: tuple[Stmt, ...]
    axis: Axis
    vector: int
    kept: Kept | None = None
    export: Mapping[str, str] = field(default_factory=dict)

    def scalar(self) -> None:
        for s in self.stmts:
            if isinstance(s, Load) and self._slot(s) is not None:
                self._load_kept(s)
                self.e.define(s.name, s.dtype, self._read_kept(s, ""))
            else:
                self.e.statement(s)
        self._export()

    def _export(self) -> None:
        for name, variable in self.export.items():
            self.e.line(f"{variable} = {self.e.text[name]};")

    def wide(self) -> None:
        e, v = self.e, self.vector
        same = self._uniform()
        packs: dict[str, str] = {}
        compared = {a for s in self.stmts if id(s) in same and self._steady(s) for a in used(s)}
        for s in self.stmts:
            if id(s) in same or (isinstance(s, Index) and s.name in compared):
                e.statement(s)
            elif isinstance(s, Load) and self._slot(s) is not None:
                self._load_kept(s)
            elif isinstance(s, Load) and self._packed(s, same):
                packs[s.name] = f"{safe(s.name)}_pack"
                where = f"{safe(s.buffer)} + {e.index(s.index)}"
                t, mask = memory_type(e.buffers[s.buffer].dtype), e.mask(s)
                text = f"{'load_once' if self._once(s) else 'load_pack'}<{v}>({where})"
                if mask:  # the same for all neighbours
                    text = f"{mask} ? {text} : Pack<{t}, {v}>{{}}"
                e.line(f"const Pack<{t}, {v}> {packs[s.name]} = {text};")
        stores = [s for s in self.stmts if isinstance(s, Store) and self._packed(s, same)]
        out = {id(s): f"{safe(s.buffer)}_pack{n or ''}" for n, s in enumerate(stores)}
        for s in stores:
            e.line(f"Pack<{memory_type(e.buffers[s.buffer].dtype)}, {v}> {out[id(s)]};")
        folded = [s for s in self.stmts if isinstance(s, Update) and s.combine == "softmax" and not self._in_vector(s)]
        for s in folded:
            e.line(f"{register_type(e.dtype[s.names[0]])} {safe(s.names[0])}_new[{v}];")
        start = e.text[self.axis.name]
        groups = self._philox_groups(same)
        for name in groups.values():
            e.line(f"PhiloxWords {name};")
        if self.export or any(id(s) not in same for s in self.stmts):
            e.pragma("unroll")
            with e.block(f"for (int k = 0; k < {v}; ++k)"):
                e.text[self.axis.name] = f"({start} + k)"
                for s in self.stmts:
                    if id(s) in groups:
                        self._philox(s, groups[id(s)])
                    elif s in folded:
                        value = e.operand(s.values[0], e.dtype[s.names[0]])
                        e.line(f"{safe(s.names[0])}_new[k] = {value};")
                    elif id(s) not in same:
                        self._one(s, packs, out)
                self._export()
        for s in folded:
            self._fold(s)
        for s in stores:
            store = "stream_pack" if e.schedule.stream else "store_pack"
            text, mask = f"{store}({safe(s.buffer)} + {e.index(s.index)}, {out[id(s)]});", e.mask(s)
            e.line(f"if ({mask}) {text}" if mask else text)

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
        elif isinstance(s, Load) and self._slot(s) is not None:
            e.define(s.name, s.dtype, self._read_kept(s, ".at[k]"))
        elif isinstance(s, Store) and id(s) in out:
            buffer = e.buffers[s.buffer]
            e.line(f"{out[id(s)]}.at[k] = {to_memory(e.stored_value(s, buffer), buffer.dtype)};")
        else:
            e.statement(s)

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

    # --- random words ---
    def _philox_groups(self, same: set[int]) -> dict[int, str]:
        """Draws (by id) whose four neighbours are the four words of one counter: computed once for the four."""
        if self.vector % 4:
            return {}
        out: dict[int, str] = {}
        for s in self.stmts:
            if isinstance(s, Let) and s.fn == "philox" and id(s) not in same:
                lane = next((x for x in self.stmts if isinstance(x, Index) and x.name == s.args[2]), None)
                flat = _numerator(lane.expr, Mod) if lane else None
                if flat is not None and self._starts_at_four(flat) and self._same_in_four(s.args[:2], flat, same):
                    out[id(s)] = f"{safe(s.name)}_words"
        return out

    def _starts_at_four(self, flat: Expr) -> bool:
        found = rest_along(flat, self.axis.symbol)
        return found is not None and found[0] == 1 and divides(4, found[1], dict(self.e.schedule.facts))

    def _same_in_four(self, names: tuple[Value, ...], flat: Expr, same: set[int]) -> bool:
        """Does nothing here change while ``flat // 4`` does not?"""
        inner = {x.name: x for x in self.stmts if isinstance(x, (Let, Load, Index)) and id(x) not in same}
        for name in names:
            x = inner.get(name) if isinstance(name, str) else None
            if isinstance(x, Index) and not self._steps_by_fours(x.expr):
                return False
            if isinstance(x, Load) or (isinstance(x, Let) and not self._same_in_four(x.args, flat, same)):
                return False
        return self.axis.name not in names

    def _steps_by_fours(self, e: Int) -> bool:
        """Does the axis appear only inside of quotients by four, whose numerators start at a multiple of four?"""
        _, terms = lift(e).split()
        for monomial, _ in terms:
            for atom in monomial.factors():
                if self.axis.symbol in atom.free_symbols:
                    inner = _numerator(atom, FloorDiv)
                    if inner is None or not self._starts_at_four(inner):
                        return False
        return True

    def _philox(self, s: Stmt, words: str) -> None:
        assert isinstance(s, Let)
        seed, counter = (self.e.operand(a, int64) for a in s.args[:2])
        self.e.line(f"if (k % 4 == 0) {words} = philox_words({seed}, {counter});")
        self.e.define(s.name, s.dtype, f"{words}.at[k % 4]")

    # --- rows in registers ---
    def _slot(self, s: Load) -> str | None:
        return self.kept.names.get(Kept.key(s, self.kept.axes)) if self.kept and not s.mask else None

    def _load_kept(self, s: Load) -> None:
        assert self.kept is not None
        key = Kept.key(s, self.kept.axes)
        if key in self.kept.loaded:
            return
        self.kept.loaded.add(key)
        slot, where, mask = self._slot(s), self.e.index(s.index), self.e.mask(s)
        text = f"{safe(s.buffer)}[{where}]" if self.vector == 1 else f"load_pack<{self.vector}>({safe(s.buffer)} + {where})"
        if mask:
            d = self.e.buffers[s.buffer].dtype
            other = to_memory(literal(0, d), d) if self.vector == 1 else f"Pack<{memory_type(d)}, {self.vector}>{{}}"
            text = f"{mask} ? {text} : {other}"
        self.e.line(f"{slot}[c] = {text};")

    def _read_kept(self, s: Load, suffix: str) -> str:
        return self._element(s, f"{self._slot(s)}[c]{suffix}")


def _numerator(e: Int, kind: type[FloorDiv] | type[Mod]) -> Expr | None:
    """``x`` of ``x // 4`` or ``x % 4``."""
    return e.num if isinstance(e, kind) and e.den == 4 else None


def _at_least_one(a: Value) -> bool:
    return not isinstance(a, str) and a >= 1


# --- combining stores -----------------------------------------------------------------------------------------------
_ATOMIC_FNS = {"add": "Sum", "mul": "Product", "max": "Greatest", "min": "Least"}


def atomic(mode: str, pointer: str, value: str, d: DType) -> str:
    """A statement that combines ``value`` into ``*pointer``, whoever else does at the same time."""
    if mode == "add" and d.name in ("float32", "float64", "int32"):
        return f"atomicAdd({pointer}, {value});"
    if mode == "add" and d.name == "int64":
        return f"atomicAdd((unsigned long long*)({pointer}), (unsigned long long){value});"
    join = f"{_ATOMIC_FNS[mode]}<{register_type(d)}>()"
    if d.itemsize >= 4:
        return f"atomic_combine({pointer}, {value}, {join});"
    raw = memory_type(d)
    one = from_memory("was", d)
    result = to_memory(f"{join}({one}, {value})", d)
    return f"atomic_combine_narrow({pointer}, [&]({raw} was) {{ return {result}; }});"

