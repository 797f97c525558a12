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
# # 01 Eager tensors and the tape
#
# Everything the compiler does, it does to programs that already run without it: *eagerly*, each operation when Python
# reaches it. This tutorial is about that ground floor: a tensor is an array that remembers how it was made, and the memory
# of all of them together is the **tape**. You will read the tape, run it backward by hand, see why the order of that walk
# matters, and break it on purpose.
#
# Files to have open: `tinytorch/ops/pointwise.py` (what an operator is), `dispatch.py` (the one door), `tape.py` (nodes),
# `engine.py` (the backward loop).
#
# **Predict.** In the cell below, `y` is computed by three operators. How many nodes will the tape hold, and which of
# the arrays `a`, `b`, `a * b`, `exp(a * b)` must be kept alive until backward?

# %%
import heapq

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import tinytorch as torch
from tinytorch import ops, tape
from tinytorch.autograd import gradcheck, gradgradcheck

a = torch.tensor([0.5, -1.0], dtype=torch.float64, requires_grad=True)
b = torch.tensor([2.0, 3.0], dtype=torch.float64, requires_grad=True)
y = torch.exp(a * b).sum()
print(y)


def show(t, indent=""):
    """Print the tape behind ``t``: each node, what it keeps, and where its cotangents go."""
    node = t.grad_fn if isinstance(t, torch.Tensor) else t
    kept = ", ".join(str(list(k.shape)) for k, _version in node.saved) or "nothing"
    print(f"{indent}{node.name()}  keeps {kept}")
    for after, _number in node.next_functions:
        if hasattr(after, "variable"):
            print(f"{indent}  leaf of shape {list(after.variable.shape)}")
        elif after is not None:
            show(after, indent + "  ")


show(y)

# %% [markdown]
# **Explain.** Three nodes, one per recorded call. `mul` keeps both factors, since the derivative by one is the other.
# `exp` keeps its *result* (its derivative is itself), and `sum` keeps nothing but a shape. Nobody asked the operators
# what to keep: the rule of a row returns one function per operand, and what these functions close over *is* what is
# kept. Here is the rule of `mul`, and what it closes over:

# %%
of_a, of_b = ops.mul.vjp(None, a, b)
print([cell.cell_contents is b for cell in of_a.__closure__], [cell.cell_contents is a for cell in of_b.__closure__])
print(of_a(torch.ones(2, dtype=torch.float64)))  # the cotangent of a, given that of a * b

# %% [markdown]
# An operator is one **row**: what it does to one element (`body`), shapes and types in and out (`infer`), and this
# rule (`vjp`: the product of a vector with the operator's Jacobian), written in rows again. Eager, the tape, the fake
# tensors of the compiler and its code generators all read the same row.
#
# **Run.** The *cotangent* of a value is the derivative of the final result by that value. Backward is a walk: start with 1
# at the result, and at each node turn the cotangent of its output into those of its inputs. The real loop is in `engine.py`;
# without hooks, modes and errors it is this:


# %%
def backward(result):
    """Gradients of a 0-d tensor by the leaves behind it."""
    start = result.grad_fn
    pending = {start: torch.ones((), dtype=result.dtype)}
    heap = [start]  # nodes sort by number, newest first: see Node.__lt__
    gradients = {}
    while heap:
        node = heapq.heappop(heap)
        g = pending.pop(node)
        for fn, edge in zip(node.fns, node.edges, strict=True):
            if fn is None:
                continue
            part = fn(g)
            if isinstance(edge, tuple):
                before = edge[0]
                if before not in pending:
                    heapq.heappush(heap, before)
                pending[before] = pending[before] + part if before in pending else part
            else:
                gradients[edge] = gradients[edge] + part if edge in gradients else part
    return gradients


with torch.no_grad():
    mine = backward(y)
y.backward()
for leaf in (a, b):
    print(mine[leaf].tolist(), leaf.grad.tolist())
    assert torch.equal(mine[leaf], leaf.grad)

# %% [markdown]
# ## The order of the walk
#
# **Predict.** `b = a + a; c = b + b`. The derivative is 4. How often does a *recursive* backward, one that follows each
# edge as soon as it has a cotangent, visit the node of `b`? And for a chain of 12 such doublings?


# %%
def recursive(node, g, gradients, visits):
    """The walk many people write first: no order, straight down every edge."""
    visits[0] += 1
    for fn, edge in zip(node.fns, node.edges, strict=True):
        if fn is None:
            continue
        if isinstance(edge, tuple):
            recursive(edge[0], fn(g), gradients, visits)
        else:
            gradients[edge] = gradients.get(edge, 0) + fn(g)


def doublings(x, n):
    for _ in range(n):
        x = x + x
    return x


for n in (2, 12):
    x = torch.tensor(1.0, requires_grad=True)
    c = doublings(x, n)
    gradients, visits = {}, [0]
    with torch.no_grad():
        recursive(c.grad_fn, torch.tensor(1.0), gradients, visits)
        ordered = backward(c)
    print(f"{n} doublings: {visits[0]} visits without an order, {n} with; gradient {gradients[x].item():.0f}")
    assert gradients[x].item() == ordered[x].item() == 2**n

# %% [markdown]
# **Explain.** The answers agree, the work does not: 4095 visits against 12. A node may only run when *all* of its users
# have spoken. A topological sort would do, but there is something simpler: nodes carry a running number, and an input
# is always older than its user. So "newest first" is an order that is always right, and a heap keeps it.
#
# ## Shapes that do not fit
#
# **Predict.** `x` has shape (3, 1), `w` has shape (4,). Their product has shape (3, 4), and so has its cotangent. What
# shape must the gradient of `w` have, and which elements meet in one of its entries?

