"""Guards: every fact the trace relied on is checked, once, and no other."""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import types
from typing import Any

import numpy as np
import pytest
from capture_helpers import Counted, same

import tinytorch as torch
from compiler import logs
from compiler.capture import entry
from compiler.config import config
from tinytorch import nn

X = torch.ones(3)


def recompiles(fn: Any, calls: list[tuple[Any, ...]], expected: list[int], **options: Any) -> Counted:
    """Call with each tuple of arguments; after each, so many entries; results as eager's."""
    compiled = Counted(fn, fullgraph=True, **options)
    for args, count in zip(calls, expected, strict=True):
        assert same(compiled(*args), fn(*args)), args
        assert len(compiled.entries) == count, (args, [str(g) for g in compiled.entries[-1].guards])
    return compiled


class Box:
    scale = 2

    def __init__(self, v: Any = 1) -> None:
        self.v = v
        self.unused = 0

    def method(self, x: Any) -> Any:
        return x * self.v


def test_functions_of_one_code_are_told_apart() -> None:
    """``torch.sin`` and ``torch.cos`` come from one factory, and so may the program's own."""

    def named(name):
        def inner(v):
            return v + 1

        inner.__name__, inner.__doc__ = name, name * 2
        return inner

    def f(x, fn):
        return fn(x), fn.__name__, fn.__doc__ and fn.__doc__[:3]

    compiled = Counted(f, fullgraph=True)
    for fn in (torch.sin, torch.cos, named("a"), named("b"), torch.sin):
        assert same(compiled(torch.ones(3), fn), f(torch.ones(3), fn))


# --- one flip, one recompile ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("a", "b"),
    [
        (1, True), (1, 1.0), (True, 1), (0.0, -0.0), (1, 2), ("a", "b"), (None, 0), ((1, 2), (1, 3)), ((1,), [1]),
        ([1, 2], [1, 2, 3]), ({"a": 1}, {"b": 1}), (2.0, math.nan), (b"a", "a"), ({1, 2}, {1, 3}), (1j, 1.0),
    ],
    ids=repr,
)  # fmt: skip
def test_values_of_arguments(a: Any, b: Any) -> None:
    def f(x, v):
        return x + 1, repr(v), v == 1

    recompiles(f, [(X, a), (X, b), (X, a), (X, b)], [1, 2, 2, 2], dynamic=False)


def test_nan_does_not_recompile_for_ever() -> None:
    recompiles(lambda x, v: x * v, [(X, math.nan), (X, float("nan")), (X, -math.nan)], [1, 1, 1])


def test_tensor_properties() -> None:
    def f(x):
        return x + 1

    base = torch.ones(4, 4)
    grad = torch.ones(4, 4, requires_grad=True)
    calls: list[Any] = [
        (base,), (base.t(),), (base.to(torch.float64),), (grad,), (base[0],), (base[::2],), (base.clone(),), (nn.Parameter(base),),
        (grad * 1,),
    ]  # fmt: skip
    recompiles(f, calls, [1, 2, 3, 4, 5, 6, 6, 7, 8], dynamic=False)
    with torch.no_grad():
        compiled = recompiles(f, [(base,)], [1])
    assert same(compiled(base), f(base))
    assert len(compiled.entries) == 2


def test_container_order_length_and_elements() -> None:
    def f(x, d, items):
        return [x * v for v in d.values()], [x + i for i in items]

    recompiles(
        f,
        [
            (X, {"a": 1, "b": 2}, [1]), (X, {"b": 2, "a": 1}, [1]), (X, {"a": 1, "b": 2}, [1, 2]),
            (X, {"a": 1, "b": 3}, [1]), (X, {"a": 1, "b": 2}, [1]),
        ],
        [1, 2, 3, 4, 4],
        dynamic=False,
    )  # fmt: skip


def test_globals_closures_defaults_and_code() -> None:
    scope: dict[str, Any] = {}
    exec("K = 2\ndef helper(x):\n    return x * K\ndef f(x, d=1):\n    return helper(x) + d\n", scope)
    f = scope["f"]
    compiled = Counted(f, fullgraph=True, dynamic=False)

    def check(count: int) -> None:
        assert same(compiled(X), f(X))
        assert len(compiled.entries) == count

    check(1)
    scope["K"] = 3
    check(2)
    scope["K"] = 2
    check(2)
    original = scope["helper"]
    scope["helper"] = lambda x: x - 1
    check(3)
    scope["helper"] = original
    check(3)
    f.__defaults__ = (10,)
    check(4)
    original.__code__ = (lambda x: x * 100).__code__
    check(5)


