"""Graph breaks: anywhere, with the program's meaning kept, the rest compiled, and the reason told."""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings
from typing import Any

import pytest
from capture_helpers import Counted, same

import tinytorch as torch
from compiler import logs
from compiler.capture import breaks, entry
from compiler.errors import Unsupported
from tinytorch import nn

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
    class_body: (2, 1), asked_for: (2, 1), in_module: (3, 2), iterator_argument: (1, 4),
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


def test_a_generator_alive_at_a_break_is_stepped_in_python() -> None:
    def f(x):
        def g():
            yield from range(3)

        for i in g():
            x = x + i
            act(i)
        return x

    LOG.clear()
    compiled = Counted(f)
    got = compiled(torch.zeros(2))
    assert same(got, torch.full((2,), 3.0))
    assert LOG == [(0,), (1,), (2,)]
    assert breaks.GENERATOR_BREAK.id in compiled.breaks() and not compiled.native()


def test_generator_semantics_across_breaks() -> None:
    def f(x):
        def g(y):
            got = yield y + 1
            act(got)
            yield y * 3
            return "done"

        it = g(x)
        a = next(it)
        act("between")
        b = it.send("sent")
        try:
            next(it)
        except StopIteration as e:
            return a, b, e.value

    LOG.clear()
    expected, log = f(torch.ones(2)), LOG[:]
    LOG.clear()
    compiled = Counted(f)
    assert same(compiled(torch.ones(2)), expected)
    assert LOG == log == [("between",), ("sent",)]
    assert not compiled.native()


# --- errors that depend on data ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("at", [1, 9])
def test_errors_that_depend_on_data_break_no_graph(at: int) -> None:
    def handled(x, i):
        y = x * 2
        try:
            y = y[i] + 1
        except IndexError as e:
            return "caught", type(e).__name__, y
        return y

    def suppressed(x, i):
        with contextlib.suppress(IndexError):
            x = torch.index_select(x, 0, i) * 2
        return x + 1

    def cleaned(x, i):
        with torch.no_grad():
            try:
                x = x[i]
            finally:
                LOG.append("cleaned")
        return x

    def called(x, i):
        def inner(v):
            return v[i] * 2

        try:
            return inner(x)
        except IndexError:
            return x

    x, i = torch.ones(3), torch.tensor([at])
    for fn in (handled, suppressed, called):
        compiled = Counted(fn, fullgraph=True)
        assert same(compiled(x, i), fn(x, i)), fn
    LOG.clear()
    if at == 1:
        assert same(Counted(cleaned, fullgraph=True)(x, i), x[i])  # finally catches nothing: no break
        assert LOG == ["cleaned"]


def test_world_calls_break_by_name() -> None:
    def f(x):
        logging.getLogger("capture").info("here")
        warnings.warn("here", stacklevel=2)
        print("here")
        return x + 1

    compiled = Counted(f)
    with pytest.warns(UserWarning, match="here"):
        compiled(torch.ones(1))
    assert compiled.breaks() and set(compiled.breaks()) == {breaks.SIDE_EFFECT_CALL.id}


# --- autograd.Function ------------------------------------------------------------------------------------------------
FACTOR = 2.0


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.power = 3
        return x * x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * ctx.power * x * x * FACTOR


