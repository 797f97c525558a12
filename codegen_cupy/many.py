"""Equal kernels on different buffers as one launch: the steps of an optimizer, one per parameter.

Stage: codegen.  In: ``Recipe``.  Out: the same recipe with such launches joined.  A launch joins an earlier one of the same
kernel and grid if nothing in between, nor the launches it joins, touches what it touches.  The joint kernel takes the
arguments of all of them in one structure and picks its own by ``blockIdx.y``.  Read next: ``launch``, ``graphs``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
    steps: list[Step | Batch] = []
    rest: list[Step] = []
    uses = Uses(spots.home)
    for s in recipe.steps:
        if isinstance(s, Memory) and s.name in spots.kept and s.fill is None:
            uses.note(s, len(steps))  # memory of results is nobody else's, so it may as well be there at once
            steps.append(s)
        else:
            rest.append(s)
    open_batches: dict[object, int] = {}
    for step in rest:
        at = len(steps)
        if isinstance(step, Launch) and _joinable(step.source):
            key = (step.source, step.grid, step.sizes)
            batch = steps[open_batches[key]] if key in open_batches else None
            if isinstance(batch, Batch) and batch.has_room(step) and not uses.since(open_batches[key], step):
                batch.launches.append(step)
                at = open_batches[key]
            else:
                open_batches[key] = at
                steps.append(Batch([step]))
        else:
            steps.append(step)
        uses.note(step, at)
    return replace(recipe, steps=tuple(s.step() if isinstance(s, Batch) else s for s in steps))


class Uses:
    """The last place in the new order where each block of memory is touched, and where it is written."""

    def __init__(self, home: Mapping[str, str]) -> None:
        self.home = home
        self.touched: dict[str, int] = {}
        self.written: dict[str, int] = {}

    def note(self, step: Step, at: int) -> None:
        """``step`` is done at place ``at``."""
        touched, written = self._blocks(step)
        for b in touched:
            self.touched[b] = max(at, self.touched.get(b, -1))
        for b in written:
            self.written[b] = max(at, self.written.get(b, -1))

    def since(self, at: int, step: Step) -> bool:
        """Does anything from place ``at`` on write what ``step`` touches, or touch what it writes?"""
        touched, written = self._blocks(step)
        return any(self.written.get(b, -1) >= at for b in touched) or any(self.touched.get(b, -1) >= at for b in written)

    def _blocks(self, step: Step) -> tuple[set[str], set[str]]:
        reads, writes = effects(step)
        written = {self.home.get(b, b) for b in writes}
        return written.union(self.home.get(b, b) for b in reads), written


@dataclass
class Batch:
    launches: list[Launch]

    def has_room(self, more: Launch) -> bool:
        return (len(self.launches) + 1) * _cells(more) * 8 <= MOST_BYTES

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


@lru_cache(4096)
def _joinable(s: Source) -> bool:
    alone = s.split == 1 and not s.scratch and not s.messages and not s.shared and not s.words
    return alone and "__shared__" not in s.text and "blockIdx.y" not in s.text and _HEAD.search(s.text) is not None


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
