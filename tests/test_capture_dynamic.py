"""Symbolic sizes and numbers: who becomes symbolic when, and what the guards then say."""

from __future__ import annotations

from typing import Any

import pytest
from capture_helpers import Counted, same

import tinytorch as torch
from compiler.capture import entry
from compiler.config import config


def entries(fn: Any, calls: list[tuple[Any, ...]], **options: Any) -> list[int]:
    compiled = Counted(fn, fullgraph=True, **options)
    out = []
    for args in calls:
        assert same(compiled(*args), fn(*args)), args
        out.append(len(compiled.entries))
    assert not compiled.native()
    return out


def shapes(*sizes: int) -> list[tuple[Any]]:
    return [(torch.randn(n, 4),) for n in sizes]


def double(x):
    return x * 2 + x.sum(0)


def test_the_second_size_makes_a_dimension_symbolic() -> None:
    assert entries(double, shapes(3, 5, 7, 3, 9)) == [1, 2, 2, 2, 2]


def test_dynamic_true_and_false() -> None:
    assert entries(double, shapes(3, 5, 7), dynamic=True) == [1, 1, 1]
    assert entries(double, shapes(3, 5, 7), dynamic=False) == [1, 2, 3]


def test_zero_and_one_specialise() -> None:
    assert entries(double, shapes(3, 5, 1, 0, 1, 8), dynamic=True) == [1, 1, 2, 3, 3, 3]