class Noisy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        LOG.append("forward")
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_autograd_function_is_part_of_one_graph(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def f(w):
        return (Cube.apply(w * 2) + 1).sum()

    compiled = torch.compile(f, backend=backend, fullgraph=True)

    def gradient(fn):
        w = torch.tensor([1.0, 2.0], requires_grad=True)
        fn(w).backward()
        return w.grad

    assert same(gradient(compiled), gradient(f))
    monkeypatch.setitem(globals(), "FACTOR", 5.0)  # only backward reads it
    assert same(gradient(compiled), gradient(f))


def test_autograd_function_with_an_effect_breaks() -> None:
    def f(x):
        return Noisy.apply(x) + 1

    LOG.clear()
    compiled = Counted(f)
    for n in (1, 2):
        assert same(compiled(torch.ones(2)), torch.full((2,), 3.0))
        assert LOG == ["forward"] * n
    assert breaks.CUSTOM_FUNCTION.id in compiled.breaks()


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


def test_a_generator_as_target_is_said_and_an_error_under_fullgraph() -> None:
    def g(x):
        yield x + 1

    async def c(x):
        return x + 1

    for fn in (g, c):
        with logs.collecting() as found:
            entry.compile_function(fn, lambda gm, ex: gm)
        ((topic, name, text),) = found
        assert (topic, name) == ("graph_breaks", fn.__name__) and text.startswith(breaks.GENERATOR_TARGET.id)
        assert f"in {fn.__name__}" in text
        with pytest.raises(Unsupported, match=breaks.GENERATOR_TARGET.id):
            entry.compile_function(fn, lambda gm, ex: gm, fullgraph=True)


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


def test_functions_that_look_at_values_break() -> None:
    """``bincount`` needs the largest value for its size: a named break, not an error of the program."""

    def counts(x: Any) -> Any:
        return torch.bincount(x * 2, minlength=3) + 1

    torch.compiler.reset()
    x = torch.tensor([1, 2, 2])
    assert torch.compile(counts, backend="eager")(x).tolist() == counts(x).tolist()
    with pytest.raises(Unsupported, match="bincount looks at values"):
        torch.compile(counts, backend="eager", fullgraph=True)(x)


def test_modules_with_backward_hooks_break_by_name() -> None:
    """The hooks are told of the gradients, and the rest of the model is compiled."""
    seen: list[Any] = []
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1))
    model[2].register_full_backward_hook(lambda module, into, out: seen.append(out[0].sum().item()))
    torch.compiler.reset()
    x = torch.ones(4, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.compile(model, backend="eager")(x).sum().backward()
    assert seen == [4.0]
    with pytest.raises(Unsupported, match="backward hooks"):
        torch.compile(model, backend="eager", fullgraph=True)(x)
    assert torch.compiler.explain(model)(x).graph_count >= 1


def test_a_closure_over_an_argument_is_made_after_a_break() -> None:
    """From 3.13 on the argument's cell is loaded under the argument's own name."""

    def f(x, scale, shift):
        y = x * scale
        torch.compiler.graph_break()
        late = lambda: y * scale + shift  # noqa: E731 - all three are cells of ``f``
        shift = shift + 1
        torch.compiler.graph_break()
        return late(), (lambda: scale)()

    x = torch.arange(3.0)
    for _ in range(2):
        got, scale = torch.compile(f, backend="eager")(x, 2.0, 5.0)
        want, _ = f(x, 2.0, 5.0)
        assert got.tolist() == want.tolist() and scale == 2.0


# --- modules with hooks -----------------------------------------------------------------------------------------------
def test_a_module_with_backward_hooks_is_one_break() -> None:
    seen: list[Any] = []

    def model():
        torch.manual_seed(0)
        made = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
        made[0].register_full_backward_hook(lambda m, into, out: seen.append(("hook", out[0].sum())))
        made[0].register_forward_hook(lambda m, args, out: out * 2)
        return made

    def run(f, m):
        seen.clear()
        y = f(torch.ones(3, 4))
        y.sum().backward()
        return [p.grad for p in m.parameters()], list(seen), y.detach()

    left, right = model(), model()
    compiled = Counted(lambda x: right(x))
    for _ in range(2):
        assert same(run(compiled, right), run(left, left))
        for p in (*left.parameters(), *right.parameters()):
            p.grad = None
    assert compiled.breaks().count("TT0203") == 2  # in the caller and in Sequential, which goes on after it
    assert len(compiled.graphs) == 3  # one per layer
    assert not compiled.native()


def test_a_hook_registered_inside_is_one_break() -> None:
    def f(m, x):
        handle = m.register_forward_hook(lambda m, args, out: out + 1)
        y = m(x)
        handle.remove()
        return y

    layer, x = nn.Linear(3, 3), torch.ones(2, 3)
    compiled = Counted(f)
    for _ in range(2):
        assert same(compiled(layer, x), f(layer, x))
    assert compiled.breaks() == ["TT0202"] and not layer._forward_hooks
