"""Runs a recipe on a GPU: one generated Python function that allocates, packs arguments and launches.

Stage: codegen.  In: ``Recipe``.  Out: a callable over CuPy arrays.  Straight-line generated code, because a launch from
Python costs about 5 microseconds and everything else should cost less.  Temporaries share one block per call, at
offsets fixed beforehand; outputs are allocated one by one.  Read next: ``build``, ``graphs``.
"""

from __future__ import annotations

import ctypes
import linecache
import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from codegen_cupy import build, emulated
from codegen_cupy.host import Call, Launch, Memory, Recipe, Release, View
from codegen_cupy.kernel_text import Source

ROUND = 256  # bytes to which temporaries are aligned


@cache
def architecture() -> str:
    """NVRTC's name of the current device; Hopper's own instructions need ``sm_90a``."""
    import cupy

    found = cupy.cuda.Device().compute_capability
    return "sm_90a" if found == "90" else f"sm_{found}"


_functions: dict[tuple[str, bool], Any] = {}


def functions(sources: Sequence[Source], *, fmad: bool = True) -> list[Any]:
    """Loaded kernels, compiled side by side."""
    import cupy

    wanted = {s.text: s.name for s in sources if (s.text, fmad) not in _functions}
    codes = build.cubins(list(wanted.items()), architecture(), fmad=fmad) if wanted else []
    for (text, name), code in zip(wanted.items(), codes, strict=True):
        module = cupy.cuda.function.Module()
        module.load(code)
        _functions[text, fmad] = module.get_function(name)
    return [_functions[s.text, fmad] for s in sources]


class Block:
    """The packed arguments of one launch: a cell of eight bytes each, and the array of their addresses."""

    def __init__(self, launch: Launch) -> None:
        s = launch.source
        count = len(launch.buffers) + len(launch.sizes) + len(s.scratch) + bool(s.messages)
        self.cells = (ctypes.c_uint64 * max(1, count))()
        base, width = ctypes.addressof(self.cells), ctypes.sizeof(ctypes.c_uint64)
        self.addresses = (ctypes.c_void_p * max(1, count))(*[base + width * i for i in range(count)])
        self.pointer = ctypes.addressof(self.addresses)
        for i, n in enumerate(launch.sizes):
            self.cells[len(launch.buffers) + i] = n


