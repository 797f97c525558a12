"""Attention as phases: blocks of rows of scores in cache, products by BLAS, the softmax between them in place.

Stage: codegen_numba.  In: an ``Extern`` step that names ``attention`` or ``attention_backward``.  Out: a ``Template``.
Each part keeps one block of rows of the matrix of scores (FlashAttention's idea, with the whole row at hand, since a
CPU's cache holds some), so memory does not grow with rows times columns.  None for what is not covered (dropout, half
precision, a last dimension that is not contiguous), and then the row's eager kernel runs.  Read next: ``blas``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from codegen_numba import blas
from codegen_numba.analysis import ceil_div, known, product
from codegen_numba.compile import Source
from codegen_numba.matmul import Template
from compiler.loop.ir import ArrayView, Buffer, Extern, Int
from tinytorch.dtypes import bool_

#: Elements of a block of scores: a quarter of a megabyte of float32.
BLOCK = 65_536

FORWARD = """\
def attention(q, k, v, {mask_name}out, lse, work, {sizes}, start, stop, part):
    # units are blocks of rows of one head; scores, softmax and the mean of values for each
    here = part * block * (cols + 1)
    inverse = here + block * cols
    blocks = quotient(rows + block - 1, block)
    for unit in range(start, stop):
        head = quotient(unit, blocks)
        first = remainder(unit, blocks) * block
        count = least(block, rows - first)
        b = quotient(head, heads)
        h = remainder(head, heads)
        g = quotient(h, group)
        seen = {seen}
        q_at = b * q_0 + h * q_1 + first * q_2
        gemm_{t}(gemm, 111, 112, count, seen, depth, {t}({scale}), q, q_at, q_2,
            k, b * k_0 + g * k_1, k_2, {t}(0.0), work, here, cols)
        for i in range(count):
            at = here + i * cols
            last = {last}
{masking}\
            top = {t}(-inf)
            for j in range(last):
                top = maximum(top, work[at + j])
            level = select(top == {t}(-inf), {t}(0.0), top)
            total = {t}(0.0)
            for j in range(last):
                e = exp(work[at + j] - level)
                work[at + j] = e
                total = accumulate(total, e)
            for j in range(last, seen):
                work[at + j] = {t}(0.0)
            lse[b * lse_0 + h * lse_1 + (first + i) * lse_2] = top + log(total)
            work[inverse + i] = {t}(1.0) / select(total == {t}(0.0), {t}(1.0), total)
        out_at = b * out_0 + h * out_1 + first * out_2
        gemm_{t}(gemm, 111, 111, count, width, seen, {t}(1.0), work, here, cols,
            v, b * v_0 + g * v_1, v_2, {t}(0.0), out, out_at, out_2)
        for i in range(count):
            share = work[inverse + i]
            for j in range(width):
                out[out_at + i * out_2 + j] = out[out_at + i * out_2 + j] * share
"""

BACKWARD = """\
def attention_backward(g, q, k, v, delta, lse, {mask_name}dq, dk, dv, work, {sizes}, start, stop, part):
    # units are heads of keys; the weights again from scores and saved sums, then the chain rule block by block
    here = part * block * cols * 2
    there = here + block * cols
    for unit in range(start, stop):
        b = quotient(unit, quotient(heads, group))
        kv = remainder(unit, quotient(heads, group))
        k_at = b * k_0 + kv * k_1
        v_at = b * v_0 + kv * v_1
        dk_at = b * dk_0 + kv * dk_1
        dv_at = b * dv_0 + kv * dv_1
        for j in range(cols):
            for d in range(depth):
                dk[dk_at + j * dk_2 + d] = {t}(0.0)
            for d in range(width):
                dv[dv_at + j * dv_2 + d] = {t}(0.0)
        for h in range(kv * group, kv * group + group):
            for first in range(0, rows, block):
                count = least(block, rows - first)
                seen = {seen}
                q_at = b * q_0 + h * q_1 + first * q_2
                g_at = b * g_0 + h * g_1 + first * g_2
                gemm_{t}(gemm, 111, 112, count, seen, depth, {t}({scale}), q, q_at, q_2,
                    k, k_at, k_2, {t}(0.0), work, here, cols)
                gemm_{t}(gemm, 111, 112, count, seen, width, {t}(1.0), g, g_at, g_2, v, v_at, v_2, {t}(0.0),
                    work, there, cols)
                for i in range(count):
                    at = here + i * cols
                    last = {last}
{masking}\
                    level = lse[b * lse_0 + h * lse_1 + (first + i) * lse_2]
                    level = select(level == {t}(-inf), {t}(inf), level)
                    for j in range(last):
                        work[at + j] = exp(work[at + j] - level)
                    for j in range(last, seen):
                        work[at + j] = {t}(0.0)
                gemm_{t}(gemm, 112, 111, seen, width, count, {t}(1.0), work, here, cols,
                    g, g_at, g_2, {t}(1.0), dv, dv_at, dv_2)
                for i in range(count):
                    shift = delta[b * delta_0 + h * delta_1 + (first + i) * delta_2]
                    for j in range(seen):
                        p = work[here + i * cols + j]
                        work[there + i * cols + j] = p * (work[there + i * cols + j] - shift) * {t}({scale})
                dq_at = b * dq_0 + h * dq_1 + first * dq_2
                gemm_{t}(gemm, 111, 111, count, depth, seen, {t}(1.0), work, there, cols,
                    k, k_at, k_2, {t}(0.0), dq, dq_at, dq_2)
                gemm_{t}(gemm, 112, 111, seen, depth, count, {t}(1.0), work, there, cols,
                    q, q_at, q_2, {t}(1.0), dk, dk_at, dk_2)
