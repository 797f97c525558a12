"""Attention in cache: every matrix of a block lies turned, rows of scores side by side in vector lanes.

Stage: codegen_numba.  In: an ``Extern`` step that names ``attention`` or ``attention_backward``.  Out: a ``Template``.
A block of 64 queries is turned once (size by 64), then S^T = K Q^T, softmax and O^T += V^T P^T go down the columns: maxima,
sums and exponentials are vertical, nothing is ever summed across a vector, and K and V are read as they lie, number by
number (``product``).  Half types are widened a tile at a time.  float64 is left to ``attention``, and sizes known only at
run time too.  Read next: ``product``, ``tinytorch.ops.flash``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from codegen_numba.analysis import ceil_div, known, product
from codegen_numba.compile import Source
from codegen_numba.matmul import Template
from codegen_numba.product import lanes
from codegen_numba.spell import memory_type
from compiler.loop.ir import ArrayView, Buffer, Extern, Int
from tinytorch.dtypes import bool_

#: Queries and keys of a block.
ROWS, KEYS = 64, 64
#: Head sizes beyond this would not stay in cache.
WIDEST = 256

FORWARD = """\
def attention(q, k, v, {extra}out, lse, {sizes}, start, stop, part):
    # units are blocks of queries of one head
    qt = scratch_float32({D} * {R})
    st = scratch_float32({C} * {R})
    ot = scratch_float32({E} * {R})
    peak = scratch_float32({R})
    level = scratch_float32({R})
    total = scratch_float32({R})
    fade = scratch_float32({R})
{tiles}\
    blocks = quotient(rows + {R} - 1, {R})
    for unit in range(start, stop):
        head = quotient(unit, blocks)
        first = (blocks - 1 - remainder(unit, blocks)) * {R}
        count = least({R}, rows - first)
        b = quotient(head, heads)
        h = remainder(head, heads)
        g = quotient(h, group)
        q_at = b * q_0 + h * q_1 + first * q_2
        k_at = b * k_0 + g * k_1
        v_at = b * v_0 + g * v_1
{load_q}\
        for i in range({R}):
            peak[i] = float32(-inf)
            total[i] = float32(0.0)
        for x in range({E} * {R}):
            ot[x] = float32(0.0)
        seen = {seen}
        for c in range(0, seen, {C}):
            n = least({C}, seen - c)
{load_k}\
            product(st, 0, {R}, {k}, qt, 0, {R}, n, {R}, {D}, 0)
{masking}\
            for i in range({R}):
                fade[i] = peak[i]
            for j in range(n):
                for i in range({R}):
                    peak[i] = greatest(st[j * {R} + i], peak[i])
            for i in range({R}):
                level[i] = select(peak[i] == float32(-inf), float32(0.0), peak[i])
                fade[i] = exp(fade[i] - level[i])
                total[i] = total[i] * fade[i]
            for j in range(n):
                for i in range({R}):
                    e = exp(st[j * {R} + i] - level[i])
                    st[j * {R} + i] = e
                    total[i] = total[i] + e
{dropout}\
            for d in range({E}):
                for i in range({R}):
                    ot[d * {R} + i] = ot[d * {R} + i] * fade[i]
{load_v}\
            product(ot, 0, {R}, {v}, st, 0, {R}, {E}, {R}, n, 1)
        for i in range({R}):
            level[i] = select(peak[i] == float32(-inf), float32(0.0), peak[i]) + log(total[i])
            total[i] = float32({keep}) / select(total[i] == float32(0.0), float32(1.0), total[i])
        for d in range({E}):
            for i in range({R}):
                ot[d * {R} + i] = ot[d * {R} + i] * total[i]
        out_at = b * out_0 + h * out_1 + first * out_2
        lse_at = b * lse_0 + h * lse_1 + first * lse_2
        for i in range(count):
            lse[lse_at + i * lse_2] = level[i]
{store_out}\
"""

BACKWARD = """\
def attention_backward(g, q, k, v, delta, lse, {extra}dq, dk, dv, work, {sizes}, start, stop, part):
    # units are heads of keys, whose gradients gather in work: (cols, D) and then (cols, E), padded to whole vectors
    qt = scratch_float32({D} * {R})
    qr = scratch_float32({R} * {DP})
    gt = scratch_float32({E} * {R})
    gr = scratch_float32({R} * {EP})
    pt = scratch_float32({C} * {R})
    st = scratch_float32({C} * {R})
    dqt = scratch_float32({D} * {R})
    level = scratch_float32({R})
    shift = scratch_float32({R})
{tiles}\
    for x in range({R} * {DP}):
        qr[x] = float32(0.0)
    for x in range({R} * {EP}):
        gr[x] = float32(0.0)
    sum_k = part * cols * ({DP} + {EP})
    sum_v = sum_k + cols * {DP}
    for unit in range(start, stop):
        b = quotient(unit, quotient(heads, group))
        kv = remainder(unit, quotient(heads, group))
        k_at = b * k_0 + kv * k_1
        v_at = b * v_0 + kv * v_1
        for x in range(cols * ({DP} + {EP})):
            work[sum_k + x] = float32(0.0)
        for h in range(kv * group, kv * group + group):
            for first in range(0, rows, {R}):
                count = least({R}, rows - first)
                q_at = b * q_0 + h * q_1 + first * q_2
                g_at = b * g_0 + h * g_1 + first * g_2
{load_q}\
{load_g}\
                turn_in(qt, 0, {R}, qr, {DP}, {D}, {R})
                turn_in(gt, 0, {R}, gr, {EP}, {E}, {R})
                for i in range({R}):
                    level[i] = float32(inf)
                    shift[i] = float32(0.0)
                lse_at = b * lse_0 + h * lse_1 + first * lse_2
                delta_at = b * delta_0 + h * delta_1 + first * delta_2
                for i in range(count):
                    l = lse[lse_at + i * lse_2]
                    level[i] = select(l == float32(-inf), float32(inf), l)
                    shift[i] = delta[delta_at + i * delta_2]
                for x in range({D} * {R}):
                    dqt[x] = float32(0.0)
                seen = {seen}
                for c in range(0, seen, {C}):
                    n = least({C}, seen - c)
{load_k}\
{load_v}\
                    product(pt, 0, {R}, {k}, qt, 0, {R}, n, {R}, {D}, 0)
{masking}\
                    product(st, 0, {R}, {v_row}, gt, 0, {R}, n, {R}, {E}, 0)
                    for j in range(n):
                        for i in range({R}):
                            p = exp(pt[j * {R} + i] - level[i])
                            pt[j * {R} + i] = p
                            st[j * {R} + i] = {weighted}
{dropout}\
                    product(work, sum_v + c * {EP}, {EP}, pt, 0, {R}, 1, gr, 0, {EP}, n, {EP}, {R}, 1)
                    product(work, sum_k + c * {DP}, {DP}, st, 0, {R}, 1, qr, 0, {DP}, n, {DP}, {R}, 1)
                    product(dqt, 0, {R}, {k_turned}, st, 0, {R}, {D}, {R}, n, 1)
                for x in range({D} * {R}):
                    dqt[x] = dqt[x] * float32({scale})
                dq_at = b * dq_0 + h * dq_1 + first * dq_2
{store_dq}\
        dk_at = b * dk_0 + kv * dk_1
        dv_at = b * dv_0 + kv * dv_1
        for j in range(cols):
            for d in range({D}):
                dk[dk_at + j * dk_2 + d * dk_3] = {dk}
            for d in range({E}):
                dv[dv_at + j * dv_2 + d * dv_3] = {dv}
