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
# # 10 CUDA kernels
#
# A graphics processor runs ten thousand threads of one program. The loops of tutorial 08 become CUDA C++ here: which loop
# turns into blocks, which into threads, and what threads must do to hear of one another. You need no such processor. An
# *emulator* compiles the very same text with a C++ compiler and runs its threads on the CPU, one switch at a time; and it
# watches every access to memory, which a real device would not.
#
# Files to have open: `codegen_cupy/choice.py` (which loop becomes what), `pointwise.py` and `rows.py` (the text),
# `gemm.cuh` and `gemm_tiles.cuh` (products), `emulate/device.h` and `emulate/runtime.cpp` (the machine).
#
# **Predict.** `gate` works on 1000 × 1000 numbers. With 128 threads a block and one element a thread, how many blocks?
# Which row and column belong to thread 5 of block 9? And why might a thread want *four* neighbours?

# %%
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import tinytorch as torch
import tinytorch.nn.functional as F
from codegen_cupy import build, emulate
from codegen_cupy.host import Launch
from compiler.aot.joint import trace
from compiler.config import Config
from compiler.loop import compile_graph

assert emulate.available(), "the emulator needs a C++20 compiler: g++ or clang++"


def gate(x, b):
    return torch.tanh(x * 2 + b) * x


def program_of(fn, *args):
    """A function as CUDA kernels, run by the emulator."""
    return build(compile_graph(trace(fn, list(args)), Config()), Config().replace({"cuda_emulate": True}))


def launches_of(program):
    return [step for step in program.recipe().steps if isinstance(step, Launch)]


def kernel_text(launch):
    """The kernel without the helper functions that stand before it."""
    text = launch.source.text
    return text[text.index('extern "C"') :].rstrip()


torch.manual_seed(0)
x, b = torch.randn(1000, 1000), torch.randn(1000)
program = program_of(gate, x, b)
(launch,) = launches_of(program)
print(kernel_text(launch))
print("\ngrid", launch.grid, "block", launch.source.block)
np.testing.assert_allclose(program([x.numpy(), b.numpy()])[0], gate(x, b).numpy(), rtol=1e-5, atol=1e-6)

# %% [markdown]
# **Explain.** Each thread works out from `blockIdx` and `threadIdx` which elements are its own. The loop at the top steps
# by the whole grid: here it runs once, or not at all for the last threads, since the grid is a whole number of blocks; on
# a tensor too large for one grid it would run more often.
#
# The memory delivers in pieces of 32 bytes and more. If the 32 threads of a *warp* ask for neighbours, they are served by
# a few pieces ("coalesced"). If each thread takes four neighbours in one go (`Pack<float, 4>`, 16 bytes), there are fewer
# instructions for the same bytes.
#
# **Question.** What does `b` cost? Look at which of the two indices it depends on.
#
# ## Threads that talk
#
# The sum of a row by many threads: each adds up its share, then the shares must meet. There are two places to meet:
#
# - the 32 lanes of a warp read each other's registers (`__shfl_xor_sync`): five steps, a butterfly;
# - the warps of a block write to *shared memory*, wait for each other at `__syncthreads()`, and read.
#
# **Predict.** How many barriers does a softmax over rows of 1000 elements need, by 64 threads a row?

# %%


def softmax(x):
    return torch.softmax(x, -1)


rows = torch.randn(6, 1000)
program = program_of(softmax, torch.randn(300, 1000))
(launch,) = launches_of(program)
print(kernel_text(launch))
print("\ngrid", launch.grid, "block", launch.source.block)
barriers = launch.source.text.count("__syncthreads();")

# %% [markdown]
# Read it from the top. A thread loads its part of the row *once* and keeps it in registers (`v1_row`). Maximum: in the
# thread, in the warp, in the block. Then the sum of exponentials, the same way, from registers; then the quotients. The
# row crosses the bus once each way.
#
# To run this kernel by hand, hand its text to the emulator: a grid, a block, arrays.


# %%
def run_rows(text, x, *, check=True, backwards=False):
    """The softmax kernel above with ``text`` in place of its own, on the rows of ``x``."""
    y = np.zeros_like(x)
    kernel = emulate.compile_kernel(text, launch.source.name, check=check)
    kernel((len(x),), launch.source.block, [x, y], backwards=backwards)
    return y


y = run_rows(launch.source.text, rows.numpy())
print("largest difference from eager:", np.abs(y - softmax(rows).numpy()).max())
assert np.array_equal(y, run_rows(launch.source.text, rows.numpy(), backwards=True))

# %% [markdown]
# `backwards=True` lets the threads run in the opposite order. A kernel that is right cannot tell.
#
# ## Break it: take a barrier away
#
# On a real device, a missing `__syncthreads()` is the worst kind of fault: the result is right nearly always. Under the
# check, it is an error that names the line. **Predict** which line: the one where the barrier is missing?

