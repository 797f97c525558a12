"""Choosing among configs by running them: a search one field at a time, its result kept.

Stage: codegens.  In: a starting config, the values each field may take, a function that measures one.  Out: the best
found.  Results are kept on disk under a key that names the kernel, its shapes and the machine, so the search runs once;
its table is shown under ``TT_LOGS=autotune``.  Mirrors Inductor's coordinate descent.  Read next: ``codegen_numba.tune``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, is_dataclass, replace
from typing import Any, TypeVar

from compiler import cache, logs

T = TypeVar("T")
#: A candidate must beat the best by this much to replace it: less is noise.
MARGIN = 0.03


def search(
    name: str, key: str, start: T, fields: Mapping[str, Sequence[Any]], measure: Callable[[T], float]
) -> T:
    """The best config found from ``start``, changing one field at a time; ``measure`` gives seconds.

    A config that cannot be built or run (``measure`` raises) is left out; ``start`` must work.
    """
    assert is_dataclass(start) and not isinstance(start, type)
    known = _recall(key, start)
    if known is not None:
        return known
    times: dict[str, tuple[T, float]] = {}

    def seconds(config: T) -> float:
        text = repr(config)
        if text not in times:
            try:
                times[text] = config, measure(config)
            except Exception as e:
                if config is start:
                    raise
                logs.log("autotune", f"{name}: {text} fails: {e}")
                times[text] = config, float("inf")
        return times[text][1]

    best, least = start, seconds(start)
    for field, values in fields.items():
        for value in values:
            candidate = replace(best, **{field: value})  # type: ignore[type-var]
            if seconds(candidate) < least * (1 - MARGIN):
                best, least = candidate, seconds(candidate)
    logs.artifact("autotune", name, table(times, best), ".txt")
    _remember(key, best)
    return best


def table(times: Mapping[str, tuple[Any, float]], best: Any) -> str:
    """What was tried, fastest first; the choice has a star."""
    rows = sorted(times.values(), key=lambda row: row[1])
    return "\n".join(f"{'*' if config == best else ' '} {s * 1e6:10.1f} us  {config}" for config, s in rows)


def least_time(call: Callable[[], Any], budget: float = 0.05) -> float:
    """Seconds of the fastest of some calls, spending about ``budget`` seconds: the least disturbed one."""
    call()
    best, begin = float("inf"), time.perf_counter()
    for n in range(1000):
        start = time.perf_counter()
        call()
        now = time.perf_counter()
        best = min(best, now - start)
        if n >= 2 and now - begin > budget:
            break
    return best


def _recall(key: str, start: T) -> T | None:
    data = cache.get("autotune", key)
    if data is None:
        return None
    try:
        found = json.loads(data)
        names = asdict(start)  # type: ignore[call-overload]
        return replace(start, **{n: _like(found[n], names[n]) for n in names})  # type: ignore[type-var]
    except (ValueError, KeyError, TypeError):
        return None


def _like(value: Any, model: Any) -> Any:
    return tuple(value) if isinstance(model, tuple) else value


def _remember(key: str, best: Any) -> None:
    cache.put("autotune", key, json.dumps(asdict(best)).encode())
