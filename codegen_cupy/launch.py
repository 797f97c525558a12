"""Runs a recipe: one generated Python function that allocates, packs arguments and launches.

Stage: codegen.  In: ``Recipe``, ``Machine``.  Out: a callable over its arrays.  Straight-line generated code, because a launch from
Python costs about 5 microseconds and everything else should cost less.  Temporaries share one block per call, at
offsets fixed beforehand; outputs are allocated one by one.  Read next: ``machine_code``.
"""

from __future__ import annotations

import ctypes
import linecache
import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from codegen_cupy.arena import pattern, places
from codegen_cupy.emulated_machine import memory_of
from codegen_cupy.host import Call, Launch, Memory, Recipe, View
from codegen_cupy.kernel_text import Source
from codegen_cupy.machine import Machine
from codegen_cupy.matmul import Product
from compiler.loop.interp import library_result
from tinytorch import late
from tinytorch.ops.opdef import TABLE
from tinytorch.ops.spell_numpy import spelling


class Block:
    """The packed arguments of one launch: a cell of eight bytes each (two, where numbers of the host are passed), and the
    array of their addresses.  ``at``: the first cell of each argument."""

    def __init__(self, launch: Launch) -> None:
        s = launch.source
        self.count = len(launch.buffers) + len(launch.sizes) + len(s.scratch) + bool(s.messages)
        words = sorted(s.words)
        self.at = [i + bisect_left(words, i) for i in range(self.count)]
        self.cells = (ctypes.c_uint64 * (self.count + len(words) + 1))()
        base, width = ctypes.addressof(self.cells), ctypes.sizeof(ctypes.c_uint64)
        self.addresses = (ctypes.c_void_p * max(1, self.count))(*[base + width * i for i in self.at])
        self.pointer = ctypes.addressof(self.addresses)
        for i, n in enumerate(launch.sizes, len(launch.buffers)):
            self.put(i, n)

    def put(self, argument: int, value: Any) -> None:
        """Set an argument: an integer, or a tuple of two."""
        at = self.at[argument]
        if isinstance(value, tuple):
            self.cells[at], self.cells[at + 1] = value
        else:
            self.cells[at] = value