# %%
pieces = launch.source.text.split("__syncthreads();")
for missing in range(barriers):
    left, right = pieces[: missing + 1], pieces[missing + 1 :]
    broken = "__syncthreads();".join(left) + "/* gone */" + "__syncthreads();".join(right)
    try:
        run_rows(broken, rows.numpy())
    except emulate.EmulationError as e:
        print(f"without barrier {missing + 1} of {barriers}:\n   {e}")
    else:
        raise RuntimeError("a barrier that nobody needs")

# %% [markdown]
# It names the line *after* the gap: the read of a word that another warp had not written yet. The emulator remembers for
# each byte who wrote it, and in which interval between barriers. A read of another thread's word without a barrier
# between is a race, whether or not it happened to go well this time.
#
# A kernel in which the value is there but *old* is told apart. Each round reuses the same shared word; one barrier
# guards the reading, another must guard the next writing:

# %%
ROUNDS = """
extern "C" __global__ void running_total(const float* x, float* y, int rounds) {
    __shared__ float held[64];
    float total = 0.0f;
    for (int r = 0; r < rounds; ++r) {
        held[threadIdx.x] = x[64 * r + threadIdx.x];
        __syncthreads();
        total += held[63 - threadIdx.x];
        __syncthreads();
    }
    y[threadIdx.x] = total;
}
"""


def running_total(text, x):
    y = np.zeros(64, np.float32)
    emulate.compile_kernel(text, "running_total", check=True)((1,), (64,), [x, y, np.int32(len(x))])
    return y


many = np.random.default_rng(0).normal(size=(5, 64)).astype(np.float32)
np.testing.assert_allclose(running_total(ROUNDS, many), many.sum(0)[::-1], rtol=1e-5, atol=1e-6)
second = ROUNDS.rindex("        __syncthreads();")
try:
    running_total(ROUNDS[:second] + "\n" + ROUNDS[second + len("        __syncthreads();\n") :], many)
except emulate.EmulationError as e:
    print(e)
else:
    raise RuntimeError("the race was not seen")

# %% [markdown]
# Two lines, two threads: the writer of the next round and the reader of this one. Three more things that no device
# forgives, and none reports by itself:

# %%
FAULTS = {
    "stray": """
extern "C" __global__ void stray(float* x) {
    x[blockIdx.x * blockDim.x + threadIdx.x] = 1.0f;  // who checks the end?
}""",
    "lonely": """
extern "C" __global__ void lonely(float* x) {
    if (threadIdx.x < 20) x[threadIdx.x] = __shfl_xor_sync(0xffffffffu, x[threadIdx.x], 1);  // 12 lanes never come
}""",
    "counting": """
extern "C" __global__ void counting(float* x) {
    x[0] = x[0] + 1.0f;  // everybody at once
}""",
}
for name, text in FAULTS.items():
    try:
        emulate.compile_kernel(text, name, check=True)((2,), (32,), [np.zeros(60, np.float32)])
    except emulate.EmulationError as e:
        print(e, "\n")
    else:
        raise RuntimeError(f"{name} went unnoticed")

# %% [markdown]
# ## Online softmax
#
# Keeping the row in registers ends when the row is too long. Softmax then seems to need three passes: maximum, sum,
# quotient. The first two can be one. Carry a pair: the maximum `m` so far and the sum `s` of `exp(x - m)` so far. A new
# maximum rescales the old sum; and two pairs of two threads join by the same rule:
#
# $(m_1, s_1) \circ (m_2, s_2) = (m,\; s_1 e^{m_1 - m} + s_2 e^{m_2 - m}), \quad m = \max(m_1, m_2)$
#
# The rule is associative, so the butterfly may use it. Here it is, whole: one block a row.

# %%
ONLINE = """
struct Pair { float m, s; };
__device__ __forceinline__ Pair join(Pair a, Pair b) {
    float m = a.m > b.m ? a.m : b.m;
    if (m == __int_as_float(0xff800000)) return a;  // both saw nothing, and -inf + inf is NaN
    return {m, a.s * expf(a.m - m) + b.s * expf(b.m - m)};
}
extern "C" __global__ void online_softmax(const float* x, float* y, int n) {
    __shared__ Pair warps[4];
    x += (long long)n * blockIdx.x;
    y += (long long)n * blockIdx.x;
    Pair mine = {__int_as_float(0xff800000), 0.0f};
    for (int i = threadIdx.x; i < n; i += blockDim.x) mine = join(mine, {x[i], 1.0f});
    for (int d = 16; d > 0; d /= 2) {
        Pair other = {__shfl_xor_sync(0xffffffffu, mine.m, d), __shfl_xor_sync(0xffffffffu, mine.s, d)};
        mine = join(mine, other);
    }
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = mine;
    __syncthreads();
    mine = warps[0];
    for (int w = 1; w < 4; ++w) mine = join(mine, warps[w]);
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = expf(x[i] - mine.m) / mine.s;
}
"""
kernel = emulate.compile_kernel(ONLINE, "online_softmax", check=True)


