"""Graph breaks: anywhere, with the program's meaning kept, the rest compiled, and the reason told."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import pytest
from capture_helpers import Counted, same

import tinytorch as torch
from compiler.capture import breaks, entry
from compiler.config import config
from compiler.errors import Unsupported

LOG: list[Any] = []


@entry.disable
def act(*what):
    """Something that is not to be compiled, and that shows when it ran."""
    LOG.append(what)


@entry.disable
def fail():
    LOG.append("fail")
    raise KeyError("b")


def simple(x):
    y = x + 1
    act(1)
    return y * 2


def in_loop(x):
    for i in range(12):
        x = x + i
        act(i)
    return x


def in_loop_over_list(x):
    out = []
    for v in [1.0, 2.0, 3.0]:
        x = x * v
        out.append(x.sum())
        act(len(out))
    return out, x


def in_while(x):
    n = 0
    while n < 5:
        x = x + n
        act(n)
        n += 1
    return x, n


def return_in_loop(x):
    for i in range(10):
        x = x + 1
        act(i)
        if i == 3:
            return x, i
    return None


def under_no_grad(x):
    w = x * 1
    with torch.no_grad():
        y = w * 2
        act(torch.is_grad_enabled())
        z = y * 3
    act(torch.is_grad_enabled())
    return z, w * 2


class Ctx:
    def __init__(self):
        self.log = []

    def __enter__(self):
        self.log.append("in")
        return self

    def __exit__(self, *e):
        self.log.append(e[0])
        return True


def under_with(x):
    c = Ctx()
    with c:
        x = x + 1
        act("w")
        x = x * 2
        raise ValueError
    return x, c.log


def in_try(x):
    try:
        x = x + 1
        fail()
        x = x * 100
    except KeyError as e:
        x = x * 2
        act(str(e))
        r = e.args
    finally:
        x = x + 5
        act("fin")
    return x, r


def in_handler(x):
    try:
        raise ValueError("v")
    except ValueError as e:
        act("in handler")
        x = x + 1
        try:
            raise
        except ValueError as f:
            identical = f is e
    return x, identical


def in_finally(x):
    try:
        x = x + 1
    finally:
        act("f")
        x = x * 3
    return x


def helper(x):
    x = x + 1
    act("nested")
    return x * 3


def in_nested_call(x):
    return helper(x) * 2 + helper(x + 1)


def on_branch(x):
    y = x * 2
    if y.sum() > 0:
        y = y + 1
        r = "pos"
    else:
        y = y - 1
        r = "neg"
    return y, r


def on_item(x):
    s = x.sum().item()
    return x * s, int(s)


def in_comprehension(x):
    return [act(i) or x * i for i in range(3)]


def on_bool_ops(x):
    return (x.sum() > 0 and x.sum() > 100 or x.mean() < 0), not x.sum()


def with_cells(x):
    n = 0

    def inc():
        nonlocal n
        n += 1
        return n

    inc()
    act(n)
    inc()
    act(n)
    x = x * n
    return x, inc(), n


def same_name_in_cell_and_local(x):
    def inner():
        x = 5
        return x

    act(1)
    return x + inner()


def with_effects(x, d=None):
    d = {"l": []}
    d["a"] = x
    d["l"].append(1)
    act(list(d))
    d["l"].append(2)
    del d["a"]
    return x, d


def on_unpacking(x):
    a, b, c = x.tolist()[0][:3]
    return x * a, b, c, f"{x.sum():.3f}"


def over_enumerate_zip(x):
    for i, (a, b) in enumerate(zip([1, 2, 3], [4, 5, 6])):
        x = x * a + b
        act(i, a, b)
    return x


def with_values_on_the_stack(x):
    return max(x.shape[0], act(1) or 7) + len([act(2), act(3)]), x, torch.add(x, act(4) or 5)


def in_fstring(x):
    return f"{act(3)}-{x.shape}-{x.sum():.2f}", x + 1


def class_body(x):
    class A:
        k = 3

        def f(self, v):
            return v * self.k

    return A().f(x)


def asked_for(x):
    x = x + 1
    entry.graph_break()
    return x * 2


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)

    def forward(self, x):
        x = self.inner(x)
        act("module")
        return x * 2


MODEL = Model()


def in_module(x):
    return MODEL(x).relu()


def iterator_argument(x):
    total = 0
    for v in iter([1, 2, 3]):
        total += v
        act(v)
    return x + total


#: function -> (graphs, breaks) compiled on the way of two equal calls
CASES: dict[Any, tuple[int, int]] = {
    simple: (2, 1), in_loop: (3, 4), in_loop_over_list: (3, 4), in_while: (4, 4), return_in_loop: (2, 5),
    under_no_grad: (3, 2), under_with: (2, 1), in_try: (3, 3), in_handler: (1, 1), in_finally: (2, 1),
    in_nested_call: (4, 3), on_branch: (2, 1), on_item: (2, 1),
    in_comprehension: (3, 6 if sys.version_info < (3, 12) else 5),  # a frame of its own before 3.12
    on_bool_ops: (3, 3), with_cells: (1, 2), same_name_in_cell_and_local: (1, 1), with_effects: (0, 1),
    on_unpacking: (1, 2), over_enumerate_zip: (3, 4), with_values_on_the_stack: (1, 4), in_fstring: (2, 2),
    class_body: (2, 1), asked_for: (2, 1), in_module: (3, 4), iterator_argument: (1, 4),
}  # fmt: skip


@pytest.mark.parametrize("fn", CASES, ids=lambda f: f.__name__)
def test_meaning_is_kept_across_breaks(fn: Any) -> None:
    x = torch.ones(3, 4)
    entry.reset()
    LOG.clear()
    expected, expected_log = [fn(x.clone()), fn(x.clone())], list(LOG)
    compiled = Counted(fn)
    LOG.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got, log = [compiled(x.clone()), compiled(x.clone())], list(LOG)
    assert same(got, expected)
    assert same(log, expected_log)
    assert not compiled.native()
    assert (len(compiled.graphs), len(compiled.breaks())) == CASES[fn]


def test_loop_with_a_break_does_not_recompile_each_time() -> None:
    compiled = Counted(in_loop)
    x = torch.randn(2)
    for _ in range(3):
        compiled(x)
    assert len(compiled.graphs) <= 3


def test_ten_thousand_steps_do_not_deepen_the_stack() -> None:
    def long(x):
        for i in range(3000):
            act(i)
        return x + 1

    LOG.clear()
    assert same(Counted(long)(torch.zeros(1)), torch.ones(1))
    assert len(LOG) == 3000


def test_break_names_id_reason_hint_and_user_line() -> None:
    with pytest.raises(Unsupported) as caught:
        Counted(simple, fullgraph=True)(torch.zeros(2))
    e = caught.value
    assert e.id == breaks.SKIPPED_CALL.id
    assert e.hint
    where = e.stack[-1]
    assert where.filename == __file__
    assert where.text.strip() == "act(1)"
    assert "act(1)" in str(e)


def test_nested_break_shows_both_frames() -> None:
    with pytest.raises(Unsupported) as caught:
        Counted(in_nested_call, fullgraph=True)(torch.zeros(2))
    assert [w.function for w in caught.value.stack] == ["in_nested_call", "helper"]


@pytest.mark.parametrize(
    ("fn", "row"),
    [
        (on_branch, breaks.TENSOR_BRANCH), (on_item, breaks.SCALAR_OUTPUT), (class_body, breaks.CLASS_BODY),
        (asked_for, breaks.USER_BREAK), (in_fstring, breaks.SKIPPED_CALL),
    ],
    ids=lambda v: getattr(v, "__name__", getattr(v, "id", "")),
)  # fmt: skip
def test_break_ids(fn: Any, row: breaks.Break) -> None:
    compiled = Counted(fn)
    compiled(torch.ones(3, 4))
    assert row.id in compiled.breaks()


def test_registry_is_documented() -> None:
    text = breaks.render()
    for row in breaks.REGISTRY.values():
        assert row.id in text
        assert row.explanation and row.hint and row.id.startswith("TT")


def test_error_on_graph_break_inside() -> None:
    def f(x):
        with entry.error_on_graph_break(True):
            act(1)
        return x

    def g(x):
        with entry.error_on_graph_break(False):
            act(1)
        return x + 1

    with pytest.raises(Unsupported):
        Counted(f)(torch.zeros(1))
    assert same(Counted(g)(torch.zeros(1)), torch.ones(1))


def test_started_generator_across_a_break_runs_eager_and_says_so() -> None:
    def f(x):
        def g():
            yield from range(3)

        for i in g():
            x = x + i
            act(i)
        return x

    LOG.clear()
    compiled = Counted(f)
    with pytest.warns(RuntimeWarning, match="runs eager"):
        got = compiled(torch.zeros(2))
    assert same(got, torch.full((2,), 3.0))
    assert LOG == [(0,), (1,), (2,)]


def test_generator_functions_are_left_alone() -> None:
    def g(x):
        yield x + 1
        return "done"

    compiled = entry.compile_function(g, lambda gm, ex: gm)
    it = compiled(torch.zeros(1))
    assert same(next(it), torch.ones(1))
    with pytest.raises(StopIteration) as stop:
        next(it)
    assert stop.value.value == "done"


def test_fresh_generator_leaves_as_a_generator() -> None:
    def f(x):
        def g(n):
            for i in range(n):
                got = yield x * i
                if got:
                    yield got
            return "done"

        return g(2)

    g = Counted(f, fullgraph=True)(torch.ones(1))
    assert same(next(g), torch.zeros(1))
    assert g.send("s") == "s"
    assert same(next(g), torch.ones(1))
    with pytest.raises(StopIteration) as stop:
        next(g)
    assert stop.value.value == "done"


def test_recompile_limit_is_loud() -> None:
    def f(x, s):
        return x + len(s)

    compiled = Counted(f)
    x = torch.zeros(1)
    with pytest.warns(RuntimeWarning, match="recompile limit"):
        for i in range(config.recompile_limit + 2):
            assert same(compiled(x, "a" * i), x + i)
    assert len(compiled.graphs) == config.recompile_limit


def test_exceptions_of_the_program_have_the_users_traceback() -> None:
    def inner(x):
        raise ValueError("mine")

    def f(x):
        y = x + 1
        return inner(y)

    compiled = Counted(f)
    for _ in range(2):
        with pytest.raises(ValueError, match="mine") as caught:
            compiled(torch.zeros(1))
        names = [t.name for t in caught.traceback]
        assert names[-2:] == ["f", "inner"]


def test_modes_are_restored_when_a_call_raises() -> None:
    def f(x):
        with torch.no_grad():
            y = x + 1
            act(1)
            y @ torch.ones(77, 2)

    compiled = Counted(f)
    with pytest.raises(RuntimeError):
        compiled(torch.ones(3, 4))
    assert torch.is_grad_enabled()
