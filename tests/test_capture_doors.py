"""The doors of capture: what can be compiled, and the marks a program sets."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from capture_helpers import Counted, same

import tinytorch as torch
from compiler.capture import entry, graphs
from compiler.config import config
from compiler.errors import CompileError, Unsupported
from tinytorch import nn
from tinytorch.functions import misc

X = torch.ones(3)


# --- what can be compiled ---------------------------------------------------------------------------------------------
def test_functions_methods_lambdas_partials_callables_modules() -> None:
    class Thing:
        def __init__(self, k: int) -> None:
            self.k = k

        def method(self, x: Any, *, plus: int = 0) -> Any:
            return x * self.k + plus

        def __call__(self, x: Any) -> Any:
            return x - self.k

        @staticmethod
        def fixed(x: Any) -> Any:
            return x + 7

    m = nn.Linear(3, 2)
    targets = [lambda x: x + 1, Thing(3).method, Thing(4), Thing.fixed, functools.partial(lambda k, x: x * k, 5), m, torch.relu]
    for fn in targets:
        compiled = Counted(fn, fullgraph=True)
        assert same(compiled(X), fn(X))
        assert same(compiled(X), fn(X))
        assert len(compiled.entries) == 1
        assert len(compiled.graphs) == 1
    compiled = Counted(Thing(3).method)
    assert same(compiled(X, plus=2), X * 3 + 2)


def test_signatures_are_kept() -> None:
    def f(a, /, b, c=3, *args, d, e=5, **kw):
        """doc"""
        return a + b, c, args, d, e, kw

    compiled = Counted(f)
    for args, kwargs in [((X, 1), {"d": 4}), ((X, 1, 2, 3, 4), {"d": 0, "e": 1, "z": 2}), ((X,), {"b": 1, "c": 2, "d": 3})]:
        assert same(compiled(*args, **kwargs), f(*args, **kwargs))
    for args, kwargs in [((X,), {}), ((X, 1), {}), ((), {"a": X, "b": 1, "d": 2})]:
        with pytest.raises(TypeError):
            compiled(*args, **kwargs)
    assert compiled.call.__name__ == "f" and compiled.call.__doc__ == "doc"


def test_code_without_source_compiles() -> None:
    scope: dict[str, Any] = {"torch": torch}
    exec("def f(x):\n    y = x * 2\n    print(end='')\n    return y + 1\n", scope)
    compiled = Counted(scope["f"])
    assert same(compiled(X), X * 3)
    assert len(compiled.graphs) == 2


def test_a_compiled_function_called_by_another_is_inlined() -> None:
    inner = entry.compile_function(lambda x: x * 2, lambda gm, ex: gm)

    def f(x):
        return inner(x) + 1

    compiled = Counted(f, fullgraph=True)
    assert same(compiled(X), X * 3)
    assert len(compiled.graphs) == 1


def test_a_callee_of_a_break_is_compiled_itself() -> None:
    def helper(x):
        y = x * 2
        entry.graph_break()
        return y + 1

    def f(x):
        return helper(x + 1) * 3

    compiled = Counted(f)
    assert same(compiled(X), f(X))
    assert len(compiled.graphs) == 4  # before, inside twice, after


# --- marks ------------------------------------------------------------------------------------------------------------
def test_disable() -> None:
    calls: list[str] = []

    @entry.disable(reason="not this one")
    def off(x):
        calls.append("off")
        return x + 1

    def f(x):
        return off(x * 2) * 3

    compiled = Counted(f)
    assert same(compiled(X), X * 9)
    assert same(off(X), X * 2)
    assert calls == ["off", "off"]
    with pytest.raises(Unsupported, match="not this one"):
        Counted(f, fullgraph=True)(X)


def test_disable_recursive_or_not() -> None:
    inner = Counted(lambda x: x * 2)

    def outer(x):
        return inner(x) + 1

    entry.disable(outer)(X)
    assert not inner.graphs
    entry.disable(outer, recursive=False)(X)
    assert len(inner.graphs) == 1


@entry.allow_in_graph
def opaque(x: Any) -> Any:
    return torch.tanh(x) if type(x).__name__ else x


@entry.assume_constant_result
def settled() -> int:
    return 7


def test_allow_in_graph_and_constant_results() -> None:
    def f(x):
        return opaque(x) * settled()

    compiled = Counted(f, fullgraph=True)
    assert same(compiled(X), f(X))
    assert opaque in [n.target for n in compiled.graphs[0].graph.nodes]


def test_is_compiling_is_true_only_inside() -> None:
    def f(x):
        return x + 1 if torch.compiler.is_compiling() else x - 1

    assert same(Counted(f, fullgraph=True)(X), X + 1)
    assert same(f(X), X - 1)


def test_stances() -> None:
    compiled = Counted(lambda x: x * 2)
    with entry.set_stance("force_eager"):
        assert same(compiled(X), X * 2)
    assert not compiled.graphs
    compiled(X)
    with entry.set_stance("eager_on_recompile"):
        assert same(compiled(torch.ones(4, 4)), torch.full((4, 4), 2.0))
    assert len(compiled.graphs) == 1
    with entry.set_stance("fail_on_recompile"):
        compiled(X)
        with pytest.raises(RuntimeError, match="shape"):
            compiled(torch.ones(5, 5))
    with pytest.raises(RuntimeError, match="invalid stance"):
        entry.set_stance("sideways")

    @entry.set_stance("force_eager")
    def forced(x):
        return compiled(x)

    forced(torch.ones(2, 2, 2))
    assert len(compiled.graphs) == 1
    first = Counted(lambda x: x + 1)
    with entry.set_stance("eager_then_compile"):
        first(X)
        assert not first.graphs
        first(X)
        assert len(first.graphs) == 1


def test_reset_forgets() -> None:
    compiled = Counted(lambda x: x * 2)
    compiled(X)
    entry.reset()
    assert compiled.entries == []
    compiled(X)
    assert len(compiled.graphs) == 2


# --- when things go wrong ---------------------------------------------------------------------------------------------
def test_a_failing_backend_is_named_and_chained() -> None:
    def backend(gm: Any, examples: Any) -> Any:
        raise KeyError("inside")

    compiled = entry.compile_function(lambda x: x + 1, backend)
    with pytest.raises(CompileError, match="backend failed") as caught:
        compiled(X)
    assert isinstance(caught.value.__cause__, KeyError)


def test_internal_errors_can_be_survived_loudly(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> Any:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(graphs, "example", broken)
    with pytest.raises(CompileError, match="internal error"):
        Counted(lambda x: x + 1)(X)
    survivor = Counted(lambda x: x + 1, config=config.replace({"suppress_errors": True}))
    with pytest.warns(RuntimeWarning, match="internal error"):
        assert same(survivor(X), X + 1)


def test_the_result_object_tells_what_was_captured() -> None:
    def f(x, w):
        y = x @ w
        print(end="")
        return y.relu()

    compiled = Counted(f)
    compiled(torch.ones(2, 3), torch.ones(3, 4))
    first = compiled.entries[0]
    assert first.sources == ["x", "w"]
    assert [tuple(e.shape) for e in first.example_inputs] == [(2, 3), (3, 4)]
    assert first.breaks[0].id == "TT0201"
    assert "graph(" in first.run_text and "Tail(" in first.run_text
    node = next(n for n in first.graph_module.graph.nodes if n.op.startswith("call"))
    assert node.meta["val"].shape == (2, 4)
    filename, line, function, text = node.meta["stack"][-1]
    assert (filename, function, text) == (__file__, f.__qualname__, "y = x @ w") and line > 0
    assert first.seconds["capture"] > 0


def _named(x: Any) -> Any:
    return x * 2


@pytest.mark.parametrize("door", ["tinytorch", "api"])
def test_a_program_that_compiles_inside_of_compiled_code(door: str) -> None:
    """A break by name: what it gives is compiled when it is called."""
    from compiler import api

    compile_ = torch.compile if door == "tinytorch" else api.compile
    layer = nn.Linear(3, 3)

    def program(x: Any) -> Any:
        inner = compile_(_named, backend="eager")
        return inner(x + 1) + compile_(layer, backend="eager")(x) + compile_(compile_(_named, backend="eager"), backend="eager")(x)

    compiled = torch.compile(program, backend="eager")
    for _ in range(2):
        assert same(compiled(X).detach(), (_named(X + 1) + layer(X) + _named(X)).detach())
    with pytest.raises(Unsupported, match="compile inside compiled code"):
        torch.compile(program, backend="eager", fullgraph=True)(X)


OWN = torch.Generator()


def _seeded(x: Any) -> Any:
    torch.manual_seed(3)
    return torch.rand(2)


def _seeded_between(x: Any) -> Any:
    before = torch.rand(2)
    torch.manual_seed(3)
    return before, torch.rand(2), torch.nn.functional.dropout(x, 0.5)


def _seeded_for_nobody(x: Any) -> Any:
    torch.manual_seed(x.shape[0])
    return x * 2


def _own_stream(x: Any) -> Any:
    OWN.manual_seed(4)
    return torch.rand(2, generator=OWN), torch.default_generator.initial_seed(), torch.default_generator.manual_seed(7) is not None, torch.rand(1)


def _put_back(x: Any) -> Any:
    state = torch.get_rng_state()
    first = torch.rand(2)
    torch.set_rng_state(state)
    return first, torch.rand(2)


def _forked(x: Any) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        inside = torch.rand(2)
    return inside, torch.rand(2)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "numba"])
@pytest.mark.parametrize("fn", [_seeded, _seeded_between, _seeded_for_nobody, _own_stream, _put_back, _forked])
def test_a_program_that_moves_a_random_stream(fn: Any, backend: str) -> None:
    """The graph ends there: a graph draws from where the stream stands when it is called."""

    def outcome(call: Any) -> Any:
        torch.manual_seed(11)
        return [call(X), call(X), torch.rand(2), call(X), torch.rand(2)]

    torch.compiler.reset()
    assert same(outcome(torch.compile(fn, backend=backend)), outcome(fn))
    with pytest.raises(Unsupported, match="the place of a random stream"):
        torch.compile(fn, backend=backend, fullgraph=True)(X)


@pytest.mark.parametrize("fn", [lambda x: divmod(x, 2.5), lambda x: divmod(7, x), lambda x: divmod(x, x)])
def test_tensors_have_no_divmod(fn: Any) -> None:
    for call in (fn, torch.compile(fn, backend="eager", fullgraph=True)):
        with pytest.raises(TypeError, match="unsupported operand"):
            call(X)
    assert torch.compile(lambda x: x * divmod(x.shape[0], 2)[0], backend="eager", dynamic=True)(X).tolist() == [1, 1, 1]


SWITCHES: dict[str, tuple[Any, Any, Any, Any]] = {
    "set_default_dtype": (torch.set_default_dtype, torch.get_default_dtype, torch.float64, torch.float32),
    "set_num_threads": (torch.set_num_threads, torch.get_num_threads, 3, 2),
    "use_deterministic_algorithms": (torch.use_deterministic_algorithms, torch.are_deterministic_algorithms_enabled, True, False),
    "set_float32_matmul_precision": (torch.set_float32_matmul_precision, torch.get_float32_matmul_precision, "high", "highest"),
}


@pytest.mark.parametrize("name", SWITCHES)
def test_a_program_that_moves_a_switch_of_the_library(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call moves it, not only the first; and what it stands at is asked each time."""
    monkeypatch.setattr(misc._Switches, "threads", 0)  # which no call of the program's could put back
    put, ask, there, back = SWITCHES[name]

    def program(x: Any) -> Any:
        put(there)
        return x * 2, ask(), torch.ones(1).dtype

    compiled = torch.compile(program, backend="eager")
    try:
        for call in (program, compiled, compiled, compiled):
            put(back)
            _, seen, dtype = call(X)
            assert seen == ask() == there and dtype == torch.get_default_dtype()
    finally:
        put(back)
