# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 08 Fusion
#
# A processor computes a hundred times faster than its memory delivers. An eager program writes every intermediate to
# memory and reads it back: it spends its life waiting. A compiler that sees the whole program joins loops, so that a
# value goes from the operation that makes it to the one that uses it in a register. Which loops *may* be joined, and
# which *should* be? This tutorial counts bytes, reads loops, takes the fuser apart and makes it produce nonsense.
#
# Files to have open: `compiler/loop/ir.py` (the language of loops), `deps.py` (may they?), `fuse.py` (should they?),
# `weave.py` (which become one), `write.py` (what stands in them).
#
# **Predict.** The function below has five operations on a matrix of 4 MB. How many bytes does eager move, counting each
# operation's reads and writes? And how many must move at the least?

# %%
import time

import numpy as np

import tinytorch as torch
from codegen_numba import build
from compiler.aot.joint import trace
from compiler.config import Config
from compiler.loop import compile_graph, deps, interp, ir, order
from compiler.loop.fuse import Fuser, Group
from compiler.loop.lower import lower
from compiler.loop.printer import format_kernel
from tinytorch import ops


def gate(x, w, b):
    return torch.tanh(x * w + b) * torch.sigmoid(x)


x = torch.randn(1024, 1024)
w, b = torch.randn(1024), torch.randn(1024)
gm = trace(gate, [x, w, b])
print(gm.code)

# %% [markdown]
# `compile_graph` turns such a graph into a `Plan`: kernels (loop nests) and the steps that launch them. One kernel per
# operation is what eager does; `fusion=False` keeps it so.


# %%
def plan_of(fn, args, **changes):
    return compile_graph(trace(fn, args), Config().replace(changes))


def launches(plan):
    return [s for s in plan.steps if isinstance(s, ir.Run)]


def moved(plan):
    """Bytes that the launches read and write, each buffer once per launch."""
    total = 0
    for step in launches(plan):
        total += sum(p.numel * p.dtype.itemsize for p in plan.kernels[step.kernel].params)
    return total


fused = plan_of(gate, [x, w, b])
print("kernels:", len(launches(fused)), " bytes moved:", moved(fused))
least = 2 * x.numel() * 4 + 2 * 1024 * 4
print("at the least:", least)
assert moved(fused) == least and len(launches(fused)) == 1

# %% [markdown]
# Five operations, eleven matrices through memory (read or written) in eager; two in one kernel. Here it is, in the
# language in which loops print themselves. It is Python: running this text builds the same kernel again.

# %%
print(format_kernel(fused.kernels[0]))

# %% [markdown]
# There was no act of joining for this one. *Lowering* makes each pointwise value a closure, "how to compute my element
# at an index" (`value.py`); the last one is called once inside of a loop, and the whole chain falls into it. What needs
# an act are values that must exist in memory before somebody else can use them: the sum of a row, say.
#
# **Predict.** How many passes over a row does softmax take, and how many kernels?

# %%


def softmax(x):
    top = x.amax(dim=-1, keepdim=True)
    e = (x - top).exp()
    return e / e.sum(dim=-1, keepdim=True)


apart, joined = (plan_of(softmax, [x], fusion=on) for on in (False, True))
for name, plan in (("apart", apart), ("joined", joined)):
    print(f"{name:7} {len(launches(plan))} kernels, {moved(plan) / 2**20:6.1f} MiB moved")
print(format_kernel(joined.kernels[0]))

# %% [markdown]
# One loop over rows, and inside of it three loops over a row: its maximum, the sum of exponentials, the quotients. From
# the second loop on the row comes from cache. So the kernel's traffic to *memory* is one read and one write.
#
# ## May they?
#
# The loop over rows of one nest and that of another may be the same loop if every element that an iteration of the
# consumer reads was stored in *the same iteration* of the producer. `deps.py` answers by reading the producer's store
# backwards. It stores element `1024*i + j`; so element `e` is made where `i = e // 1024` and `j = e % 1024`. Put the
# consumer's index in the place of `e`, simplify, and see what is left.

# %%
program = lower(trace(lambda x: ((x * 2).exp().sum(dim=1), (x * 2).exp().t().sum(dim=1)), [x]), Config())
for nest in program.tasks:
    print(nest.number, [f"{a.name}:{a.kind}" for a in nest.axes], "makes", [w.buffer for w in nest.writes])
maker, *readers = program.tasks
(made,) = (w.buffer for w in maker.writes)
for reader in readers:
    print("in step:", sorted(deps.in_step(maker, reader, made, maker.axes, reader.axes)))

# %% [markdown]
# Both reductions may share *both* of the maker's loops; for the second one they are just crossed: its outer loop is the
# maker's inner one.
#
# **Question.** `y = x.exp(); y + y.flip(0)`: which of the loops over `y` can the reader share with the maker? Check your
# answer:

# %%
program = lower(trace(lambda x: (y := x.exp(), y + y.flip(0)), [x]), Config())
maker, reader = program.tasks
print(sorted(deps.in_step(maker, reader, maker.writes[0].buffer, maker.axes, reader.axes)))

# %% [markdown]
# Only the columns. Row 0 of the result needs row 1023 of `y`, which a common loop over rows would not have made yet.
#
# ## Should they?
#
# Among the joints that are legal, `fuse.py` takes the one first that saves the most bytes, and asks of each: does it
# close a cycle? Does it make a loop run against the grain of memory? Does a row still fit in the cache? See it work:

# %%


