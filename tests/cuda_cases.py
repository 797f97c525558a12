"""Kernels written by hand in loop IR, as the lowering would make them: the material of the CUDA tests and benchmarks."""

from __future__ import annotations

from collections.abc import Callable

from compiler.loop.build import KernelRecorder, kernel
from compiler.loop.ir import Kernel
from tinytorch.dtypes import DType, bfloat16, float16, float32, float64, int32, int64, uint8, uint32


def gelu(dtype: DType, n: int) -> Kernel:
    def gelu(k: KernelRecorder) -> None:
        x = k.param("x", dtype, (n,), (1,))
        y = k.param("y", dtype, (n,), (1,))
        for i in k.map(n):
            v = k.cast(k.load(x, i), dtype=float64 if dtype is float64 else float32)
            out = k.mul(k.mul(v, 0.5), k.add(k.erf(k.mul(v, 0.7071067811865476)), 1.0))
            k.store(y, i, k.cast(out, dtype=dtype))
        k.about(("gelu",), (("model.py", 12, "y = F.gelu(x)"),))

    return kernel(gelu)


def softmax(dtype: DType, rows: int, n: int) -> Kernel:
    def softmax(k: KernelRecorder) -> None:
        x = k.param("x", dtype, (rows, n), (n, 1))
        y = k.param("y", dtype, (rows, n), (n, 1))
        for i in k.map(rows):
            m, s = k.init("softmax", float32, float32)
            for j in k.reduce(n):
                k.update("softmax", (m, s), k.cast(k.load(x, i * n + j), dtype=float32))
            for j in k.map(n):
                v = k.cast(k.load(x, i * n + j), dtype=float32)
                k.store(y, i * n + j, k.cast(k.div(k.exp(k.sub(v, m)), s), dtype=dtype))

    return kernel(softmax)


def layer_norm(dtype: DType, rows: int, n: int) -> Kernel:
    def layer_norm(k: KernelRecorder) -> None:
        x = k.param("x", dtype, (rows, n), (n, 1))
        w = k.param("w", dtype, (n,), (1,))
        b = k.param("b", dtype, (n,), (1,))
        y = k.param("y", dtype, (rows, n), (n, 1))
        mean_out = k.param("mean", float32, (rows,), (1,))
        rstd_out = k.param("rstd", float32, (rows,), (1,))
        for i in k.map(rows):
            mean, m2, count = k.init("welford", float32, float32, float32)
            for j in k.reduce(n):
                k.update("welford", (mean, m2, count), k.cast(k.load(x, i * n + j), dtype=float32))
            rstd = k.rsqrt(k.add(k.div(m2, count), 1e-5))
            k.store(mean_out, i, mean)
            k.store(rstd_out, i, rstd)
            for j in k.map(n):
                v = k.cast(k.load(x, i * n + j), dtype=float32)
                scale = k.cast(k.load(w, j), dtype=float32)
                shift = k.cast(k.load(b, j), dtype=float32)
                k.store(y, i * n + j, k.cast(k.add(k.mul(k.mul(k.sub(v, mean), rstd), scale), shift), dtype=dtype))

    return kernel(layer_norm)


def layer_norm_backward(rows: int, n: int) -> Kernel:
    def layer_norm_backward(k: KernelRecorder) -> None:
        g = k.param("g", float32, (rows, n), (n, 1))
        x = k.param("x", float32, (rows, n), (n, 1))
        w = k.param("w", float32, (n,), (1,))
        mean = k.param("mean", float32, (rows,), (1,))
        rstd = k.param("rstd", float32, (rows,), (1,))
        dx = k.param("dx", float32, (rows, n), (n, 1))
        dw = k.param("dw", float32, (n,), (1,))
        db = k.param("db", float32, (n,), (1,))
        for i in k.map(rows):
            mu, r = k.load(mean, i), k.load(rstd, i)
            a = k.init("add", float32)
            b = k.init("add", float32)
            for j in k.reduce(n):
                gw = k.mul(k.load(g, i * n + j), k.load(w, j))
                xhat = k.mul(k.sub(k.load(x, i * n + j), mu), r)
                k.update("add", a, gw)
                k.update("add", b, k.mul(gw, xhat))
            for j in k.map(n):
                gv = k.load(g, i * n + j)
                xhat = k.mul(k.sub(k.load(x, i * n + j), mu), r)
                inner = k.add(k.div(a, float(n)), k.mul(xhat, k.div(b, float(n))))
                k.store(dx, i * n + j, k.mul(r, k.sub(k.mul(gv, k.load(w, j)), inner)))
                k.store(dw, j, k.mul(gv, xhat), mode="add")
                k.store(db, j, gv, mode="add")

    return kernel(layer_norm_backward)


