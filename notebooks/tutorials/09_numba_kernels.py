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
# # 09 Numba kernels
#
# Tutorial 08 ended with loops in a small language of their own. Here they become machine code for your processor: first
# text that you can read, then what LLVM (the compiler library under Numba and Clang) makes of it. The text is restricted
# Python: pointers, integers and numbers, no arrays. It means what Numba takes it to mean, LLVM compiles it, and what runs in
# the end needs neither Numba nor the interpreter.
#
# Files to have open: `codegen_numba/emit.py` (loops become text), `compile.py` (text becomes machine code), `build.py`
# (the host function), `kernels.py` (the cache).
#
# **Predict.** The function below reads a matrix `x` transposed and adds a row `b` to it. The kernel sees three pointers.
# Write down the index of each in terms of the two loop variables. Which loop would you put inside?

# %%
import collections
import re
import tempfile
import time

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import tinytorch as torch
from codegen_numba import build, kernels, translate
from codegen_numba import compile as compiling
from codegen_numba.compile import Source
from compiler.aot.joint import trace
from compiler.config import Config, config
from compiler.loop import compile_graph


def turned(x, b):
    return x.t() * 2 + b


def built(fn, *args, **changes):
    """The machine code of a function, with its text beside it."""
    settings = Config().replace(changes)
    return build(compile_graph(trace(fn, list(args)), settings), settings)


def show(made):
    for text in made.kernels.values():
        print(text)


torch.manual_seed(0)
x, b = torch.randn(200, 100), torch.randn(200)
made = built(turned, x, b)
show(made)
np.testing.assert_allclose(made([x.numpy(), b.numpy()])[0], turned(x, b).numpy(), rtol=1e-6)

# %% [markdown]
# **Explain.** Strides are gone: `100 * i0 + i1` *is* the stride of `x`, worked out while compiling. Nobody copied the
# transposed matrix, and nobody stretched `b`: a broadcast is an index that a loop variable does not appear in, so the
# read moves out of the inner loop.
#
# The result gets the strides that eager would give it, and these follow `x`. So input and output are both walked in the
# order in which they lie in memory; no loop jumps.
#
# `start, stop, part`: a kernel is a function over a *part* of its outer range. One thread takes it all, or several take
# a piece each. `part` says which piece this is.
#
# ## Same function, three layouts
#
# **Question.** The kernel is compiled for one layout of the inputs. Which lines differ for a contiguous matrix, one with
# a gap between its rows, and one with all strides zero?

# %%


def wave(x):
    return (x * 3).sin()


base = torch.randn(64, 128)
for name, t in (("contiguous", base), ("a gap in each row", base[:, :100]), ("one number", torch.ones(1).expand(64, 128))):
    text = "".join(built(wave, t).kernels.values())
    reads = [line.strip() for line in text.splitlines() if "= in0[" in line]
    print(f"{name:18} strides {t.stride()!s:9} loops {text.count('for ')}   {reads}")

# %% [markdown]
# A contiguous matrix is walked as one flat range: its two loops became one. With gaps it takes both indices. The matrix
# of one number is a single read.
#
# ## The host function
#
# Who allocates, who calls? A plain Python function, generated for just this plan. It packs addresses into a table and
# makes one foreign call, whatever the number of kernels.

# %%
print(made.source)

# %% [markdown]
# ## A product, and what follows it
#
# **Predict.** `softmax(x @ w + b)` is a library call and a kernel. The result of the product has two million numbers, and
# the kernel reads each of them two or three times. Where from: a cache, or main memory?

# %%


def layer(x, w, b):
    return torch.softmax(x @ w + b, -1)


arguments = torch.randn(4096, 64), torch.randn(64, 512), torch.randn(512)
made = built(layer, *arguments)
print([name for name, _, _ in made.records])
np.testing.assert_allclose(made([t.numpy() for t in arguments])[0], layer(*arguments).numpy(), rtol=1e-3, atol=1e-6)

# %% [markdown]
# **Explain.** A record is one line of the table that the host function's foreign call works off. If the processor has
# AVX-512 (vector registers of 16 float32), product and kernel stand in *one* record: `together.py` has found that rows of
# the kernel touch only rows of the product, and runs both in turn, 64 rows at a time, which never leave the cache. The
# kernel's machine code is the same, for a kernel is a function over a part of its range. The product is our own
# (`packed.py`): BLAS, the library that NumPy calls for products, packs its factors anew at each call, and would do so for
# every block. Elsewhere BLAS makes all of the product in one record, and the kernel follows.
# `built(layer, *arguments, autotune=True)` times both ways.
#
# ## Sums, in parallel
#
# **Predict.** You add a million times 0.1 in float32, one after another. How many digits are right?