class Writer:
    """Generates the function of one recipe."""

    def __init__(self, recipe: Recipe, machine: Machine, *, fmad: bool = True) -> None:
        self.recipe, self.fmad, self.machine = recipe, fmad, machine
        self.names: dict[str, Any] = {
            "alloc": machine.alloc, "ndarray": machine.ndarray, "launch": machine.launch, "machine": machine,
            "stream_pointer": machine.stream, "look": machine.look, "library_call": library_call,
            "lock": threading.Lock(), "ran": late.ran, "memory_of": memory_of,
        }  # fmt: skip
        self.lines: list[str] = []
        self.places = places(recipe)
        self.home, self.kept_homes = self.places.home, self.places.kept
        self.arrays: dict[str, Memory] = {}
        self.pointer: dict[str, str] = {
            b: f"{_name(b)}_words" if b in recipe.words else machine.pointer.format(_name(b)) for b in recipe.inputs
        }

    def write(self) -> Callable[[Sequence[Any]], list[Any]]:
        offsets, total = self.places.offsets, self.places.total
        add = self.lines.append
        launches = self.recipe.launches
        self.machine.make_room(total)
        kernels = self.machine.functions([s.source for s in launches], fmad=self.fmad)
        add("def run(inputs):")
        if self.recipe.inputs:
            add(f"    {', '.join(map(_name, self.recipe.inputs))}, = inputs")
        for b in sorted(self.recipe.words):
            add(f"    {_name(b)}_words = {_name(b)}.tolist()")
        add("    stream = stream_pointer()")
        if self.machine.synchronous:
            add("    machine.watch(inputs)")
        for number, s in enumerate(launches):
            if s.source.messages:
                self.names[f"check{number}"] = check = Check(self.machine, s.source)
                self.names[f"failed{number}"] = check.words
                add(f"    if failed{number}[0]: check{number}.look()")
        if offsets:
            add(f"    arena = alloc({max(total, 1)})")
            add("    base = arena.ptr")
        if self.places.zone:
            self.names["fill"] = self.machine.fill
            add(f"    fill(base, {bytes(1)!r}, {self.places.zone}, stream)")
        if self.places.together:
            self.names["fill"] = self.machine.fill
            add(f"    together = alloc({self.places.together_size})")
            add(f"    fill(together.ptr, {bytes(1)!r}, {self.places.together_size}, stream)")
        add("    with lock:")
        number = 0
        for step in self.recipe.steps:
            if isinstance(step, Memory):
                self._memory(step, offsets)
            elif isinstance(step, Launch):
                self._launch(step, kernels[number], number)
                number += 1
            elif isinstance(step, Product):
                self._product(step)
            elif isinstance(step, Call):
                self._call(step, number)
        add("        pass")
        add(f"    return [{', '.join(self._output(o) for o in self.recipe.outputs)}]")
        return self._compiled()

    def _compiled(self) -> Callable[[Sequence[Any]], list[Any]]:
        text = "\n".join(self.lines) + "\n"
        file = f"<launches {id(self):#x}>"
        linecache.cache[file] = (len(text), None, text.splitlines(True), file)
        exec(compile(text, file, "exec"), self.names)
        run: Callable[[Sequence[Any]], list[Any]] = self.names["run"]
        run.source = text  # type: ignore[attr-defined]
        return run

    # --- memory ---
    def _memory(self, s: Memory, offsets: dict[str, int]) -> None:
        add, name = self.lines.append, _name(s.name)
        item = s.dtype.itemsize
        if s.reuse:
            self.pointer[s.name] = self.pointer[s.reuse]
        elif s.name in offsets:
            self.pointer[s.name] = f"base + {offsets[s.name]}"
        elif s.name in self.places.together:
            add(f"        {name}_memory = together + {self.places.together[s.name]}")
            self.pointer[s.name] = f"{name}_memory.ptr"
        else:
            add(f"        {name}_memory = alloc({max(s.items * item, 1)})")
            self.pointer[s.name] = f"{name}_memory.ptr"
        self.names[f"{name}_dtype"] = s.dtype.np
        self.names[f"{name}_shape"] = s.shape
        self.names[f"{name}_strides"] = tuple(n * item for n in s.stride)
        self.arrays[s.name] = s
        if s.fill is not None and s.items and not (s.name in self.places.zeroed or s.name in self.places.together):
            self.names["fill"] = self.machine.fill
            add(f"        fill({self.pointer[s.name]}, {pattern(s)!r}, {s.items}, stream)")

    def _array(self, name: str) -> str:
        """An expression for the CuPy array of a buffer."""
        if name in self.recipe.inputs:
            return _name(name)
        n, home = _name(name), self.home[name]
        if home in self.recipe.inputs:
            memory = self.machine.memory.format(_name(home))
        elif home in self.kept_homes:
            memory = f"{_name(home)}_memory"
        else:
            memory = f"arena + {self.pointer[name].removeprefix('base + ')}"
        return f"ndarray({n}_shape, {n}_dtype, {memory}, {n}_strides)"

    # --- work ---
    def _launch(self, s: Launch, kernel: Any, number: int) -> None:
        add, block = self.lines.append, Block(s)
        source = s.source
        cells = f"cells{number}"
        self.names[cells] = block.cells
        self.names[f"keep{number}"] = (block, kernel)
        for i, b in enumerate(s.buffers):
            first = block.at[i]
            add(f"        {cells}[{first}{f':{first + 2}' if i in source.words else ''}] = {self.pointer[b]}")
        at = len(s.buffers) + len(s.sizes)
        for i, n in enumerate(s.scratch_bytes):
            memory = self.machine.alloc(max(n, 1))
            self.machine.ndarray((max(n, 1),), "uint8", memory, (1,)).fill(0)
            self.names[f"scratch{number}_{i}"] = memory
            block.put(at + i, memory.ptr)
        if source.messages:
            block.put(at + len(s.scratch_bytes), self.names[f"check{number}"].address)
        (gx, gy), (bx, by) = s.grid, source.block
        add(f"        launch({kernel.ptr}, {gx}, {gy}, 1, {bx}, {by}, 1, {source.shared}, stream, {block.pointer}, 0)  # {source.name}")
        if source.messages and self.machine.synchronous:
            add(f"        if failed{number}[0]: check{number}.fail()")
        elif source.messages:
            add(f"        ran[check{number}] = stream")

    def _product(self, s: Product) -> None:
        run = self.machine.product(s)
        assert run is not None
        name = f"product{len(self.names)}"
        self.names[name] = run
        self.lines.append(f"        {name}({', '.join(self.pointer[b] for b in s.buffers)}, stream)")

    def _call(self, s: Call, number: int) -> None:
        name = f"call{len(self.names)}"
        self.names[name] = s
        buffers = dict.fromkeys(v.buffer for v in (*s.args, *s.outs) if isinstance(v, View))
        memory = ", ".join(f"{b!r}: {self._array(b)}" for b in buffers)
        self.lines.append(f"        library_call(machine, {name}, {{{memory}}})  # {s.fn}")

    def _output(self, o: Any) -> str:
        if not isinstance(o, View):
            self.names[f"number{len(self.names)}"] = o
            return f"number{len(self.names) - 1}"
        given = next((m for m in self.recipe.given if m.name == o.buffer), None)
        if given is not None and given.shape == o.shape and given.stride == o.stride and not o.offset:
            return _name(o.buffer)
        made = self.arrays.get(o.buffer)
        if made is not None and made.shape == o.shape and made.stride == o.stride and not o.offset:
            return self._array(o.buffer)
        name = f"view{len(self.names)}"
        self.names[name] = o
        return f"look({self._array(o.buffer)}, {name})"


