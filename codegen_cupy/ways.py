"""Which steps of a plan run as our own products: convolutions always, matrix products where they were measured to win.

Stage: codegen.  In: a ``Plan`` with known sizes.  Out: for some of its steps, what is done instead.  A kernel that the plan
runs right behind a product, on each element of it, becomes part of the product's kernel (``following``), and the
product itself is not stored unless something else wants it.  With ``config.autotune`` every way (the library and a kernel
of its own, ours with several tiles, ours with an operand laid out first, ``channels_last``, or computed while it is loaded,
``preceding``) runs on the machine; ways with other results are thrown away, the fastest is kept.
Read next: ``gemm``, ``convolution``, ``channels_last``, ``following``, ``preceding``, ``tune``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

from codegen_cupy import channels_last, convolution, gemm, gemm_schedules, host, launch, tune, unfused
from codegen_cupy.cuda_machine import architecture
from codegen_cupy.following import Following, after, following
from codegen_cupy.gemm import Problem
from codegen_cupy.host import Call, Memory, Recipe, Release, Step, View
from codegen_cupy.machine import Machine, machine
from codegen_cupy.matmul import Product, allow_tf32, products
from codegen_cupy.nest import value_at
from codegen_cupy.preceding import Preceding, computed, preceding
from compiler import autotune, cache, logs
from compiler.config import Config
from compiler.loop.ir import Alloc, ArrayView, Extern, Free, Plan, Run

PRODUCTS = ("matmul", *convolution.EXTERN_KERNELS)
MOST_TRIED, MOST_COMPUTED = 6, 3
#: Products of fewer multiply-adds are left to the library without a trial: launches decide there.
WORTH = 1 << 22


@dataclass(frozen=True)
class Pair:
    """A product at step ``at`` of a plan and, at ``then``, the kernel that goes on with it (-1: none); at ``before`` the kernel
    that only writes an operand of it (-1: none)."""

    at: int
    then: int = -1
    before: int = -1

    @property
    def steps(self) -> tuple[int, ...]:
        return tuple(n for n in (self.before, self.at, self.then) if n >= 0)


# --- which steps belong together --------------------------------------------------------------------------------------
class Reader:
    """A plan under sizes: who uses which buffer."""

    def __init__(self, plan: Plan, sizes: Mapping[str, int]) -> None:
        self.plan, self.sizes = plan, sizes
        self.home = host._homes(plan)
        self.buffers = {b.name: b for b in (*plan.inputs, *(s.buffer for s in plan.steps if isinstance(s, Alloc)))}

    def pairs(self, rows: Collection[str] = PRODUCTS) -> Iterator[Pair]:
        """Calls of ``rows`` with what they may run together with."""
        for n, s in enumerate(self.plan.steps):
            if isinstance(s, Extern) and s.fn in rows:
                yield Pair(n, self.partner(n), self.maker(n) if s.fn == "matmul" else -1)

    def partner(self, n: int) -> int:
        """The next step that does something, if it is a kernel that may run together with the product."""
        steps, product = self.plan.steps, self.plan.steps[n]
        assert isinstance(product, Extern)
        at = next((i for i in range(n + 1, len(steps)) if not isinstance(steps[i], Alloc | Free)), -1)
        run = steps[at]
        made = product.outs[0].buffer
        if at < 0 or not isinstance(run, Run) or len(product.outs) != 1 or list(run.args).count(made) != 1:
            return -1
        if prod(self.memory(made).shape) != prod(self.call(n).outs[0].shape):
            return -1  # a part of a larger buffer
        written = {self.home[a] for a in self.written(run)}
        read = {self.home[v.buffer] for v in product.args if isinstance(v, ArrayView)}
        return -1 if written & read else at  # other blocks may still read the factors

    def maker(self, n: int) -> int:
        """The step before that does something, if it is a kernel whose one result only the product reads."""
        steps, product = self.plan.steps, self.plan.steps[n]
        assert isinstance(product, Extern)
        at = next((i for i in range(n - 1, -1, -1) if not isinstance(steps[i], Alloc | Free)), -1)
        run = steps[at]
        if at < 0 or not isinstance(run, Run):
            return -1
        written = self.written(run)
        reads = [v.buffer for v in product.args if isinstance(v, ArrayView)]
        taken = {s.reuse for s in steps[at:n] if isinstance(s, Alloc)}  # memory that is something else by then
        if len(written) != 1 or reads.count(written[0]) != 1 or self.needed_after(written[0], n) or taken & set(run.args):
            return -1
        homes = {self.home[v.buffer] for v in product.outs}
        inputs = {self.home[a] for a in run.args if a != written[0]}
        return -1 if self.home[written[0]] in inputs or homes & inputs or self.home[written[0]] != written[0] else at

    def written(self, run: Run) -> list[str]:
        kernel = self.plan.kernels[run.kernel]
        return [a for p, a in zip(kernel.params, run.args, strict=True) if p.name in kernel.writes]

    def needed_after(self, buffer: str, at: int) -> bool:
        """Does anything after step ``at`` look at the buffer itself?"""
        later = self.plan.steps[at + 1 :]
        seen = [v.buffer for v in self.plan.outputs if isinstance(v, ArrayView)]
        for s in later:
            if isinstance(s, Run):
                seen += s.args
            elif isinstance(s, Extern):
                seen += [v.buffer for v in (*s.args, *s.outs) if isinstance(v, ArrayView)]
        return buffer in seen

    def reused(self, buffer: str) -> bool:
        return any(isinstance(s, Alloc) and s.reuse == buffer for s in self.plan.steps)

    def call(self, n: int) -> Call:
        step = self.plan.steps[n]
        assert isinstance(step, Extern)
        return host.call_of(step, self.sizes)

    def memory(self, name: str) -> Memory:
        b = self.buffers[name]
        ints = lambda xs: tuple(value_at(x, self.sizes) for x in xs)  # noqa: E731
        return Memory(name, b.dtype, ints(b.shape), ints(b.stride))


# --- what is done instead ---------------------------------------------------------------------------------------------
class Ways:
    """Chooses for the products of one plan."""

    def __init__(self, plan: Plan, sizes: Mapping[str, int], config: Config | None, *, aligned: bool, strict: bool, emulate: bool) -> None:
        self.reader, self.plan, self.sizes = Reader(plan, sizes), plan, sizes
        self.aligned, self.strict, self.emulate = aligned, strict, emulate
        self.config = config
        self.tunes = bool(getattr(config, "autotune", False))

    def instead(self) -> dict[int, list[Step]]:
        """For each step of the plan that is not done as it stands, what is done at its place."""
        out: dict[int, list[Step]] = {}
        for pair in self.reader.pairs([r for r in PRODUCTS if self.tunes or r != "matmul"]):
            call = self.reader.call(pair.at)
            if not self.tunes or pair.before in out or self.shared(pair):
                pair = replace(pair, before=-1)
            problem = self.problem(pair, call)
            if problem is None and pair.then >= 0:  # the kernel cannot be part of it
                pair = replace(pair, then=-1)
                problem = self.problem(pair, call)
            steps = self.steps(pair, call, problem) if problem else None
            if steps is not None:
                out.update(self.placed(pair, call, steps, out))
        return out

    def shared(self, pair: Pair) -> bool:
        """Does what follows write what the kernel before reads?"""
        if pair.before < 0 or pair.then < 0:
            return False
        before, then = self.plan.steps[pair.before], self.plan.steps[pair.then]
        assert isinstance(before, Run) and isinstance(then, Run)
        home = self.reader.home
        return bool({home[a] for a in self.reader.written(then)} & {home[a] for a in before.args})

    def steps(self, pair: Pair, call: Call, problem: Problem) -> list[Step] | None:
        """Launches for the pair; None where it stays as it is."""
        laid = channels_last.problem(call, problem.dtype, problem.following, aligned=self.aligned) if call.fn != "matmul" else None
        if not self.tunes:
            problem = gemm_schedules.cheaper(problem, laid, grouped=has_wgmma(self.emulate))
        options = gemm_schedules.candidates(problem, grouped=has_wgmma(self.emulate))[: MOST_TRIED if self.tunes else 1]
        if not options:
            return None
        make: dict[str, Callable[[], list[Step]]] = {gemm_schedules.label(t): partial(gemm.launches, problem, t, strict=self.strict) for t in options}
        if not self.tunes or problem.rows * problem.columns * problem.depth * problem.batch < WORTH:
            return None if call.fn == "matmul" else next(iter(make.values()))()
        if laid is not None:
            options = gemm_schedules.candidates(laid, grouped=has_wgmma(self.emulate))[:MOST_COMPUTED]
            make |= {f"by channels, {gemm_schedules.label(t)}": partial(gemm.launches, laid, t, strict=self.strict) for t in options}
        if pair.before >= 0:
            first = partial(self.apart, (pair.before,))
            make = {name: lambda after=after: [*first(), *after()] for name, after in make.items()}  # type: ignore[misc]
            by = self.preceding(pair)
            whole = computed(problem, by, strict=self.strict) if by else None
            if whole is not None:
                options = gemm_schedules.candidates(whole, grouped=has_wgmma(self.emulate))[:MOST_COMPUTED]
                make |= {f"computed, {gemm_schedules.label(t)}": partial(gemm.launches, whole, t, strict=self.strict) for t in options}
        calls = self.library(pair, call)
        make = {"apart": partial(self.apart, pair.steps), **({"library": lambda: calls} if calls else {}), **make}
        return Contest(self, pair, problem, machine(self.emulate)).won(make)

    def problem(self, pair: Pair, call: Call) -> Problem | None:
        first, out = call.args[0], call.outs[0]
        assert isinstance(first, View)
        dtype = self.reader.buffers[first.buffer].dtype
        then = self.following(pair, call) if pair.then >= 0 else None
        if pair.then >= 0 and then is None:
            return None
        words = call.params.get("then", ())
        if words:
            if not out.whole or "aux" in words or "dgelu" in words:
                return None
            then = after(then, words, call.args[2:], out, dtype)  # type: ignore[arg-type]
        if call.fn == "matmul":
            x, y = call.args[:2]
            assert isinstance(x, View) and isinstance(y, View)
            return gemm.matmul(x, y, out, dtype, then=then, aligned=self.aligned, tf32=allow_tf32())
        return convolution.problem(call, dtype, then, aligned=self.aligned) if then is None or out.whole else None

    def following(self, pair: Pair, call: Call) -> Following | None:
        run = self.plan.steps[pair.then]
        assert isinstance(run, Run)
        kernel, made = self.plan.kernels[run.kernel], call.outs[0].buffer
        given = {p.name: a for p, a in zip(kernel.params, run.args, strict=True)}
        product = next(p for p, a in given.items() if a == made)
        found = following(kernel, {**self.sizes, **dict(run.sizes)}, product, given)
        if found is not None and self.reader.needed_after(made, pair.then):
            return found.keeping()
        return found

    def library(self, pair: Pair, call: Call) -> list[Step]:
        """A convolution as the library's products, if it is some; and what follows."""
        types = {name: b.dtype for name, b in self.reader.buffers.items()}
        first = call.args[0]
        assert isinstance(first, View)
        product = convolution.as_matmul(call, types[first.buffer]) if call.fn != "matmul" else None
        calls = products(product, types, self.aligned) if product else []
        return [*calls, *self.apart((pair.then,) if pair.then >= 0 else ())] if calls else []

    def preceding(self, pair: Pair) -> Preceding | None:
        run = self.plan.steps[pair.before]
        assert isinstance(run, Run)
        kernel = self.plan.kernels[run.kernel]
        given = {p.name: a for p, a in zip(kernel.params, run.args, strict=True)}
        return preceding(kernel, {**self.sizes, **dict(run.sizes)}, given)

    def apart(self, steps: tuple[int, ...]) -> list[Step]:
        """The steps as the plan has them: a library's product and kernels of their own."""
        plan = self.plan
        wanted = tuple(plan.steps[n] for n in steps)
        buffers = tuple(self.reader.buffers.values())
        part = Plan(buffers, (), plan.kernels, wanted, plan.sizes)
        recipe = host.prepare(part, self.sizes, aligned=self.aligned, strict=self.strict)
        if not self.emulate:
            recipe = unfused.where_refused(recipe, lambda p: machine(False).product(p) is None, aligned=self.aligned)
        return list(recipe.steps)

    def placed(self, pair: Pair, call: Call, steps: list[Step], done: Mapping[int, Any]) -> dict[int, list[Step]]:
        """The steps in the plan: at the last one's place, and what was freed in between after them."""
        *earlier, last = pair.steps
        freed = [n for n in range(pair.steps[0], last) if isinstance(self.plan.steps[n], Free) and n not in done]
        out: dict[int, list[Step]] = {n: [] for n in (*earlier, *freed)}
        late: list[Step] = [Release(s.buffer) for n in freed if isinstance(s := self.plan.steps[n], Free)]
        out[last] = [*steps, *late]
        used = {b for s in steps if isinstance(s, host.Launch | Product) for b in s.buffers}
        between = [call.outs[0].buffer] if pair.then >= 0 else []
        if pair.before >= 0:
            run = self.plan.steps[pair.before]
            assert isinstance(run, Run)
            between += self.reader.written(run)
        for made in between:
            if made in used or self.reader.needed_after(made, last) or self.reader.reused(made):
                continue
            for n, s in enumerate(self.plan.steps):  # it lies nowhere
                if (isinstance(s, Alloc) and s.buffer.name == made) or (isinstance(s, Free) and s.buffer == made):
                    out[n] = []
            out[last] = [s for s in out[last] if s != Release(made)]
        return out