def test_closure_cells() -> None:
    k = 2

    def f(x):
        return x * k

    compiled = Counted(f, fullgraph=True, dynamic=False)
    assert same(compiled(X), X * 2)
    k = 3
    assert same(compiled(X), X * 3)
    k = 2
    assert same(compiled(X), X * 2)
    assert len(compiled.entries) == 2


def test_two_closures_of_one_def_share_their_entries() -> None:
    def make(k):
        def f(x):
            return x * k

        return f

    def backend(gm: Any, examples: Any) -> Any:
        return gm

    a, b, c = (entry.compile_function(make(k), backend, dynamic=False) for k in (2, 3, 2))
    assert same([a(X), b(X), c(X)], [X * 2, X * 3, X * 2])
    assert len(entry.captured(a)) == len(entry.captured(c)) == 2


def test_attributes_methods_and_classes() -> None:
    class Local(Box):
        pass

    def f(x, b):
        return b.method(x) + b.scale

    b = Local()
    compiled = Counted(f, fullgraph=True, dynamic=False)

    def check(count: int) -> None:
        assert same(compiled(X, b), f(X, b))
        assert len(compiled.entries) == count, [str(g) for g in compiled.entries[-1].guards]

    check(1)
    b.v = 5
    check(2)
    b.unused = 7
    check(2)
    b.scale = 10  # now on the instance
    check(3)
    del b.scale
    check(3)
    b.method = types.MethodType(lambda self, x: x, b)
    check(4)
    del b.method
    check(4)
    Box.scale = 3
    try:
        check(5)
        Local.scale = 4
        check(6)
    finally:
        Box.scale = 2
    original = Box.method.__code__
    Box.method.__code__ = (lambda self, x: x + self.v).__code__
    try:
        check(7)
    finally:
        Box.method.__code__ = original


def test_modules_hooks_training_and_parameters() -> None:
    m = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.0))

    def f(m, x):
        return m(x)

    compiled = Counted(f, fullgraph=True)

    def check(count: int) -> None:
        assert same(compiled(m, X), f(m, X))
        assert len(compiled.entries) == count

    check(1)
    m.eval()
    check(2)
    m.train()
    check(2)
    handle = m[0].register_forward_hook(lambda mod, args, out: out * 2)
    check(3)
    handle.remove()
    check(3)
    pre = m.register_forward_pre_hook(lambda mod, args: (args[0] + 1,))
    check(4)
    pre.remove()
    check(4)
    m[0].weight.requires_grad_(False)
    check(5)
    m[0].weight.requires_grad_(True)
    check(5)
    m[0].weight.data = torch.zeros(3, 3)
    check(5)
    m[0].bias = None
    check(6)
    m.append(nn.ReLU())
    check(7)
    m[0].forward = lambda x: x
    check(8)


def test_modes() -> None:
    def f(x):
        return x * 2, torch.is_grad_enabled()

    compiled = Counted(f, fullgraph=True)
    x = torch.ones(2, requires_grad=True)
    assert compiled(x)[0].requires_grad
    with torch.no_grad():
        assert not compiled(x)[0].requires_grad
    assert len(compiled.entries) == 2
    assert compiled(x)[1] is True
    assert len(compiled.entries) == 2


# --- identity and memory ----------------------------------------------------------------------------------------------
def test_same_tensor_twice_and_identity() -> None:
    def f(x, y):
        return x + y, x is y

    a, b = torch.ones(2), torch.ones(2)
    recompiles(f, [(a, b), (a, a), (b, b), (b, a)], [1, 2, 2, 2])


def test_aliased_lists() -> None:
    def f(x, a, b):
        a.append(1)
        return x * len(b)

    compiled = Counted(f, fullgraph=True, dynamic=False)
    assert same(compiled(X, [], []), X * 0)
    one: list[int] = []
    assert same(compiled(X, one, one), X * 1)
    assert one == [1]


def test_overlap_that_appears_later_is_seen() -> None:
    def f(x, y):
        x.mul_(2)
        return x + y

    compiled = Counted(f)
    assert same(compiled(torch.ones(4), torch.ones(4)), torch.full((4,), 3.0))
    base = torch.ones(8)
    got = compiled(base[:4], base[2:6])
    assert got.tolist() == [4, 4, 3, 3]
    assert base.tolist() == [2, 2, 2, 2, 1, 1, 1, 1]


