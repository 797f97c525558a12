"""What becomes of a product's elements before they reach memory: a pointwise nest of the plan, or a plain store.

Stage: codegen.  In: the kernel that the plan runs after a product.  Out: ``Following``, which writes the kernel's
statements into the product's own kernel, where a thread holds some neighbouring sums.  ``Coordinate``s say where an
element lies: the product as the nest knows it is a dense block, and each has a stride in it.
Read next: ``gemm``, ``neighbours``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from codegen_cupy.body import Emitter
from codegen_cupy.neighbours import neighbours
from codegen_cupy.nest import (
    Axis,
    Nest,
    accesses,
    map_exprs,
    needs_64_bits,
    nests,
    steps_by_one,
    value_at,
    vectorizable,
)
from codegen_cupy.spell import HALVES, safe, to_memory
from compiler.loop.ir import Buffer, Init, Kernel, Let, Load, Loop, Stmt, Store, Update
from compiler.sym.expr import Expr, Int, Symbol, as_int, coefficient, lift
from tinytorch.dtypes import DType, float32
from tinytorch.ops.pointwise import GELU


@dataclass(frozen=True)
class Coordinate:
    """A number of an element, ``text`` in ``range(extent)``, that moves it by ``stride`` in the product."""

    text: str
    extent: int
    stride: int


@dataclass(frozen=True)
class Following:
    """``kernel`` is the nest alone, with sizes filled in.  ``product`` names the parameter that stands for the product,
    ``target`` one that is written; ``arguments`` gives the memory of each parameter."""

    kernel: Kernel
    nest: Nest
    product: str
    arguments: Mapping[str, str]
    target: str = ""
    comment: str = ""

    @property
    def name(self) -> str:
        return self.arguments.get(self.target, self.kernel.name)

    @property
    def load(self) -> Load:
        return next(s for s in self.nest.body if isinstance(s, Load) and s.buffer == self.product)

    @property
    def wide(self) -> bool:
        return needs_64_bits(self.kernel, self.nest, {})

    def strides(self) -> dict[str, int]:
        """How far each axis of the nest moves in the product."""
        found = {a.name: coefficient(self.load.index, a.symbol) for a in self.nest.axes}
        return {name: c for name, c in found.items() if isinstance(c, int)}

    @property
    def fast(self) -> Axis | None:
        """The axis whose points are neighbours in the product."""
        strides = self.strides()
        return next((a for a in self.nest.axes if strides.get(a.name) == 1 and a.extent != 1), None)

    @property
    def stores_product(self) -> bool:
        return any(isinstance(s, Store) and s.buffer == self.product for s in self.nest.body)

    def keeping(self) -> Following:
        """The same, and the product is stored besides."""
        if self.stores_product:
            return self
        at = max(n for n, s in enumerate(self.nest.body) if isinstance(s, Load) and s.buffer == self.product) + 1
        body = (*self.nest.body[:at], Store(self.product, self.load.index, self.load.name), *self.nest.body[at:])
        kernel = replace(self.kernel, writes=self.kernel.writes | {self.product}, body=body)
        return replace(self, kernel=kernel, nest=replace(self.nest, body=body))

    def vector(self, run: int) -> int:
        """How many neighbours a thread does at once: 16 bytes of the narrowest type, where ``run`` columns in a row,
        and the points of the fast axis, are multiples of it."""
        fast = self.fast
        if fast is None or not vectorizable(self.nest.body) or any(isinstance(s, Store) and s.mode != "set" for s in self.nest.body):
            return 1
        items = {b.name: b.dtype.itemsize for b in self.kernel.params}
        moved = [s for s in accesses(self.nest.body) if not (isinstance(s, Load) and s.buffer == self.product)]
        sizes = [items[s.buffer] for s in moved if steps_by_one(s, fast.symbol)]
        v = 16 // max(2, min(sizes, default=16))
        while v > 1 and (run % v or value_at(fast.extent, {}) % v):
            v //= 2
        return v

    def write(self, e: Emitter, coordinates: tuple[Coordinate, ...], vector: int, sums: str) -> None:
        """The statements at one place of the product; ``sums`` is the text of a sum, with a hole for a neighbour."""
        strides = self.strides()
        for a in self.nest.axes:
            text = place(strides[a.name], value_at(a.extent, {}), coordinates)
            e.line(f"const {e.int_type} {safe(a.name)} = {text};")
            e.text[a.name] = safe(a.name)
        d = next(b.dtype for b in self.kernel.params if b.name == self.product)
        text = sums.format(" + k" if vector > 1 else "")
        if e.schedule.strict and d.name in HALVES:
            text = f"to_float({to_memory(text, d)})"
        for s in self.nest.body:
            if isinstance(s, Load) and s.buffer == self.product:
                e.staged[id(s)] = text
        if vector > 1:
            assert self.fast is not None
            neighbours(e, self.nest.body, self.fast, vector)
        else:
            for s in self.nest.body:
                e.statement(s)


def place(stride: int, extent: int, coordinates: tuple[Coordinate, ...]) -> str:
    """The number in ``range(extent)`` of an axis with this stride in the product, from the coordinates."""
    if extent == 1:
        return "0"
    inner = [c for c in coordinates if c.stride * c.extent > stride and c.stride < stride * extent and c.extent > 1]
    inner.sort(key=lambda c: -c.stride)
    terms = [c.text if c.stride == stride else f"{c.text} * {c.stride // stride}" for c in inner if c.stride % stride == 0]
    total = sum((c.extent - 1) * c.stride for c in inner) + stride
    if len(terms) == len(inner) and total == stride * extent:
        return " + ".join(terms)  # the axis is made of whole coordinates
    position = " + ".join(c.text if c.stride == 1 else f"{_closed(c.text)} * {c.stride}" for c in inner)
    return f"({position}) / {stride} % {extent}" if stride > 1 else f"({position}) % {extent}"


def _closed(text: str) -> str:
    return text if text.isidentifier() else f"({text})"


# --- from kernels ------------------------------------------------------------------------------------------------------
def following(kernel: Kernel, sizes: Mapping[str, int], product: str, arguments: Mapping[str, str]) -> Following | None:
    """The kernel as something that can follow the product it reads as ``product``; None if it cannot: it has loops of
    its own, reads the product at more than one place, or not as a whole."""
    found = nests(kernel)
    if len(found) != 1:
        return None
    nest = filled(found[0], sizes)
    buffer = next(b for b in kernel.params if b.name == product)
    loads = [s for s in nest.body if isinstance(s, Load) and s.buffer == product]
    if any(isinstance(s, Loop | Init | Update) for s in nest.body) or not loads:
        return None
    if any(s.index != loads[0].index or s.mask for s in loads) or not _elementwise(nest, product, loads[0].index):
        return None
    given = replace(kernel, params=tuple(_filled_buffer(b, sizes) for b in kernel.params), sizes=(), body=nest.body)
    numel = value_at(buffer.numel, sizes)
    made = Following(given, nest, product, arguments, next(iter(kernel.writes)), comment(kernel))
    return made if _covers(made, numel) else None


def _elementwise(nest: Nest, product: str, index: Int) -> bool:
    """Is what the nest writes read at no other place, and no store reached twice?"""
    stores = [s for s in nest.body if isinstance(s, Store)]
    if any(s.buffer == product and s.index != index for s in stores):
        return False
    return vectorizable(nest.body) or not any(isinstance(s, Load) and s.buffer == w.buffer for w in stores for s in nest.body)


def _covers(f: Following, numel: int) -> bool:
    """Does every element of the product stand at one point of the nest?"""
    strides = f.strides()
    rest = lift(f.load.index).subs({a.symbol: 0 for a in f.nest.axes})
    if len(strides) != len(f.nest.axes) or as_int(rest) != 0:
        return False
    step = 1
    for stride, extent in sorted((strides[a.name], value_at(a.extent, {})) for a in f.nest.axes if a.extent != 1):
        if stride != step:
            return False
        step *= extent
    return step == numel


def filled(nest: Nest, sizes: Mapping[str, int]) -> Nest:
    """The nest with numbers for its sizes."""
    if not sizes:
        return nest
    known = {Symbol(n): v for n, v in sizes.items()}
    axes = tuple(Axis(a.name, value_at(a.extent, sizes)) for a in nest.axes)
    return Nest(axes, map_exprs(nest.body, lambda x: as_int(lift(x).subs(known))))  # type: ignore[arg-type]


def _filled_buffer(b: Buffer, sizes: Mapping[str, int]) -> Buffer:
    ints = lambda xs: tuple(value_at(x, sizes) for x in xs)  # noqa: E731
    return replace(b, shape=ints(b.shape), stride=ints(b.stride))


def comment(kernel: Kernel) -> str:
    """What the user wrote, over the kernel."""
    return "".join(f"// {text.strip()}    {file.rsplit('/', 1)[-1]}:{line}\n" for file, line, text in kernel.lines)


def stored(name: str, dtype: DType, shape: tuple[int, ...], stride: tuple[int, ...], offset: int) -> Following:
    """Nothing but a store: ``shape`` and ``stride`` of the result, whose dimensions are those of the product."""
    axes = tuple(Axis(f"d{i}", n) for i, n in enumerate(shape))
    dense: Int = 0
    target: Int = offset
    step = 1
    for a, s in zip(reversed(axes), reversed(stride), strict=True):
        dense, target = dense + a.symbol * step, target + a.symbol * s
        step *= value_at(a.extent, {})
    body: tuple[Stmt, ...] = (Load("value", "product", as_int(lift(dense)), dtype), Store("D", as_int(lift(target)), "value"))
    product = Buffer("product", dtype, shape, _dense(shape))
    kernel = Kernel("stored", (product, Buffer("D", dtype, shape, stride)), frozenset({"D"}), (), body)
    return Following(kernel, Nest(axes, body), "product", {"D": name}, "D")


def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    out: list[int] = []
    step = 1
    for n in reversed(shape):
        out.insert(0, step)
        step *= n
    return tuple(out)


# --- what the library's product would do besides -----------------------------------------------------------------------
def after(f: Following | None, words: tuple[str, ...], operands: Sequence[Any], out: Any, dtype: DType) -> Following:
    """``f`` (or a plain store of ``out``) behind what a product's ``then`` names: a bias, a matrix, a GELU."""
    f = f or stored(out.buffer, dtype, out.shape, out.stride, out.offset)
    width = out.shape[-1]
    f = _columns_apart(f, width)
    load = f.load
    fast = f.fast
    column = fast.symbol if fast is not None and value_at(fast.extent, {}) == width else as_int(lift(load.index) % width)
    before: list[Stmt] = [replace(load, name="product_sum"), Let("product_wide", "cast", ("product_sum",), float32)]
    params, given, name = list(f.kernel.params), dict(f.arguments), "product_wide"
    for i, (word, v) in enumerate(zip((w for w in words if w != "gelu"), operands, strict=True)):
        buffer, index = f"then{i}", column if word == "bias" else load.index
        params.append(Buffer(buffer, dtype, v.shape, v.stride))
        given[buffer] = v.buffer
        before += [
            Load(f"added{i}", buffer, as_int(lift(index) + v.offset), dtype), Let(f"added_wide{i}", "cast", (f"added{i}",), float32),
            Let(f"product_with{i}", "add", (name, f"added_wide{i}"), float32),
        ]  # fmt: skip
        name = f"product_with{i}"
    if "gelu" in words:
        before += _gelu(name)
        name = "gelu_product"
    before.append(Let(load.name, "cast", (name,), load.dtype))
    at = f.nest.body.index(load)
    same = [s for s in f.nest.body if isinstance(s, Load) and s.buffer == f.product and s.name != load.name]
    again = [Let(s.name, "cast", (load.name,), s.dtype) for s in same]
    body = (*f.nest.body[:at], *before, *again, *(s for s in f.nest.body[at + 1 :] if s not in same))
    return replace(f, kernel=replace(f.kernel, params=tuple(params), body=body), nest=replace(f.nest, body=body), arguments=given)