def online(x, *, backwards=False):
    y = np.zeros_like(x)
    kernel((len(x),), (128,), [x, y, np.int32(x.shape[1])], backwards=backwards)
    return y


print("largest difference from eager:", np.abs(online(rows.numpy()) - softmax(rows).numpy()).max())

# %% [markdown]
# The compiler finds this by itself: `codegen_cupy/online.py` looks for a maximum and a sum of exponentials that depends
# on it, and joins the two loops. Rows that fit into registers, of one block or of several that share a row, take two plain
# passes all the same (`twopass.py`: the second pass costs no memory traffic, and no rescaling). But a cross entropy wants no
# more of its logits than these two numbers, and one logit: of a row this long it keeps nothing, and the pair is a
# type of its own. See the lines that mention it:

# %%
logits, classes = torch.zeros(300, 40_000), torch.zeros(300, dtype=torch.int64)
row_losses, *_ = launches_of(program_of(F.cross_entropy, logits, classes))
pair = [line for line in kernel_text(row_losses).splitlines() if "a1" in line]
print("\n".join(pair))
assert any("ExpSum" in line for line in pair)

# %% [markdown]
# **Break it.** Leave out the line that says "both saw nothing". For which row lengths do NaNs appear, and why not for 1000? Predict, then
# look:

# %%
careless = "\n".join(line for line in ONLINE.splitlines() if "both saw nothing" not in line)
careless_kernel = emulate.compile_kernel(careless, "online_softmax")
for n in (1, 31, 100, 128, 1000):
    x1, y1 = np.ones((1, n), np.float32), np.zeros((1, n), np.float32)
    careless_kernel((1,), (128,), [x1, y1, np.int32(n)])
    print(f"row of {n:4}: {int(np.isnan(y1).sum())} NaNs")

# %% [markdown]
# A thread with no element holds the pair of nothing, $(-\infty, 0)$. Joining two such pairs computes $-\infty + \infty$.
# And the very first `join` of each thread joins nothing with something: is that one safe? (Yes: $e^{-\infty} = 0$.)
#
# ## A product, tile by tile
#
# Matrix products go to a library, but not all: a convolution is a product whose right factor lies nowhere. Its element
# (channel and place in the window; pixel) is one number of the image, found by arithmetic. So the kernel below makes a
# tile of the result per block, as any product does, and *gathers* the tiles of the windows while it runs. What the program
# does with the result next, here a bias and a ReLU, happens before the result ever reaches memory.
#
# **Predict.** Which of the two operands can be copied 16 bytes at a time, which cannot, and why?

# %%


def layer(x, w, b):
    return F.relu(F.conv2d(x, w, b, padding=1))


images, weights, bias = torch.randn(2, 8, 10, 10), torch.randn(16, 8, 3, 3), torch.randn(16)
program = program_of(layer, images, weights, bias)
(conv_launch,) = launches_of(program)
print(kernel_text(conv_launch))
made = program([images.numpy(), weights.numpy(), bias.numpy()])[0]
np.testing.assert_allclose(made, layer(images, weights, bias).numpy(), rtol=1e-4, atol=1e-5)

# %% [markdown]
# `from_A` is *copied*: a row of the weights, $8 \cdot 3 \cdot 3 = 72$ numbers, begins and ends at a multiple of 16 bytes. `from_B` is
# *gathered*: windows begin anywhere. `sum_products` (`gemm.cuh`) is the loop: tiles arrive `STAGES - 1` steps before they are
# needed, in a ring, and one barrier a step is enough. Why? The slot that is filled now is the one that all threads left
# before the barrier.
#
# Channels of one pixel are cut by no window. So where there is much to gather, in half types, the image is first copied with its
# channels last, and `from_B` is copied too, eight channels at once (`channels_last.py`).
#
# Shared memory has 32 banks of 4 bytes, and lanes that ask for different words of one bank wait for each other. Eight lanes
# read 16 bytes each of one column of a tile, from eight lines. **Predict** how long they take if lines of 128 bytes lie one
# behind the other.

# %%


def rounds(place):
    """Passes that eight lanes need to read chunk 3 of lines 0 to 7, 16 bytes each: the fullest bank decides."""
    banks = [(place(line, 3) * 4 + word) % 32 for line in range(8) for word in range(4)]
    return max(banks.count(n) for n in banks)