# --- nothing that was not used ----------------------------------------------------------------------------------------
def test_unused_things_are_not_guarded() -> None:
    def g(x, cfg, other):
        return x + cfg["a"]

    def f(x, cfg, other, *rest, flag=None):
        return g(x, cfg, other)

    compiled = recompiles(
        f,
        [
            (X, {"a": 1, "b": 2}, torch.ones(2)), (X, {"a": 1, "b": 5}, torch.ones(9, 9)), (X, {"b": 0, "a": 1}, None, 3, 4),
        ],
        [1, 1, 1],
    )  # fmt: skip
    assert not any("other" in g.text for g in compiled.entries[0].guards)


def test_returned_but_unused_argument_is_the_very_object() -> None:
    def f(x, o):
        return x + 1, o

    compiled = Counted(f, fullgraph=True)
    for o in (object(), torch.ones(3), [1], {"k": 1}):
        assert compiled(X, o)[1] is o
    assert len(compiled.entries) == 1


# --- how guards look --------------------------------------------------------------------------------------------------
def test_guards_print_as_one_function_with_the_users_lines() -> None:
    def f(x, n):
        y = x * n
        return y

    compiled = Counted(f)
    compiled(X, 3)
    text = compiled.entries[0].check_text
    assert text.startswith("def check(F, x, n):")
    assert "type(n) is int and n == 3" in text
    assert "y = x * n" in text
    scope = dict(compiled.entries[0].namespace.objects)
    exec(text, scope)
    assert scope["check"](f, X, 3) is not None
    assert scope["check"](f, X, 4) is None


def test_a_failing_guard_names_itself_and_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    def f(x, s):
        return x + len(s)

    logs.set_logs("recompiles")
    try:
        compiled = Counted(f)
        compiled(X, "a")
        compiled(X, "bc")
    finally:
        logs.set_logs("")
    shown = capsys.readouterr().err
    assert "s == 'a'" in shown and "now 'bc'" in shown and "len(s)" in shown


@pytest.mark.parametrize(
    ("other", "now"), [(torch.ones(2, 3), "(2, 3)"), (torch.ones(3, 2).t(), "(4, 8)"), (torch.ones(3, dtype=torch.int32), "int32")]
)
def test_a_failing_guard_says_what_a_tensor_is_now(capsys: pytest.CaptureFixture[str], other: Any, now: str) -> None:
    first = torch.ones(2, 3) if now == "(4, 8)" else torch.ones(3)
    logs.set_logs("recompiles")
    try:
        compiled = Counted(lambda x: x + 1)
        compiled(first)
        compiled(other)
    finally:
        logs.set_logs("")
    assert f"(now {now})" in capsys.readouterr().err


def test_latest_entry_is_tried_first() -> None:
    def f(x, s):
        return x + len(s)

    compiled = Counted(f)
    for s in "abcab":
        compiled(X, s)
    assert len(compiled.entries) == 3
    cache = compiled.call._tt_door[1]
    assert cache.entries[0][0] is compiled.entries[1].check