def column_sum(dtype: DType, rows: int, n: int) -> Kernel:
    def column_sum(k: KernelRecorder) -> None:
        x = k.param("x", dtype, (rows, n), (n, 1))
        y = k.param("y", float32, (n,), (1,))
        for j in k.map(n):
            a = k.init("add", float32)
            for i in k.reduce(rows):
                k.update("add", a, k.cast(k.load(x, i * n + j), dtype=float32))
            k.store(y, j, k.mul(a, 1.0 / rows))

    return kernel(column_sum)


def column_softmax(rows: int, n: int) -> Kernel:
    def column_softmax(k: KernelRecorder) -> None:
        x = k.param("x", float32, (rows, n), (n, 1))
        y = k.param("y", float32, (rows, n), (n, 1))
        for j in k.map(n):
            m, s = k.init("softmax", float32, float32)
            for i in k.reduce(rows):
                k.update("softmax", (m, s), k.load(x, i * n + j))
            for i in k.map(rows):
                k.store(y, i * n + j, k.div(k.exp(k.sub(k.load(x, i * n + j), m)), s))

    return kernel(column_softmax)


def full_sum(dtype: DType, n: int) -> Kernel:
    def full_sum(k: KernelRecorder) -> None:
        x = k.param("x", dtype, (n,), (1,))
        y = k.param("y", dtype, (), ())
        a = k.init("add", dtype)
        for i in k.reduce(n):
            k.update("add", a, k.load(x, i))
        k.store(y, 0, a)

    return kernel(full_sum)


def argmax(dtype: DType, rows: int, n: int, combine: str = "argmax") -> Kernel:
    def argmax(k: KernelRecorder) -> None:
        x = k.param("x", dtype, (rows, n), (n, 1))
        value = k.param("value", dtype, (rows,), (1,))
        where = k.param("where", int64, (rows,), (1,))
        for i in k.map(rows):
            best, at = k.init(combine, dtype, int64)
            for j in k.reduce(n):
                k.update(combine, (best, at), k.load(x, i * n + j), k.index(j))
            k.store(value, i, best)
            k.store(where, i, at)

    return kernel(argmax)


def transpose_add(n: int, m: int) -> Kernel:
    def transpose_add(k: KernelRecorder) -> None:
        a = k.param("a", float32, (n, m), (m, 1))
        b = k.param("b", float32, (n, m), (1, n))
        y = k.param("y", float32, (n, m), (m, 1))
        for i in k.map(n):
            for j in k.map(m):
                k.store(y, i * m + j, k.add(k.load(a, i * m + j), k.load(b, i + j * n)))

    return kernel(transpose_add)


def permute_scale(a: int, b: int, c: int, dtype: DType = bfloat16) -> Kernel:
    def permute_scale(k: KernelRecorder) -> None:
        x = k.param("x", dtype, (a, b, c), (b * c, c, 1))
        y = k.param("y", dtype, (a, c, b), (b * c, b, 1))
        for i in k.map(a):
            for n in k.map(c):
                for j in k.map(b):
                    v = k.cast(k.load(x, i * b * c + j * c + n), dtype=float32)
                    k.store(y, i * b * c + n * b + j, k.cast(k.mul(v, 0.5), dtype=dtype))

    return kernel(permute_scale)


def embedding(count: int, vocabulary: int, n: int, dtype: DType = float32) -> Kernel:
    def embedding(k: KernelRecorder) -> None:
        ids = k.param("ids", int64, (count,), (1,))
        table = k.param("table", dtype, (vocabulary, n), (n, 1))
        y = k.param("y", dtype, (count, n), (n, 1))
        for i in k.map(count):
            row = k.load(ids, i)
            k.check(k.bit_and(k.ge(row, 0), k.lt(row, vocabulary)), "index {} is out of range in embedding", row)
            for j in k.map(n):
                k.store(y, i * n + j, k.load(table, row * n + j))

    return kernel(embedding)


