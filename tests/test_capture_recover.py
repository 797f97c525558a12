"""Errors that depend on data: what eager did before such an error is done, what stands after it is not."""

from __future__ import annotations

import contextlib
import random
import traceback
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from capture_helpers import Counted, same
from capture_more_cases import asserts

import tinytorch as torch
from compiler.backends.eager import eager
from compiler.capture import entry
from compiler.errors import Unsupported
from tinytorch import nn

LOG: list[Any] = []
TABLE = {"calls": 0}


@entry.disable
def act(*what: Any) -> None:
    LOG.append(what)


def writes(x, items, box, i):
    items.append(1)
    box.a = len(items)
    TABLE["calls"] += 1
    x.add_(1)
    y = x[i]
    items.append(2)
    x.mul_(3)
    box.b = y
    return y


def draws(x, items, box, i):
    items.append(random.random())
    x += torch.rand(4)
    y = x.index_select(0, i.abs())
    x += torch.rand(4)
    items.append(random.randint(0, 5))
    return y


def handled(x, items, box, i):
    try:
        items.append(0)
        y = x[i]
        x.add_(1)
    except IndexError as e:
        items.append((str(e), e.__context__))
        y = x * 2
    finally:
        items.append("end")
    return y


def handled_by_a_caller(x, items, box, i):
    def inner(v):
        items.append("in")
        return v.gather(0, i) * 2

    with contextlib.suppress(IndexError, RuntimeError):
        x = inner(x)
        items.append("through")
    return x


def result_unused(x, items, box, i):
    items.append(1)
    x[i]
    items.append(2)
    return x + 1


def in_a_loop(x, items, box, i):
    for k in range(3):
        try:
            x[i - k] = k + 1.0
        except IndexError:
            items.append(k)
            continue
        items.append("ok")
    return x


def under_a_block(x, items, box, i):
    with torch.no_grad():
        box.grad = torch.is_grad_enabled()
        y = x[i]
    return y


def after_a_break(x, items, box, i):
    items.append("before")
    act("break")
    x.add_(2)
    items.append("between")
    y = x[i]
    act("never on an error")
    return y


def history(x, items, box, i):
    w = box.weight
    y = w * 2
    y.mul_(x)
    items.append(y.requires_grad)
    return y[i].sum()


FUNCTIONS = [
    writes, draws, handled, handled_by_a_caller, result_unused, in_a_loop, under_a_block, after_a_break, history,
]  # fmt: skip


def told(fn: Callable[..., Any]) -> list[Any]:
    """Results or errors of calls that succeed and fail in turn, each with all state afterwards."""
    torch.manual_seed(3)
    random.seed(4)
    LOG.clear()
    TABLE["calls"] = 0
    x, items, box = torch.arange(4.0), [], types.SimpleNamespace(weight=nn.Parameter(torch.ones(4)))
    out = []
    for at in (1, 9, 0, -9):
        try:
            result: Any = fn(x, items, box, torch.tensor([at]))
        except Exception as e:
            result = type(e).__name__, str(e), e.__context__
        state = x.clone(), list(items), dict(vars(box)), dict(TABLE), list(LOG)
        out.append((result, state, torch.rand(1), random.random(), torch.is_grad_enabled()))
    return out


@pytest.mark.parametrize("backend", ["eager", "loops", "numba"])
@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda f: f.__name__)
def test_state_after_an_error(fn: Callable[..., Any], backend: str) -> None:
    compiled = torch.compile(fn, backend=backend, fullgraph=fn is not after_a_break)
    assert same(told(compiled), told(fn))


def pure(x, i):
    y = x[i]
    return y * 2


def looks_up(x, i):
    table = x.reshape(2, 2)
    return nn.functional.embedding(i, table).sum()


def has_no_root(x, i):
    matrix = -torch.eye(3) * x[0]
    return torch.linalg.cholesky(matrix)


def one_number(x, i):
    y = x * 2
    return y.item()


def one_branch(x, i):
    y = x * 2
    if y > 1:
        y = y + 1
    return y


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "numba"])
@pytest.mark.parametrize(("fn", "line"), [
    (writes, "y = x[i]"), (pure, "y = x[i]"), (looks_up, "return nn.functional.embedding(i, table).sum()"),
    (has_no_root, "return torch.linalg.cholesky(matrix)"), (one_number, "return y.item()"), (one_branch, "if y > 1:"),
])  # fmt: skip
def test_the_users_line_is_in_the_traceback(fn: Callable[..., Any], line: str, backend: str) -> None:
    """As a frame of the program where it runs again, else beside the instruction that broke the graph."""
    args = [torch.ones(4), torch.tensor([9]), [], types.SimpleNamespace()]
    args = [args[0], args[2], args[3], args[1]] if fn is writes else args[:2]
    compiled = torch.compile(fn, backend=backend)
    for _ in range(2):
        with pytest.raises((IndexError, RuntimeError)) as caught:
            compiled(*args)
        shown = [str(f.line) for f in traceback.extract_tb(caught.value.__traceback__)]
        assert any(text == line or text.endswith(f"in {fn.__name__}: {line}") for text in shown), shown
        assert type(caught.value.__context__) in (type(None), np.linalg.LinAlgError)


def refuses(x, items):
    for i in range(2):
        if x[i] < 0 or torch.isnan(x[i]):
            message = f"number {i}"
            raise FloatingPointError(message) from KeyError(i)
        items.append(i)
    return x + 1


