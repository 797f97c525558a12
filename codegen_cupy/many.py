"""Equal kernels on different buffers as one launch: the steps of an optimizer, one per parameter.

Stage: codegen.  In: ``Recipe``.  Out: the same recipe with such launches joined.  A launch joins an earlier one of the same
kernel and grid if nothing in between, nor the launches it joins, touches what it touches.  The joint kernel takes the
arguments of all of them in one structure and picks its own by ``blockIdx.y``.  Read next: ``launch``, ``graphs``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache

from codegen_cupy.arena import places
from codegen_cupy.effects import effects
from codegen_cupy.host import Launch, Memory, Recipe, Step
from codegen_cupy.kernel_text import Source

MOST_BYTES = 4000  # a kernel's arguments have 4 KB
_HEAD = re.compile(r'extern "C" __global__ void (__launch_bounds__\(\d+(?:, \d+)?\)) (\w+)\((.*?)\) \{\n', re.DOTALL)


def joined(recipe: Recipe) -> Recipe:
    """The recipe with equal launches joined, each at the place of its first."""
    spots = places(recipe)
    home = spots.home
    lasting = [s for s in recipe.steps if isinstance(s, Memory) and s.name in spots.kept and s.fill is None]
    steps: list[Step | Batch] = [*lasting]  # memory of results is nobody else's, so it may as well be there at once
    open_batches: dict[object, int] = {}
    for step in (s for s in recipe.steps if s not in lasting):
        if not isinstance(step, Launch) or not _joinable(step.source):
            steps.append(step)
            continue
        key = (step.source, step.grid, step.sizes)
        touched = _effects(step, home)
        at = open_batches.get(key)
        if at is not None:
            batch = steps[at]
            assert isinstance(batch, Batch)
            fits = (len(batch.launches) + 1) * _cells(step) * 8 <= MOST_BYTES
            if fits and not any(_conflict(touched, e) for e in _between(steps, at, home)):
                batch.launches.append(step)
                batch.effects.append(touched)
                continue
        open_batches[key] = len(steps)
        steps.append(Batch([step], [touched]))
    return replace(recipe, steps=tuple(s.step() if isinstance(s, Batch) else s for s in steps))


Effects = tuple[frozenset[str], frozenset[str]]  # homes touched, homes written


@dataclass
class Batch:
    launches: list[Launch]
    effects: list[Effects] = field(default_factory=list)

    def step(self) -> Launch:
        first, count = self.launches[0], len(self.launches)
        if count == 1:
            return first
        return Launch(
            of_many(first.source, count),
            (first.grid[0], count),
            tuple(b for x in self.launches for b in x.buffers),
            tuple(n for x in self.launches for n in x.sizes),
            (),
        )


def _cells(s: Launch) -> int:
    return len(s.buffers) + len(s.sizes)


def _joinable(s: Source) -> bool:
    alone = s.split == 1 and not s.scratch and not s.messages and not s.shared
    return alone and "__shared__" not in s.text and "blockIdx.y" not in s.text and _HEAD.search(s.text) is not None


# --- what steps touch -------------------------------------------------------------------------------------------------
def _between(steps: list[Step | Batch], at: int, home: dict[str, str]) -> Iterable[Effects]:
    for s in steps[at:]:
        if isinstance(s, Batch):
            yield from s.effects
        else:
            yield _effects(s, home)


def _effects(s: Step, home: dict[str, str]) -> Effects:
    reads, writes = effects(s)
    touched = frozenset(home.get(b, b) for b in (*reads, *writes))
    return touched, frozenset(home.get(b, b) for b in writes)


def _conflict(a: Effects, b: Effects) -> bool:
    return bool(a[0] & b[1] or a[1] & b[0])


# --- the text ---------------------------------------------------------------------------------------------------------
@lru_cache(4096)
def of_many(source: Source, count: int) -> Source:
    """The kernel for ``count`` sets of arguments: all pointers first, set by set, then all sizes."""
    found = _HEAD.search(source.text)
    assert found is not None
    bounds, name, params = found[1], found[2], [p.strip() for p in found[3].split(",")]
    types = [re.sub(r"\s*\w+$", "", p).replace("__restrict__", "").strip() for p in params]
    pointers, sizes = len(source.buffers), len(source.sizes)
    many = f"{name}_of_{count}"
    args = [f"({t})all.pointers[blockIdx.y][{i}]" for i, t in enumerate(types[:pointers])]
    args += [f"({t})all.sizes[blockIdx.y][{i}]" for i, t in enumerate(types[pointers:])]
    fields = f"unsigned long long pointers[{count}][{pointers}];"
    if sizes:
        fields += f" long long sizes[{count}][{sizes}];"
    inner = source.text.replace(found[0], f"__device__ __forceinline__ void {name}({found[3]}) {{\n")
    text = (
        f"#ifndef __grid_constant__\n#define __grid_constant__\n#endif\n{inner}\nstruct {many}_args {{ {fields} }};\n\n"
        f'extern "C" __global__ void {bounds} {many}(const __grid_constant__ {many}_args all) {{\n'
        f"    {name}({', '.join(args)});\n}}\n"
    )
    buffers = source.buffers * count
    return replace(source, name=many, text=text, buffers=buffers, sizes=source.sizes * count)
