"""Plans made once: equal graphs find them, in this process and on disk; whatever a plan depends on makes another."""

from __future__ import annotations

import pytest
from loop_helpers import trace

import tinytorch as torch
from compiler import cache
from compiler.config import Config, config
from compiler.loop import kept
from tinytorch import ops


@pytest.fixture
def made(monkeypatch, tmp_path) -> list[str]:
    """The graphs that were lowered."""
    found: list[str] = []
    original = kept.compile_graph

    def compile_graph(gm, settings):
        found.append(gm.code)
        return original(gm, settings)

    monkeypatch.setattr(kept, "compile_graph", compile_graph)
    tmp_path.chmod(0o700)
    with config.patch(cache_dir=str(tmp_path)):
        yield found


def graph(shape=(4, 8), dtype=torch.float32, scale=2.0, dim=1):
    return trace(lambda x: ops.sum(ops.mul(ops.exp(x), scale), dim=(dim,), keepdim=False), torch.zeros(*shape, dtype=dtype))


def test_equal_graphs_have_one_plan(made) -> None:
    first, again = kept.plan_of(graph(), Config()), kept.plan_of(graph(), Config())
    assert first[0] == again[0] and first[1] is again[1] and len(made) == 1


def test_what_is_read_from_disk_is_equal(made) -> None:
    _, plan = kept.plan_of(graph(), Config())
    kept._plans.clear()
    assert kept.plan_of(graph(), Config())[1] == plan and len(made) == 1
    kept._plans.clear()
    for file in cache.folder().rglob("*"):  # an entry that was tampered with is made again
        if file.is_file():
            file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert kept.plan_of(graph(), Config())[1] == plan and len(made) == 2


@pytest.mark.parametrize("other", [
    dict(shape=(8, 4)), dict(dtype=torch.float64), dict(scale=3.0), dict(scale=2), dict(dim=0),
])  # fmt: skip
def test_other_graphs_have_others(made, other) -> None:
    assert kept.plan_of(graph(), Config())[0] != kept.plan_of(graph(**other), Config())[0]
    assert len(made) == 2


def test_settings_and_gifts_are_part_of_the_name(made) -> None:
    names = {kept.plan_of(graph(), Config())[0], kept.plan_of(graph(), Config(fusion=False))[0]}
    given = graph()
    given.meta["donated"] = [given.graph.placeholders[0].name]
    names.add(kept.plan_of(given, Config())[0])
    strided = trace(lambda x: ops.exp(x), torch.zeros(8, 4).t())
    names |= {kept.plan_of(strided, Config())[0], kept.plan_of(trace(lambda x: ops.exp(x), torch.zeros(4, 8)), Config())[0]}
    assert len(names) == 5


def test_without_a_cache_nothing_is_kept(made) -> None:
    for _ in range(2):
        assert kept.plan_of(graph(), Config(cache=False))[0] == ""
    assert len(made) == 2


def test_a_step_traced_twice_is_lowered_once(made) -> None:
    p = torch.nn.Parameter(torch.ones(4))
    opt = torch.optim.SGD([p], lr=0.1)

    @torch.compile
    def step(x):
        if p.grad is not None:
            p.grad = None
        loss = (p * x).sum()
        loss.backward()
        opt.step()
        return loss.detach()

    values = [step(torch.ones(4)).item() for _ in range(3)]
    assert values == pytest.approx([4.0, 3.6, 3.2]) and len(made) == 1
