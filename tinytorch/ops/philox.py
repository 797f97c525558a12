"""Philox 4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3; SC 2011), on whole arrays.

Stage: eager.  In: a seed and places in its stream.  Out: 32 random bits for each place, or what is made of them.  NumPy does
the ten rounds by array operations, block by block; a GPU by one kernel, with the function that compiled kernels call.
Read next: ``random`` (the rows), ``rng`` (who asks for random words).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_LOW, _KEY = 0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF

#: The function in CUDA, for eager's kernel here and for compiled ones, which take it as two of their helpers.
DEVICE_TEXT = """
//: philox_words
// Philox 4x32-10 (Salmon et al., 2011), key = seed, counter in the low 64 bits.
struct PhiloxWords { unsigned at[4]; };
__device__ __forceinline__ PhiloxWords philox_words(long long seed, long long counter) {
    unsigned c0 = (unsigned)counter, c1 = (unsigned)((unsigned long long)counter >> 32), c2 = 0, c3 = 0;
    unsigned k0 = (unsigned)seed, k1 = (unsigned)((unsigned long long)seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        unsigned long long a = 0xD2511F53ull * c0, b = 0xCD9E8D57ull * c2;  // one wide multiplication each
        c0 = (unsigned)(b >> 32) ^ c1 ^ k0; c1 = (unsigned)b; c2 = (unsigned)(a >> 32) ^ c3 ^ k1; c3 = (unsigned)a;
        k0 += 0x9E3779B9u; k1 += 0xBB67AE85u;
    }
    PhiloxWords out;
    out.at[0] = c0; out.at[1] = c1; out.at[2] = c2; out.at[3] = c3;
    return out;
}

//: philox
__device__ __forceinline__ unsigned philox(long long seed, long long counter, long long lane) {
    PhiloxWords w = philox_words(seed, counter);
    return lane < 2 ? (lane == 0 ? w.at[0] : w.at[1]) : (lane == 2 ? w.at[2] : w.at[3]);
}
"""


@dataclass(frozen=True)
class Draw:
    """What is made of a word: its type, by NumPy from an array of words, and in CUDA from ``w``."""

    name: str
    dtype: Any
    of: Callable[[Any], Any]
    ctype: str
    text: str


WORD = Draw("word", np.uint32, lambda words: words, "unsigned", "w")
LONG = Draw("long", np.int64, lambda words: words.astype(np.int64), "long long", "w")
#: the top 24 bits, as a multiple of 2**-24 in [0, 1)
UNIFORM = Draw(
    "uniform", np.float32, lambda words: (words >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24),
    "float", "(float)(w >> 8) * 5.9604644775390625e-08f",
)  # fmt: skip


# --- by array operations ----------------------------------------------------------------------------------------------
def block(xp: Any, seed: Any, counter: Any) -> tuple[Any, Any, Any, Any]:
    """The four uint32 words of each 64-bit counter, as uint64 arrays; ``seed`` is the 64-bit key."""
    low = xp.uint64(_LOW)
    half = xp.uint64(32)
    counter = xp.asarray(counter).astype(xp.uint64)
    key = int(seed) & _KEY
    k0, k1 = key & _LOW, key >> 32
    c0, c1 = counter & low, counter >> half
    c2 = c3 = xp.zeros_like(c0)
    for _ in range(10):
        p0, p1 = c0 * xp.uint64(_M0), c2 * xp.uint64(_M1)
        c0, c1, c2, c3 = (p1 >> half) ^ c1 ^ xp.uint64(k0), p1 & low, (p0 >> half) ^ c3 ^ xp.uint64(k1), p0 & low
        k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW
    return c0, c1, c2, c3


def draw_at(xp: Any, seed: Any, counter: Any, lane: Any, draw: Draw = WORD) -> Any:
    """Of word ``lane`` (0..3) of the block at each ``counter``; with WORD, the scalar vocabulary's meaning of ``philox``."""
    if xp is not np:
        return _device_draw_at(xp, seed, counter, lane, draw)
    words = np.stack(np.broadcast_arrays(*block(np, seed, counter)))
    lanes = np.broadcast_to(np.asarray(lane), words.shape[1:])
    return draw.of(np.take_along_axis(words, lanes[None], 0)[0].astype(np.uint32))


def fill(xp: Any, seed: int, offset: int, numel: int, draw: Draw = WORD) -> Any:
    """``numel`` draws in a row: element i is of lane ``i % 4`` of counter ``offset + i // 4``."""
    if xp is not np:
        return _device_fill(xp, seed, offset, numel, draw)
    blocks, step = (numel + 3) // 4, 1 << 12  # the rounds stay in the cache
    words = np.empty((blocks, 4), np.uint32)
    for start in range(0, blocks, step):
        stop = min(start + step, blocks)
        made = block(np, seed, np.arange(offset + start, offset + stop, dtype=np.int64))
        for lane, word in enumerate(made):
            words[start:stop, lane] = word
    return draw.of(words.reshape(-1)[:numel])


# --- by one kernel ----------------------------------------------------------------------------------------------------
_THREADS = 256
_FILL = """
struct alignas(16) Four { TYPE at[4]; };
extern "C" __global__ void NAME(long long seed, long long first, long long numel, TYPE* out) {
    const long long block = (long long)blockIdx.x * blockDim.x + threadIdx.x, place = 4 * block;
    if (place >= numel) return;
    const PhiloxWords words = philox_words(seed, first + block);
    Four made;
#pragma unroll
    for (int lane = 0; lane < 4; ++lane) { const unsigned w = words.at[lane]; made.at[lane] = VALUE; }
    if (numel - place >= 4) { *(Four*)(out + place) = made; return; }
#pragma unroll
    for (int lane = 0; lane < 3; ++lane) if (place + lane < numel) out[place + lane] = made.at[lane];
}
"""
_DRAW_AT = """
extern "C" __global__ void NAME(long long seed, const long long* counter, const long long* lane, long long numel, TYPE* out) {
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= numel) return;
    const unsigned w = philox(seed, counter[i], lane[i]);
    out[i] = VALUE;
}
"""


@cache
def _kernel(xp: Any, text: str, name: str, draw: Draw) -> Any:
    own = text.replace("NAME", name).replace("TYPE", draw.ctype).replace("VALUE", draw.text)
    return xp.RawKernel(f"{DEVICE_TEXT}{own}", name)


def _signed(n: Any) -> np.int64:
    """The 64 bits of a number."""
    return np.uint64(int(n) & _KEY).astype(np.int64)  # type: ignore[no-any-return]


def _device_fill(xp: Any, seed: Any, offset: Any, numel: int, draw: Draw) -> Any:
    out = xp.empty(numel, draw.dtype)
    if numel:  # a grid of nothing is an error
        run = _kernel(xp, _FILL, f"philox_fill_{draw.name}", draw)
        run((-(-numel // (4 * _THREADS)),), (_THREADS,), (_signed(seed), _signed(offset), np.int64(numel), out))
    return out


def _device_draw_at(xp: Any, seed: Any, counter: Any, lane: Any, draw: Draw) -> Any:
    shape = np.broadcast_shapes(*(getattr(x, "shape", ()) for x in (counter, lane)))
    places = [xp.ascontiguousarray(xp.broadcast_to(xp.asarray(x, np.int64), shape)) for x in (counter, lane)]
    out = xp.empty(shape, draw.dtype)
    if out.size:
        run = _kernel(xp, _DRAW_AT, f"philox_at_{draw.name}", draw)
        run((-(-out.size // _THREADS),), (_THREADS,), (_signed(seed), *places, np.int64(out.size), out))
    return out