# %%
million = torch.full((1_000_000,), 0.1)
one_by_one = np.cumsum(million.numpy(), dtype=np.float32)[-1]
total = built(lambda x: x.sum(), million)
print("one after another:", one_by_one, "  the kernel:", total([million.numpy()])[0], "  exact: 100000.0015")
show(total)
assert abs(float(total([million.numpy()])[0]) - 100_000) < 0.1 < abs(one_by_one - 100_000)

# %% [markdown]
# Three things happen to a long sum:
#
# - **blocks**: `accumulate` allows regrouping, so LLVM may keep many partial sums in a vector; but only inside of a block
#   of 1024. The block's sum then goes to a float64;
# - **parts**: with more than one thread, each part adds up into a private copy (`out_part[part * numel + ...]`), and a
#   second function, the *join*, adds the copies in order;
# - **parts are numbered**, so the result is the same each time, whoever is late.
#
# If two threads added into the same word, one of the two additions would get lost now and then. With private copies there
# is nothing to lose. A column sum, by one thread and by four; each runs three times and must give the same bits:

# %%
matrix = torch.randn(4000, 1000)
for threads in (1, 4):
    with config.patch(threads=threads):
        made = built(lambda x: x.exp().sum(0), matrix)
        again = [made([matrix.numpy()])[0].tobytes() for _ in range(3)]
        print(f"{threads} thread{'s' * (threads > 1)}: kernels {list(made.kernels)}, {len(set(again))} result")
        assert len(set(again)) == 1

# %% [markdown]
# ## From text to machine code
#
# Numba's own `@njit` makes a function that takes Python objects. Only its front half would be wanted here: parse, infer
# types, lower to LLVM; and kernels use so little of Python that `front.py` does these three in one walk over the syntax
# tree. Then come LLVM's passes, and at the end an object file in memory. Count what kinds of instructions the inner loop
# of `wave` has:

# %%
text = next(iter(built(wave, base).kernels.values()))
source = Source("wave", re.sub(r"^def \w+", "def wave", text), (("in0", "float32"), ("out1", "float32")))
began = time.perf_counter()
ir = compiling.front(source)
middle = time.perf_counter()
assembly = compiling.assembly(source)
end = time.perf_counter()
print(f"front half {middle - began:.3f} s, {len(ir.splitlines())} lines of LLVM; front and back {end - middle:.3f} s")
began = time.perf_counter()
long = str(translate.by_numba(source)[0])
print(f"Numba's front half {time.perf_counter() - began:.3f} s (with its import), {len(long.splitlines())} lines of LLVM")
words = collections.Counter(re.findall(r"^\s+([a-z][a-z0-9]+)\s", assembly, re.M))
print("most frequent instructions:", words.most_common(8))

# %% [markdown]
# On x86, `ps` at the end of a name is "packed single": several float32 at once. The sine is vector code, too; it is ours
# (`trig.py`), because a call of the C library's `sin` in a loop ends all vectorisation.
#
# ## What compiling costs, and the cache
#
# **Predict.** Compiling took so many milliseconds. How long does it take the second time in this process, and how long in
# a new process?

# %%


def fresh(x):
    return torch.sigmoid(x * 1.25) * torch.cos(x)


def seconds_to_build():
    began = time.perf_counter()
    built(fresh, base)
    return time.perf_counter() - began


with tempfile.TemporaryDirectory() as folder, config.patch(cache=True, cache_dir=folder + "/cache"):
    first = seconds_to_build()
    second = seconds_to_build()
    remembered = dict(kernels._addresses)
    kernels._addresses.clear()  # as a new process would find it
    third = seconds_to_build()
    kernels._addresses.update(remembered)
print(f"compiled {first * 1e3:.1f} ms, from memory {second * 1e3:.1f} ms, from disk {third * 1e3:.1f} ms")

# %% [markdown]
# The key is a hash of everything that the machine code depends on: text, types, this processor, the versions of Numba and
# LLVM, the source of the code generator itself. The kernel's *name* and its comments are left out, and so is the length
# of a flat range (it is an argument): equal work under another name is found.

# %%
one = Source("one", "def one(x, start, stop, part):\n    # twice\n    for i in range(start, stop):\n        x[i] = x[i] + x[i]\n", (("x", "float32"),))
two = Source("two", one.text.replace("one", "two").replace("# twice", "# again"), one.params)
other = Source("two", two.text, (("x", "float64"),))
print("another name:", kernels.content_key(one) == kernels.content_key(two), "  another type:", kernels.content_key(two) == kernels.content_key(other))
assert kernels.content_key(one) == kernels.content_key(two) != kernels.content_key(other)

