"""Where the library has no algorithm for a product with something after it: the product, and a kernel for the rest.

Stage: codegen.  In: ``Recipe``, a machine.  Out: the recipe with such products in two.  The kernels are written in loop
IR by hand and go the way of all kernels.  Read next: ``matmul``, ``sources``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from codegen_cupy.host import Launch, Recipe, Step
from codegen_cupy.host import prepare as recipe_of
from codegen_cupy.matmul import Matrix, Product
from compiler.loop.build import kernel
from compiler.loop.interp import GELU
from compiler.loop.ir import Kernel, Plan, Run
from tinytorch.dtypes import DType, float32


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
    if "gelu" not in p.then:
        return apart(p, aligned=aligned)
    before = taken(replace(p, then=p.operands), refused, aligned=aligned)
    assert not any(p.offsets) and p.d.ld == p.m, p  # the result is a whole buffer
    return [*before, *_launches(_gelu(p.m * p.n * p.batch * len(p.repeats), p.dtype), (p.buffers[2],), aligned)]


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


def _gelu(count: int, dtype: DType) -> Kernel:
    """``d[i]`` through a GELU by tanh."""

    def gelu_after(k: Any) -> None:
        out = k.param("out", dtype, (count,), (1,), device="cuda")
        for i in k.map(count):
            x = k.cast(k.load(out, i), dtype=float32)
            inner = k.mul(k.add(x, k.mul(k.mul(k.mul(x, x), x), GELU[0])), GELU[1])
            k.store(out, i, k.cast(k.mul(k.mul(x, 0.5), k.add(1.0, k.tanh(inner))), dtype=dtype))

    return kernel(gelu_after)
