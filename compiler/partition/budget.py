"""A memory budget: save less than the cut would, at the least loss of time.

Stage: partition.  In: a joint graph and a number from 0 to 1.  Out: forward, backward, report; or the whole curve.
Mirrors ``torch._functorch.config.activation_memory_budget``.  Read next: ``report``.

At 1 the minimum cut decides, and nothing expensive runs twice.  Below, a 0/1 knapsack picks which of the values it
saved still are: each weighs its bytes and is worth the time of computing it again from the others.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from compiler import logs
from compiler.config import config
from compiler.ir.graph import Node
from compiler.ir.module import GraphModule
from compiler.partition import cost
from compiler.partition.ahead import forward_with_gradients, refusal
from compiler.partition.cost import Joint
from compiler.partition.mincut import Cut, find_cut, split
from compiler.partition.report import Report, human, make_report

UNITS = 2000  # resolution of the knapsack's weights


def min_cut(
    module: GraphModule, num_fwd_outputs: int, budget: float | None = None, *, ahead: bool = False
) -> tuple[GraphModule, GraphModule, Report]:
    """Split a joint graph into (forward, backward, report).

    ``module`` takes inputs, then tangents (placeholders named ``tangents_i``), and returns ``num_fwd_outputs`` results,
    then gradients, some of them None.  The forward returns the results, then what it saves; the backward takes what
    was saved, then the tangents.  ``budget`` (``config.activation_memory_budget`` if not given) scales the memory the
    cut would take.  ValueError for a budget outside of [0, 1].  ``ahead``: look whether a forward with the gradients of
    a scalar loss in it is worth having; the report holds it.
    """
    budget = config.activation_memory_budget if budget is None else budget
    if not 0 <= budget <= 1:
        raise ValueError(f"the memory budget lies in [0, 1], got {budget}")
    joint = Joint.of(module.graph, num_fwd_outputs)
    cut = choose(joint, budget)
    report = make_report(joint, cut, budget)
    if ahead and len(joint.tangents) == 1:
        report = replace(report, waits=refusal(joint, cut) if budget == 1 else "memory is short")
    demanded = any(n.meta.get("recompute") == "must" for n in joint.forward)  # what such a region reads is kept for it
    if report.saved_bytes > report.eager_bytes and not demanded:
        raise AssertionError(f"the partition saves {report.saved_bytes} bytes, eager {report.eager_bytes}\n{report}")
    forward, backward = split(module, joint, cut)
    if report.waits == "":
        report = replace(report, ahead=forward_with_gradients(module, joint, cut, forward))
    if logs.enabled("partition"):
        logs.artifact("partition", "report", str(report), suffix=".txt")
        logs.artifact("partition", "forward", forward.code)
        logs.artifact("partition", "backward", backward.code)
        if report.ahead is not None:
            logs.artifact("partition", "forward and gradients", report.ahead.code)
    return forward, backward, report


def choose(joint: Joint, budget: float) -> Cut:
    """The cut for a budget."""
    full = find_cut(joint)
    if full.bytes > cost.total_bytes(cost.eager_saves(joint)):  # traffic saved is not worth more memory than eager
        full = find_cut(joint, exact=True)
    if budget == 1 or not full.bytes:
        return full
    items = [n for n in joint.graph.nodes if n in full.saved and cost.saved_bytes(n)]
    worth = [_time_again(n, full.saved) for n in items]
    keep = knapsack([cost.saved_bytes(n) for n in items], worth, int(budget * full.bytes))
    cut = find_cut(joint, keep=[items[i] for i in keep], frugal=True)
    return cut if cut.bytes <= budget * full.bytes else find_cut(joint, frugal=True)


def _time_again(n: Node, saved: frozenset[Node]) -> float:
    """Time to compute ``n`` from the other saved values."""
    seen = {n}
    stack = [n]
    total = 0.0
    while stack:
        at = stack.pop()
        total += cost.runtime(at)
        for i in at.all_input_nodes:
            if i not in seen and i not in saved and not cost.is_given(i):
                seen.add(i)
                stack.append(i)
    return total


def knapsack(weights: Sequence[int], worths: Sequence[float], capacity: int) -> list[int]:
    """The items (by index) of greatest total worth whose weight fits: dynamic programming over ``UNITS`` steps.

    Weights are rounded up to whole steps, so the answer always fits, and may miss a better one by the rounding.
    """
    if sum(weights) <= capacity:
        return list(range(len(weights)))
    step = max(1, -(-capacity // UNITS))
    size = capacity // step
    need = [-(-w // step) for w in weights]
    best = np.zeros(size + 1)
    taken = np.zeros((len(weights), size + 1), dtype=bool)
    for i, (w, v) in enumerate(zip(need, worths, strict=True)):
        if w <= size:
            with_item = best[: size + 1 - w] + v
            taken[i, w:] = with_item > best[w:]
            best[w:] = np.maximum(best[w:], with_item)
    out: list[int] = []
    room = size
    for i in reversed(range(len(weights))):
        if taken[i, room]:
            out.append(i)
            room -= need[i]
    return out[::-1]


# --- the curve --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Point:
    """One budget: the bytes it saves, and the estimated nanoseconds of computing again."""

    budget: float
    saved_bytes: int
    recompute_ns: float


def pareto(module: GraphModule, num_fwd_outputs: int, budgets: Sequence[float] | None = None) -> list[Point]:
    """Memory against time for several budgets (default: 0, 0.05 ... 1)."""
    joint = Joint.of(module.graph, num_fwd_outputs)
    points = []
    for b in budgets if budgets is not None else [i / 20 for i in range(21)]:
        report = make_report(joint, choose(joint, b), b)
        points.append(Point(b, report.saved_bytes, report.recompute_ns))
    return points


@dataclass(frozen=True)
class Chart:
    """A matplotlib figure that a notebook displays without any setting up."""

    figure: Any

    def _repr_png_(self) -> bytes:
        stream = io.BytesIO()
        self.figure.savefig(stream, format="png", dpi=110)
        return stream.getvalue()


def plot_pareto(points: Sequence[Point], path: str | None = None) -> Chart:
    """Draw the curve with matplotlib (extra ``[viz]``); to ``path``, if given."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3.2), layout="constrained")
    axes = figure.add_subplot()
    axes.step([p.recompute_ns / 1e6 for p in points], [p.saved_bytes / 2**20 for p in points], "o-", where="post")
    axes.set_xlabel("time to compute again, ms (estimated)")
    axes.set_ylabel("saved for backward, MiB")
    axes.set_title(f"from {human(points[0].saved_bytes)} to {human(points[-1].saved_bytes)}")
    if path is not None:
        figure.savefig(path)
    return Chart(figure)