def block(x, w):
    mean = x.mean(dim=-1, keepdim=True)
    var = ((x - mean) ** 2).mean(dim=-1, keepdim=True)
    return torch.relu((x - mean) * torch.rsqrt(var + 1e-5) * w)


program = lower(trace(block, [x, w]), Config())
fuser = Fuser(program, Config())
print("before:", len(fuser.tasks), "tasks")
for (size, _distance), a, b in fuser.candidates()[:4]:
    print(f"   tasks {a} and {b} have {-size} bytes in common")
fuser.run()
print("after: ", len(fuser.tasks), "task; nests in each:", [len(t.nests) for t in fuser.tasks.values()])

# %% [markdown]
# ## What it is worth
#
# Machine code for both plans (tutorial 09 opens the code generator), on a matrix of 16 MB, which a cache does not keep. The two
# take turns, so that whatever slows the machine meets both. Times depend on your machine; quote the ratio.

# %%


def seconds(runs, arrays, rounds=15):
    """The least time of each."""
    best = [float("inf")] * len(runs)
    for _ in range(rounds):
        for n, run in enumerate(runs):
            start = time.perf_counter()
            run(arrays, ())
            best[n] = min(best[n], time.perf_counter() - start)
    return best


large = torch.randn(4096, 1024)
runs = [build(plan_of(block, [large, w], fusion=on), Config()) for on in (False, True)]
slow, fast = seconds(runs, [large.numpy(), w.numpy()])
print(f"apart {slow * 1e3:.2f} ms, joined {fast * 1e3:.2f} ms: {slow / fast:.1f} times as fast")

# %% [markdown]
# ## Break it: the cycle
#
# Greedy joining has one famous trap. Below, `a` feeds a matrix product and also the last sum; the product feeds the last
# sum, too. The maker of `a` and the last sum have a big buffer in common, their loops are in step: the best candidate.

# %%


def diamond(x):
    a = x.exp()
    return a, a + a @ x


square = torch.randn(64, 64)
program = lower(trace(diamond, [square]), Config())
fuser = Fuser(program, Config())
for n, task in fuser.tasks.items():
    print(n, "loops" if isinstance(task, Group) else "library call", "needs", [k for k in range(n) if fuser.before[n] >> k & 1])
print("would 0 and 2 close a cycle?", fuser.closes_cycle(0, 2))

# %% [markdown]
# A kernel that is joined from 0 and 2 would have to run before the product (which reads `a`) and after it (whose result
# it reads). Now a fuser that forgets to ask:


# %%
class Careless(Fuser):
    def closes_cycle(self, a, b):
        return False


careless = Careless(program, Config())
careless.run()
print("tasks left:", len(careless.tasks))
try:
    order.ordered(list(careless.tasks.values()))
except AssertionError as e:
    print("no order exists:", e)
else:
    raise RuntimeError("the careless fuser got away with it")

# %% [markdown]
# Two tasks that need each other. The fuser keeps for each task the *set* of tasks before and after it as bits of an
# integer, so that the question costs one `&`; and it keeps the sets true when tasks merge.
#
# **Question.** Checking that the two have no *direct* third task between them would have been enough here. Draw a program
# for which it is not.
#
# ## Many launches, few kernels
#
# Loops that differ in numbers only (where they start, how far they go) are one kernel that takes these as *sizes*. An
# optimizer's update of parameters of many shapes is compiled once:

# %%


def update(*params):
    return tuple(p - 0.1 * p.sign() for p in params)


params = [torch.randn(*s) for s in ((300, 20), (70,), (40, 50), (64,))]
plan = plan_of(update, params)
print(len(launches(plan)), "launches of", len(plan.kernels), "kernel, with", [s.sizes for s in launches(plan)])
assert len(plan.kernels) == 1

# %% [markdown]
# ## Property: fused is eager
#
# The loop IR has an interpreter in plain Python (`interp.py`): it *defines* what loops mean, and runs iterations of a
# `map` loop in any order you ask for. Random programs, fused, against eager, in shuffled order:

# %%
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

STEPS = {
    "exp": lambda v: ops.exp(ops.minimum(v[-1], 1.0)),
    "add": lambda v: v[-1] + v[0],
    "mul": lambda v: v[-1] * v[len(v) // 2],
    "turn": lambda v: v[-1].t() if v[-1].ndim == 2 else v[-1],
    "row": lambda v: v[-1] - v[-1].amax(dim=-1, keepdim=True),
    "sum": lambda v: v[-1] / (1 + v[-1].abs().sum(dim=0, keepdim=True)),
    "flip": lambda v: v[-1].flip(0),
    "slice": lambda v: torch.cat([v[-1][1:], v[-1][:1]]),
}


@settings(deadline=None, max_examples=60, database=None)
@given(st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=7), st.integers(1, 5))
def fused_is_eager(names, n):
    def program(x):
        values = [x]
        for name in names:
            values.append(STEPS[name](values))
        return values[-1] * 1.5, values[len(values) // 2].tanh()  # new tensors, not the input again

    x = torch.randn(n, n)
    plan = plan_of(program, [x])
    got = interp.run_plan(plan, [x.numpy()], order="shuffle")
    for g, e in zip(got, program(x), strict=True):
        np.testing.assert_allclose(g, e.numpy(), rtol=1e-4, atol=1e-5)


fused_is_eager()
print("60 random programs: fused loops, in shuffled order, give what eager gives")

# %% [markdown]
# **Exercise.** Write a subclass of `Fuser` whose `pairs` forgets to call `deps.in_step` (take all axes of equal length as
# pairs, in order). Find with the property test the smallest program that it gets wrong, and say which of the steps above
# cannot go wrong with it, and why.