"""

CAUSAL = """\
if c + n - 1 > first:
    for j in range(n):
        for i in range({R}):
            {s}[j * {R} + i] = select(i < c + j - first, float32(-inf), {s}[j * {R} + i])
"""
MASK = """\
for j in range(n):
    mask_at = b * mask_0 + h * mask_1 + first * mask_2 + (c + j) * mask_3
    for i in range(count):
        {s}[j * {R} + i] = {masked}
"""
#: Uniform numbers in [0, 1) decide as the row does; the factor 1 / (1 - p) is applied to whole results.
DROPOUT_FORWARD = """\
for j in range(n):
    for i in range({R}):
        {uniform}
        st[j * {R} + i] = select(u >= float32({p}), st[j * {R} + i], float32(0.0))
"""
DROPOUT_BACKWARD = """\
for j in range(n):
    for i in range({R}):
        {uniform}
        p = pt[j * {R} + i]
        s = st[j * {R} + i]
        st[j * {R} + i] = p * (select(u >= float32({p}), s * float32({keep}), float32(0.0)) - shift[i])
        pt[j * {R} + i] = select(u >= float32({p}), p * float32({keep}), float32(0.0))
"""
UNIFORM = (
    "place = ((b * heads + h) * rows + first + i) * cols + c + j\n"
    "        word = philox(state[state_at], state[state_at + 1] + draw + quotient(place, 4), remainder(place, 4))\n"
    "        u = float32(shr(word, uint32(8))) * float32(5.9604644775390625e-08)"
)


def forward(step: Extern, buffers: Mapping[str, Buffer]) -> list[Template] | None:
    q, k, v, mask, state = step.args
    out, lse = step.outs
    w = _writer(step, buffers, {"q": q, "k": k, "v": v, "out": out, "lse": lse}, mask, state)
    if w is None:
        return None
    text = w.fill(FORWARD, {
        "load_q": w.turned_in("q", "qt", w.d, 8, scaled=True), "load_k": w.tile("k", w.d, 12), "load_v": w.tile("v", w.e, 12),
        "k": w.rows_of("k"), "v": w.columns_of("v"), "masking": w.masking("st", 12), "dropout": w.dropped(DROPOUT_FORWARD, 12),
        "store_out": w.turned_out("ot", "out", w.e, 8),
    })  # fmt: skip
    units = product((*q.shape[:2], ceil_div(q.shape[2], ROWS)))  # type: ignore[union-attr]
    return [w.template(text, units, 0, 2)]


def backward(step: Extern, buffers: Mapping[str, Buffer]) -> list[Template] | None:
    g, q, k, v, delta, lse, mask, state = step.args
    dq, dk, dv = step.outs
    views = {"g": g, "q": q, "k": k, "v": v, "delta": delta, "lse": lse, "dq": dq, "dk": dk, "dv": dv}
    w = _writer(step, buffers, views, mask, state)
    if w is None:
        return None
    text = w.fill(BACKWARD, {
        "load_q": w.turned_in("q", "qt", w.d, 16, scaled=True), "load_g": w.turned_in("g", "gt", w.e, 16),
        "load_k": w.tile("k", w.d, 20), "load_v": w.tile("v", w.e, 20), "k": w.rows_of("k"), "v_row": w.rows_of("v"),
        "k_turned": w.columns_of("k"), "masking": w.masking("pt", 20), "dropout": w.dropped(DROPOUT_BACKWARD, 20),
        "weighted": f"st[j * {ROWS} + i]" if w.p else f"p * (st[j * {ROWS} + i] - shift[i])",
        "store_dq": w.turned_out("dqt", "dq", w.d, 16), "dk": w.narrowed("dk", f"work[sum_k + j * {w.dp} + d]"),
        "dv": w.narrowed("dv", f"work[sum_v + j * {w.ep} + d]"),
    })  # fmt: skip
    scratch = k.shape[2] * (w.dp + w.ep) * 4  # type: ignore[union-attr]
    return [w.template(text, product(k.shape[:2]), scratch, 5)]  # type: ignore[union-attr]


def _writer(step: Extern, buffers: Mapping[str, Buffer], views: dict[str, Any], mask: Any, state: Any) -> Writer | None:
    """None for what this file does not cover."""
    if not all(isinstance(v, ArrayView) for v in views.values()):
        return None
    kinds = {buffers[views[n].buffer].dtype.name for n in ("q", "k", "v")}
    sizes = [known(views["q"].shape[3]), known(views["v"].shape[3])]
    if not kinds <= {"float32", "float16", "bfloat16"} or any(n is None or not 0 < n <= WIDEST for n in sizes):
        return None
    if any(known(n) == 0 for n in (*views["q"].shape, *views["k"].shape)):
        return None
    return Writer(step, buffers, views, mask, state)


class Writer:
    """Fills in a text for one call."""

    def __init__(
        self, step: Extern, buffers: Mapping[str, Buffer], views: dict[str, ArrayView], mask: Any, state: Any
    ) -> None:
        self.step, self.buffers, self.views = step, buffers, dict(views)
        self.p = float(step.params["dropout"])
        self.scale, self.causal = float(step.params["scale"]), bool(step.params["causal"])
        self.keep = 1 / (1 - self.p)
        self.d, self.e = known(views["q"].shape[3]) or 0, known(views["v"].shape[3]) or 0
        self.dp, self.ep = (-(-n // lanes()) * lanes() for n in (self.d, self.e))
        self.half = buffers[views["q"].buffer].dtype.itemsize == 2
        self.extra: dict[str, ArrayView] = {}
        if isinstance(mask, ArrayView):
            self.extra["mask"] = mask
        if self.p:
            self.extra["state"] = state

    def fill(self, text: str, parts: dict[str, str]) -> str:
        common = {
            "R": ROWS, "C": KEYS, "D": self.d, "E": self.e, "DP": self.dp, "EP": self.ep, "scale": repr(self.scale),
            "keep": repr(self.keep), "extra": "".join(f"{n}, " for n in self.extra), "tiles": self.tiles(),
            "sizes": ", ".join(n for n, _ in self.sizes()), "seen": f"least(cols, first + {ROWS})" if self.causal else "cols",
        }  # fmt: skip
        return text.format(**common, **parts)

    def sizes(self) -> list[tuple[str, Any]]:
        q, k = self.views["q"], self.views["k"]
        heads, key_heads = q.shape[1], k.shape[1]
        out: list[tuple[str, Any]] = [
            ("heads", heads), ("group", heads // key_heads), ("rows", q.shape[2]), ("cols", k.shape[2]),
        ]  # fmt: skip
        for name, view in (*self.views.items(), *self.extra.items()):
            if name == "state":
                out += [("state_at", 0), ("draw", self.step.params["shift"])]
                continue
            steps = zip(view.shape, view.stride, strict=True)
            out += [(f"{name}_{i}", 0 if known(n) == 1 else s) for i, (n, s) in enumerate(steps)]
        return out

    # --- pieces of text ---
    def tiles(self) -> str:
        """Where half types are widened; the whole tile for one block of keys, or the block of queries before turning."""
        if not self.half:
            return ""
        most = max(self.d, self.e)
        sizes = {"kf": KEYS * self.d, "vf": KEYS * self.e, "wide": ROWS * most}
        return "".join(f"    {n} = scratch_float32({s})\n" for n, s in sizes.items())

    def widened(self, name: str, index: str) -> str:
        kind = self.buffers[self.views[name].buffer].dtype.name
        word = {"float16": "half_to_float", "bfloat16": "bfloat_to_float"}.get(kind)
        return f"{word}({name}[{index}])" if word else f"{name}[{index}]"

    def narrowed(self, name: str, value: str) -> str:
        kind = self.buffers[self.views[name].buffer].dtype.name
        word = {"float16": "float_to_half", "bfloat16": "float_to_bfloat"}.get(kind)
        return f"{word}({value})" if word else value

    def turned_in(self, name: str, to: str, size: int, depth: int, *, scaled: bool = False) -> str:
        """Rows first .. first + count of a matrix as columns of ``to``, zeros beyond."""
        last = known(self.views[name].stride[3])
        lines = []
        if not self.half and (last == 1 or size == 1):
            lines += [f"turn_in({name}, {name}_at, {name}_2, {to}, {ROWS}, count, {size})"]
        else:
            element = self.widened(name, f"{name}_at + i * {name}_2 + d * {name}_3")
            lines += ["for i in range(count):", f"    for d in range({size}):", f"        {to}[d * {ROWS} + i] = {element}"]
        lines += ["if count < ROWS:".replace("ROWS", str(ROWS)), f"    for d in range({size}):",
                  f"        for i in range(count, {ROWS}):", f"            {to}[d * {ROWS} + i] = float32(0.0)"]  # fmt: skip
        if scaled:
            lines += [f"for x in range({size * ROWS}):", f"    {to}[x] = {to}[x] * float32({self.scale!r})"]
        return _indented(lines, depth)

    def turned_out(self, source: str, name: str, size: int, depth: int) -> str:
        last = known(self.views[name].stride[3])
        if not self.half and (last == 1 or size == 1):
            return _indented([f"turn_out({source}, {ROWS}, {name}, {name}_at, {name}_2, {size}, count)"], depth)
        element = self.narrowed(name, f"{source}[d * {ROWS} + i]")
        lines = ["for i in range(count):", f"    for d in range({size}):"]
        return _indented([*lines, f"        {name}[{name}_at + i * {name}_2 + d * {name}_3] = {element}"], depth)

    def tile(self, name: str, size: int, depth: int) -> str:
        """Half types: the block of keys or values, widened."""
        if not self.half:
            return ""
        element = self.widened(name, f"{name}_at + (c + j) * {name}_2 + d * {name}_3")
        lines = ["for j in range(n):", f"    for d in range({size}):", f"        {name}f[j * {size} + d] = {element}"]
        return _indented(lines, depth)

    def rows_of(self, name: str) -> str:
        """The block of keys as the left operand of a product: matrix, place, strides."""
        if self.half:
            return f"{name}f, 0, {self.d if name == 'k' else self.e}, 1"
        return f"{name}, {name}_at + c * {name}_2, {name}_2, {name}_3"

    def columns_of(self, name: str) -> str:
        """The same turned."""
        if self.half:
            return f"{name}f, 0, 1, {self.d if name == 'k' else self.e}"
        return f"{name}, {name}_at + c * {name}_2, {name}_3, {name}_2"

    def masking(self, scores: str, depth: int) -> str:
        out = ""
        if self.causal:
            out += _indented(CAUSAL.format(R=ROWS, s=scores).splitlines(), depth)
        if "mask" in self.extra:
            kind = self.buffers[self.extra["mask"].buffer].dtype
            element = "mask[mask_at + i * mask_2]"
            here = f"{scores}[j * {ROWS} + i]"
            word = {"float16": "half_to_float", "bfloat16": "bfloat_to_float"}.get(kind.name, "float32")
            masked = f"select({element} != 0, {here}, float32(-inf))" if kind is bool_ else f"{here} + {word}({element})"
            out += _indented(MASK.format(R=ROWS, s=scores, masked=masked).splitlines(), depth)
        return out

    def dropped(self, text: str, depth: int) -> str:
        if not self.p:
            return ""
        filled = text.format(R=ROWS, p=repr(self.p), keep=repr(self.keep), uniform=UNIFORM)
        return _indented(filled.splitlines(), depth)

    # --- the result ---
    def template(self, text: str, units: Int, scratch: Int, products: int) -> Template:
        everything = self._ordered()
        kinds = [(n, memory_type(self.buffers[v.buffer].dtype)) for n, v in everything.items()]
        sizes = self.sizes()
        gathers = "dq" in self.views
        work = [("work", "float32")] if gathers else []
        source = Source(self.step.fn, text, (*kinds, *work, *((n, "size") for n, _ in sizes)))
        slots = (*everything.values(), *(("scratch",) if gathers else ()), *(s for _, s in sizes))
        q, k = self.views["q"], self.views["k"]
        cost = product((*q.shape, k.shape[2], products))
        return Template(source, slots, units, cost, 1, scratch)

    def _ordered(self) -> dict[str, ArrayView]:
        """Parameters as the text declares them: what is read, mask and state, what is written."""
        written = ("out", "dq", "dk", "dv") if "dq" in self.views else ("out", "lse")
        read = {n: v for n, v in self.views.items() if n not in written}
        return read | self.extra | {n: self.views[n] for n in written if n in self.views}


def _indented(lines: list[str], depth: int) -> str:
    return "".join(" " * depth + line + "\n" for line in lines)
