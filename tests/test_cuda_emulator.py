"""The emulated CUDA machine itself: what threads, warps, barriers and atomics do, and what the race check finds."""

from __future__ import annotations

import numpy as np
import pytest

from codegen_cupy import emulate

pytestmark = pytest.mark.skipif(not emulate.available(), reason="no C++ compiler")


def run(text: str, name: str, grid: int | tuple[int, ...], block: int, *args: object, check: bool = True, backwards: bool = False) -> None:
    emulate.compile_kernel(text, name, check=check)(grid if isinstance(grid, tuple) else (grid,), (block,), args, backwards=backwards)


REVERSE = """
extern "C" __global__ void reverse(const float* x, float* y) {
    __shared__ float held[64];
    held[threadIdx.x] = x[threadIdx.x];
    BARRIER
    y[threadIdx.x] = held[63 - threadIdx.x];
}
"""


def test_a_barrier_makes_shared_memory_visible() -> None:
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    run(REVERSE.replace("BARRIER", "__syncthreads();"), "reverse", 1, 64, x, y)
    np.testing.assert_array_equal(y, x[::-1])


@pytest.mark.parametrize("backwards", [False, True])
def test_a_missing_barrier_is_a_race_with_both_lines(backwards: bool) -> None:
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    with pytest.raises(emulate.EmulationError) as e:
        run(REVERSE.replace("BARRIER", ""), "reverse", 1, 64, x, y, backwards=backwards)
    text = str(e.value)
    assert "race in shared memory" in text or "before anything is written" in text
    assert "reverse.cu:" in text and "held[" in text


def test_a_race_between_blocks() -> None:
    text = """
extern "C" __global__ void count(int* total) { if (threadIdx.x == 0) total[0] = total[0] + 1; }
"""
    with pytest.raises(emulate.EmulationError, match=r"race in global memory.*nothing orders the two blocks"):
        run(text, "count", 2, 32, np.zeros(1, np.int32))


def test_atomics_count_right() -> None:
    text = 'extern "C" __global__ void count(int* total) { atomicAdd(total, 1); }'
    total = np.zeros(1, np.int32)
    run(text, "count", 3, 50, total)
    assert total[0] == 150


def test_the_last_block_sees_what_the_others_published() -> None:
    text = """
extern "C" __global__ void add_up(const float* x, float* parts, unsigned* arrived, float* y) {
    __shared__ bool last;
    if (threadIdx.x == 0) parts[blockIdx.x] = x[blockIdx.x];
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(arrived, 1u) == gridDim.x - 1;
    __syncthreads();
    if (last && threadIdx.x == 0) { float s = 0; for (int b = 0; b < gridDim.x; ++b) s += parts[b]; *y = s; }
}
"""
    x, y = np.arange(5, dtype=np.float32), np.zeros(1, np.float32)
    run(text, "add_up", 5, 32, x, np.zeros(5, np.float32), np.zeros(1, np.uint32), y)
    assert y[0] == 10


@pytest.mark.parametrize("index", [64, -1, 10**6])
def test_an_access_outside_of_all_buffers_is_named(index: int) -> None:
    text = f'extern "C" __global__ void stray(float* x) {{\n    if (threadIdx.x == 3) x[{index}] = 1.0f;\n}}'
    with pytest.raises(emulate.EmulationError, match=r"out of bounds: thread \(3, 0, 0\).*stray\.cu:2"):
        run(text, "stray", 1, 32, np.zeros(64, np.float32))


NARROW = """
extern "C" __global__ void raise_last(short* x) {
    unsigned* word = (unsigned*)((size_t)(x + 2) & ~(size_t)3);
    unsigned seen = peek(word);
    atomicCAS(word + OFF, seen, seen + 1);
}
"""


def test_the_word_around_a_narrow_element_may_reach_beyond_its_buffer() -> None:
    x = np.zeros(4, np.int16)
    run(NARROW.replace("OFF", "0"), "raise_last", 1, 1, x[:3])
    assert x[2] == 1
    with pytest.raises(emulate.EmulationError, match="out of bounds"):
        run(NARROW.replace("OFF", "1"), "raise_last", 1, 1, x[:3])


def test_shared_memory_starts_undefined() -> None:
    text = """
extern "C" __global__ void peek_first(float* y) {
    __shared__ float s[32];
    if (threadIdx.x < 16) s[threadIdx.x] = 1.0f;
    __syncthreads();
    y[threadIdx.x] = s[threadIdx.x];
}
"""
    y = np.zeros(32, np.float32)
    with pytest.raises(emulate.EmulationError, match="read before anything is written"):
        run(text, "peek_first", 1, 32, y)
    run(text, "peek_first", 1, 32, y, check=False)
    assert (y[:16] == 1).all() and np.isnan(y[16:]).all()


def test_what_lies_between_the_members_of_a_structure_may_be_undefined() -> None:
    text = """
struct Ranked { short value; long long index; };
extern "C" __global__ void ranked(long long* y) {
    __shared__ Ranked s[32];
    s[threadIdx.x].value = 1;
    s[threadIdx.x].index = threadIdx.x;
    __syncthreads();
    Ranked r = s[31 - threadIdx.x];
    __syncthreads();
    s[threadIdx.x] = r;
    y[threadIdx.x] = s[threadIdx.x].index;
}
"""
    y = np.zeros(32, np.int64)
    run(text, "ranked", 1, 32, y)
    np.testing.assert_array_equal(y, np.arange(32)[::-1])


