"""The host side of a plan for known sizes: which kernels, grids, buffers and library calls, all numbers filled in.

Stage: codegen.  In: ``Plan``, sizes, alignment of the inputs.  Out: ``Recipe``, that ``emulated`` or ``launch`` runs.
Read next: ``program`` (which recipe for which call), ``launch``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from codegen_cupy.kernel_text import HOST, Source
from codegen_cupy.nest import value_at
from codegen_cupy.sources import Launches, sources
from compiler.loop.ir import Alloc, ArrayView, Buffer, Extern, Free, Int, Kernel, Plan, Run, Scalar
from compiler.sym.expr import Expr
from tinytorch.dtypes import DType

if TYPE_CHECKING:
    from codegen_cupy.matmul import Product


@dataclass(frozen=True)
class Memory:
    """A block to allocate: ``items`` elements; ``shape`` and ``stride`` in elements."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    fill: Scalar | None = None
    reuse: str | None = None

    @property
    def items(self) -> int:
        if 0 in self.shape:
            return 0
        return 1 + sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))


@dataclass(frozen=True)
class View:
    """A strided look at a block, in elements."""

    buffer: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @property
    def turned(self) -> View:
        """With the last two dimensions exchanged."""
        (*batch, r, c), (*steps, down, across) = self.shape, self.stride
        return View(self.buffer, (*batch, c, r), (*steps, across, down), self.offset)

    @property
    def gapless(self) -> bool:
        """Does it lie in order, without gaps?"""
        step = 1
        for n, s in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if n != 1 and s != step:
                return False
            step *= n
        return True

    @property
    def whole(self) -> bool:
        """Does it begin its block, in order and without gaps?"""
        return self.gapless and not self.offset


@dataclass(frozen=True)
class Launch:
    """One kernel launch; ``buffers`` names memory in the order of the kernel's pointers."""

    source: Source
    grid: tuple[int, int]
    buffers: tuple[str, ...]
    sizes: tuple[int, ...]
    scratch_bytes: tuple[int, ...]


@dataclass(frozen=True)
class Call:
    """A library call: an op row's own kernel."""

    fn: str
    args: tuple[View | Scalar, ...]
    outs: tuple[View, ...]
    params: Mapping[str, Any]


@dataclass(frozen=True)
class Release:
    buffer: str


Step: TypeAlias = "Memory | Launch | Call | Product | Release"


#: Rows that have kernels here: from a call, the type of each buffer, and whether inputs are 16-byte aligned, to launches
#: (none: the row's own kernel after all).
EXTERN_KERNELS: dict[str, Callable[[Call, Mapping[str, DType], bool], list[Step]]] = {}


@dataclass(frozen=True)
class Recipe:
    """Everything a call does, in order.  ``outputs`` may hold plain numbers (a size that the program returns)."""

    inputs: tuple[str, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Any, ...]
    given: tuple[Memory, ...] = ()  # how the inputs lie
    written: frozenset[str] = frozenset()  # inputs that results are written to (not those that are merely used up)
    words: frozenset[str] = frozenset()  # inputs that are numbers of the host, and arguments of kernels
    uploads: frozenset[str] = frozenset()  # those that somebody wants as memory of the device

    @property
    def launches(self) -> list[Launch]:
        return [s for s in self.steps if isinstance(s, Launch)]


def prepare(
    plan: Plan, sizes: Mapping[str, int], *, aligned: bool, strict: bool, pick: Any = None, without: frozenset[str] = frozenset(),
    instead: Mapping[int, list[Step]] | None = None, direct: bool = False,
) -> Recipe:
    """Fill in the numbers of a plan.  ``without``: rows that run their own kernels all the same, and
    what else the machine lacks (``clusters`` of blocks).  ``instead``: what is done at the place of some steps.  ``direct``: our
    kernels take random states as arguments."""
    lent = {b.name for b in plan.inputs}
    home, (words, uploads) = _homes(plan), _states(plan, instead or {}, direct=direct)
    made: dict[tuple[Any, ...], Launches] = {}
    types = {b.name: b.dtype for b in (*plan.inputs, *(s.buffer for s in plan.steps if isinstance(s, Alloc)))}
    steps: list[Step] = []
    for n, step in enumerate(plan.steps):
        if instead and n in instead:
            steps += instead[n]
        elif isinstance(step, Alloc):
            over = step.reuse if step.reuse and home[step.reuse] in lent else None  # else ``arena`` finds a place
            steps.append(_memory(step, sizes, over))
        elif isinstance(step, Free):
            steps.append(Release(step.buffer))
        elif isinstance(step, Extern):
            call = call_of(step, sizes)
            own = None if step.fn in without else EXTERN_KERNELS.get(step.fn)
            steps += (own and own(call, types, aligned)) or [call]
        else:
            assert isinstance(step, Run)
            restrict = len({home[a] for a in step.args}) == len(step.args)
            passed = frozenset(n for n, a in enumerate(step.args) if a in words)
            key = (step.kernel, restrict, step.sizes, passed)
            known = {**sizes, **dict(step.sizes)}
            if key not in made:
                kernel = _passing(plan.kernels[step.kernel], passed)
                clusters = "clusters" not in without
                made[key] = sources(kernel, known, aligned=aligned, restrict=restrict, strict=strict, pick=pick, clusters=clusters)
            steps += _run(made[key], plan, step, known, len(steps))
    outputs = tuple(_view(o, sizes) if isinstance(o, ArrayView) else _number(o, sizes) for o in plan.outputs)
    given = tuple(Memory(b.name, b.dtype, _ints(b.shape, sizes), _ints(b.stride, sizes)) for b in plan.inputs)
    return Recipe(tuple(b.name for b in plan.inputs), tuple(steps), outputs, given, _written(plan, home), words, uploads)


