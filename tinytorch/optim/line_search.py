"""A line search to the strong Wolfe conditions: far enough down, and flat enough.

Stage: eager.  In: the value and gradient at points along a direction.  Out: a length.  First a bracket that must hold a good
length is found by going on, then it is narrowed; both by cubic interpolation (Nocedal and Wright, Numerical Optimization,
algorithms 3.5 and 3.6).  Constants and stopping rules are those of ``torch.optim.LBFGS``.  Read next: ``lbfgs``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

DECREASE, CURVATURE = 1e-4, 0.9
TOLERANCE, MOST = 1e-9, 25


class Point(NamedTuple):
    """A place along the direction: how far, the loss there, its gradient, and the gradient along the direction."""

    at: float
    value: float
    gradient: Any
    slope: float


def cubic_minimum(p: Point, q: Point, bounds: tuple[float, float] | None = None) -> float:
    """Where the cubic through two values and slopes is least, within ``bounds`` (else between the points)."""
    low, high = bounds or (min(p.at, q.at), max(p.at, q.at))
    a, b = (p, q) if p.at <= q.at else (q, p)
    mean = p.slope + q.slope - 3 * (p.value - q.value) / (p.at - q.at)
    square = mean**2 - p.slope * q.slope
    if square < 0:
        return (low + high) / 2
    root = math.sqrt(square)
    least = b.at - (b.at - a.at) * ((b.slope + root - mean) / (b.slope - a.slope + 2 * root))
    return min(max(least, low), high)


def strong_wolfe(look: Callable[[float], Point], start: Point, length: float, largest: float) -> tuple[Point, int]:
    """The point to go to, and how often ``look`` was asked.  ``largest``: of the direction's components."""
    search = _Search(look, start, largest)
    bracket = search.find(length)
    return search.narrow(bracket), search.asked


class _Search:
    def __init__(self, look: Callable[[float], Point], start: Point, largest: float) -> None:
        self._look, self.start, self.largest = look, start, largest
        self.asked = 0
        self.rounds = 0

    def look(self, at: float) -> Point:
        self.asked += 1
        return self._look(at)

    def too_high(self, p: Point) -> bool:
        return p.value > self.start.value + DECREASE * p.at * self.start.slope

    def flat(self, p: Point) -> bool:
        return abs(p.slope) <= -CURVATURE * self.start.slope

    def find(self, length: float) -> list[Point]:
        """Two points with a good one between them, or the good one."""
        before, now = self.start, self.look(length)
        while self.rounds < MOST:
            if self.too_high(now) or self.rounds > 1 and now.value >= before.value or now.slope >= 0 and not self.flat(now):
                return [before, now]
            if self.flat(now):
                return [now]
            bounds = now.at + 0.01 * (now.at - before.at), now.at * 10
            before, now = now, self.look(cubic_minimum(before, now, bounds))
            self.rounds += 1
        return [self.start, now]

    def narrow(self, bracket: list[Point]) -> Point:
        """Shrink the bracket around a good point; the best end of it at last."""
        if len(bracket) == 1:
            return bracket[0]
        stuck = False
        low, high = sorted(bracket, key=lambda p: p.value)
        while self.rounds < MOST and abs(high.at - low.at) * self.largest >= TOLERANCE:
            at, stuck = self._inside(low, high, stuck)
            now = self.look(at)
            self.rounds += 1
            if self.too_high(now) or now.value >= low.value:
                low, high = (low, now) if low.value <= now.value else (now, low)
                continue
            if self.flat(now):
                return now
            if now.slope * (high.at - low.at) >= 0:
                high = low
            low = now
        return low

    @staticmethod
    def _inside(low: Point, high: Point, stuck: bool) -> tuple[float, bool]:
        """The next length to try, and whether it is near an end of the bracket: twice in a row is not let pass."""
        first, last = sorted((low.at, high.at))
        at = cubic_minimum(low, high)
        margin = 0.1 * (last - first)
        if min(last - at, at - first) >= margin:
            return at, False
        if not stuck and first < at < last:
            return at, True
        return (last - margin if abs(at - last) < abs(at - first) else first + margin), False
