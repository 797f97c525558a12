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
# # 07 Save or recompute
#
# Training a network needs memory for one reason above all: backward reads what forward computed. Eager keeps *every*
# value that some derivative rule asks for. A compiler sees the whole program first and may choose: keep a value, or keep
# something smaller and compute it again. This tutorial poses that choice as a minimum cut, solves it, draws it, and then
# trades memory for time on purpose.
#
# Files to have open: `compiler/partition/mincut.py`, `cost.py`, `flow.py`, `budget.py`.
#
# **Predict.** One layer of a perceptron: `h = x @ w1 + b1`, then GELU, then dropout, then `@ w2`, then a loss. Write down
# which values backward needs, and which of those you would keep.

# %%
import numpy as np

import tinytorch as torch
import tinytorch.nn.functional as F
from compiler.aot.joint import trace_joint
from compiler.ir import Interpreter
from compiler.partition import min_cut, pareto, plot_pareto
from compiler.partition.cost import Joint, eager_saves, saved_bytes
from compiler.partition.flow import Network
from compiler.partition.mincut import find_cut


def layer(x, w1, b1, w2):
    h = x @ w1 + b1
    h = F.dropout(F.gelu(h), 0.1)
    return ((h @ w2) ** 2).mean()


torch.manual_seed(0)
batch, width = 64, 32
x = torch.randn(batch, width)
w1, b1, w2 = (torch.randn(*s).requires_grad_() for s in ((width, 4 * width), (4 * width,), (4 * width, width)))
traced = trace_joint(layer, [x, w1, b1, w2])
gm, outputs = traced.module, traced.forward_outputs
joint = Joint.of(gm.graph, outputs)
print(len(joint.forward), "forward nodes,", len(joint.backward), "that depend on the loss's gradient,")
print(len(joint.between), "that only backward wants but that could run in either")

# %% [markdown]
# The joint graph is forward and backward in one program (tutorial 06). Eager keeps the forward values that the backward
# half reads:

# %%
kept = sorted((n for n in eager_saves(joint) if saved_bytes(n)), key=saved_bytes, reverse=True)
for n in kept:
    print(f"{n.name:12} {n.target!s:16} {saved_bytes(n):6} bytes")
print("together", sum(map(saved_bytes, kept)), "bytes")

# %% [markdown]
# ## A cut
#
# Look at one value in the middle: `exp(x)`, where backward wants it. Either it is saved, at the price of its bytes, or
# its *input* is there and it runs again. So draw two points per value, `in` and `out`:
#
# - `in → out` costs the bytes of the value: cut here to save it;
# - `out → in` of each reader is infinite: who computes the reader again must have the operand;
# - what backward reads is tied to the sink, what can never be computed again (inputs, matrix products) to the source.
#
# Any cut that separates source from sink is a set of values that suffices. The cheapest is a **minimum cut**, and by the
# theorem of Ford and Fulkerson its price is the value of a **maximum flow**, which Dinic's algorithm finds. By hand, for
# `a = x @ w` (4 kB, may not run twice), `b = a.half()` (2 kB), `c = exp(b)` (2 kB), backward reads `b` and `c`:

# %%
net = Network()
INFINITE = 10**9
for value, price in (("a", 4), ("b", 2), ("c", 2)):
    net.edge((value, "in"), (value, "out"), price)
net.edge("source", ("a", "in"), INFINITE)
net.edge(("a", "out"), ("b", "in"), INFINITE)
net.edge(("b", "out"), ("c", "in"), INFINITE)
for value in "bc":
    net.edge((value, "out"), "sink", INFINITE)
print("maximum flow:", net.max_flow("source", "sink"), "kB")
there = net.sink_side("sink")
print("saved:", [v for v in "abc" if (v, "out") in there and (v, "in") not in there])
print("computed again:", [v for v in "abc" if (v, "in") in there])

# %% [markdown]
# It saves `b` (2 kB) and runs `exp` again. **Question.** Eager would keep `b` and `c`, 4 kB. Why is keeping `a` never a
# good idea here, whatever the price of `c`?
#
# ## The real one

