"""The largest moment of a plan: which buffers, how many bytes, who made them and who waits for them."""

from __future__ import annotations

from loop_helpers import trace

import tinytorch as torch
from compiler import logs
from compiler.config import Config
from compiler.loop import compile_graph
from compiler.loop.footprint import footprint
from tinytorch import ops


def test_two_products_and_what_lies_between() -> None:
    def fn(x, w, v):
        return ops.matmul(ops.exp(ops.matmul(x, w)), v)

    plan = compile_graph(trace(fn, torch.zeros(8, 4), torch.zeros(4, 16), torch.zeros(16, 2)), Config())
    found = footprint(plan)
    assert found.given == 4 * (8 * 4 + 4 * 16 + 16 * 2)
    hidden, out = 4 * 8 * 16, 4 * 8 * 2
    assert found.peak in (hidden + out, 2 * hidden)  # exp may take over its operand's memory
    assert sum(x.size for x in found.live) == found.peak
    assert [x.size for x in found.live] == sorted((x.size for x in found.live), reverse=True)
    kept = [x for x in found.live if not x.last]
    assert all(x.size == out for x in kept)
    assert found.live[0].maker == "matmul" and "512 B" in str(found) and "8x16" in str(found)


def test_sizes_that_vary_are_asked_for() -> None:
    seen = []
    with logs.listening(lambda topic, name, text: seen.append((topic, text))):
        torch.compile(lambda x: (x.exp() @ x.t()).sum(), dynamic=True)(torch.zeros(8, 4))
    (text,) = [t for topic, t in seen if topic == "memory"]
    assert "besides" in text and "exp" in text