class Writer:
    """Generates the function of one recipe."""

    def __init__(self, recipe: Recipe, *, fmad: bool = True) -> None:
        import cupy
        from cupy_backends.cuda.api import driver

        self.recipe, self.fmad, self.xp = recipe, fmad, cupy
        self.names: dict[str, Any] = {
            "alloc": cupy.cuda.alloc, "ndarray": cupy.ndarray, "launch": driver.launchKernel, "xp": cupy,
            "stream_pointer": _current_stream_pointer(cupy), "look": emulated.look, "library_call": emulated.library_call,
            "lock": threading.Lock(), "raise_failed": _raise_failed,
        }  # fmt: skip
        self.lines: list[str] = []
        self.home: dict[str, str] = {b: b for b in recipe.inputs}
        self.kept = {o.buffer for o in recipe.outputs if isinstance(o, View)}
        self.arrays: dict[str, Memory] = {}
        self.pointer: dict[str, str] = {b: f"{_name(b)}.data.ptr" for b in recipe.inputs}

    def write(self) -> Callable[[Sequence[Any]], list[Any]]:
        self._homes()
        offsets, total = self._arena()
        add = self.lines.append
        launches = self.recipe.launches
        kernels = functions([s.source for s in launches], fmad=self.fmad)
        add("def run(inputs):")
        if self.recipe.inputs:
            add(f"    {', '.join(map(_name, self.recipe.inputs))}, = inputs")
        add("    stream = stream_pointer()")
        for number, s in enumerate(launches):
            if s.source.messages:
                self.names[f"failed{number}"] = _failed_flag(self.xp)
                self.names[f"messages{number}"] = s.source.messages
                add(f"    if failed{number}[0][0]: raise_failed(failed{number}[0], messages{number})")
        if total:
            add(f"    arena = alloc({total})")
            add("    base = arena.ptr")
        add("    with lock:")
        number = 0
        for step in self.recipe.steps:
            if isinstance(step, Memory):
                self._memory(step, offsets)
            elif isinstance(step, Launch):
                self._launch(step, kernels[number], number)
                number += 1
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
    def _homes(self) -> None:
        for s in self.recipe.steps:
            if isinstance(s, Memory):
                self.home[s.name] = self.home[s.reuse] if s.reuse else s.name
        self.kept_homes = {self.home[b] for b in self.kept}

    def _arena(self) -> tuple[dict[str, int], int]:
        """Offsets of temporaries in one block: first fit among those alive at the same time."""
        steps = self.recipe.steps
        size = {s.name: s for s in steps if isinstance(s, Memory) and not s.reuse}
        born: dict[str, int] = {}
        died: dict[str, int] = {}
        for i, s in enumerate(steps):
            if isinstance(s, Memory):
                born.setdefault(self.home[s.name], i)
                died[self.home[s.name]] = len(steps)
            elif isinstance(s, Release) and s.buffer in self.home:
                died[self.home[s.buffer]] = i
        placed: list[tuple[int, int, str]] = []
        offsets: dict[str, int] = {}
        for name in sorted(size, key=lambda n: -size[n].items * size[n].dtype.itemsize):
            if name in self.kept_homes:
                continue
            need = -(-size[name].items * size[name].dtype.itemsize // ROUND) * ROUND
            at = 0
            for low, high, other in sorted(placed):
                if born[name] < died[other] and born[other] < died[name] and low < at + need and at < high:
                    at = high
            placed.append((at, at + need, name))
            offsets[name] = at
        return offsets, max((high for _, high, _ in placed), default=0)

    def _memory(self, s: Memory, offsets: dict[str, int]) -> None:
        add, name = self.lines.append, _name(s.name)
        item = s.dtype.itemsize
        if s.reuse:
            self.pointer[s.name] = self.pointer[s.reuse]
        elif s.name in offsets:
            self.pointer[s.name] = f"base + {offsets[s.name]}"
        else:
            add(f"        {name}_memory = alloc({max(s.items * item, 1)})")
            self.pointer[s.name] = f"{name}_memory.ptr"
        self.names[f"{name}_dtype"] = s.dtype.np
        self.names[f"{name}_shape"] = s.shape
        self.names[f"{name}_strides"] = tuple(n * item for n in s.stride)
        self.arrays[s.name] = s
        if s.fill is not None and s.items:
            add(f"        {self._array(s.name)}.fill({s.fill!r})")

    def _array(self, name: str) -> str:
        """An expression for the CuPy array of a buffer."""
        if name in self.recipe.inputs:
            return _name(name)
        n, home = _name(name), self.home[name]
        if home in self.recipe.inputs:
            memory = f"{_name(home)}.data"
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
            add(f"        {cells}[{i}] = {self.pointer[b]}")
        at = len(s.buffers) + len(s.sizes)
        for i, n in enumerate(s.scratch_bytes):
            memory = self.xp.zeros(max(n, 1), "uint8")
            self.names[f"scratch{number}_{i}"] = memory
            block.cells[at + i] = memory.data.ptr
        if source.messages:
            block.cells[at + len(s.scratch_bytes)] = self.names[f"failed{number}"][1]
        (gx, gy), (bx, by) = s.grid, source.block
        add(f"        launch({kernel.ptr}, {gx}, {gy}, 1, {bx}, {by}, 1, 0, stream, {block.pointer}, 0)  # {source.name}")

    def _call(self, s: Call, number: int) -> None:
        name = f"call{len(self.names)}"
        self.names[name] = s
        buffers = dict.fromkeys(v.buffer for v in (*s.args, *s.outs) if isinstance(v, View))
        memory = ", ".join(f"{b!r}: {self._array(b)}" for b in buffers)
        self.lines.append(f"        library_call(xp, {name}, {{{memory}}})  # {s.fn}")

    def _output(self, o: Any) -> str:
        if not isinstance(o, View):
            return repr(o)
        made = self.arrays.get(o.buffer)
        if made is not None and made.shape == o.shape and made.stride == o.stride and not o.offset:
            return self._array(o.buffer)
        name = f"view{len(self.names)}"
        self.names[name] = o
        return f"look({self._array(o.buffer)}, {name})"


def prepared(recipe: Recipe, *, fmad: bool = True) -> Callable[[Sequence[Any]], list[Any]]:
    """A callable that runs the recipe on the current device."""
    return Writer(recipe, fmad=fmad).write()


def _name(buffer: str) -> str:
    return f"b_{buffer}"


def _current_stream_pointer(cupy: Any) -> Callable[[], int]:
    try:
        from cupy_backends.cuda.stream import get_current_stream_ptr
    except ImportError:
        return lambda: cupy.cuda.get_current_stream().ptr  # type: ignore[no-any-return]
    return get_current_stream_ptr  # type: ignore[no-any-return]


def _failed_flag(cupy: Any) -> tuple[Any, int]:
    """A word in pinned host memory that kernels can write and the host can read without waiting."""
    memory = cupy.cuda.alloc_pinned_memory(64)
    word = (ctypes.c_int32 * 1).from_address(memory.ptr)
    word[0] = 0
    word._keeps_alive = memory
    return word, memory.ptr


def _raise_failed(failed: Any, messages: Sequence[str]) -> None:
    """A check of an earlier call failed; the GPU runs behind the host, so this is the first chance to say so."""
    number, failed[0] = failed[0], 0
    raise IndexError(f"{messages[number - 1]} (in an earlier call: CUDA kernels run asynchronously)")