# %%
forward, backward, report = min_cut(gm, outputs)
print(report)

# %% [markdown]
# Three things to notice.
#
# - The dropout mask is *drawn* again, not saved: random numbers are counter-based, so the same seed and offset give the
#   same bits, and a seed is 16 bytes.
# - No matrix product runs twice: its row says `recompute="save"`. All that is particular to an operator comes from its
#   row; the partitioner keeps no list of its own.
# - Inputs and parameters are alive in any case, so keeping one is free.
#
# The picture: thick red borders are saved, violet is computed again in backward, orange runs in
# backward only.

# %%
cut = find_cut(joint)


def side(n):
    if n in joint.backward or n in joint.between:
        return "backward"
    return "recomputed" if n in cut.recomputed else "input" if n.op == "placeholder" else "forward"


picture = gm.show(colour=side, bold=lambda n: n in cut.saved and n.op != "placeholder")
picture  # noqa: B018 - displayed

# %% [markdown]
# Both halves are ordinary graphs. In the backward, each node that runs again stands right before its first use, so that
# its result lives briefly.

# %%
print(backward.code)

# %% [markdown]
# Together they compute what the joint graph computes, to the bit: the same operations ran on the same numbers, only
# some of them twice.

# %%
inputs = [x, w1.detach(), b1.detach(), w2.detach()]
state = [torch.tensor([0, 0], dtype=torch.int64) for p in gm.graph.placeholders if p.name.startswith("rng_state")]
one = torch.tensor(1.0)
want = Interpreter(gm).run(*inputs, *state, one)
out = Interpreter(forward).run(*inputs, *state)
got = [*out[:outputs], *Interpreter(backward).run(*out[outputs:], one)]
assert all(g is w is None or np.array_equal(g.numpy(), w.numpy()) for g, w in zip(got, want, strict=True))
print("bit for bit equal")

# %% [markdown]
# ## Less memory still: a budget
#
# Below budget 1, expensive values may run again too. Which? Each value that the cut saves weighs its bytes and is worth
# the time of computing it again from the others: a **0/1 knapsack**. The curve from "save what the cut saves" to "save
# nothing but the inputs":

# %%
points = pareto(gm, outputs)
for p in points[::4]:
    print(f"budget {p.budget:.1f}  {p.saved_bytes:6} bytes  {p.recompute_ns / 1e3:7.1f} us to compute again (estimated)")

# %%
plot_pareto(points)  # a picture, in a notebook

# %% [markdown]
# ## Neither saved nor computed again
#
# The backward of a cross entropy reads all logits a second time. What does it know that the forward did not? One number,
# the gradient of the loss, and `loss.backward()` sends a one. So a forward may assume one and write the gradient at once,
# while a row of logits is in registers: two passes over memory instead of three. If another number comes after all, the
# ordinary backward runs. The partition looks whether that is worth it (`ahead.py`); the layer above does products.

# %%
logits, target = torch.randn(512, 1024).requires_grad_(), torch.randint(0, 1024, (512,))
loss = trace_joint(F.cross_entropy, [logits, target])
_, _, plain = min_cut(loss.module, loss.forward_outputs, ahead=True)
print(plain)
print()
print(min_cut(gm, outputs, ahead=True)[2])

# %% [markdown]
# **Question.** Two losses, of which the program returns both: why does the partition not even ask?
#
# ## Break it
#
# First forbid computing again, then forbid saving. A node's `meta["recompute"]` overrides its row: this is how
# checkpointed regions reach the partitioner.

# %%


def partition_with(mark):
    other = gm.copy()
    for n in other.graph.nodes:
        if n.op == "call_function":
            n.meta["recompute"] = mark
    return min_cut(other, outputs)[2]