def test_sizes_in_python_arithmetic() -> None:
    def f(x):
        b, c = x.shape
        pad = (-b) % 8
        return torch.cat([x, torch.zeros(pad, c)]), x.view(b * 2, c // 2), b * c + 1, f"{c}", [b, b // 2]

    assert entries(f, shapes(4, 6, 10, 12)) == [1, 2, 2, 2]


def test_control_flow_on_sizes_guards_the_answer() -> None:
    def f(x):
        return x + 1 if x.shape[0] > 4 else x - 1

    assert entries(f, shapes(2, 3, 4, 5, 9)) == [1, 2, 2, 3, 3]


def test_equal_sizes_are_a_fact() -> None:
    def f(x, y):
        return x + y

    compiled = Counted(f, fullgraph=True, dynamic=True)
    for n in (3, 5):
        compiled(torch.ones(n), torch.ones(n))
    assert len(compiled.entries) == 1
    with pytest.raises(RuntimeError, match="must match"):
        compiled(torch.ones(3), torch.ones(4))


def test_loops_over_a_symbolic_size_specialise() -> None:
    def f(x):
        out = x[0]
        for i in range(x.shape[0]):
            out = out + x[i]
        return out

    assert entries(f, shapes(3, 5)) == [1, 2]


def test_int_arguments_become_symbolic() -> None:
    def f(x, n):
        return x * n + torch.ones(4) * (n - 1), n + 1

    x = torch.randn(2, 4)
    assert entries(f, [(x, 3), (x, 7), (x, 9), (x, 1), (x, 100)]) == [1, 2, 2, 2, 2]


def test_mark_dynamic_and_static() -> None:
    x = torch.randn(6, 4)
    entry.mark_dynamic(x, 0, min=2, max=10)
    compiled = Counted(double, fullgraph=True)
    compiled(x)
    compiled(torch.randn(9, 4))
    assert len(compiled.entries) == 1
    compiled(torch.randn(20, 4))
    assert len(compiled.entries) == 2
    static = []
    for n in (3, 4, 5):
        t = torch.randn(n, 4)
        entry.mark_static(t)
        static.append((t,))
    assert entries(double, static) == [1, 2, 3]


def test_transposed_and_strided_inputs_with_symbolic_sizes() -> None:
    calls = [(torch.randn(4, n).t(),) for n in (3, 5, 6)]
    assert entries(double, calls) == [1, 2, 2]


# --- floats -----------------------------------------------------------------------------------------------------------
def test_a_changing_learning_rate_compiles_twice() -> None:
    def f(p, g, lr):
        p.add_(g, alpha=-lr)
        return p * (1 - lr * 0.1)

    compiled = Counted(f, fullgraph=True)
    for i in range(20):
        lr = 0.1 / (i + 1)
        a, b, g = torch.ones(4), torch.ones(4), torch.randn(4)
        assert torch.allclose(compiled(a, g, lr), f(b, g, lr), rtol=1e-6)
        assert torch.allclose(a, b, rtol=1e-6)
    assert len(compiled.entries) <= 2


def test_a_float_that_decides_is_guarded_by_value() -> None:
    def f(x, t):
        return x if t > 0.5 else -x

    x = torch.ones(2)
    assert entries(f, [(x, 0.1), (x, 0.9), (x, 0.3), (x, 0.9)]) == [1, 2, 3, 3]


def test_a_float_with_integer_tensors_keeps_the_type() -> None:
    def f(x, t):
        return x * t

    x = torch.arange(4)
    assert entries(f, [(x, 0.5), (x, 0.25), (x, 0.125)]) == [1, 2, 3]


def test_floats_come_back_as_floats() -> None:
    def f(x, t):
        return x + t, t * 2, [t]

    x = torch.ones(2)
    got = Counted(f, fullgraph=True)
    for t in (0.5, 0.25, 0.125):
        assert same(got(x, t), f(x, t))
    assert len(got.entries) == 2


# --- values of tensors ------------------------------------------------------------------------------------------------
def test_item_is_captured_if_asked_for() -> None:
    def f(x):
        s = x.sum().item()
        return x * s, s

    x = torch.randn(3)
    compiled = Counted(f, fullgraph=True, config=config.replace({"capture_scalar_outputs": True}))
    assert same(compiled(x), f(x))
    assert not compiled.breaks()


def test_item_breaks_otherwise() -> None:
    def f(x):
        return x * x.sum().item()

    x = torch.randn(3)
    compiled = Counted(f)
    assert same(compiled(x), f(x))
    assert compiled.breaks() == ["TT0102"]
    assert len(compiled.graphs) == 2


def test_data_dependent_shapes_break() -> None:
    def f(x):
        y = x * 2
        return y[y > 0] + 1, y.nonzero()

    x = torch.tensor([1.0, -1.0, 2.0])
    compiled = Counted(f)
    assert same(compiled(x), f(x))
    assert "TT0103" in compiled.breaks()


def test_the_text_of_an_error_shows_numbers() -> None:
    """Also where the program catches it: the sizes it read are guarded."""

    def f(x, i):
        try:
            return x[i] + 1, ""
        except IndexError as e:
            return x, str(e)

    def shaped(x, n):
        try:
            return x.reshape(n, 2), ""
        except RuntimeError as e:
            return x, str(e)

    for fn in (f, shaped):
        compiled = Counted(fn, dynamic=True)
        for n, i in ((3, 2), (3, 7), (4, 9), (5, 9), (7, 3)):
            x = torch.ones(n)
            assert same(compiled(x, i), fn(x, i)), (n, i)


class Scaled(torch.nn.Module):
    """Built with a number, a tuple of them and a float."""

    def __init__(self, by: int) -> None:
        super().__init__()
        self.by, self.pads, self.eps = by, (by, 3), by / 8

    def forward(self, x: Any) -> Any:
        return torch.nn.functional.pad(x, self.pads) * self.by + self.eps


def test_what_a_module_is_built_with_does_not_vary() -> None:
    """Not even where all sizes do, as in PyTorch: a pool's stride as a symbol would be a division at each element."""
    found: list[Any] = []

    def backend(gm: Any, examples: Any) -> Any:
        found.append(gm)
        return gm

    net = torch.nn.Sequential(Scaled(2), torch.nn.MaxPool2d(2))
    compiled = torch.compile(net, backend=backend, dynamic=True)
    for n in (6, 8):
        x = torch.randn(2, n, 3, n)
        assert same(compiled(x), net(x))
    (gm,) = found
    inputs = [node.meta["val"] for node in gm.graph.nodes if node.op == "placeholder"]
    assert [tuple(map(str, getattr(v, "shape", ("number",)))) for v in inputs] == [("s0", "s1", "s2", "s3")]


def test_numbers_of_a_module_that_do_vary_become_symbols() -> None:
    net, x = Scaled(2), torch.randn(3, 4)
    compiled = Counted(lambda x: net(x), dynamic=True)
    counts = []
    for by in (2, 3, 4, 7):
        net.__init__(by)
        assert same(compiled(x), net(x))
        counts.append(len(compiled.entries))
    assert counts[-1] == counts[1] <= 3


def greedy(x, chance, eps):
    if chance < eps:
        return x * 2
    if not eps:
        return x - 1
    return x + chance


def test_a_branch_on_a_float_has_as_many_entries_as_outcomes() -> None:
    """Not one for each number: the first is a constant, and each outcome of the comparisons is one more."""
    calls = [(torch.ones(3), chance, eps) for eps in (0.5, 0.25, 0.75, 0.0) for chance in (0.1, 0.9, 0.6, 0.3, float("nan"), float("inf"))]
    assert max(entries(greedy, calls)) <= 6


def test_a_float_is_compared_with_what_the_graph_computed() -> None:
    def f(x, a, b):
        low = min(a, b)
        return (x * low if a * 2 < b else x / low), a == b, max(a, 0.5), a >= 1

    entries(f, [(torch.ones(3), a, b) for a, b in ((0.5, 2.0), (0.7, 3.0), (0.8, 0.9), (1.5, 1.5), (2.5, 7.0))])