def is_state(b: Buffer) -> bool:
    """Is an input the state of a random stream?  Such a one comes in the host's memory, whatever the device."""
    return b.name.startswith("rng_state_") and b.dtype.name == "int64" and b.shape == (2,)


def _states(plan: Plan, instead: Mapping[int, list[Step]], *, direct: bool) -> tuple[frozenset[str], frozenset[str]]:
    """Random states that kernels take as numbers, and those that must be memory, for a library or another kind of kernel."""
    states = frozenset(b.name for b in plan.inputs if is_state(b))
    if not direct or not states:
        return frozenset(), states
    uploads: set[str] = {o.buffer for o in plan.outputs if isinstance(o, ArrayView)}
    for s in plan.steps:
        if isinstance(s, Extern):
            uploads.update(v.buffer for v in s.args if isinstance(v, ArrayView))
        elif isinstance(s, Run):
            kernel = plan.kernels[s.kernel]
            uploads.update(a for p, a in zip(kernel.params, s.args, strict=True) if p.name in kernel.writes)
    uploads.update(b for n, steps in instead.items() for s in steps if isinstance(s, Launch) for b in s.buffers)
    return states - uploads, states & uploads


def _passing(kernel: Kernel, places: frozenset[int]) -> Kernel:
    """The kernel with the parameters at these places passed as numbers."""
    if not places:
        return kernel
    return replace(kernel, params=tuple(replace(b, device=HOST) if n in places else b for n, b in enumerate(kernel.params)))


def call_of(step: Extern, sizes: Mapping[str, int]) -> Call:
    args = tuple(_view(a, sizes) if isinstance(a, ArrayView) else _number(a, sizes) for a in step.args)
    outs = tuple(_view(o, sizes) for o in step.outs)
    return Call(step.fn, args, outs, {k: _number(v, sizes) for k, v in step.params.items()})


def _written(plan: Plan, home: Mapping[str, str]) -> frozenset[str]:
    """Buffers whose memory a step of the plan writes and an output shows."""
    found: set[str] = set()
    for s in plan.steps:
        if isinstance(s, Run):
            kernel = plan.kernels[s.kernel]
            found |= {a for p, a in zip(kernel.params, s.args, strict=True) if p.name in kernel.writes}
        elif isinstance(s, Extern):
            found |= {v.buffer for v in s.outs}
    shown = {home[o.buffer] for o in plan.outputs if isinstance(o, ArrayView)}
    return frozenset(home[b] for b in found) & shown


def _homes(plan: Plan) -> dict[str, str]:
    """The buffer whose memory each buffer uses."""
    home = {b.name: b.name for b in plan.inputs}
    for s in plan.steps:
        if isinstance(s, Alloc):
            home[s.buffer.name] = home[s.reuse] if s.reuse else s.buffer.name
    return home


def _run(launches: Launches, plan: Plan, run: Run, sizes: Mapping[str, int], number: int) -> list[Step]:
    """The launches of one kernel, between them the memory that carries values from one to the next."""
    given = {p.name: a for p, a in zip(plan.kernels[run.kernel].params, run.args, strict=True)}
    carried = {b.name: f"{b.name}_{number}" for b in launches.carried}
    out: list[Step] = [
        Memory(carried[b.name], b.dtype, _ints(b.shape, sizes), _ints(b.stride, sizes)) for b in launches.carried
    ]
    for source in launches.sources:
        work = min(_int(source.work, sizes), source.max_blocks)
        names = tuple((given | carried)[b] for b in source.buffers)
        scratch = tuple(_int(s.items, sizes) * s.itemsize for s in source.scratch)
        if work:
            out.append(Launch(source, (work, source.split), names, tuple(sizes[s] for s in source.sizes), scratch))
    return [*out, *(Release(name) for name in carried.values())]


def _memory(step: Alloc, sizes: Mapping[str, int], over: str | None) -> Memory:
    b = step.buffer
    return Memory(b.name, b.dtype, _ints(b.shape, sizes), _ints(b.stride, sizes), step.fill, over)


def _view(v: ArrayView, sizes: Mapping[str, int]) -> View:
    return View(v.buffer, _ints(v.shape, sizes), _ints(v.stride, sizes), _int(v.offset, sizes))


def _ints(xs: tuple[Int, ...], sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(_int(x, sizes) for x in xs)


def _int(x: Int, sizes: Mapping[str, int]) -> int:
    return int(value_at(x, sizes))


def _number(v: Any, sizes: Mapping[str, int]) -> Any:
    """A parameter with its symbolic integers replaced by numbers."""
    if isinstance(v, Expr):
        return v.evaluate(sizes)
    if isinstance(v, (tuple, list)):
        return type(v)(_number(x, sizes) for x in v)
    return v
