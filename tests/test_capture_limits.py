"""How often one code object is compiled: each model has a limit of its own, all together another, both loud."""

from __future__ import annotations

import gc
import warnings
from typing import Any

import pytest
from capture_helpers import Counted, same

import tinytorch as torch
from compiler.config import config
from compiler.errors import RecompileLimit
from tinytorch import nn, optim

X = torch.ones(3, 4)
FEW = config.replace({"recompile_limit": 3, "accumulated_recompile_limit": 5})


def deep(n: int) -> nn.Module:
    return nn.Sequential(*[nn.Linear(4, 4) for _ in range(n)])


def run(model: Any, x: Any) -> Any:
    return model(x).sum()


def train(model: Any, opt: Any, x: Any) -> Any:
    opt.zero_grad()
    loss = model(x).square().sum()
    loss.backward()
    opt.step()
    return loss


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch.compiler.reset()


def quiet(call: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return call()


def test_a_function_that_never_stops_changing_runs_eager_loudly() -> None:
    def f(x, s):
        return x + len(s)

    compiled = Counted(f)
    x = torch.zeros(1)
    with pytest.warns(RuntimeWarning, match="recompile limit"):
        for i in range(config.recompile_limit + 2):
            assert same(compiled(x, "a" * i), x + i)
    assert len(compiled.graphs) == config.recompile_limit


@pytest.mark.parametrize("make", [lambda i: nn.Linear(4, i + 1), lambda i: deep(i + 1)], ids=["width", "depth"])
def test_models_of_different_structure_go_through_one_function(make: Any) -> None:
    """Each by code of its own, however many there are, and whichever comes next."""
    models = [make(i) for i in range(config.recompile_limit + 4)]
    compiled = Counted(run)
    for _ in range(2):
        for m in models:
            assert same(quiet(lambda m=m: compiled(m, X)), run(m, X))
    assert len(compiled.graphs) == len(models)


def test_models_of_one_structure_share_code() -> None:
    compiled = Counted(run)
    for _ in range(config.recompile_limit + 4):
        m = deep(2)
        assert same(quiet(lambda m=m: compiled(m, X)), run(m, X))
    assert len(compiled.graphs) == 1


def test_compiled_modules_do_not_count_for_one_another() -> None:
    """Their calls are one function of the library."""
    for i in range(config.recompile_limit + 4):
        m = deep(i + 1)
        compiled = torch.compile(m, backend="eager")
        for mode in (True, False):
            m.train(mode)
            assert same(quiet(lambda c=compiled: c(X)), m(X))


def test_closures_over_models_do_not_count_for_one_another() -> None:
    def over(m: Any) -> Any:
        return lambda x: m(x) * 2

    for i in range(config.recompile_limit + 4):
        f = over(deep(i + 1))
        compiled = torch.compile(f, backend="eager")
        assert same(quiet(lambda c=compiled: c(X)), f(X))


def test_a_model_that_never_stops_changing_runs_eager_loudly_and_alone() -> None:
    class Changing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.name = ""

        def forward(self, x: Any) -> Any:
            return x + len(self.name)

    compiled = Counted(run, config=FEW)
    m = Changing()
    with pytest.warns(RuntimeWarning, match="limit of 3 reached for this model") as caught:
        for i in range(6):
            m.name = "a" * i
            assert same(compiled(m, X), run(m, X))
    assert len(compiled.graphs) == 3 and len(caught) == 1
    other = nn.Linear(4, 2)
    assert same(quiet(lambda: compiled(other, X)), run(other, X)) and len(compiled.graphs) == 4
    m.name = ""
    assert same(quiet(lambda: compiled(m, X)), run(m, X))


def test_all_models_together_have_a_limit() -> None:
    compiled = Counted(run, config=FEW)
    models = [nn.Linear(4, i + 1) for i in range(7)]
    with pytest.warns(RuntimeWarning, match="limit of 5 reached; last") as caught:
        for m in models:
            assert same(compiled(m, X), run(m, X))
    assert len(compiled.graphs) == 5 and len(caught) == 1


def test_models_that_are_gone_make_room() -> None:
    compiled = Counted(run, config=FEW)
    with pytest.warns(RuntimeWarning, match="5 entries; those of models that are gone are forgotten"):
        for i in range(8):
            m = nn.Linear(4, i + 1)
            assert same(compiled(m, X), run(m, X))
            del m
            gc.collect()
    assert len(compiled.graphs) == 8 and len(compiled.entries) <= 5


def test_whole_graphs_raise_each_time() -> None:
    compiled = Counted(lambda x, s: x + len(s), fullgraph=True, config=FEW)
    for i in range(3):
        compiled(X, "a" * i)
    for _ in range(2):
        with pytest.raises(RecompileLimit, match="limit of 3"):
            compiled(X, "aaaaaa")
    assert same(compiled(X, "a"), X + 1)


@pytest.mark.parametrize("kind", [optim.SGD, optim.Adam, optim.AdamW, optim.Adagrad])
def test_new_optimizers_are_served_by_code_that_is_there(kind: Any) -> None:
    """A first step makes state before it is traced; then the step of an equal model fits."""
    options = {"momentum": 0.9} if kind is optim.SGD else {}
    compiled = Counted(train)
    for i in range(4):
        pairs = []
        for step in (compiled, train):
            torch.manual_seed(i)
            m = deep(2)
            opt = kind(m.parameters(), lr=0.1, **options)
            for _ in range(3):
                quiet(lambda m=m, opt=opt, step=step: step(m, opt, X))
            pairs.append([p.detach() for p in m.parameters()])
        assert same(*pairs)
    assert len(compiled.graphs) == 1