print("as they lie:", rounds(lambda line, chunk: 8 * line + chunk))
print("chunks changing places (`spot` in gemm_tiles.cuh):", rounds(lambda line, chunk: 8 * line + (chunk ^ line % 8)))

# %% [markdown]
# ## Four warps, one instruction
#
# A multiprocessor's *tensor cores* do nothing but multiply small matrices. On Hopper (H100, H200) they fetch their operands
# from shared memory by themselves. One instruction, `wgmma`, multiplies 64 × 16 numbers by 16 × 64 for a group of four
# warps, and those may do something else meanwhile: attention computes exponentials. What the threads hand over is no number
# but a *descriptor*, 64 bits that say where a panel lies:
#
# | bits | what | here |
# |---|---|---|
# | 0–13 | address of the first number, in units of 16 bytes | |
# | 16–29 | way to the columns beyond the panel, likewise | nothing lies there |
# | 32–45 | way from eight rows to the next eight, likewise | 8 rows of 128 bytes |
# | 62–63 | the order within eight rows | 1: chunk `c` of row `r` in place `c ^ r % 8` |
#
# So the order that spared us bank conflicts has a name in hardware. A product over 64 columns takes four steps of 16.
# **Predict** what the descriptor of the second step looks like. Its chunks, 2 and 3, lie elsewhere in every row!

# %%


def descriptor(address, stride=1024):
    return address // 16 | 1 << 16 | stride // 16 << 32 | 1 << 62


def looks_at(d, row, column):
    """The address at which the tensor cores look for a number of two bytes."""
    plain = (d & 0x3FFF) * 16 + row // 8 * (d >> 32 & 0x3FFF) * 16 + row % 8 * 128 + column * 2
    return plain ^ (plain >> 7 & 7) << 4  # the row's last three bits change the chunk


matrix, home = np.arange(64 * 64).reshape(64, 64), 3 * 1024
shared = np.full(16 * 1024, -1)
for row, column in np.ndindex(64, 64):
    shared[home // 2 + row * 64 + (column // 8 ^ row % 8) * 8 + column % 8] = matrix[row, column]
for step in range(4):
    d = descriptor(home + 32 * step)
    seen = [[shared[looks_at(d, r, c) // 2] for c in range(16)] for r in range(64)]
    assert (seen == matrix[:, 16 * step : 16 * step + 16]).all()
    print(f"step {step}: {d:#018x}")

# %% [markdown]
# 32 bytes further, as if nothing were exchanged: the exclusive or comes last, on the finished address. That is also why
# a panel has to begin at a multiple of 1024 bytes. **Try** `home = 3 * 1024 + 128`. And if the sum runs over *rows* of the
# panel (weights times values, in attention): by how many bytes does a step move on? `panel_place` in `tensor_cores.cuh`
# and its use below it have the answer.
#
# ## Property test
#
# The claim: *rows of any length, threads in any order, no race, and NumPy's result.*

# %%


@settings(deadline=None, max_examples=25, database=None)
@given(st.integers(1, 3), st.integers(1, 300), st.integers(0, 2**32 - 1), st.sampled_from([1.0, 50.0]), st.booleans())
def any_row(count, n, seed, scale, backwards):
    x = (np.random.default_rng(seed).normal(size=(count, n)) * scale).astype(np.float32)
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    np.testing.assert_allclose(online(x, backwards=backwards), e / e.sum(1, keepdims=True), rtol=1e-4, atol=1e-7)


any_row()
print("25 random matrices: no race, in either order of threads, and the right numbers")

# %% [markdown]
# **Exercises.** (1) The kernel `running_total` needs two barriers a round. With two arrays `held[2][64]`, used in turn,
# one is enough. Write it and let the check judge. (2) Replace the loop over `warps` by a second butterfly. Which lanes must
# take part? (3) The emulator says nothing about speed. What could it count that would? (Think of the pieces of 32 bytes
# that the lanes of a warp ask for.)
#
# **Next:** 11, where numbers for `team`, `vector` and `threads` come from.

# %%
# Optional: the real compiler for the real device (NVRTC needs no GPU), and PyTorch's softmax.
from codegen_cupy import nvrtc  # noqa: E402

if nvrtc.available():
    print("NVRTC", nvrtc.version(), "compiles the same text:", len(nvrtc.compile_text(launch.source.text, "sm_80")), "bytes")
else:
    print("NVRTC is not installed here")
try:
    import torch as real
except ImportError:
    print("PyTorch is not installed here: nothing to compare with")
else:
    print("from PyTorch:", float((real.softmax(real.tensor(rows.numpy()), -1) - real.tensor(y)).abs().max()))