never, must = partition_with("never"), partition_with("must")
print("nothing runs twice:  ", never.saved_bytes, "bytes,", len(never.recomputed), "nodes again")
print("the cut:             ", report.saved_bytes, "bytes,", len(report.recomputed), "nodes again")
print("nothing is saved:    ", must.saved_bytes, "bytes,", len(must.recomputed), "nodes again")

# %% [markdown]
# **Question.** With "nothing runs twice" the bytes are not more than eager's, and may be less. How? (Look for values that
# only backward wants, such as the comparison of a mask: one byte an element instead of four.)
#
# Now a wrong partitioner, the most common one: prices on the *edges* between values instead of on the values. Let `u`
# (5 kB, may not run twice) be the operand of `v` (4 kB), and let three backward nodes read `v`.

# %%
by_edges, by_values = Network(), Network()
for n, (u, v) in ((by_edges, ("v", "v")), (by_values, (("v", "in"), ("v", "out")))):
    n.edge("u", u, 5)
    if u != v:
        n.edge(u, v, 4)
    for reader in range(3):
        n.edge(v, reader, 4 if n is by_edges else INFINITE)
        n.edge(reader, "sink", INFINITE)
print("by edges: ", by_edges.max_flow("u", "sink"), "kB: keeps u, because v looks like 12 kB")
print("by values:", by_values.max_flow("u", "sink"), "kB: keeps v")

# %% [markdown]
# ## Property test
#
# On small graphs every subset can be tried. Random ones, the flow against brute force:

# %%
from itertools import combinations  # noqa: E402

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

values = st.lists(
    st.tuples(st.integers(1, 9), st.booleans(), st.sets(st.integers(0, 6), max_size=2), st.booleans()),
    min_size=1,
    max_size=7,
)


def by_flow(values):
    net = Network()
    net.node("source"), net.node("sink")
    for i, (price, banned, operands, wanted) in enumerate(values):
        net.edge((i, "in"), (i, "out"), price)
        operands = [o for o in operands if o < i]
        if banned or not operands:
            net.edge("source", (i, "in"), INFINITE)
        for o in operands:
            net.edge((o, "out"), (i, "in"), INFINITE)
        if wanted:
            net.edge((i, "out"), "sink", INFINITE)
    return net.max_flow("source", "sink")


def by_hand(values):
    def suffices(saved):
        there = set()
        for i, (_, banned, operands, _) in enumerate(values):
            operands = [o for o in operands if o < i]
            if i in saved or (operands and not banned and all(o in there for o in operands)):
                there.add(i)
        return all(i in there for i, v in enumerate(values) if v[3])

    names = range(len(values))
    subsets = (set(c) for k in range(len(values) + 1) for c in combinations(names, k))
    return min(sum(values[i][0] for i in s) for s in subsets if suffices(s))


@settings(deadline=None, max_examples=200, database=None)
@given(values)
def the_flow_finds_the_optimum(values):
    assert by_flow(values) == by_hand(values)


the_flow_finds_the_optimum()
print("200 random graphs: the flow's value is the best subset's")

# %% [markdown]
# **Exercise.** Write `by_flow` without the split into `in` and `out` (capacities on the edges between values instead) and
# let the property test find the smallest graph where it is wrong.
#
# ## Beside PyTorch
#
# If you have PyTorch, this is what its eager mode keeps for the same layer (without counting parameters).

# %%
try:
    import torch as real
except ImportError:
    print("PyTorch is not installed: nothing to compare with")
else:
    total: dict[int, int] = {}

    def keep(t):
        total[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    gelu, dropout = real.nn.functional.gelu, real.nn.functional.dropout
    rx, rw1, rb1, rw2 = (real.tensor(t.detach().numpy(), requires_grad=t.requires_grad) for t in (x, w1, b1, w2))
    given_ = {t.untyped_storage().data_ptr() for t in (rx, rw1, rb1, rw2)}
    with real.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        ((dropout(gelu(rx @ rw1 + rb1), 0.1) @ rw2) ** 2).mean()
    print("PyTorch eager:", sum(v for k, v in total.items() if k not in given_), "bytes; ours:", report.saved_bytes)