# %%
x = torch.arange(3.0).reshape(3, 1).requires_grad_()
w = torch.ones(4).requires_grad_()
(x * w).sum().backward()
print(x.grad.tolist(), w.grad.tolist())
assert w.grad.shape == (4,) and w.grad.tolist() == [3.0] * 4

# %% [markdown]
# **Explain.** What was read several times gets the *sum* of its cotangents. Un-broadcasting lives in the engine, once
# (`engine.fit`), so the rule of `mul` can stay `g * y` and know nothing of shapes. The same function casts a cotangent
# to the type of its input, which is why a float16 weight gets a float16 gradient from a float32 loss.
#
# ## Break it
#
# `mul` keeps its operands. What if one is overwritten before backward?

# %%
a = torch.ones(3, requires_grad=True)
x = a * 2
y = (x * x).sum()
x.add_(1)  # in place: the memory that mul keeps is no longer what it was
try:
    y.backward()
except RuntimeError as e:
    print(str(e)[:200], "...")

# %% [markdown]
# Every block of memory counts its writes; a node notes the count of what it keeps, and the engine compares. A wrong
# gradient would have been so easy, and so silent.
#
# In-place is fine where nobody kept the old value, and through views too: `x[0].mul_(5)` writes to the memory of `x`, so
# what made the new row is from then on part of what made `x`. The tape calls that node `copy_slices`.

# %%
a = torch.ones(2, 3, requires_grad=True)
x = a * 1
x[0].mul_(5)
print(x.grad_fn, x.tolist())
x.sum().backward()
print(a.grad.tolist())

# %% [markdown]
# ## Derivatives of derivatives
#
# Rules are written in rows, so the backward of a backward is nothing new: with `create_graph=True` the walk itself is
# recorded. This is also how the compiler gets its *joint graph*: it runs this very loop on tensors without values.

# %%
t = torch.tensor(2.0, requires_grad=True)
(first,) = torch.autograd.grad(t**4, t, create_graph=True)
(second,) = torch.autograd.grad(first, t, create_graph=True)
show(second)
(third,) = torch.autograd.grad(second, t)
print(first.item(), second.item(), third.item())

# %% [markdown]
# ## A rule of your own
#
# **Break it.** Below is a softplus whose backward is wrong: its author forgot that the derivative of log(1 + eˣ) is the
# *sigmoid* of x. Training with it would converge to something. Which tool finds the mistake?


# %%
class Softplus(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.log1p(torch.exp(x))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.tanh(x)  # wrong


points = torch.linspace(-2, 2, 5, dtype=torch.float64).requires_grad_()
try:
    gradcheck(Softplus.apply, points)
except RuntimeError as e:
    print(str(e)[:160], "...")

# %%
Softplus.backward = staticmethod(lambda ctx, g: g * torch.sigmoid(ctx.saved_tensors[0]))
print(gradcheck(Softplus.apply, points), gradgradcheck(Softplus.apply, points))

# %% [markdown]
# Finite differences, to second order: the same oracle checks every row of the house (`tests/test_rows_samples.py`).
#
# ## Property test
#
# The claim of this tutorial in one sentence: *whatever program you write in rows, the tape gives its derivative.* So let
# a machine write the programs.

# %%
STEPS = {
    "add": lambda u, v: u + v,
    "mul": lambda u, v: u * v,
    "sin": lambda u, v: torch.sin(u),
    "tanh": lambda u, v: torch.tanh(u),
    "row": lambda u, v: u[0] + v,
    "transpose": lambda u, v: u.t(),
    "mean": lambda u, v: u - v.mean(),
    "in place": lambda u, v: (u * 1).mul_(0.5),
}


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=6))
def the_tape_is_right(program):
    def run(x):
        values = [x, x * 0.7 + 0.1]
        for name, i, j in program:
            values.append(STEPS[name](values[i % len(values)], values[j % len(values)]))
        return values[-1].sum()

    x = torch.from_numpy(np.linspace(-1, 1, 9).reshape(3, 3)).requires_grad_()
    assert gradcheck(run, x)


the_tape_is_right()
print("40 random programs, all gradients right")

# %% [markdown]
# ## Who computes, who remembers
#
# One last look at the door, `dispatch.call`. It asks two questions: *who computes?* and *who remembers?* The tape does
# not know whether arrays, shapes or graph nodes pass by. Here the same function runs once on an array and once on a
# tensor that has no values at all, and the tape records both alike.

# %%
from compiler.fake import FakeInterp, fake_tensor  # noqa: E402 - a glance at the next floor
from tinytorch import dispatch  # noqa: E402


def loss(x):
    return (torch.tanh(x) * x).sum()


print(loss(torch.ones(2, 3, requires_grad=True)).grad_fn)
with dispatch.use(FakeInterp()):
    z = loss(fake_tensor((2, 3), torch.float32, requires_grad=True))
    print(z.grad_fn, tuple(z.shape), z._data)
    show(z)
assert tape.mode.interpreter is None

# %% [markdown]
# **Next:** `02 Bytecode is a program you can run`. (What is written down when the one who computes is a tracer: `05`.)

# %%
# Optional: the same numbers from PyTorch, where it is installed.
try:
    import torch as real
except ImportError:
    print("PyTorch is not installed here: nothing to compare with")
else:
    p = real.tensor(2.0, requires_grad=True)
    (q,) = real.autograd.grad(p**4, p, create_graph=True)
    print(q.item(), real.autograd.grad(q, p)[0].item())
