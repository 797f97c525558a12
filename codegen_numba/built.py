"""A plan made callable: the host function, what one call owns, and how long each record takes.

Stage: codegen_numba.  In: the text of a host function and what it names, from ``build``.  Out: ``Built``.
Read next: ``runtime``.
"""

from __future__ import annotations

import itertools
import linecache
import math
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from codegen_numba import runtime
from compiler import cache

Array = npt.NDArray[Any]
_serial = itertools.count()


class Context:
    """What one call in flight owns."""

    __slots__ = ("args", "block", "keep", "room", "table", "views", "words")

    def __init__(self, program: Array, words: int, room: int) -> None:
        self.table = runtime.aligned(words)
        self.room = runtime.aligned(room)
        args = np.array(
            [program.ctypes.data, self.table.ctypes.data, runtime.cell.ctypes.data, self.room.ctypes.data], np.int64
        )
        self.keep = (program, args)
        self.args = args.ctypes.data
        self.words = memoryview(self.table)  # type: ignore[arg-type]
        self.block: runtime.Block | None = None
        self.views: list[Array] = []


class Built:
    """The callable.  ``source`` the host function; ``kernels`` the text of every phase, by name; ``records`` what the
    program launches, as (name, first word, last word)."""

    def __init__(
        self, source: str, texts: dict[str, str], namespace: dict[str, Any], records: list[tuple[str, int, int]]
    ) -> None:
        self.source, self.kernels, self.records = source, texts, records
        self._namespace = namespace
        self._filename = f"<tinytorch host {next(_serial)}>"
        linecache.cache[self._filename] = (len(source), None, source.splitlines(keepends=True), self._filename)
        self._call = self._define(namespace["launch"])

    def _define(self, launch: Any) -> Any:
        namespace = {**self._namespace, "launch": launch}
        exec(cache.bytecode(self.source, self._filename), namespace)
        return namespace["call"]

    def __call__(self, arrays: list[Any], sizes: tuple[int, ...] = ()) -> list[Any]:
        return self._call(arrays, sizes)  # type: ignore[no-any-return]

    def profile(self, arrays: list[Any], sizes: tuple[int, ...] = (), rounds: int = 5) -> list[tuple[str, float]]:
        """Seconds of each record, the least of ``rounds`` calls: (name, seconds) in the order they run."""
        best = [math.inf] * len(self.records)
        launch = self._namespace["launch"]

        def timed(args: int, first: int, last: int, part: int) -> None:
            for n, (_, begin, end) in enumerate(self.records):
                if first <= begin and end <= last:
                    start = time.perf_counter()
                    launch(args, begin, end, part)
                    best[n] = min(best[n], time.perf_counter() - start)

        call = self._define(timed)
        for _ in range(rounds):
            call(arrays, sizes)
        return [(name, seconds) for (name, _, _), seconds in zip(self.records, best, strict=True)]
