"""Bisecting to the guilty stage and pass, and making a failing graph small."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import tinytorch as torch
from compiler.aot.joint import trace
from compiler.debug.bisect import bisect
from compiler.debug.minify import as_program, minify
from compiler.ir.interp import Interpreter
from compiler.passes import tidy
from tinytorch import nn, ops


def program(x: Any, w: Any) -> Any:
    return ((x @ w).tanh() * 1.0 + x.sum()).exp()


def test_a_right_program_has_no_guilty_stage() -> None:
    x, w = torch.rand(4, 3), torch.rand(3, 2, requires_grad=True)
    verdict = bisect(program)(x, w)
    assert not verdict.guilty and len(verdict.tried) == 5 and "no stage differs" in str(verdict)
    assert w.grad is None


def test_a_wrong_pass_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def drop_tanh(graph: Any) -> bool:
        for node in graph.find_nodes(op="call_function", target=ops.tanh):
            node.replace_all_uses_with(node.args[0])
        return True

    monkeypatch.setattr(tidy, "PASSES", (*tidy.PASSES, drop_tanh, tidy.drop_unused))
    verdict = bisect(program)(torch.rand(4, 3), torch.rand(3, 2))
    assert verdict.guilty == "aot_eager" and verdict.cured_by == "pass drop_tanh switched off"
    assert verdict.difference.startswith("result differs at [0, 0]")


def test_a_wrong_codegen_is_found_with_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    from compiler.backends import loops

    def wrong(module: Any, config: Any) -> Any:
        build = loops.load_codegen("codegen_numba").build

        def built(plan: Any, config: Any) -> Any:
            run = build(plan, config)
            return lambda arrays, sizes: [a + (a.dtype.kind == "f") for a in run(arrays, sizes)]

        return built

    monkeypatch.setattr(loops, "_codegen_for", wrong)
    verdict = bisect(nn.Linear(3, 2))(torch.rand(4, 3))
    assert verdict.guilty == "inductor" and "codegen" in str(verdict)


def test_minify_leaves_the_one_bad_node() -> None:
    def f(x: Any, w: Any) -> Any:
        return [((x @ w).relu() + 1).log().sum(0), (x * 2).exp()]

    x, w = torch.rand(4, 3), torch.rand(3, 2)
    gm = trace(f, [x, w])

    class Wrong(Interpreter):
        """log is off by one."""

        def call_function(self, node: Any, args: Any, kwargs: Any) -> Any:
            out = super().call_function(node, args, kwargs)
            return out + 1 if node.target is ops.log else out

    def fails(gm: Any, inputs: list[Any]) -> bool:
        want, got = Interpreter(gm).run(*inputs), Wrong(gm).run(*inputs)
        return any(not np.allclose(a.numpy(), b.numpy()) for a, b in zip(want, got, strict=True))

    small, inputs = minify(gm, [x, w], fails)
    assert [n.target for n in small.graph.nodes if n.op == "call_function"] == [ops.log]
    assert len(inputs) == 1 and fails(small, inputs)
    with pytest.raises(ValueError, match="does not fail"):
        minify(gm, [x, w], lambda gm, inputs: False)
    done = subprocess.run([sys.executable, "-c", as_program(small, inputs)], capture_output=True, text=True, check=True)
    assert "tensor" in done.stdout