def _gelu(x: str) -> list[Stmt]:
    steps: list[tuple[str, str, tuple[str | float, ...]]] = [
        ("gelu_square", "mul", (x, x)), ("gelu_cube", "mul", ("gelu_square", x)), ("gelu_part", "mul", ("gelu_cube", GELU[0])),
        ("gelu_sum", "add", (x, "gelu_part")), ("gelu_inner", "mul", ("gelu_sum", GELU[1])), ("gelu_tanh", "tanh", ("gelu_inner",)),
        ("gelu_share", "add", (1.0, "gelu_tanh")), ("gelu_half", "mul", (x, 0.5)), ("gelu_product", "mul", ("gelu_half", "gelu_share")),
    ]  # fmt: skip
    return [Let(name, fn, args, float32) for name, fn, args in steps]


def _columns_apart(f: Following, width: int) -> Following:
    """With rows and columns as axes of their own where the nest walks the product as one line."""
    fast = f.fast
    extent = value_at(fast.extent, {}) if fast is not None else 0
    if fast is None or extent == width or extent % width:
        return f
    row, column = Axis(f"{fast.name}_row", extent // width), Axis(f"{fast.name}_column", width)
    at: dict[Expr, Int] = {fast.symbol: as_int(row.symbol * width + column.symbol)}
    body = map_exprs(f.nest.body, lambda e: as_int(lift(e).subs(at)))
    i = f.nest.axes.index(fast)
    nest = Nest((*f.nest.axes[:i], row, column, *f.nest.axes[i + 1 :]), body)
    return replace(f, kernel=replace(f.kernel, body=body), nest=nest)


# --- a depth in parts --------------------------------------------------------------------------------------------------
def joined_parts(f: Following, parts: int, total: int) -> Kernel:
    """A kernel that sums the parts of each element and does what follows."""
    (load,) = [s for s in f.nest.body if isinstance(s, Load) and s.buffer == f.product][:1]
    part = Symbol("part")
    sums: tuple[Stmt, ...] = (
        Init(("total_sum",), "add", (float32,)),
        Loop("part", parts, "reduce", (Load("one", "Parts", as_int(part * total + load.index), float32), Update(("total_sum",), "add", ("one",)))),
    )  # fmt: skip
    same = [s.name for s in f.nest.body if isinstance(s, Load) and s.buffer == f.product]
    known: tuple[Stmt, ...] = tuple(Let(n, "cast", ("total_sum",), load.dtype) for n in same)
    rest = tuple(s for s in f.nest.body if not (isinstance(s, Load) and s.buffer == f.product))
    body: tuple[Stmt, ...] = (*sums, *known, *rest)
    for a in reversed(f.nest.axes):
        body = (Loop(a.name, a.extent, "map", body),)
    params = (Buffer("Parts", float32, (parts * total,), (1,)), *(b for b in f.kernel.params if b.name != f.product or f.stores_product))
    return replace(f.kernel, name=f"{f.kernel.name}_joined", params=params, body=body)

