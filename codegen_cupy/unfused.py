"""Where the library has no algorithm for a product with something after it: the product, and a kernel for the rest.

Stage: codegen.  In: ``Recipe``, a machine.  Out: the recipe with such products in two.  The kernels are written in loop
IR by hand and go the way of all kernels.  Read next: ``matmul``, ``sources``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from codegen_cupy.host import Launch, Recipe, Step
from codegen_cupy.host import prepare as recipe_of
from codegen_cupy.matmul import Matrix, Product
from compiler.loop.build import kernel
from compiler.loop.ir import Kernel, Plan, Run
from tinytorch.dtypes import DType, float32
from tinytorch.ops.opdef import TABLE


def where_refused(recipe: Recipe, refused: Callable[[Product], bool], *, aligned: bool) -> Recipe:
    """The recipe without products that are ``refused``."""
    steps: list[Step] = []
    for s in recipe.steps:
        steps += taken(s, refused, aligned=aligned) if isinstance(s, Product) else [s]
    return replace(recipe, steps=tuple(steps))


def taken(p: Product, refused: Callable[[Product], bool], *, aligned: bool) -> list[Step]:
    """The product, or without its GELU, or without anything."""
    if not p.then or not refused(p):
        return [p]
    if not any("gelu" in word for word in p.then):
        return apart(p, aligned=aligned)
    assert not any(p.offsets) and p.d.ld == p.m, p  # the result is a whole buffer
    given = dict(zip(p.operands, p.buffers[3:], strict=True))
    out = p.buffers[2]
    into, then = given.get("aux", out), tuple(w for w in p.operands if w in ("bias", "add"))
    rest = replace(p, then=then, buffers=(*p.buffers[:2], into, *(given[w] for w in then)), offsets=(0,) * (3 + len(then)))
    made = _gelu(p.m * p.n * p.batch * len(p.repeats), p.dtype, given)
    names = tuple(dict.fromkeys((given.get("dgelu", into), out)))
    return [*taken(rest, refused, aligned=aligned), *_launches(made, names, aligned)]


def apart(p: Product, *, aligned: bool = True) -> list[Step]:
    """A product alone, then one kernel per word of what came after it."""
    assert not any(p.offsets) and p.batch == len(p.repeats) == 1, p
    out: list[Step] = [replace(p, then=(), buffers=p.buffers[:3], offsets=p.offsets[:3])]
    for word, buffer in zip(p.then, p.buffers[3:], strict=True):
        out += _launches(_addition(p.d, word == "bias", p.dtype), (buffer, p.buffers[2]), aligned)
    return out


def _launches(made: Kernel, names: tuple[str, ...], aligned: bool) -> list[Launch]:
    buffers = tuple(replace(b, name=n) for b, n in zip(made.params, names, strict=True))
    recipe = recipe_of(Plan(buffers, (), (made,), (Run(0, names),)), {}, aligned=aligned, strict=False)
    return recipe.launches


def _addition(d: Matrix, vector: bool, dtype: DType) -> Kernel:
    """``d[j * ld + i] += x[i]``, or ``x`` as ``d`` lies."""
    span = (d.cols - 1) * d.ld + d.rows

    def add_after(k: Any) -> None:
        x = k.param("x", dtype, (d.rows,) if vector else (span,), (1,), device="cuda")
        out = k.param("out", dtype, (span,), (1,), device="cuda")
        for j in k.map(d.cols):
            for i in k.map(d.rows):
                at = j * d.ld + i
                wide = [k.cast(k.load(b, n), dtype=float32) for b, n in ((out, at), (x, i if vector else at))]
                k.store(out, at, k.cast(k.add(*wide), dtype=dtype))

    return kernel(add_after)


class Words:
    """The vocabulary as a kernel written by hand has it: numbers are themselves."""

    def __init__(self, k: Any) -> None:
        self.k = k

    def __getattr__(self, name: str) -> Any:
        return getattr(self.k, name)

    def like(self, number: float, _: Any) -> float:
        """The number."""
        return number


def _gelu(count: int, dtype: DType, given: Mapping[str, str]) -> Kernel:
    """``out[i] = gelu(x[i])``, where ``x`` may be ``out``; or ``out[i] *= gelu'(x[i])``."""

    def gelu_after(k: Any) -> None:
        x = k.param("x", dtype, (count,), (1,), device="cuda") if "aux" in given or "dgelu" in given else None
        out = k.param("out", dtype, (count,), (1,), device="cuda")
        for i in k.map(count):
            v = k.cast(k.load(x or out, i), dtype=float32)
            if "dgelu" in given:
                made = TABLE["gelu_tanh_grad"].body(Words(k), k.cast(k.load(out, i), dtype=float32), v)
            else:
                made = TABLE["gelu_tanh"].body(Words(k), v)
            k.store(out, i, k.cast(made, dtype=dtype))

    return kernel(gelu_after)