def test_shuffles_and_votes() -> None:
    text = """
extern "C" __global__ void warp(int* out) {
    int lane = threadIdx.x % 32, n = threadIdx.x;
    out[n] = __shfl_xor_sync(0xffffffffu, n, 5);
    out[64 + n] = __shfl_up_sync(0xffffffffu, n, 3);
    out[128 + n] = __shfl_down_sync(0xffffffffu, n, 2, 8);
    out[192 + n] = __shfl_sync(0xffffffffu, n, 7);
    out[256 + n] = __ballot_sync(0xffffffffu, lane % 3 == 0);
    out[320 + n] = __any_sync(0xffffffffu, lane == 40) * 2 + __all_sync(0xffffffffu, lane < 32);
}
"""
    out = np.zeros(384, np.int32)
    run(text, "warp", 1, 64, out)
    n = np.arange(64)
    lane, warp = n % 32, n // 32 * 32
    np.testing.assert_array_equal(out[:64], n ^ 5)
    np.testing.assert_array_equal(out[64:128], np.where(lane >= 3, n - 3, n))
    np.testing.assert_array_equal(out[128:192], np.where(lane % 8 + 2 < 8, n + 2, n))
    np.testing.assert_array_equal(out[192:256], warp + 7)
    votes = sum(1 << i for i in range(0, 32, 3))
    assert set(out[256:320].astype(np.uint32).tolist()) == {votes}
    assert set(out[320:].tolist()) == {1}


def test_a_warp_operation_that_some_lanes_never_reach() -> None:
    text = """
extern "C" __global__ void diverged(int* out) {
    if (threadIdx.x < 16) out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, (int)threadIdx.x, 1);
    __syncthreads();
}
"""
    with pytest.raises(emulate.EmulationError, match="deadlock"):
        run(text, "diverged", 1, 32, np.zeros(32, np.int32))


def test_a_lane_that_left_before_a_warp_operation() -> None:
    text = """
extern "C" __global__ void left(int* out) {
    if (threadIdx.x == 5) return;
    out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, (int)threadIdx.x, 1);
}
"""
    with pytest.raises(emulate.EmulationError, match="left the kernel"):
        run(text, "left", 1, 32, np.zeros(32, np.int32))


def test_two_and_three_dimensional_launches() -> None:
    text = """
extern "C" __global__ void where_am_i(int* out) {
    int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    out[block * (blockDim.x * blockDim.y * blockDim.z) + thread] = 1000 * block + thread;
}
"""
    out = np.full(2 * 3 * 2 * 24, -1, np.int32)
    kernel = emulate.compile_kernel(text, "where_am_i", check=True)
    kernel((2, 3, 2), (4, 3, 2), [out])
    np.testing.assert_array_equal(out, [1000 * b + t for b in range(12) for t in range(24)])


def test_a_text_that_is_no_cxx_is_refused_with_the_compilers_words() -> None:
    with pytest.raises(emulate.EmulationError, match="refused"):
        emulate.compile_kernel('extern "C" __global__ void broken(float* x) { x[0] = nonsense; }', "broken")


def test_a_warp_exchange_orders_no_memory() -> None:
    """As CUDA says: a shuffle is no memory barrier, ``__syncwarp`` is."""
    text = """
extern "C" __global__ void swap(int* out) {
    __shared__ int held[32];
    held[threadIdx.x] = threadIdx.x;
    ORDER
    out[threadIdx.x] = held[31 - threadIdx.x];
}
"""
    out = np.zeros(32, np.int32)
    run(text.replace("ORDER", "__syncwarp();"), "swap", 1, 32, out)
    np.testing.assert_array_equal(out, np.arange(32)[::-1])
    with pytest.raises(emulate.EmulationError, match="race in shared memory"):
        run(text.replace("ORDER", "__shfl_xor_sync(0xffffffffu, 1, 1);"), "swap", 1, 32, out)


SWAP = """
extern "C" __global__ void __cluster_dims__(1, 2, 1) swap(const int* x, int* y) {
    __shared__ int held[32];
    FIRST
    tt_store_in_block(held + threadIdx.x, 1 - blockIdx.y, x + blockIdx.y * 32 + threadIdx.x, 4);
    SECOND
    y[blockIdx.y * 32 + threadIdx.x] = held[31 - threadIdx.x];
}
"""
MEET = "tt_cluster_arrive(); tt_cluster_wait();"


def swap(first: str, second: str, *, backwards: bool = False) -> np.ndarray:
    y = np.zeros(64, np.int32)
    run(SWAP.replace("FIRST", first).replace("SECOND", second), "swap", (1, 2), 32, np.arange(64, dtype=np.int32), y, backwards=backwards)
    return y


@pytest.mark.parametrize("backwards", [False, True])
def test_blocks_of_a_cluster_write_into_each_others_shared_memory(backwards: bool) -> None:
    np.testing.assert_array_equal(swap(MEET, MEET, backwards=backwards), np.arange(64)[::-1])


@pytest.mark.parametrize(("first", "second", "words"), [
    ("", MEET, "may not run yet"), (MEET, "", "before anything is written|race in shared memory"), (MEET, "__syncthreads();", "written|race"),
    (MEET, "tt_cluster_wait();", "without having arrived"), ("tt_cluster_arrive();" * 2, MEET, "twice"),
    (MEET, "if (blockIdx.y == 0) {" + MEET + "}", "race|written|left"),
])  # fmt: skip
def test_what_a_cluster_must_not_do(first: str, second: str, words: str) -> None:
    with pytest.raises(emulate.EmulationError, match=words):
        swap(first, second)


def test_a_grid_is_made_of_whole_clusters() -> None:
    with pytest.raises(emulate.EmulationError, match="whole clusters"):
        run(SWAP.replace("FIRST", MEET).replace("SECOND", MEET), "swap", (1, 3), 32, np.zeros(96, np.int32), np.zeros(96, np.int32))