# %% [markdown]
# ## Break it: fast math
#
# Compilers have a switch that lets them treat floats like real numbers: `fastmath`. It makes sums regroup (we did that by
# hand, in blocks) and much else. One of the things it promises LLVM is that *there are no NaNs*.
#
# **Predict.** What does the kernel of `cleaned` return for a NaN if LLVM is told so?


# %%
def cleaned(x):
    return torch.where(x == x, x, torch.zeros_like(x))  # a NaN differs from itself


class FastMath:
    """Inside of the block, float instructions carry LLVM's flag `fast`; such kernels have cache keys of their own."""

    def __enter__(self):
        self.kept = compiling.allow_contraction, kernels.content_key, config.cache
        compiling.allow_contraction = self.flag
        kernels.content_key = lambda source: "fast " + self.kept[1](source)
        config.cache = False

    def __exit__(self, *exc):
        compiling.allow_contraction, kernels.content_key, config.cache = self.kept

    @staticmethod
    def flag(module):
        for function in module.functions:
            for block in function.blocks:
                for instr in block.instructions:
                    if instr.opname in ("fadd", "fsub", "fmul", "fdiv", "fcmp"):
                        instr.flags = ["fast"]


dirty = torch.tensor([1.0, float("nan"), 3.0, float("inf")])
honest = built(cleaned, dirty)([dirty.numpy()])[0]
with FastMath():
    wrong = built(cleaned, dirty)([dirty.numpy()])[0]
show(built(cleaned, dirty))
print("honest:", honest, "  fast:", wrong)
assert honest[1] == 0 and np.isnan(wrong[1])

# %% [markdown]
# "There are no NaNs", so `v0 == v0` is true, so there is nothing to select, so the kernel copies. No optimiser made a
# mistake; the promise was false. That is why only two things are allowed here: one rounding for `a * b + c` where the
# target has it (`contract`; `numerics="strict"` forbids that as well) and regrouping inside of `accumulate`.
#
# **Question.** Why must the patched block change the cache key? What would happen to the next run of this notebook
# otherwise?
#
# ## Property test
#
# The claim: *whatever the layout of the inputs, whatever the number of threads, the kernel computes what eager does.*

# %%
LAYOUTS = {
    "plain": lambda t: t,
    "turned": lambda t: t.t().contiguous().t(),
    "gaps": lambda t: torch.cat([t, t], 1)[:, : t.shape[1]],
    "row": lambda t: t[:1].expand(*t.shape),
    "column": lambda t: t[:, :1].expand(*t.shape),
    "number": lambda t: t[:1, :1].expand(*t.shape),
}
PROGRAMS = {
    "map": lambda x, y: (x * 2 + y).tanh(),
    "rows": lambda x, y: (x * y).sum(1),
    "columns": lambda x, y: (x - y).abs().amax(0),
    "softmax": lambda x, y: torch.softmax(x + y, -1),
    "all": lambda x, y: (x * y).mean() + x,
}


@settings(deadline=None, max_examples=25, database=None)
@given(
    st.sampled_from(sorted(PROGRAMS)), st.sampled_from(sorted(LAYOUTS)), st.sampled_from(sorted(LAYOUTS)),
    st.sampled_from([(1, 1), (3, 7), (33, 65), (8, 1500)]), st.sampled_from([1, 3]),
)  # fmt: skip
def kernel_is_eager(program, left, right, shape, threads):
    fn, args = PROGRAMS[program], [LAYOUTS[k](torch.randn(*shape)) for k in (left, right)]
    with config.patch(threads=threads):
        (got,) = built(fn, *args)([a.numpy() for a in args])
    np.testing.assert_allclose(got, fn(*args).numpy(), rtol=1e-4, atol=1e-4)


kernel_is_eager()
print("25 random programs, layouts and thread counts: kernels give what eager gives")

# %% [markdown]
# **Exercises.** (1) Print the kernels of `turned` for a `x` of 3000 × 3000 whose result must be contiguous
# (`.contiguous()` at the end): no order of loops pleases both sides. What does the code generator do? (2) Let `FastMath`
# set only `["nnan"]`, then only `["reassoc"]`: which one breaks `cleaned`? (3) Which of the programs above would change
# its bits if `Tune.block` were 256, and which would not?
#
# **Next:** 10, the same loops on a graphics processor.

# %%
# Optional: what PyTorch's compiler makes of the same function (C++ instead of Python text).
try:
    import torch as real
    from torch._inductor.utils import run_and_get_code
except ImportError:
    print("PyTorch is not installed here: nothing to compare with")
else:
    try:
        _, codes = run_and_get_code(real.compile(turned), real.randn(200, 100), real.randn(200))
        print(codes[0][codes[0].find('extern "C"') :][:1200])
    except Exception as e:
        print("PyTorch could not compile here:", type(e).__name__)
