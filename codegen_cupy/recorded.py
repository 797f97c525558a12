"""Graphs without a GPU: a list of launches, each with a copy of its arguments, as CUDA keeps them, and whom it waits for.

Stage: codegen (run time, emulator).  In: launches on streams, between them marks and waits.  Out: a graph that is run in an
order its waits allow, and of these in one that a missing wait does not survive (``order``).
Read next: ``graph_driver`` (the same on a GPU), ``lanes`` (who should wait for whom).
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Sequence
from typing import Any


class Recorded:
    """One launch, after those numbered ``after``.  Its arguments are copied by ``read``, so that changes of the originals do
    not show until then."""

    def __init__(self, run: Callable[[int], None], source: int, after: frozenset[int]) -> None:
        self.run, self.source, self.after, self.size = run, source, after, 0
        self.values: Any = None

    def describe(
        self, function: int, grid: tuple[int, int], block: tuple[int, int], shared: int, params: int, count: int
    ) -> None:
        """Say how it was launched; here only the number of arguments matters."""
        self.size = count
        self.read()

    def read(self) -> None:
        originals = list((ctypes.c_void_p * self.size).from_address(self.source))
        first, width = originals[0], ctypes.sizeof(ctypes.c_uint64)
        cells = (originals[-1] - first) // width + 2  # the last argument may have two
        self.values = (ctypes.c_uint64 * cells)(*(ctypes.c_uint64 * cells).from_address(first))
        start = ctypes.addressof(self.values)
        self.addresses = (ctypes.c_void_p * self.size)(*[start + a - first for a in originals])

    def params(self) -> int:
        return ctypes.addressof(self.addresses) if self.size else self.source


class RecordedGraphs:
    """Records what is launched on its streams: 1, where a graph begins and ends, and those that wait for it.

    ``seed`` draws the order of the next replays; None: whatever need not be done yet is left for later (``order``).
    """

    stream = 1

    def __init__(self) -> None:
        self.recording: list[Recorded] | None = None
        self.seed: int | None = None
        self._last: dict[int, frozenset[int]] = {}

    def record(self, run: Callable[[int], None], params: int, stream: int) -> bool:
        if self.recording is None:
            return False
        if stream not in self._last:
            raise RuntimeError(f"stream {stream} is not being recorded: it waits for nothing that is")
        self.recording.append(Recorded(run, params, self._last[stream]))
        self._last[stream] = frozenset({len(self.recording) - 1})
        return True

    def begin(self) -> None:
        self.recording, self._last = [], {self.stream: frozenset()}

    def lane(self, number: int) -> int:
        return self.stream + number

    def mark(self, stream: int) -> frozenset[int]:
        return self._last[stream]

    def wait(self, stream: int, mark: frozenset[int]) -> None:
        self._last[stream] = self._last.get(stream, frozenset()) | mark

    def node(self, stream: int) -> Recorded:
        assert self.recording
        (last,) = self._last[stream]
        return self.recording[last]

    def end(self) -> list[Recorded]:
        made, self.recording = self.recording, None
        assert made is not None
        reached = set(self._last[self.stream])
        for i in reversed(range(len(made))):
            reached |= made[i].after if i in reached else set()
        left = {s for s, last in self._last.items() if not last <= reached}
        if left:
            raise RuntimeError(f"what was recorded on streams {sorted(left)} was never waited for")
        return made

    def abandon(self) -> None:
        self.recording = None

    def move(self, graph: list[Recorded], node: Recorded) -> None:
        node.read()

    def launch(self, graph: list[Recorded], stream: int) -> None:
        for i in order([step.after for step in graph], self.seed):
            graph[i].run(graph[i].params())

    def after(self, stream: int, earlier: int) -> None:
        pass


def order(after: Sequence[frozenset[int]], seed: int | None = None) -> list[int]:
    """An order in which everything comes after what it waits for: drawn, or with what was recorded last as soon as can be,
    which leaves what was recorded first to the last moment."""
    draw = random.Random(seed)
    left = [set(a) for a in after]
    ready = [i for i, a in enumerate(left) if not a]
    out = []
    while ready:
        i = max(ready) if seed is None else draw.choice(ready)
        ready.remove(i)
        out.append(i)
        for j in range(i + 1, len(left)):
            if i in left[j]:
                left[j].discard(i)
                if not left[j]:
                    ready.append(j)
    return out