def has_wgmma(emulate: bool) -> bool:
    return emulate or architecture() == "sm_90a"


# --- by running them --------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Way:
    """What the tuner chooses between: "apart", as the plan has it, "library", or the tiles of our own kernel."""

    way: str


class Contest:
    """Several lists of steps that should do the same, on memory of their own."""

    def __init__(self, ways: Ways, pair: Pair, problem: Problem, device: Machine) -> None:
        self.problem, self.device, self.reader = problem, device, ways.reader
        plan = ways.plan
        names: dict[str, None] = {}
        written: set[str] = set()
        for n in pair.steps:
            s = plan.steps[n]
            if isinstance(s, Extern):
                names |= dict.fromkeys(v.buffer for v in (*s.args, *s.outs) if isinstance(v, ArrayView))
                written |= {v.buffer for v in s.outs} if pair.then < 0 or ways.reader.needed_after(s.outs[0].buffer, pair.then) else set()
            elif isinstance(s, Run):
                names |= dict.fromkeys(s.args)
                written |= set() if n == pair.before else set(ways.reader.written(s))
        self.given = tuple(ways.reader.memory(n) for n in names)
        self.written = [i for i, m in enumerate(self.given) if m.name in written]
        self.strict = ways.strict
        self.wanted: dict[int, Any] | None = None

    def won(self, make: Mapping[str, Callable[[], list[Step]]]) -> list[Step] | None:
        """The steps of the fastest way; None if that is as the plan has them."""
        p = self.problem
        shape = f"{p.name} {'x'.join(map(str, (*p.batches, p.rows, p.columns, p.depth)))} {p.dtype.name} {p.following.kernel.name}"
        key = cache.key_of("ways", shape, repr(p), repr(self.given), *make, tune.device_name(self.device), cache.package_hash("codegen_cupy"))
        steps: dict[str, list[Step]] = {}

        def measure(choice: Way) -> float:
            steps[choice.way] = make[choice.way]()
            return self.seconds(steps[choice.way])

        try:
            best = autotune.search(shape, key, Way("apart"), {"way": [w for w in make if w != "apart"]}, measure).way
        except Exception as e:  # memory for the trial may be short
            logs.log("autotune", f"{shape}: not tried: {type(e).__name__}: {e}")
            return None
        return None if best == "apart" else steps.get(best) or make[best]()

    def seconds(self, steps: list[Step]) -> float:
        """The time of one way; ValueError if its results are not those of the plan's own."""
        recipe = Recipe(tuple(m.name for m in self.given), tuple(steps), (), self.given)
        run = launch.prepared(recipe, self.device, fmad=not self.strict)
        arrays = [tune.example(self.device, m, n) for n, m in enumerate(self.given)]
        run(arrays)
        if self.wanted is None:
            self.wanted = {n: arrays[n].copy() for n in self.written}
        for n, want in self.wanted.items():
            if not tune.alike(self.device.xp, arrays[n], want):
                raise ValueError(f"{self.given[n].name} differs from the plan's own")
        return tune.cold_seconds(self.device, lambda: run(arrays))


def instead(plan: Plan, sizes: Mapping[str, int], config: Any, *, aligned: bool, strict: bool, emulate: bool) -> dict[int, list[Step]]:
    """What is done in place of some steps of the plan."""
    return Ways(plan, sizes, config, aligned=aligned, strict=strict, emulate=emulate).instead()