def refuses_at_the_end(x, items):
    def checked(y):
        if not torch.isfinite(y).all():
            raise RefusedError(y)
        return y

    items.append(checked(x.sqrt()))
    return checked(1 / x)


def trains_or_refuses(x, items):
    w = x.clone().requires_grad_() if torch.compiler.is_compiling() is None else x * 1
    loss = (w * 2).sum()
    if loss < 0:
        raise RefusedError(loss)
    items.append(loss)
    return loss * 2


def switches(x, items):
    """The side that raises is the one that is not jumped to, or the one that is."""
    if x.sum() >= 0:
        y = x * 2
    else:
        raise ValueError(items)
    return y


class RefusedError(Exception):
    pass


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "numba"])
@pytest.mark.parametrize("fn", [asserts, refuses, refuses_at_the_end, trains_or_refuses, switches])
def test_a_branch_of_which_one_side_raises_is_a_check(fn: Callable[..., Any], backend: str) -> None:
    """One graph, and eager's exception, cause, state and line when the check fails."""

    def outcome(call: Any, values: list[float]) -> Any:
        items: list[Any] = []
        x = torch.tensor(values, requires_grad=True)
        try:
            result = call(x, items)
            result.sum().backward()
        except (AssertionError, ArithmeticError, ValueError, RefusedError) as e:
            result = type(e), str(e), repr(e.__cause__), [f.line for f in traceback.extract_tb(e.__traceback__) if f.name == fn.__name__]
        return result, items, x.grad

    compiled = torch.compile(fn, backend=backend, fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for values in ([1.0, 2.0], [-1.0, 0.5], [3.0, 1.0], [float("nan"), 1.0], [0.0, 1.0], [2.0, -1.0]):
            assert same(outcome(compiled, values), outcome(fn, values)), values


def test_a_check_that_the_program_catches_or_that_leads_elsewhere_is_a_branch() -> None:
    def caught(x):
        try:
            if x[0] < 0:
                raise ValueError
        except ValueError:
            return x - 1
        return x + 1

    def returns(x):
        return x * 2 if x[0] < 0 else x * 3

    for fn in (caught, returns):
        compiled = Counted(fn)
        for first in (1.0, -1.0):
            x = torch.tensor([first, 2.0])
            assert same(compiled(x), fn(x))
        with pytest.raises(Unsupported, match="branch on tensor data"):
            torch.compile(fn, backend="eager", fullgraph=True)(x)


def test_distributions_are_checked_inside_of_a_graph() -> None:
    def log_prob(loc, scale, x):
        return torch.distributions.Normal(loc, scale).log_prob(x).sum()

    compiled = torch.compile(log_prob, fullgraph=True)
    loc, scale, x = torch.zeros(3), torch.ones(3), torch.arange(3.0)
    torch.testing.assert_close(compiled(loc, scale, x), log_prob(loc, scale, x))
    with pytest.raises(ValueError, match="scale to be positive"):
        compiled(loc, -scale, x)


def test_nothing_is_kept_where_nothing_can_be_lost() -> None:
    compiled = Counted(lambda x, i: x * 2 + i, fullgraph=True)
    compiled(torch.ones(4), torch.tensor([1]))
    assert "try" not in compiled.entries[0].run_text
    compiled = Counted(pure, fullgraph=True)
    compiled(torch.ones(4), torch.tensor([1]))
    assert not any(word in compiled.entries[0].run_text for word in ("kept", "copy", "clone"))


def test_a_step_that_fails_leaves_parameters_and_optimizer_alone() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5))
    opt = torch.optim.AdamW(model.parameters(), lr=0.1)

    def step(ids):
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(ids), ids)
        loss.backward()
        opt.step()
        return loss

    compiled = torch.compile(step, fullgraph=True)
    compiled(torch.tensor([1, 2]))
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(IndexError):
        compiled(torch.tensor([1, 7]))
    assert same(dict(model.state_dict()), before)
    assert not any(p.grad is not None for p in model.parameters())  # zero_grad stands before the error
    assert [int(s["step"]) for s in opt.state.values()] == [1, 1, 1]


def test_an_error_that_eager_does_not_have_is_said() -> None:
    def backend(gm, examples):
        def run(*args):
            raise OSError("no such kernel")

        return run

    def f(x, items, i):
        items.append(1)
        return x[i] + 1

    compiled = entry.compile_function(f, backend)
    items: list[int] = []
    with pytest.warns(RuntimeWarning, match="OSError: no such kernel"):
        assert same(compiled(torch.ones(3), items, torch.tensor([0])), torch.full((1,), 2.0))
    assert items == [1]
    plain = entry.compile_function(lambda x: x + 1, backend)
    with pytest.raises(OSError):  # a graph that has no reason to raise is not run again
        plain(torch.ones(3))


def test_an_allowed_function_that_raises() -> None:
    @torch.compiler.allow_in_graph
    def checked(x):
        if type(x._data).__module__ == "numpy" and bool((x < 0).any()):
            raise ValueError("negative")
        return x.sqrt()

    def f(x, items):
        items.append("seen")
        x.add_(1)
        return checked(x)

    compiled = entry.compile_function(f, eager, fullgraph=True)
    for values in (torch.ones(2), -5 * torch.ones(2)):
        a, b = values.clone(), values.clone()
        left: list[str] = []
        right: list[str] = []
        try:
            expected: Any = f(a, left)
        except ValueError as e:
            with pytest.raises(ValueError, match=str(e)):
                compiled(b, right)
        else:
            assert same(compiled(b, right), expected)
        assert same((a, left), (b, right))