def embedding_backward(count: int, vocabulary: int, n: int, dtype: DType = float32) -> Kernel:
    def embedding_backward(k: KernelRecorder) -> None:
        ids = k.param("ids", int64, (count,), (1,))
        g = k.param("g", dtype, (count, n), (n, 1))
        table = k.param("table", dtype, (vocabulary, n), (n, 1))
        for i in k.map(count):
            row = k.load(ids, i)
            for j in k.map(n):
                k.store(table, row * n + j, k.load(g, i * n + j), mode="add")

    return kernel(embedding_backward)


def dropout(n: int) -> Kernel:
    def dropout(k: KernelRecorder) -> None:
        state = k.param("state", int64, (2,), (1,))
        x = k.param("x", float32, (n,), (1,))
        y = k.param("y", float32, (n,), (1,))
        for i in k.map(n):
            seed, offset = k.load(state, 0), k.load(state, 1)
            word = k.philox(seed, k.add(offset, k.index(i // 4)), k.index(i % 4))
            uniform = k.mul(k.cast(k.shr(word, k.const(8, dtype=uint32)), dtype=float32), 2.0**-24)
            k.store(y, i, k.where(k.lt(uniform, 0.9), k.div(k.load(x, i), 0.9), 0.0, dtype=float32))

    return kernel(dropout)


def normalised(n: int) -> Kernel:
    """One point, two loops, long: ``x / x.sum() * scale`` with the scale read before everything."""

    def normalised(k: KernelRecorder) -> None:
        x = k.param("x", float32, (n,), (1,))
        scale = k.param("scale", float32, (), ())
        y = k.param("y", float32, (n,), (1,))
        total = k.param("total", float32, (), ())
        by = k.load(scale, 0)
        a = k.init("add", float32)
        for i in k.reduce(n):
            k.update("add", a, k.abs(k.load(x, i)))
        k.store(total, 0, a)
        for i in k.map(n):
            k.store(y, i, k.mul(k.div(k.load(x, i), a), by))

    return kernel(normalised)


def row_values(rows: int, n: int) -> Kernel:
    """Few long rows: two reductions that need each other, values between them, statements after a map loop."""

    def row_values(k: KernelRecorder) -> None:
        x = k.param("x", float32, (rows, n), (n, 1))
        y = k.param("y", float32, (rows, n), (n, 1))
        last = k.param("last", float32, (rows,), (1,))
        for i in k.map(rows):
            m, s = k.init("softmax", float32, float32)
            for j in k.reduce(n):
                k.update("softmax", (m, s), k.load(x, i * n + j))
            shift = k.add(m, k.log(s))
            for j in k.map(n):
                k.store(y, i * n + j, k.sub(k.load(x, i * n + j), shift))
            top = k.init("max", float32)
            for j in k.reduce(n):
                k.update("max", top, k.sub(k.load(x, i * n + j), shift))
            k.store(last, i, k.add(top, shift))

    return kernel(row_values)


def batch_statistics(n: int, channels: int, area: int) -> Kernel:
    """Mean and variance over the first and the last dimension: two loops that no index walks as one."""

    def batch_statistics(k: KernelRecorder) -> None:
        x = k.param("x", float32, (n, channels, area), (channels * area, area, 1))
        mean_out = k.param("mean", float32, (channels,), (1,))
        var_out = k.param("var", float32, (channels,), (1,))
        y = k.param("y", float32, (n, channels, area), (channels * area, area, 1))
        for c in k.map(channels):
            mean, m2, count = k.init("welford", float32, float32, float32)
            for i in k.reduce(n):
                for j in k.reduce(area):
                    k.update("welford", (mean, m2, count), k.load(x, i * channels * area + c * area + j))
            var = k.div(m2, count)
            k.store(mean_out, c, mean)
            k.store(var_out, c, var)
            for i in k.map(n):
                for j in k.map(area):
                    at = i * channels * area + c * area + j
                    k.store(y, at, k.mul(k.sub(k.load(x, at), mean), k.rsqrt(k.add(var, 1e-5))))

    return kernel(batch_statistics)


def mean_of_row_losses(rows: int, n: int) -> Kernel:
    def mean_of_row_losses(k: KernelRecorder) -> None:
        x = k.param("x", float32, (rows, n), (n, 1))
        ids = k.param("ids", int64, (rows,), (1,))
        loss = k.param("loss", float32, (), ())
        total = k.init("add", float32)
        for i in k.reduce(rows):
            m, s = k.init("softmax", float32, float32)
            for j in k.reduce(n):
                k.update("softmax", (m, s), k.load(x, i * n + j))
            target = k.load(ids, i)
            k.check(k.bit_and(k.ge(target, 0), k.lt(target, n)), "target {} is out of bounds", target)
            k.update("add", total, k.sub(k.add(m, k.log(s)), k.load(x, i * n + target)))
        k.store(loss, 0, k.div(total, float(rows)))

    return kernel(mean_of_row_losses)


def bias_gradient(rows: int, n: int) -> Kernel:
    def bias_gradient(k: KernelRecorder) -> None:
        g = k.param("g", float32, (rows, n), (n, 1))
        x = k.param("x", float32, (rows, n), (n, 1))
        dx = k.param("dx", float32, (rows, n), (n, 1))
        db = k.param("db", float32, (n,), (1,))
        for i in k.map(rows):
            for j in k.map(n):
                d = k.mul(k.load(g, i * n + j), k.tanh(k.load(x, i * n + j)))
                k.store(dx, i * n + j, d)
                k.store(db, j, d, mode="add")

    return kernel(bias_gradient)


def cumsum(rows: int, n: int, dtype: DType = float32) -> Kernel:
    def cumsum(k: KernelRecorder) -> None:
        x = k.param("x", dtype, (rows, n), (n, 1))
        y = k.param("y", dtype, (rows, n), (n, 1))
        for i in k.map(rows):
            held = float32 if dtype is float16 else dtype
            a = k.init("add", held)
            for j in k.scan(n):
                k.update("add", a, k.cast(k.load(x, i * n + j), dtype=held))
                k.store(y, i * n + j, k.cast(a, dtype=dtype))

    return kernel(cumsum)


def cummax(rows: int, n: int) -> Kernel:
    """Running maximum with its place, and something made of both."""

    def cummax(k: KernelRecorder) -> None:
        x = k.param("x", float32, (rows, n), (n, 1))
        value = k.param("value", float32, (rows, n), (n, 1))
        where = k.param("where", int64, (rows, n), (n, 1))
        for i in k.map(rows):
            best, at = k.init("argmax", float32, int64)
            for j in k.scan(n):
                v = k.load(x, i * n + j)
                k.update("argmax", (best, at), v, k.index(j))
                k.store(value, i * n + j, k.sub(best, v))
                k.store(where, i * n + j, at)

    return kernel(cummax)


def two_loops(n: int) -> Kernel:
    """Loops side by side, of different lengths."""

    def two_loops(k: KernelRecorder) -> None:
        x = k.param("x", float32, (n,), (1,))
        y = k.param("y", float32, (n,), (1,))
        z = k.param("z", int32, (n + 5,), (1,))
        for i in k.map(n):
            k.store(y, i, k.neg(k.load(x, i)))
        for i in k.map(n + 5):
            k.store(z, i, k.cast(k.index(i * 3), dtype=int32))

    return kernel(two_loops)


def strided_rows(rows: int, n: int) -> Kernel:
    """A reduction over two dimensions of a transposed, reversed input: nothing lies side by side."""

    def strided_rows(k: KernelRecorder) -> None:
        x = k.param("x", float32, (rows, n, 3), (3 * n, -3, 1))
        y = k.param("y", float32, (rows,), (1,))
        for i in k.map(rows):
            a = k.init("max", float32)
            for j in k.reduce(n):
                for c in k.reduce(3):
                    k.update("max", a, k.load(x, i * 3 * n - 3 * j + c))
            k.store(y, i, a)

    return kernel(strided_rows)


def masked(n: int) -> Kernel:
    """Padding: reads outside the input are masked."""

    def masked(k: KernelRecorder) -> None:
        x = k.param("x", float32, (n,), (1,))
        y = k.param("y", float32, (n + 4,), (1,))
        for i in k.map(n + 4):
            at = k.index(i - 2)
            inside = k.bit_and(k.ge(at, 0), k.lt(at, n))
            k.store(y, i, k.load(x, i - 2, mask=inside, other=-1.0))

    return kernel(masked)


def cross_entropy_backward(rows: int, n: int) -> Kernel:
    """softmax times the sum of a one-hot row, minus that row."""

    def cross_entropy_backward(k: KernelRecorder) -> None:
        target = k.param("target", int64, (rows,), (1,))
        x = k.param("x", float32, (rows, n), (n, 1))
        y = k.param("y", float32, (rows, n), (n, 1))
        for i in k.map(rows):
            total = k.init("add", float32)
            t = k.load(target, i)
            for j in k.reduce(n):
                hit = k.eq(t, k.index(j))
                k.update("add", total, k.neg(k.where(hit, 2.5, 0.0, dtype=float32)))
            for j in k.map(n):
                k.store(y, i * n + j, k.mul(k.load(x, i * n + j), total))

    return kernel(cross_entropy_backward)


def softmax_as_defined(rows: int, n: int, dtype: DType = float32) -> Kernel:
    """Three loops; what the second stores the third reads back."""

    def softmax_as_defined(k: KernelRecorder) -> None:
        x = k.param("x", dtype, (rows, n), (n, 1))
        y = k.param("y", dtype, (rows, n), (n, 1))
        for i in k.map(rows):
            peak = k.init("max", float32)
            for j in k.reduce(n):
                k.update("max", peak, k.cast(k.load(x, i * n + j), dtype=float32))
            total = k.init("add", float32)
            for j in k.reduce(n):
                e = k.exp(k.sub(k.cast(k.load(x, i * n + j), dtype=float32), peak))
                k.store(y, i * n + j, e)
                k.update("add", total, e)
            for j in k.map(n):
                e = k.cast(k.load(y, i * n + j), dtype=float32)
                k.store(y, i * n + j, k.div(e, total))

    return kernel(softmax_as_defined)


def halves(n: int) -> Kernel:
    """gelu and a sigmoid, from and to bfloat16."""

    def halves(k: KernelRecorder) -> None:
        x = k.param("x", bfloat16, (n,), (1,))
        y = k.param("y", bfloat16, (n,), (1,))
        z = k.param("z", bfloat16, (n,), (1,))
        for i in k.map(n):
            v = k.cast(k.load(x, i), dtype=float32)
            half = k.mul(v, 0.5)
            k.store(y, i, k.cast(k.mul(half, k.add(1.0, k.erf(k.mul(v, 0.70710677)))), dtype=bfloat16))
            k.store(z, i, k.cast(k.div(1.0, k.add(1.0, k.exp(k.neg(v)))), dtype=bfloat16))

    return kernel(halves)


def concatenated(rows: int, widths: tuple[int, ...], dtype: DType) -> Kernel:
    """Parts side by side, each behind a mask, and the first part stored apart behind another."""

    def concatenated(k: KernelRecorder) -> None:
        n = sum(widths)
        parts = [k.param(f"part{p}", dtype, (rows, w), (w, 1)) for p, w in enumerate(widths)]
        y = k.param("y", dtype, (rows, n), (n, 1))
        first = k.param("first", dtype, (rows, widths[0]), (widths[0], 1))
        for i in k.map(rows):
            for j in k.map(n):
                place, start, total = k.index(j), 0, k.const(0.0, dtype=float32)
                for part, w in zip(parts, widths, strict=True):
                    here = k.bit_and(k.ge(place, start), k.lt(place, start + w))
                    total = k.add(total, k.cast(k.load(part, i * w + j - start, mask=here), dtype=float32))
                    start += w
                k.store(y, i * n + j, k.cast(total, dtype=dtype))
                k.store(first, i * widths[0] + j, k.cast(total, dtype=dtype), mask=k.lt(place, widths[0]))

    return kernel(concatenated)


CASES: dict[str, Callable[[], Kernel]] = {
    "gelu_float32": lambda: gelu(float32, 5000),
    "gelu_float16": lambda: gelu(float16, 70000),
    "gelu_bfloat16": lambda: gelu(bfloat16, 140_000),
    "gelu_float64": lambda: gelu(float64, 1001),
    "softmax_small": lambda: softmax(float32, 37, 10),
    "softmax_odd": lambda: softmax(float32, 5, 333),
    "softmax_4096": lambda: softmax(float32, 3, 4096),
    "softmax_half": lambda: softmax(bfloat16, 4, 1024),
    "softmax_long": lambda: softmax(float32, 2, 40_000),
    "layer_norm": lambda: layer_norm(float32, 9, 768),
    "layer_norm_half": lambda: layer_norm(float16, 6, 512),
    "layer_norm_long": lambda: layer_norm(float32, 2, 36_001),
    "layer_norm_backward": lambda: layer_norm_backward(70, 256),
    "layer_norm_backward_odd": lambda: layer_norm_backward(5, 77),
    "cross_entropy_backward": lambda: cross_entropy_backward(6, 1000),
    "softmax_as_defined": lambda: softmax_as_defined(5, 300),
    "softmax_as_defined_half": lambda: softmax_as_defined(3, 4096, bfloat16),
    "softmax_as_defined_long": lambda: softmax_as_defined(2, 40_000),
    "approximations": lambda: halves(5000),
    "column_sum": lambda: column_sum(float32, 300, 96),
    "column_sum_half": lambda: column_sum(bfloat16, 513, 320),
    "column_sum_odd": lambda: column_sum(float32, 50, 33),
    "column_softmax": lambda: column_softmax(70, 40),
    "full_sum": lambda: full_sum(float32, 100_003),
    "full_sum_int": lambda: full_sum(int64, 30_000),
    "full_sum_small": lambda: full_sum(int32, 13),
    "argmax": lambda: argmax(float32, 7, 500),
    "argmin_int": lambda: argmax(int32, 6, 64, "argmin"),
    "argmax_bytes": lambda: argmax(uint8, 3, 100),
    "transpose_add": lambda: transpose_add(70, 45),
    "transpose_add_packs": lambda: transpose_add(68, 200),
    "transpose_add_tiles": lambda: transpose_add(64, 128),
    "permute_scale_packs": lambda: permute_scale(2, 72, 136),
    "permute_scale": lambda: permute_scale(3, 33, 65),
    "embedding": lambda: embedding(21, 50, 64),
    "embedding_half": lambda: embedding(300, 20, 512, bfloat16),
    "embedding_backward": lambda: embedding_backward(30, 7, 20),
    "embedding_backward_half": lambda: embedding_backward(9, 4, 12, float16),
    "dropout": lambda: dropout(20_000),
    "dropout_odd": lambda: dropout(1001),
    "normalised": lambda: normalised(50_000),
    "row_values": lambda: row_values(3, 20_000),
    "batch_statistics": lambda: batch_statistics(5, 8, 12),
    "batch_statistics_odd": lambda: batch_statistics(3, 7, 5),
    "batch_statistics_large": lambda: batch_statistics(9, 3, 4096),
    "mean_of_row_losses": lambda: mean_of_row_losses(13, 100),
    "bias_gradient": lambda: bias_gradient(300, 64),
    "bias_gradient_odd": lambda: bias_gradient(11, 33),
    "cumsum": lambda: cumsum(5, 100),
    "cumsum_int": lambda: cumsum(2, 33, int64),
    "cumsum_half": lambda: cumsum(3, 512, float16),
    "cumsum_long": lambda: cumsum(2, 5003),
    "cumsum_aligned": lambda: cumsum(2, 4096),
    "cummax": lambda: cummax(3, 300),
    "two_loops": lambda: two_loops(100),
    "strided_rows": lambda: strided_rows(6, 40),
    "masked": lambda: masked(50),
    "concatenated": lambda: concatenated(900, (64, 64, 32), bfloat16),
    "concatenated_odd": lambda: concatenated(700, (64, 68, 28), bfloat16),
}
