"""Attention on the GPU: FlashAttention-2 and 3 as CUDA text around ``mma.sync`` and ``wgmma``.

Stage: codegen_cupy.  In: how the arrays of a row ``attention`` or ``attention_backward`` look (``View``) and a config.
Out: ``Launch``es of include-free kernels.  The kernels' text stands in the ``attention*.cuh`` beside this file, written
over constants that come first: one text serves all lengths, batches and strides of a head size and set of flags.
Half types with head sizes up to 256 go to the tensor cores; float32, float64 and odd layouts to ``attention_plain.cuh``.
Read next: ``attention_tiles``, ``attention_forward.cuh``, ``attention_keys.cuh``, ``tinytorch.ops.flash``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from codegen_cupy.attention_tiles import (
    SHARED_LIMIT,
    Tiles,
    forward_shared,
    forward_tiles,
    fused_tiles,
    keys_shared,
    keys_tiles,
    own_rows,
    padded,
    queries_shared,
    queries_tiles,
)  # fmt: skip
from codegen_cupy.helpers import needed
from codegen_cupy.host import Call, Launch, Memory, Release, Step, View
from codegen_cupy.kernel_text import Source
from codegen_cupy.spell import memory_type
from compiler.config import config
from tinytorch.dtypes import DType, bfloat16, bool_, float16, float32, float64


@dataclass(frozen=True)
class Problem:
    """One call, as far as kernels can tell: types, sizes, flags, and how each array lies."""

    dtype: DType
    views: Mapping[str, View]  # q k v, mask and state if any; out lse, or g delta lse dq dk dv
    mask_dtype: DType | None
    causal: bool
    scale: float
    dropout: float
    shift: int
    aligned: bool = True  # do all arrays begin at multiples of 16 bytes?

    @property
    def sizes(self) -> tuple[int, int, int, int, int, int, int]:
        """batch, heads, heads of keys, rows, columns, size of q and k, size of v"""
        (b, h, t, d), (_, hk, s, _) = self.views["q"].shape, self.views["k"].shape
        return b, h, hk, t, s, d, self.views["v"].shape[3]

    @property
    def halves(self) -> bool:
        """Can the tensor cores do it?  Rows must be contiguous and in steps of 16 bytes."""
        *_, d, e = self.sizes
        big = [v for n, v in self.views.items() if n in ("q", "k", "v", "g", "out", "dq", "dk", "dv")]
        fits = self.aligned and all(v.stride[3] == 1 and not any(x % 8 for x in (*v.stride[:3], v.offset)) for v in big)
        return self.dtype in (float16, bfloat16) and d == e and d % 8 == 0 and d <= 256 and fits and self.scale > 0


# --- texts ------------------------------------------------------------------------------------------------------------
@cache
def _file(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def _flag(x: bool) -> str:
    return "true" if x else "false"


def _constants(p: Problem, name: str) -> list[str]:
    *_, d, e = p.sizes
    elem = memory_type(p.dtype)
    mask = elem if p.mask_dtype is None else memory_type(p.mask_dtype)
    number, suffix = ("double", "") if p.dtype is float64 else ("float", "f")
    kind = 0 if p.mask_dtype is None else 1 if p.mask_dtype is bool_ else 2
    return [
        f"#define KERNEL {name}",
        f"using elem = {elem};",
        f"using mask_elem = {mask};",
        f"constexpr int D = {d}, DV = {e}, MASK = {kind};",
        f"constexpr bool CAUSAL = {_flag(p.causal)}, DROPOUT = {_flag(p.dropout > 0)};",
        f"constexpr {number} SCALE = {p.scale!r}{suffix}, DROP = {float(p.dropout)!r}{suffix};",
    ]


def _finish(name: str, constants: list[str], parts: Sequence[str], tiles: Tiles | None, shared: int, params: Any) -> Source:
    body = "\n".join([*constants, *(_file(f) for f in parts)])
    threads = 32 * (tiles.warps if tiles else PLAIN_WARPS)
    helpers = needed(body)
    return Source(
        name=name, text=f"{helpers}\n\n{body}", buffers=tuple(params[0]), sizes=tuple(params[1]), size_bytes=8, scratch=(),
        messages=(), block=(threads, 1), work=1, shared=shared,
    )  # fmt: skip


def _tile_source(
    p: Problem, name: str, file: str, tiles: Tiles, shared: int, params: Any, more: Sequence[str] = ()
) -> Source:
    constants = [*_constants(p, name), *more] + [
        f"constexpr int DP = {padded(p.sizes[5], tiles)}, WARPS = {tiles.warps}, THREADS = {32 * tiles.warps}, MT = {tiles.m};",
        f"constexpr int OTHER = {tiles.other}, STAGES = {tiles.stages}, RESIDENT = {tiles.resident};",
        f"constexpr bool REGISTERS = {_flag(tiles.registers)}, GROUPS = {_flag(tiles.groups)}, AHEAD = {_flag(tiles.ahead)};",
    ]
    return _finish(name, constants, ("attention.cuh", file), tiles, shared, params)


# --- launches ---------------------------------------------------------------------------------------------------------
class Arguments:
    """Gathers a kernel's parameters: buffers first, then numbers, in the order the text declares them."""

    def __init__(self, p: Problem) -> None:
        self.p, self.buffers, self.names, self.numbers = p, list[str](), list[str](), list[int]()

    def pointers(self, *names: str) -> None:
        """An absent mask or state is passed as some other pointer that nobody reads."""
        for n in names:
            self.buffers.append((self.p.views.get(n) or self.p.views["q"]).buffer)

    def number(self, **named: int) -> None:
        self.names += named.keys()
        self.numbers += named.values()

    def place(self, name: str, dims: int) -> None:
        """Offset of the first element, then strides of the first ``dims`` dimensions; broadcast ones are 0."""
        v = self.p.views.get(name)
        strides = [0] * dims if v is None else [s if n != 1 else 0 for s, n in zip(v.stride, v.shape, strict=True)][:dims]
        self.number(**{f"{name}_at": v.offset if v else 0}, **{f"{name}_{i}": s for i, s in enumerate(strides)})

    def sizes(self) -> None:
        _, h, hk, t, s, _, _ = self.p.sizes
        self.number(heads=h, group_size=h // hk, rows=t, columns=s, shift=self.p.shift)

    @property
    def both(self) -> tuple[list[str], list[str]]:
        return [f"p{i}" for i in range(len(self.buffers))], self.names


def _launch(source: Source, a: Arguments, grid: tuple[int, int]) -> Launch:
    return Launch(source, grid, tuple(a.buffers), tuple(a.numbers), ())


def forward(p: Problem, tiles: Tiles | None = None) -> list[Launch]:
    """``out`` and ``lse``."""
    b, h, _, t, _, d, _ = p.sizes
    if not p.halves:
        return plain_forward(p)
    tiles = tiles or forward_tiles(d)[0]
    a = Arguments(p)
    a.pointers("q", "k", "v", "mask", "state", "out", "lse")
    a.sizes()
    for name in ("q", "k", "v"):
        a.place(name, 3)
    a.place("mask", 4)
    a.place("state", 0)
    a.place("out", 3)
    a.place("lse", 0)
    source = _tile_source(p, "attention_forward", "attention_forward.cuh", tiles, forward_shared(d, tiles), a.both)
    return [_launch(source, a, (b * h, -(-t // own_rows(tiles))))]


def backward(p: Problem, keys: Tiles | None = None, queries: Tiles | None = None) -> list[Launch]:
    """``dk`` and ``dv`` in one launch, ``dq`` in another; nothing is added atomically."""
    if not p.halves:
        return plain_backward(p)
    return [keys_launch(p, keys), queries_launch(p, queries)]


def fused_backward(p: Problem, tiles: Tiles | None = None) -> list[Launch]:
    """All three from one walk, ``dq`` summed atomically in ``dq_sum`` (float32, zero before) and rounded at the end."""
    return [keys_launch(p, tiles or fused_tiles(p.sizes[5])[0], atomic=True), round_launch(p)]


def keys_launch(p: Problem, tiles: Tiles | None = None, *, atomic: bool = False) -> Launch:
    b, _, hk, _, s, d, _ = p.sizes
    tiles = tiles or keys_tiles(d)[0]
    a = _backward_arguments(p, "dk", "dv")
    if atomic:
        a.buffers.append(p.views["dq_sum"].buffer)
    shared = keys_shared(d, tiles, atomic=atomic)
    name = "attention_fused" if atomic else "attention_keys"
    source = _tile_source(p, name, "attention_keys.cuh", tiles, shared, a.both, [f"#define ATOMIC {int(atomic)}"])
    return _launch(source, a, (b * hk, -(-s // own_rows(tiles))))


def round_launch(p: Problem) -> Launch:
    b, h, _, t, _, d, _ = p.sizes
    a = Arguments(p)
    a.pointers("dq_sum", "dq")
    count = b * h * t * d // 8
    a.number(heads=h, rows=t, count=count)
    a.place("dq", 3)
    source = _finish("attention_round", [*_constants(p, "attention_round"), "constexpr int THREADS = 256;"],
                     ("attention_round.cuh",), None, 0, a.both)  # fmt: skip
    return _launch(source, a, (-(-count // 256), 1))


def queries_launch(p: Problem, tiles: Tiles | None = None) -> Launch:
    b, h, _, t, _, d, _ = p.sizes
    tiles = tiles or queries_tiles(d)[0]
    a = _backward_arguments(p, "dq")
    source = _tile_source(p, "attention_queries", "attention_queries.cuh", tiles, queries_shared(d, tiles), a.both)
    return _launch(source, a, (b * h, -(-t // own_rows(tiles))))


def _backward_arguments(p: Problem, *outs: str) -> Arguments:
    a = Arguments(p)
    a.pointers("g", "q", "k", "v", "delta", "lse", "mask", "state", *outs)
    a.sizes()
    for name in ("g", "q", "k", "v"):
        a.place(name, 3)
    a.place("delta", 0)
    a.place("lse", 0)
    a.place("mask", 4)
    a.place("state", 0)
    for name in outs:
        a.place(name, 3)
    return a


# --- every type and layout --------------------------------------------------------------------------------------------
PLAIN_WARPS, PLAIN_ROWS = 8, 32


def plain_forward(p: Problem) -> list[Launch]:
    b, h, _, t, _, _, _ = p.sizes
    return [_plain(p, 0, "attention_plain", ("q", "k", "v"), ("out",), (b * h, -(-t // PLAIN_ROWS)))]


def plain_backward(p: Problem) -> list[Launch]:
    b, h, hk, t, s, _, _ = p.sizes
    inputs = ("g", "q", "k", "v")
    return [
        _plain(p, 1, "attention_plain_keys", inputs, ("dk", "dv"), (b * hk, -(-s // PLAIN_ROWS))),
        _plain(p, 2, "attention_plain_queries", inputs, ("dq",), (b * h, -(-t // PLAIN_ROWS))),
    ]


def _plain(
    p: Problem, part: int, name: str, inputs: Sequence[str], outs: Sequence[str], grid: tuple[int, int]
) -> Launch:
    a = Arguments(p)
    a.pointers(*inputs, *(("delta", "lse") if part else ()), "mask", "state", *outs, *(() if part else ("lse",)))
    a.sizes()
    for n in (*inputs, "mask"):
        a.place(n, 4)
    a.place("state", 0)
    for n in ("delta", "lse") if part else ():
        a.place(n, 0)
    for n in outs:
        a.place(n, 4)
    if not part:
        a.place("lse", 0)
    wide = "double" if p.dtype is float64 else "float"
    narrow = {float16: "to_f16", bfloat16: "to_bf16"}.get(p.dtype, f"({wide})")
    constants = [*_constants(p, name), f"#define PART {part}", f"#define TO_ELEM(x) {narrow}(x)", f"using sum_elem = {wide};"]
    source = _finish(name, constants, ("attention_plain.cuh",), None, plain_shared(p, part), a.both)
    return _launch(source, a, grid)


def plain_shared(p: Problem, part: int) -> int:
    *_, d, e = p.sizes
    numbers = PLAIN_ROWS * (d + (e if part else 0)) + 32 * (d + 1) + 32 * (e + 1)
    return numbers * (8 if p.dtype is float64 else 4)


# --- calls in a plan --------------------------------------------------------------------------------------------------
#: Whether backward sums dQ atomically where bits may depend on timing (``config.deterministic`` forbids it).
ATOMIC = False


def forward_call(call: Call, types: Mapping[str, DType], aligned: bool) -> list[Step]:
    p = _problem(call, ("q", "k", "v", "mask", "state"), ("out", "lse"), types, aligned)
    return [*forward(p)] if _possible(p) else []


def backward_call(call: Call, types: Mapping[str, DType], aligned: bool) -> list[Step]:
    p = _problem(call, ("g", "q", "k", "v", "delta", "lse", "mask", "state"), ("dq", "dk", "dv"), types, aligned)
    if not _possible(p):
        return []
    if not (ATOMIC and p.halves) or config.deterministic:
        return [*backward(p)]
    b, h, _, t, _, d, _ = p.sizes
    shape, stride = (b, h, t, d), (h * t * d, t * d, d, 1)
    name = f"{p.views['dq'].buffer}_sum"
    p = replace(p, views={**p.views, "dq_sum": View(name, shape, stride, 0)})
    return [Memory(name, float32, shape, stride, fill=0.0), *fused_backward(p), Release(name)]


def _problem(call: Call, args: Sequence[str], outs: Sequence[str], types: Mapping[str, DType], aligned: bool) -> Problem:
    pairs = [*zip(args, call.args, strict=True), *zip(outs, call.outs, strict=True)]
    views = {name: v for name, v in pairs if isinstance(v, View)}
    mask = views.get("mask")
    return Problem(
        types[views["q"].buffer], views, None if mask is None else types[mask.buffer], call.params["causal"],
        float(call.params["scale"]), float(call.params["dropout"]), int(call.params["shift"]), aligned,
    )  # fmt: skip


def _possible(p: Problem) -> bool:
    """Not where the arrays are empty or too wide for shared memory: there the row's own kernel runs."""
    rows = [p.views[n] for n in ("lse", "delta") if n in p.views]
    if 0 in p.sizes or not all(v.gapless for v in rows):
        return False
    return p.halves or plain_shared(p, 1) <= SHARED_LIMIT


EXTERN_KERNELS = {"attention": forward_call, "attention_backward": backward_call}
