"""What the CUDA codegen makes of a nest before it writes it, and the schedules a tuner may choose: all give the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import cuda_cases as cases
import numpy as np
import pytest
from test_cuda_kernels import arguments, close, emulate_kernel, needs_compiler, needs_nvrtc

import tinytorch as torch
from codegen_cupy import emulate, machine, nvrtc, row_schedules, schedule, sources, tune
from codegen_cupy.nest import Nest, changing, nests
from codegen_cupy.onehot import closed
from codegen_cupy.online import online
from codegen_cupy.schedule import Schedule, Situation, inner_loops
from compiler.config import config
from compiler.loop import build, interp
from compiler.loop.build import KernelRecorder, kernel
from compiler.loop.ir import Kernel, Store
from tinytorch.dtypes import bfloat16, bool_, float32, int64


def check(k: Kernel, start: list[np.ndarray]) -> None:
    want, got = [a.copy() for a in start], [a.copy() for a in start]
    with np.errstate(all="ignore"):
        interp.run_kernel(k, want)
    emulate_kernel(k, got)
    for b, g, w in zip(k.params, got, want, strict=True):
        close(g, w, b.dtype)


def test_a_sum_over_a_one_hot_row_needs_no_loop() -> None:
    nest = nests(cases.cross_entropy_backward(4, 1000))[0]
    assert [x.kind for x in inner_loops(closed(nest))] == ["map"]


@needs_compiler
def test_one_hot_sums_of_targets_inside_and_outside_of_the_row() -> None:
    k = cases.cross_entropy_backward(5, 40)
    start = arguments(k)
    start[0][:] = [0, 39, 17, -100, 40]
    check(k, start)


def test_a_sum_that_is_not_one_hot_keeps_its_loop() -> None:
    for make in (lambda: cases.softmax(float32, 4, 64), lambda: cases.layer_norm(float32, 4, 64)):
        nest = nests(make())[0]
        assert closed(nest) == nest


def test_softmax_becomes_two_loops_that_store_once() -> None:
    nest = online(nests(cases.softmax_as_defined(4, 64))[0])
    assert [x.kind for x in inner_loops(nest)] == ["reduce", "map"]
    assert sum(isinstance(s, Store) for x in inner_loops(nest) for s in x.body) == 1


@needs_compiler
@pytest.mark.parametrize("n", [64, 20000])
def test_rows_with_infinities_and_nan(n: int) -> None:
    k = cases.softmax_as_defined(6, n)
    start = arguments(k)
    x = start[0]
    x[1, :] = -np.inf
    x[2, n // 2] = np.nan
    x[3, 3] = np.inf
    x[4, : n // 2] = -np.inf
    check(k, start)


@needs_compiler
def test_every_half_input_within_two_ulp_of_the_exact_result() -> None:
    """The approximations allowed for half-precision results, on all 65,536 inputs."""
    from math import erfc, exp

    k = cases.halves(1 << 16)
    x = np.arange(1 << 16, dtype=np.uint16).view(bfloat16.np)
    y, z = np.zeros_like(x), np.zeros_like(x)
    assert "rough_exp" in sources.sources(k, {}).sources[0].text
    emulate_kernel(k, [x, y, z])
    with np.errstate(invalid="ignore"):
        wide = x.astype(np.float64)
    fine = np.isfinite(wide) & (abs(wide) < 80)
    sigmoid = np.array([1 / (1 + exp(-v)) for v in wide[fine]])
    gelu = np.array([0.5 * v * erfc(-v * np.float64(np.float32(0.70710677))) for v in wide[fine]])
    for got, want in ((z, sigmoid), (y, gelu)):
        got = got[fine].astype(np.float64)
        ulp = np.maximum(2.0 ** (np.floor(np.log2(np.maximum(abs(want), 1e-45))) - 7), 2.0**-126)
        assert (abs(got - want) <= 2 * ulp).all()


def test_float32_results_take_no_approximation() -> None:
    for make in (cases.gelu, cases.softmax):
        k = make(float32, 4096) if make is cases.gelu else make(float32, 8, 4096)
        assert "rough_" not in "".join(s.text for s in sources.sources(k, {}).sources)
    assert "rough_" not in "".join(s.text for s in sources.sources(cases.halves(4096), {}, strict=True).sources)


@needs_compiler
@pytest.mark.parametrize("n", [5, 8])
def test_who_is_beyond_the_last_row_reads_nothing_that_is_stored(n: int) -> None:
    """It repeats the last row, which another warp stores at its own pace."""

    def stored_and_read(k: KernelRecorder) -> None:
        x = k.param("x", float32, (33,), (1,))
        y, z = k.param("y", float32, (33,), (1,)), k.param("z", float32, (33,), (1,))
        for i in k.map(33):
            k.store(y, i, k.neg(k.load(x, i)))
            total = k.init("add", float32)
            for _ in k.reduce(n):
                k.update("add", total, k.load(y, i))
            k.store(z, i, total)

    k = kernel(stored_and_read)
    arrays = arguments(k)
    emulate_kernel(k, arrays, check=True)
    np.testing.assert_allclose(arrays[2], -n * arrays[0], rtol=1e-6)


@needs_compiler
@pytest.mark.parametrize("team", [4, 64])
def test_a_value_of_the_row_is_read_after_the_loop_that_stores_it(team: int) -> None:
    """And one lane stores in place only when the others have read."""

    def gathered(k: KernelRecorder) -> None:
        x, y = k.param("x", float32, (3, 70), (70, 1)), k.param("y", float32, (3, 70), (70, 1))
        ids = k.param("ids", int64, (3,), (1,))
        z = k.param("z", float32, (3,), (1,))
        for i in k.map(3):
            at = k.load(ids, i)
            was = k.load(z, i)
            for j in k.map(70):
                k.store(y, i * 70 + j, k.exp(k.load(x, i * 70 + j)))
            k.store(z, i, k.add(was, k.load(y, i * 70 + at)))

    k = kernel(gathered)
    start = arguments(k)
    start[2][:] = [69, 0, 33]
    want, got = [a.copy() for a in start], [a.copy() for a in start]
    interp.run_kernel(k, want)
    run_with(k, got, dict(kind="row", team=team, threads=max(team, 128), vector=1, chunks=0), check=True)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-6)


@needs_compiler
def test_many_reductions_of_nothing() -> None:
    def nothing(k: KernelRecorder) -> None:
        y = k.param("y", bool_, (2**17,), (1,))
        for i in k.map(2**17):
            k.store(y, i, k.eq(k.init("and", bool_), True))

    k = kernel(nothing)
    got = [np.zeros(2**17, bool)]
    emulate_kernel(k, got)
    assert got[0].all()


@needs_compiler
def test_few_long_rows_with_a_reduction_over_nothing() -> None:
    def rows(k: KernelRecorder) -> None:
        n = 20_000
        x, y, z = (k.param(b, float32, (3, n), (n, 1)) for b in "xyz")
        for i in k.map(3):
            none = k.init("add", float32)
            for out in (y, z):
                for j in k.map(n):
                    k.store(out, i * n + j, k.mul(none, k.load(x, i * n + j)))

    k = kernel(rows)
    check(k, arguments(k))


@needs_compiler
def test_few_long_rows_of_maps_have_their_values_first() -> None:
    """Each loop is a launch of its own; what the row computes stands before the first of those that want it."""

    def scaled(k: KernelRecorder) -> None:
        n = 20_000
        s, x = k.param("s", float32, (3,), (1,)), k.param("x", float32, (3, n), (n, 1))
        y, z = k.param("y", float32, (3, n), (n, 1)), k.param("z", float32, (3, n), (n, 1))
        for i in k.map(3):
            twice = k.mul(k.load(s, i), 2.0)
            for j in k.map(n):
                k.store(y, i * n + j, k.mul(twice, k.load(x, i * n + j)))
            more = k.add(twice, 1.0)
            for j in k.map(n):
                k.store(z, i * n + j, k.mul(more, k.load(x, i * n + j)))

    k = kernel(scaled)
    assert len(sources.sources(k, {}).sources) == 3
    check(k, arguments(k))


@needs_compiler
@pytest.mark.parametrize("bad", [2, -1, 50])
def test_every_launch_asks_what_its_places_depend_on(bad: int) -> None:
    def rows(k: KernelRecorder) -> None:
        n = 20_000
        ids, x = k.param("ids", int64, (2,), (1,)), k.param("x", float32, (3, n), (n, 1))
        y, z = k.param("y", float32, (2, n), (n, 1)), k.param("z", float32, (2, n), (n, 1))
        for i in k.map(2):
            at = k.load(ids, i)
            k.check(k.bit_and(k.ge(at, 0), k.lt(at, 3)), "no row {}", at)
            for j in k.map(n):
                k.store(y, i * n + j, k.load(x, at * n + j))
            for j in k.map(n):
                k.store(z, i * n + j, k.neg(k.load(x, at * n + j)))

    k = kernel(rows)
    arrays = arguments(k)
    arrays[0][:] = [0, bad]
    x = arrays[1]
    emulate_kernel(k, arrays, check=True)
    for got, want in ((arrays[2], x), (arrays[3], -x)):
        np.testing.assert_array_equal(got[0], want[0])
        if bad == 2:
            np.testing.assert_array_equal(got[1], want[2])


def test_the_tuner_splits_only_what_the_last_block_can_finish() -> None:
    for k, splits in ((cases.column_sum(float32, 300, 96), True), (cases.column_softmax(70, 40), False)):
        (nest,) = nests(k)
        at = Situation({})
        start = replace(sources.pick_schedule(k, nest, at), kind="column")
        assert schedule.splittable(nest) == splits == ("split" in tune.proposals(nest, start, {}))


@needs_compiler
def test_a_running_sum_is_read_when_all_lanes_have_stored_theirs() -> None:
    def summed(k: KernelRecorder) -> None:
        x, y = k.param("x", float32, (3, 40), (40, 1)), k.param("y", float32, (3, 40), (40, 1))
        ids, z = k.param("ids", int64, (3,), (1,)), k.param("z", float32, (3,), (1,))
        for i in k.map(3):
            total = k.init("add", float32)
            for j in k.scan(40):
                k.update("add", total, k.load(x, i * 40 + j))
                k.store(y, i * 40 + j, total)
            k.store(z, i, k.load(y, i * 40 + k.load(ids, i)))

    k = kernel(summed)
    arrays = arguments(k)
    arrays[2][:] = [39, 0, 17]
    emulate_kernel(k, arrays, check=True, backwards=True)
    np.testing.assert_allclose(arrays[3], arrays[0].cumsum(1)[[0, 1, 2], [39, 0, 17]], rtol=1e-5, atol=1e-5)


def test_rounds_of_a_loop_over_several_dimensions_cover_all_of_them() -> None:
    def spread(k: KernelRecorder) -> None:
        x, y = k.param("x", float32, (64, 8), (1, 64)), k.param("y", float32, (64, 8), (8, 1))
        top = k.init("max", float32)
        for i in k.reduce(64):
            for j in k.reduce(8):
                k.update("max", top, k.load(x, i + 64 * j))
                k.store(y, 8 * i + j, k.load(x, i + 64 * j))
        for i in k.map(512):
            k.store(y, i, k.sub(k.load(y, i), top))

    (nest,) = nests(kernel(spread))
    start = replace(sources.pick_schedule(kernel(spread), nest, Situation({})), kind="row", team=128, threads=128, vector=1, chunks=4)
    assert tune.consistent(nest, start, replace(start, team=32), {}).chunks == 16
    assert tune.consistent(nest, start, replace(start, team=32, split=2), {}).threads == 32


@needs_compiler
def test_what_is_stored_before_a_sum_is_stored_once() -> None:
    """In place, so that whoever reads late would read the new value."""

    def doubled(k: KernelRecorder) -> None:
        x, y = k.param("x", float32, (300, 40), (40, 1)), k.param("y", float32, (40,), (1,))
        z = k.param("z", float32, (40,), (1,))
        for i in k.map(40):
            v = k.mul(k.load(y, i), 2.0)
            k.store(y, i, v)
            total = k.init("add", float32)
            for j in k.reduce(300):
                k.update("add", total, k.mul(v, k.load(x, j * 40 + i)))
            k.store(z, i, total)

    k = kernel(doubled)
    start = arguments(k)
    want, got = [a.copy() for a in start], [a.copy() for a in start]
    interp.run_kernel(k, want)
    emulate_kernel(k, got, check=True, backwards=True)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-4)


@needs_compiler
@pytest.mark.parametrize("make", [lambda: cases.layer_norm_backward(300, 256), lambda: cases.embedding_backward(60, 8, 64)])
def test_deterministic_sums_have_one_order(make: Any) -> None:
    k = make()
    with config.patch(deterministic=True):
        check(k, arguments(k))
        texts = [s.text for s in sources.sources(k, {}).sources]
        launches = sources.sources(k, {}).sources
    if len(launches[0].scratch):  # rows: only the counter of arrivals is atomic
        assert all(t.count("atomicAdd(") == 1 for t in texts)


def run_with(k: Kernel, arrays: list[np.ndarray], change: dict[str, Any], *, check: bool = False) -> None:
    """Run a kernel of one launch under the schedule chosen for it with some fields changed."""

    def pick(kernel: Kernel, nest: Nest, at: Situation) -> Schedule:
        return replace(sources.pick_schedule(kernel, nest, at), **change)

    for source in sources.sources(k, {}, pick=pick).sources:
        scratch = [np.zeros(int(s.items) * s.itemsize, np.uint8) for s in source.scratch]
        memory = {b.name: a for b, a in zip(k.params, arrays, strict=True)}
        grid = (min(int(source.work), source.max_blocks), source.split)
        failed = [np.zeros(2, np.int64)] if source.messages else []
        machine = emulate.compile_kernel(source.text, source.name, check=check)
        machine(grid, source.block, [*(memory[b] for b in source.buffers), *scratch, *failed], backwards=check)


VARIANTS = [
    dict(team=64, threads=64, chunks=1, prefetch=True, blocks=3), dict(prefetch=False, blocks=2), dict(resident=2), dict(stream=True),
    dict(team=32, threads=128, chunks=2, prefetch=False), dict(ordered=True),
]  # fmt: skip


@needs_compiler
@pytest.mark.parametrize("change", VARIANTS, ids=str)
def test_every_schedule_gives_the_same(change: dict[str, Any]) -> None:
    k = cases.layer_norm_backward(37, 256)
    start = arguments(k)
    want, got = [a.copy() for a in start], [a.copy() for a in start]
    interp.run_kernel(k, want)

    run_with(k, got, change)
    for b, g, w in zip(k.params, got, want, strict=True):
        close(g, w, b.dtype)


CLUSTERS = [
    (lambda: cases.softmax(float32, 3, 500), dict(cluster=2, team=64, threads=64, vector=1, chunks=4)),
    (lambda: cases.softmax(bfloat16, 2, 1024), dict(cluster=8, team=32, threads=32, vector=4, chunks=1)),
    (lambda: cases.softmax(bfloat16, 2, 1032), dict(cluster=4, team=32, threads=32, vector=8, chunks=0)),
    (lambda: cases.layer_norm(float32, 2, 777), dict(cluster=4, team=64, threads=64, vector=1, chunks=4)),
    (lambda: cases.cross_entropy_backward(3, 1000), dict(cluster=8, team=64, threads=64, vector=4, chunks=1)),
    (lambda: cases.row_values(2, 1100), dict(cluster=2, team=128, threads=128, vector=4, chunks=2)),
    (lambda: cases.argmax(float32, 3, 900), dict(cluster=4, team=64, threads=64, vector=1)),
]  # fmt: skip


@needs_compiler
@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize(("make", "change"), CLUSTERS)
def test_blocks_of_a_cluster_share_a_row(make: Callable[[], Kernel], change: dict[str, Any], check: bool) -> None:
    k = make()
    start = arguments(k)
    want, got = [a.copy() for a in start], [a.copy() for a in start]
    interp.run_kernel(k, want)
    run_with(k, got, dict(kind="row", **change), check=check)
    for b, g, w in zip(k.params, got, want, strict=True):
        close(g, w, b.dtype)


@pytest.mark.parametrize("length", [256, 1024, 4096])
@pytest.mark.parametrize(("words", "threads", "blocks"), [(2.5, 256, 3), (3.5, 128, 3), (5, 256, 2)])
def test_sums_that_wait_leave_registers_for_three_blocks_where_they_can(length: int, words: float, threads: int, blocks: int) -> None:
    team, *found = row_schedules._gathering(length // 16, length, 8, words, False)
    assert found == [threads, blocks] and length // team == (32 if threads == 128 else 16)


def test_drawing_random_numbers_takes_registers_from_a_third_block() -> None:
    assert row_schedules._gathering(256, 4096, 8, 4, False) == (128, 128, 3)
    assert row_schedules._gathering(256, 4096, 8, 4, True) == (256, 256, 2)


@pytest.mark.parametrize(("points", "waves"), [(1, 1), (64, 1), (128, 1), (100, 4), (90, 3), (66, 1)])
def test_few_long_sums_fill_the_machine_evenly(points: int, waves: int) -> None:
    team, split = row_schedules._parts(points)
    assert points * split <= waves * schedule.MULTIPROCESSORS and team * waves <= 2048
    assert points * split > 0.9 * waves * schedule.MULTIPROCESSORS


def test_long_rows_are_shared_by_clusters_where_there_are_any() -> None:
    for k in (cases.softmax(float32, 64, 131_072), cases.softmax(float32, 8192, 50_304), cases.layer_norm(float32, 64, 20_000)):
        (source,) = sources.sources(k, {}).sources
        assert "__cluster_dims__(1, " in source.text and source.split > 1
        assert all("cluster" not in s.text for s in sources.sources(k, {}, clusters=False).sources)
    for k in (cases.softmax(float32, 16384, 4096), cases.softmax(float32, 2, 131_072)):  # short; so few that all must share
        assert all("cluster" not in s.text for s in sources.sources(k, {}).sources)


@needs_nvrtc
@pytest.mark.parametrize(("make", "change"), CLUSTERS)
def test_clusters_compile_for_hopper(make: Callable[[], Kernel], change: dict[str, Any]) -> None:
    def pick(kernel: Kernel, nest: Nest, at: Situation) -> Schedule:
        return replace(sources.pick_schedule(kernel, nest, at), kind="row", **change)

    for source in sources.sources(make(), {}, pick=pick).sources:
        assert nvrtc.compile_text(source.text, "sm_90a")


@needs_compiler
@pytest.mark.parametrize("change", [dict(rounds=2), dict(once=True), dict(rounds=4, once=True, stream=True)], ids=str)
def test_pointwise_rounds_and_reads_past_the_first_cache(change: dict[str, Any]) -> None:
    k = cases.gelu(bfloat16, 4096)
    start = arguments(k)
    want, got = [a.copy() for a in start], [a.copy() for a in start]
    interp.run_kernel(k, want)
    run_with(k, got, dict(vector=8, threads=64, **change), check=True)
    for b, g, w in zip(k.params, got, want, strict=True):
        close(g, w, b.dtype)
    if nvrtc.available():
        s = replace(sources.pick_schedule(k, nests(k)[0], Situation({})), vector=8, threads=64, **change)
        assert nvrtc.compile_text(sources.write(k, nests(k)[0], s, "rounds").text, "sm_90a")
    with pytest.raises(ValueError, match="last rounds"):
        run_with(cases.gelu(bfloat16, 4096 + 8), got, dict(vector=8, threads=64, rounds=2))


@build.kernel
def softmax_in_place(k: Any) -> None:
    rows, n = 5, 1000
    x = k.param("x", bfloat16, (rows, n), (n, 1))
    for i in k.map(rows):
        most, total = k.init("max", float32), k.init("add", float32)
        for j in k.reduce(n):
            k.update("max", most, k.cast(k.load(x, n * i + j), dtype=float32))
        for j in k.reduce(n):
            k.update("add", total, k.exp(k.sub(k.cast(k.load(x, n * i + j), dtype=float32), most)))
        for j in k.map(n):
            v = k.div(k.exp(k.sub(k.cast(k.load(x, n * i + j), dtype=float32), most)), total)
            k.store(x, n * i + j, k.cast(v, dtype=bfloat16))


@build.kernel
def read_again(k: Any) -> None:
    """What it halves is read once more."""
    rows, n = 5, 1000
    x, out = k.param("x", bfloat16, (rows, n), (n, 1)), k.param("out", float32, (rows,), (1,))
    for i in k.map(rows):
        total = k.init("add", float32)
        for j in k.map(n):
            k.store(x, n * i + j, k.mul(k.load(x, n * i + j), k.cast(0.5, dtype=bfloat16)))
        for j in k.reduce(n):
            k.update("add", total, k.cast(k.load(x, n * i + j), dtype=float32))
        k.store(out, i, total)


def test_rows_overwritten_last_are_kept() -> None:
    (nest,) = nests(softmax_in_place)
    assert not changing(nest)
    (source,) = sources.sources(softmax_in_place, {}).sources
    assert source.text.count("load_pack<8>(x") == 1
    (nest,) = nests(read_again)
    assert changing(nest) == {"x", "out"}


@needs_compiler
def test_a_row_that_changes_is_read_again() -> None:
    check(read_again, arguments(read_again))


WAITING = [  # a kernel, and its blocks that each do several points while the next row arrives in shared memory
    (lambda: cases.softmax(bfloat16, 7, 1000), dict(team=64, threads=64, vector=8, chunks=2, blocks=3)),
    (lambda: cases.softmax(float32, 5, 1024), dict(team=256, threads=256, vector=4, chunks=1, blocks=2)),
    (lambda: cases.layer_norm(float32, 5, 700), dict(team=32, threads=32, vector=4, chunks=6, blocks=2)),
    (lambda: cases.layer_norm_backward(9, 512), dict(team=64, threads=64, vector=8, chunks=1, blocks=4)),
    (lambda: cases.cross_entropy_backward(5, 1000), dict(team=64, threads=64, vector=8, chunks=2, blocks=2)),
    (lambda: softmax_in_place, dict(team=64, threads=64, vector=8, chunks=2, blocks=2)),
]  # fmt: skip


@needs_compiler
@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize(("make", "change"), WAITING)
def test_the_next_row_waits_in_shared_memory(make: Callable[[], Kernel], change: dict[str, Any], check: bool) -> None:
    k = make()
    start = arguments(k)
    want, got = [a.copy() for a in start], [a.copy() for a in start]
    interp.run_kernel(k, want)
    run_with(k, got, dict(kind="row", prefetch=True, waits="shared", **change), check=check)
    for b, g, w in zip(k.params, got, want, strict=True):
        close(g, w, b.dtype)


def test_long_rows_wait_in_shared_memory_where_they_fit() -> None:
    (source,) = sources.sources(cases.softmax(bfloat16, 8192, 50_304), {}).sources
    assert source.shared >= 2 * 50_304 and source.max_blocks == 132 and "copies_wait" in source.text
    for k in (cases.softmax(float32, 8192, 50_304), cases.softmax(bfloat16, 64, 50_304), cases.softmax(bfloat16, 8192, 4096)):
        assert all(not s.shared for s in sources.sources(k, {}).sources)
    assert all(not s.shared for s in sources.sources(cases.softmax(bfloat16, 8192, 50_304), {}, restrict=False).sources)


def test_rows_whose_sums_wait_arrive_early_where_a_team_has_one_access_to_each() -> None:
    (source, *_) = sources.sources(cases.layer_norm_backward(16384, 2048), {}).sources
    assert source.shared == 2 * 4 * 2048 and source.max_blocks == 2 * 132 and "copies_wait" in source.text
    for rows, n in ((16384, 768), (16384, 1024), (16384, 4096), (512, 2048)):
        assert all(not s.shared for s in sources.sources(cases.layer_norm_backward(rows, n), {}).sources)
    if nvrtc.available():
        assert nvrtc.compile_text(source.text, "sm_90a")


def test_rows_of_narrow_elements_do_not_wait() -> None:
    @build.kernel
    def masked(k: Any) -> None:
        rows, n = 8192, 50_304
        x, kept = k.param("x", bfloat16, (rows, n), (n, 1)), k.param("kept", bool_, (rows, n), (n, 1))
        out = k.param("out", bfloat16, (rows, n), (n, 1))
        for i in k.map(rows):
            total = k.init("add", float32)
            for j in k.reduce(n):
                k.update("add", total, k.where(k.load(kept, n * i + j), k.cast(k.load(x, n * i + j), dtype=float32), 0.0))
            for j in k.map(n):
                v = k.where(k.load(kept, n * i + j), k.cast(k.load(x, n * i + j), dtype=float32), 0.0)
                k.store(out, n * i + j, k.cast(k.div(v, total), dtype=bfloat16))

    assert all(not s.shared for s in sources.sources(masked, {}).sources)


@needs_nvrtc
@pytest.mark.parametrize(("make", "change"), WAITING)
def test_waiting_rows_compile(make: Callable[[], Kernel], change: dict[str, Any]) -> None:
    def pick(kernel: Kernel, nest: Nest, at: Situation) -> Schedule:
        s = replace(sources.pick_schedule(kernel, nest, at), kind="row", cluster=1, prefetch=True, waits="shared", **change)
        return replace(s, vector=min(s.vector, 8))

    for source in sources.sources(make(), {}, pick=pick).sources:
        assert nvrtc.compile_text(source.text, "sm_80") and nvrtc.compile_text(source.text, "sm_90a")


@needs_compiler
def test_rows_long_enough_for_a_cluster() -> None:
    """As chosen: infinities and NaN in rows of 17,000."""
    k = cases.softmax_as_defined(17, 17_000, bfloat16)
    x, *_ = arrays = arguments(k)
    x[1, :] = -np.inf
    x[2, 9000] = np.nan
    x[3, 3] = np.inf
    wide = x.astype(np.float64)
    emulate_kernel(k, arrays)
    with np.errstate(invalid="ignore"):
        e = np.exp(wide - wide.max(1, keepdims=True))
        close(arrays[-1], e / e.sum(1, keepdims=True), bfloat16)


@needs_compiler
def test_the_tuner_throws_wrong_candidates_away() -> None:
    k = cases.softmax(float32, 16, 256)
    nest, at = nests(k)[0], Situation({})
    start = sources.pick_schedule(k, nest, at)
    bench = tune.Bench(k, nest, {}, start, machine.machine(True))
    assert bench.measure(start) > 0
    assert bench.measure(replace(start, team=8, threads=128)) > 0
    right = sources.write

    def wrong(kernel: Kernel, nest: Nest, schedule: Schedule, name: str) -> Any:
        source = right(kernel, nest, schedule, name)
        return replace(source, text=source.text.replace("Sum<float>()", "Greatest<float>()"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "write", wrong)
        with pytest.raises(ValueError, match="differs"):
            bench.measure(replace(start, team=16, threads=128))
    with pytest.raises(ValueError, match="threads"):
        bench.measure(replace(start, team=2048))


@pytest.mark.filterwarnings("error")
def test_infinities_that_agree_are_alike() -> None:
    a = np.array([1.0, np.inf, -np.inf, np.nan], np.float32)
    assert tune.alike(np, a, a) and tune.alike(np, a, a + np.float32(1e-6))
    assert not tune.alike(np, a, np.roll(a, 1)) and not tune.alike(np, a, a + np.float32(1))


@needs_compiler
def test_a_tuned_program_computes_the_same() -> None:
    k = cases.softmax(float32, 16, 256)
    pick = tune.picker(config, True)
    nest, at = nests(k)[0], Situation({})
    chosen = pick(k, nest, at)
    assert chosen.kind == "row" and chosen.threads % chosen.team == 0
    assert pick(k, nest, at) == chosen  # kept


def test_deterministic_leaves_the_order_of_sums_alone() -> None:
    k = cases.softmax(float32, 16, 256)
    nest, at = nests(k)[0], Situation({})
    start = sources.pick_schedule(k, nest, at)
    assert tune.proposals(nest, start, {})
    assert not tune.proposals(nest, start, {}, deterministic=True)


def test_what_may_vary_of_a_cluster() -> None:
    k = cases.softmax(float32, 64, 131_072)
    nest, at = nests(k)[0], Situation({})
    start = sources.pick_schedule(k, nest, at)
    assert {"cluster", "team", "resident"} <= tune.proposals(nest, start, {}).keys()
    for cluster, team in ((4, 512), (8, 256), (1, 1024)):
        s = tune.consistent(nest, start, replace(start, cluster=cluster, team=team), {})
        assert s.threads == team and s.chunks * s.lanes * s.vector == 131_072
    with pytest.raises(ValueError, match="registers"):
        tune.consistent(nest, start, replace(start, cluster=1, team=256), {})


@needs_compiler
@pytest.mark.parametrize("dtype", [bfloat16, float32])
def test_a_cross_entropy_step_with_waiting_rows(monkeypatch: pytest.MonkeyPatch, dtype: Any) -> None:
    monkeypatch.setenv("TT_CUDA_EMULATE", "1")
    monkeypatch.setattr(row_schedules, "MULTIPROCESSORS", 1)  # a small machine, on which these are many long rows
    monkeypatch.setattr(row_schedules, "ONLINE", 512)
    texts: list[str] = []
    write = sources.write
    monkeypatch.setattr(sources, "write", lambda *a: texts.append((made := write(*a)).text) or made)
    generator = np.random.default_rng(0)
    values = torch.from_numpy(generator.standard_normal((11, 1400)).astype(np.float32)).to(dtype)
    x, y = values.to("cuda").requires_grad_(), torch.from_numpy(generator.integers(0, 1400, 11)).to("cuda")

    @torch.compile
    def step() -> Any:
        x.grad = None
        loss = torch.nn.functional.cross_entropy(x, y)
        loss.backward()
        return loss.detach()

    with config.patch(cache=False):
        loss = step()
    assert any("copies_wait<0>()" in t for t in texts)
    v = values.float().numpy().astype(np.float64)
    p = np.exp(v - v.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    target = y.cpu().numpy()
    tolerance = 1e-2 if dtype is bfloat16 else 1e-5
    np.testing.assert_allclose(float(loss), -np.log(p[np.arange(11), target]).mean(), rtol=tolerance)
    p[np.arange(11), target] -= 1
    np.testing.assert_allclose(x.grad.float().cpu().numpy(), p / 11, rtol=tolerance, atol=1e-7)