"""

MASKING = """\
for j in range(last):
    m = mask[b * mask_0 + h * mask_1 + (first + i) * mask_2 + j * mask_3]
    work[at + j] = {masked}
"""


def forward(step: Extern, buffers: Mapping[str, Buffer]) -> list[Template] | None:
    q, k, v, mask, _ = step.args
    out, lse = step.outs
    if not _covered(step, buffers, [q, k, v, out]):
        return None
    views = {"q": q, "k": k, "v": v, "out": out, "lse": lse}
    units = product((*q.shape[:2], ceil_div(q.shape[2], _block(k.shape[2]))))  # type: ignore[union-attr]
    return [_template(step, buffers, FORWARD, views, q, k, v, mask, units, 2, 12)]


def backward(step: Extern, buffers: Mapping[str, Buffer]) -> list[Template] | None:
    g, q, k, v, delta, lse, mask, _ = step.args
    dq, dk, dv = step.outs
    if not _covered(step, buffers, [g, q, k, v, dq, dk, dv]):
        return None
    views = {"g": g, "q": q, "k": k, "v": v, "delta": delta, "lse": lse, "dq": dq, "dk": dk, "dv": dv}
    return [_template(step, buffers, BACKWARD, views, q, k, v, mask, product(k.shape[:2]), 5, 20)]  # type: ignore[union-attr]


def _covered(step: Extern, buffers: Mapping[str, Buffer], matrices: list[Any]) -> bool:
    if blas.find() is None or step.params.get("dropout") or not all(isinstance(m, ArrayView) for m in matrices):
        return False
    dtypes = {buffers[m.buffer].dtype.name for m in matrices}
    if len(dtypes) != 1 or not dtypes <= {"float32", "float64"}:
        return False
    return all(_row_major(m) for m in matrices) and all(known(n) != 0 for m in matrices for n in m.shape)


def _row_major(m: ArrayView) -> bool:
    """Is the last dimension contiguous, and does the one before step over whole rows?"""
    row, length = known(m.stride[-2]), known(m.shape[-1])
    if known(m.shape[-2]) != 1 and row is not None and length is not None and row < length:
        return False
    return m.stride[-1] == 1 or known(m.shape[-1]) == 1


def _block(cols: Int) -> int:
    """Rows of a block: what keeps it in cache, and is enough for BLAS to be at its best."""
    n = known(cols)
    return 64 if n is None else max(16, min(128, BLOCK // n))


def _template(
    step: Extern, buffers: Mapping[str, Buffer], text: str, views: dict[str, Any], q: Any, k: Any, v: Any, mask: Any,
    units: Int, products: int, depth: int,
) -> Template:  # fmt: skip
    dtype = buffers[q.buffer].dtype
    library = blas.find()
    assert library is not None
    block, cols = _block(k.shape[2]), k.shape[2]
    sizes: list[tuple[str, Any]] = [
        ("gemm", ("blas", library.gemm(dtype))), ("heads", q.shape[1]), ("group", _quotient(q.shape[1], k.shape[1])),
        ("rows", q.shape[2]), ("cols", cols), ("depth", q.shape[3]), ("width", v.shape[3]), ("block", block),
    ]  # fmt: skip
    if isinstance(mask, ArrayView):
        views = _with(views, "mask", mask, after="lse" if "delta" in views else "v")
    for name, view in views.items():
        sizes += [
            (f"{name}_{d}", 0 if known(n) == 1 else s)
            for d, (n, s) in enumerate(zip(view.shape, view.stride, strict=True))
            if d < 3 or name == "mask"
        ]
    # a leading dimension is at least a row, even where there is one row only
    leads = {
        f"{n}_2": view.shape[3]
        for n, view in views.items()
        if len(view.shape) == 4 and n != "mask" and known(view.shape[2]) == 1
    }
    sizes = [(n, leads.get(n, s)) for n, s in sizes]
    causal, t = bool(step.params["causal"]), dtype.name
    source_text = text.format(
        t=t, scale=repr(float(step.params["scale"])), sizes=", ".join(n for n, _ in sizes),
        mask_name="mask, " if isinstance(mask, ArrayView) else "", masking=_masking(mask, buffers, t, depth),
        seen="least(cols, first + count)" if causal else "cols", last="least(seen, first + i + 1)" if causal else "seen",
    )  # fmt: skip
    kinds = [
        (n, "uint8" if buffers[x.buffer].dtype is bool_ else buffers[x.buffer].dtype.name) for n, x in views.items()
    ]
    params = (*kinds, ("work", t), *((n, "size") for n, _ in sizes))
    source = Source(step.fn, source_text, params)
    rows = block * (cols + 1) if products == 2 else block * cols * 2
    work = product((*q.shape, cols, products))
    return Template(
        source, (*views.values(), "scratch", *(s for _, s in sizes)), units, work, 1, rows * dtype.itemsize
    )


def _quotient(a: Int, b: Int) -> Int:
    out = a // b
    value = known(out)
    return out if value is None else value


def _with(views: dict[str, Any], name: str, view: Any, after: str) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for n, x in views.items():
        out[n] = x
        if n == after:
            out[name] = view
    return out


def _masking(mask: Any, buffers: Mapping[str, Buffer], t: str, depth: int) -> str:
    if not isinstance(mask, ArrayView):
        return ""
    boolean = buffers[mask.buffer].dtype is bool_
    masked = f"select(m != 0, work[at + j], {t}(-inf))" if boolean else f"work[at + j] + {t}(m)"
    return "".join(" " * depth + line + "\n" for line in MASKING.format(masked=masked).splitlines())
