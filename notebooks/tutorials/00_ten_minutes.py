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
# # 00 Ten minutes: compile three lines
#
# This is the whole trip, once, without stopping: three lines of Python become machine code, and you look at what every
# stage made of them. Each later tutorial stops at one stage.
#
# Nothing here needs a GPU or a network. The file runs as a notebook and as a script.

# %%
import time

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import tinytorch as torch
import tinytorch.nn.functional as F


def layer(x, w, b):
    h = F.gelu(x @ w + b)
    h = h - h.mean(-1, keepdim=True)
    return (h * h).sum()


torch.manual_seed(0)
x = torch.randn(512, 64)
w, b = torch.randn(64, 256).requires_grad_(), torch.randn(256).requires_grad_()

# %% [markdown]
# **Predict.** Written as you see it, `layer` is about ten operations on arrays, and its backward about twice as many.
# Count how many times eager, which runs each operation when Python reaches it, reads or writes a 512 × 256 array in the
# forward pass. Then guess how many loops a compiler needs after the matrix product.
#
# **Run.** `explain` compiles a function, runs it, and keeps what every stage said.

# %%
why = torch.compiler.explain(layer)(x, w, b)
why.result.backward()
print(why)

# %% [markdown]
# ## Stage 1: capture
#
# No source was parsed. The compiler stepped through the *bytecode* of `layer` with stand-ins for the tensors that know
# only shape and type, and wrote down the calls it met. The result is a graph, and a graph prints as Python.

# %%
print(why.graphs[0].code)

# %% [markdown]
# A graph is only right for inputs like the ones it was made for. What capture relied on became the **guards**: a Python
# function that is asked before every call. False means: compile again.

# %%
print(why.stage("guards"))

# %% [markdown]
# ## Stage 2: ahead-of-time autograd
#
# The eager library records a tape; `backward()` runs it. Run the very same tape on stand-ins and it writes the backward
# pass down as a graph too. Forward and backward in one listing is the **joint graph**. `gelu` and `mean` are gone: only
# rows of the operator table are left, each of which every later stage understands.

# %%
print(why.stage("joint"))

# %% [markdown]
# ## Stage 3: save or recompute
#
# Backward needs values of forward. Keeping them costs memory, computing them again costs time. The partitioner draws the
# line where the fewest bytes cross it: a minimum cut.

# %%
print(why.stage("partition").split("# forward")[0])

# %% [markdown]
# ## Stage 4: loops
#
# Now operations become loops, and loops that run over the same places become one. Look for `for`: how many loops are left
# after the product, and what do they keep in memory between them?

# %%
print(why.stage("loops").split("# Backward")[0])

# %% [markdown]
# One kernel: a row is read, its mean taken, and the same row, still in cache, read once more for the sum of squares. Eager
# went through memory for each of the ten operations.

# %% [markdown]
# ## Stage 5: code
#
# Each fused loop is printed as a Numba function, of which LLVM makes machine code. On a GPU the same loops become CUDA C++.

# %%
kernels = [a for a in why.artifacts if a.topic == "kernels" and a.name != "host"]
print(f"{len(kernels)} kernels; one of them:\n")
print(next(a for a in kernels if "erf" in a.name).text)

# %% [markdown]
# ## What it bought
#
# Both functions below give the same number. (Your times will differ; that they are in this order should not.)

# %%
compiled = torch.compile(layer)


def seconds(fn, repeat=30):
    best = float("inf")
    for _ in range(repeat):
        begin = time.perf_counter()
        fn(x, w, b).backward()
        best = min(best, time.perf_counter() - begin)
    return best


np.testing.assert_allclose(compiled(x, w, b).item(), layer(x, w, b).item(), rtol=1e-4)
eager_time, compiled_time = seconds(layer), seconds(compiled)
print(f"forward and backward: eager {eager_time * 1e3:.2f} ms, compiled {compiled_time * 1e3:.2f} ms")

# %% [markdown]
# ## Break it
#
# The guards say what was relied on, so you can make them fail. First other sizes, then another type. Watch the list grow:
# one entry per version of the code. With the second size the compiler has seen enough and makes that size symbolic.


# %%
def scale(x, factor):
    return (x * factor).sum()


versions = []


def counting(gm, example_inputs):
    versions.append(gm)
    return gm.forward


watched = torch.compile(scale, backend=counting)
for size in (4, 5, 6, 7, 100):
    watched(torch.ones(size), 2.0)
    print(f"size {size:3}: compiled {len(versions)} times so far")
assert len(versions) == 2, "one for size 4, one for every other size"
watched(torch.ones(4, dtype=torch.float64), 2.0)
assert len(versions) == 3, "another type is another program"

# %% [markdown]
# A call the compiler cannot follow splits the program instead of failing: it runs what it has, makes the call in plain
# Python, and goes on compiled after it. That is a **graph break**, and `explain` names the line.


# %%
def chatty(x):
    x = x.sin()
    print("   (a print in the middle)")
    return x.cos()


broken = torch.compiler.explain(chatty)(torch.ones(3))
print(f"{broken.graph_count} graphs, because:")
print(broken.break_reasons[0])
assert broken.graph_count == 2

# %% [markdown]
# ## A property
#
# One promise holds for every program: compiled equals eager. Instead of one example, try many: shapes drawn at random, down
# to empty ones.

# %%
safe = torch.compile(lambda x, y: ((x - y).abs().exp() * 0.5 + y).sum(0), dynamic=True)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 1000))
def compiled_equals_eager(rows, columns, seed):
    torch.manual_seed(seed)
    x, y = torch.randn(rows, columns), torch.randn(1, columns)
    want = ((x - y).abs().exp() * 0.5 + y).sum(0)
    np.testing.assert_allclose(safe(x, y).numpy(), want.numpy(), rtol=1e-5, atol=1e-6)


compiled_equals_eager()
print("25 programs, no difference")

# %% [markdown]
# Where next: `01` builds the tape, `05` takes the graph apart, `07` draws the cut. `TT_LOGS=graph,joint,kernels` in front
# of any script prints these stages for *your* program, `TT_COMPILE_DEBUG=1` writes them to numbered files.