def prepared(recipe: Recipe, machine: Machine, *, fmad: bool = True) -> Callable[[Sequence[Any]], list[Any]]:
    """A callable that runs the recipe."""
    return Writer(recipe, machine, fmad=fmad).write()


def library_call(machine: Machine, step: Call, memory: dict[str, Any]) -> None:
    """An op row's eager kernel on views of memory, copied into its outputs."""
    row = TABLE[step.fn]
    kernel = row.kernel or spelling(row)  # the second: rows of loops on complex numbers
    args = [machine.look(memory[a.buffer], a) if isinstance(a, View) else a for a in step.args]
    with np.errstate(all="ignore"):
        made = library_result(kernel, machine.xp, args, step.params)
    results = made if isinstance(made, (tuple, list)) else (made,)
    for view, result in zip(step.outs, results, strict=True):
        machine.look(memory[view.buffer], view)[...] = result


def _name(buffer: str) -> str:
    return f"b_{buffer}"


class Check:
    """What a kernel's checks found.  A GPU runs behind the host, so there it shows where the host waits (``late``), or at
    the kernel's next call."""

    def __init__(self, machine: Machine, source: Source) -> None:
        self.messages, self.lines = source.messages, source.lines
        self.words, self.address = machine.words()

    def look(self) -> None:
        """Raise what an earlier call's kernel has found."""
        if self.words[0]:
            lines = "".join(f"\n    {line}" for line in self.lines)
            where = f", in the kernel of{lines}" if lines else ""
            raise late.LateError(f"{self._message()} (in an earlier call: CUDA kernels run asynchronously{where})")

    def fail(self) -> None:
        """Raise what has just been found."""
        raise IndexError(self._message())

    def _message(self) -> str:
        (number, value), self.words[:] = self.words[:], [0, 0]
        return self.messages[number - 1].replace("{}", str(value))