def test_threads_share_one_entry() -> None:
    def f(x):
        return x * 2 + 1

    compiled = Counted(f)
    results: list[Any] = []
    threads = [threading.Thread(target=lambda: results.append(compiled(X))) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(results) == 8 and all(same(r, X * 2 + 1) for r in results)
    assert len(compiled.entries) == 1


# --- one flip of each kind --------------------------------------------------------------------------------------------
class World:
    """Everything that ``looked_at`` reads; each flip changes one thing and gives the way back."""

    factor = 2.0

    def __init__(self) -> None:
        self.layer = nn.Linear(3, 3)
        self.names = {"a": 1, "b": 2}
        self.items = [1, 2]
        self.unread = 0

    def scale(self, x: Any, by: Any = 2, *, plus: Any = 0) -> Any:
        return x * by + plus


FACTOR = 2.0


def make_looked_at() -> tuple[Any, Any]:
    cell: Any = 3

    def looked_at(w: Any, x: Any, y: Any, value: Any) -> Any:
        x = w.layer(x) * FACTOR + cell
        x = w.scale(x) * w.factor + len(w.items)
        for name, n in w.names.items():
            x = x + n * len(name)
        return x + y, str(value)

    def set_cell(v: Any) -> None:
        nonlocal cell
        cell = v

    return looked_at, set_cell


def _attribute(obj: Any, name: str, new: Any) -> Any:
    old = getattr(obj, name)
    setattr(obj, name, new)
    return lambda: setattr(obj, name, old)


def _global(name: str, new: Any) -> Any:
    old = globals()[name]
    globals()[name] = new
    return lambda: globals().__setitem__(name, old)


def _hook(w: World) -> Any:
    return w.layer.register_forward_hook(lambda m, args, out: out * 2).remove


def _order(w: World) -> Any:
    w.names["a"] = w.names.pop("a")
    return lambda: w.names.__setitem__("b", w.names.pop("b"))


def _other_scale(self: Any, x: Any, by: Any = 2, *, plus: Any = 0) -> Any:
    return x - by


FLIPS: dict[str, Any] = {
    "global": lambda w, set_cell: _global("FACTOR", 5.0),
    "closure cell": lambda w, set_cell: (set_cell(7), lambda: set_cell(3))[1],
    "default": lambda w, set_cell: _attribute(World.scale, "__defaults__", (9,)),
    "keyword default": lambda w, set_cell: _attribute(World.scale, "__kwdefaults__", {"plus": 4}),
    "code": lambda w, set_cell: _attribute(World.scale, "__code__", _other_scale.__code__),
    "class attribute": lambda w, set_cell: _attribute(World, "factor", 3.0),
    "instance attribute": lambda w, set_cell: (setattr(w, "factor", 8.0), lambda: delattr(w, "factor"))[1],
    "method": lambda w, set_cell: _attribute(World, "scale", _other_scale),
    "layer's method": lambda w, set_cell: _attribute(nn.Linear, "forward", lambda self, x: x * 0),
    "hook": lambda w, set_cell: _hook(w),
    "order of a dict": lambda w, set_cell: _order(w),
    "length of a list": lambda w, set_cell: (w.items.append(3), w.items.pop)[1],
    "value in a dict": lambda w, set_cell: (w.names.update(b=5), lambda: w.names.update(b=2))[1],
    "requires_grad": lambda w, set_cell: (w.layer.weight.requires_grad_(False), w.layer.weight.requires_grad_)[1],
}


@pytest.mark.parametrize("kind", FLIPS)
def test_one_flip_one_recompile_and_back(kind: str) -> None:
    torch.manual_seed(0)
    looked_at, set_cell = make_looked_at()
    w, x, y = World(), torch.randn(2, 3), torch.randn(2, 3)
    compiled = Counted(looked_at, fullgraph=True, dynamic=False)

    def check(count: int) -> None:
        assert same(compiled(w, x, y, 1), looked_at(w, x, y, 1))
        assert len(compiled.entries) == count, compiled.call._tt_door[1].why(looked_at, (w, x, y, 1))

    check(1)
    w.unread += 1
    check(1)
    back = FLIPS[kind](w, set_cell)
    try:
        check(2)
        check(2)
    finally:
        back()
    check(2)


@pytest.mark.parametrize(
    "flip",
    [
        lambda x, y: (x.double(), y), lambda x, y: (x.t().contiguous().t(), y), lambda x, y: (x.clone().requires_grad_(), y),
        lambda x, y: (x[:1], y), lambda x, y: (x, x), lambda x, y: (nn.Parameter(x), y),
    ],
    ids=["dtype", "stride", "requires_grad", "shape", "alias", "type"],
)  # fmt: skip
def test_one_flip_of_a_tensor(flip: Any) -> None:
    def f(x, y):
        return x * 2 + y, x is y

    a, b = torch.randn(2, 3), torch.randn(2, 3)
    flipped = flip(a, b)
    recompiles(f, [(a, b), flipped, flipped, (a, b)], [1, 2, 2, 2], dynamic=False)


def test_overlap_flips_once_and_back() -> None:
    def f(x, y):
        x.add_(1)
        return x + y

    compiled = Counted(f, dynamic=False)
    for count, distance in ((1, 4), (2, 2), (2, 2), (2, 4)):
        a, b = torch.zeros(8), torch.zeros(8)
        assert same(compiled(a[:4], a[distance : distance + 4]), f(b[:4], b[distance : distance + 4]))
        assert same(a, b)
        assert len(compiled.entries) == count


def test_modes_flip_once_and_back() -> None:
    def f(x, w):
        return x @ w

    compiled = Counted(f, fullgraph=True)
    x, w = torch.ones(2, 2), torch.ones(2, 2, requires_grad=True)
    for count, mode in (
        (1, contextlib.nullcontext()), (2, torch.no_grad()), (3, torch.autocast("cpu", dtype=torch.bfloat16)),
        (3, torch.no_grad()), (3, contextlib.nullcontext()),
    ):  # fmt: skip
        with mode:
            assert same(compiled(x, w), f(x, w))
        assert len(compiled.entries) == count


# --- cases known to be hard -------------------------------------------------------------------------------------------
def test_returned_generator_is_a_generator() -> None:
    def f(x):
        def g():
            sent = yield x + 1
            yield sent
            return "done"

        return g()

    it = Counted(f)(X)
    assert isinstance(it, types.GeneratorType)
    assert same(next(it), X + 1) and it.send("value") == "value"
    with pytest.raises(StopIteration) as stop:
        next(it)
    assert stop.value.value == "done"


def test_grad_mode_around_a_break_and_an_error() -> None:
    seen: list[bool] = []

    @entry.disable
    def look() -> None:
        seen.append(torch.is_grad_enabled())

    def f(x, i):
        with torch.no_grad():
            x = x * 2
            look()
            x = x[i]
        look()
        return x

    compiled = Counted(f)
    for before in (True, False):
        with torch.set_grad_enabled(before):
            compiled(torch.ones(3), torch.tensor([1]))
            with pytest.raises(IndexError):
                compiled(torch.ones(3), torch.tensor([7]))
            assert torch.is_grad_enabled() is before
    assert seen == [False, True, False, False, False, False]


def test_a_learning_rate_that_changes_twenty_times() -> None:
    def step(w, g, lr):
        return w - lr * g

    compiled = Counted(step, fullgraph=True)
    for n in range(20):
        lr = 0.1 * 0.9**n
        assert np.allclose(compiled(X, X * 2, lr).numpy(), step(X, X * 2, lr).numpy())
    assert len(compiled.entries) <= 2


def test_an_unused_input_of_any_shape() -> None:
    compiled = Counted(lambda x, unused: x + 1, fullgraph=True)
    for n in (1, 2, 3, 7):
        compiled(X, torch.ones(n, n))
    assert len(compiled.entries) == 1


# --- threads and code from anywhere -----------------------------------------------------------------------------------
def test_many_threads_many_shapes_and_modes() -> None:
    def f(x, k):
        for i in range(k):
            x = x * 2 + i
        return x, torch.is_grad_enabled()

    compiled = Counted(f, dynamic=False, config=config.replace({"recompile_limit": 64}))
    wrong: list[Any] = []

    def work(seed: int) -> None:
        for n in range(12):
            x, k = torch.full((1 + (seed + n) % 4,), float(seed)), n % 3
            with torch.set_grad_enabled(bool((seed + n) % 2)):
                got, want = compiled(x, k), f(x, k)
            if not same(got, want):
                wrong.append((seed, n, got, want))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    assert len(compiled.entries) <= 4 * 3 * 2


def test_threads_through_breaks() -> None:
    log: dict[int, list[int]] = {}

    @entry.disable
    def note(key: int, n: int) -> None:
        log.setdefault(key, []).append(n)

    def f(x, key):
        for n in range(4):
            x = x + n
            note(key, n)
        return x

    compiled = Counted(f, config=config.replace({"recompile_limit": 64}))
    got: dict[int, Any] = {}
    threads = [threading.Thread(target=lambda k=k: got.__setitem__(k, compiled(X * k, k))) for k in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(same(got[k], X * k + 6) and log[k] == [0, 1, 2, 3] for k in range(6))


CELL_SOURCE = """
scale = 3
def cell_function(x):
    return helper(x) * scale
helper = lambda x: x + 1
class Callable:
    def __call__(self, x): return x - scale
    def method(self, x): return x / scale
    @staticmethod
    def static(x): return x * 5
    @classmethod
    def of_class(cls, x): return x * 6
"""


def test_code_from_a_notebook_cell() -> None:
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(CELL_SOURCE, "<ipython-input-1-abc>", "exec"), scope)
    obj = scope["Callable"]()
    targets = [
        scope["cell_function"], scope["helper"], obj, obj.method, scope["Callable"].static, scope["Callable"].of_class,
        lambda x: x * 7, functools.partial(scope["cell_function"]), eval("lambda x: x * scale", scope),
    ]  # fmt: skip
    for fn in targets:
        assert same(Counted(fn, fullgraph=True)(X), fn(X)), fn
    # A cell run again defines a new function of the same name; what is compiled is the old one until asked again.
    compiled = Counted(scope["cell_function"], fullgraph=True)
    compiled(X)
    scope["scale"] = 10
    assert same(compiled(X), (X + 1) * 10)
    exec(compile("helper = lambda x: x - 1", "<ipython-input-2-def>", "exec"), scope)
    assert same(compiled(X), (X - 1) * 10)
    assert len(compiled.entries) == 3
