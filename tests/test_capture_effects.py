"""Side effects: what a compiled function changes outside of itself, exactly once, in order."""

from __future__ import annotations

import collections
import contextvars
import random
import types
from typing import Any

import pytest
from capture_helpers import Counted, same

import tinytorch as torch
from tinytorch import nn

X = torch.ones(3)
COUNTER = 0
TABLE: dict[str, Any] = {"n": 0}


def both(fn: Any, make: Any, calls: int = 2) -> None:
    """Compiled and eager calls on equal state end in equal states."""
    compiled = Counted(fn, fullgraph=True)
    a, b = make(), make()
    for _ in range(calls):
        assert same(compiled(*a), fn(*b))
        assert same(flat(a), flat(b))
    assert not compiled.native()


def flat(v: Any) -> Any:
    """State as plain containers."""
    if isinstance(v, tuple | list | collections.deque):
        return [flat(e) for e in v]
    if isinstance(v, dict):
        return {k: flat(e) for k, e in v.items()}
    if isinstance(v, types.SimpleNamespace | Box):
        return {k: flat(e) for k, e in vars(v).items()}
    return sorted(v) if isinstance(v, set) else v


class Box:
    def __init__(self, **kw: Any) -> None:
        self.__dict__.update(kw)


def test_lists() -> None:
    def f(x, items):
        items.append(x)
        items[0] = items[0] + 1
        items.insert(1, "s")
        items.extend([1, 2])
        items.pop()
        return len(items)

    both(f, lambda: (X, [1]))


def test_lists_of_lists_keep_identity() -> None:
    def f(x, outer):
        outer[0].append(1)
        outer.append(outer[0])
        return x + len(outer)

    compiled = Counted(f, fullgraph=True)
    inner: list[int] = []
    outer = [inner]
    compiled(X, outer)
    assert outer[0] is inner and outer[1] is inner and inner == [1]


def test_dicts_order_and_deletion() -> None:
    def f(x, d):
        d["new"] = x * 2
        d["a"] += 1
        del d["b"]
        d["b"] = 5
        d.pop("c", None)
        d.update(z=1)
        return list(d)

    both(f, lambda: (X, {"b": 1, "a": 2, "c": 3}), calls=3)


def test_sets_deques_defaultdicts() -> None:
    def f(x, s, d, dd):
        s.add(4)
        s.discard(1)
        d.append(5)
        d.popleft()
        dd["k"].append(1)
        return x

    both(f, lambda: (X, {1, 2}, collections.deque([1, 2]), collections.defaultdict(list)))


def test_attributes_of_objects() -> None:
    def f(x, b):
        b.count += 1
        b.last = x * b.count
        b.nested.v = [b.count]
        if hasattr(b, "gone"):
            del b.gone
        return b.count

    both(f, lambda: (X, Box(count=0, nested=Box(v=0), gone=1)), calls=3)


def test_slots_and_properties() -> None:
    class S:
        __slots__ = ("a",)

        def __init__(self) -> None:
            self.a = 1

    class P:
        def __init__(self) -> None:
            self._v = 0

        @property
        def v(self):
            return self._v

        @v.setter
        def v(self, new):
            self._v = new * 2

    def f(x, s, p):
        s.a += 1
        p.v = p.v + 1
        return x * s.a + p.v

    s, p = S(), P()
    compiled = Counted(f, fullgraph=True)
    assert same(compiled(X, s, p), X * 2 + 2)
    assert (s.a, p._v) == (2, 2)
    assert same(compiled(X, s, p), X * 3 + 6)


def test_globals_and_nonlocals() -> None:
    n = 0

    def f(x):
        global COUNTER
        nonlocal n
        COUNTER += 1
        n += 10
        TABLE["n"] += 1
        return x * COUNTER

    global COUNTER
    COUNTER = 0
    TABLE["n"] = 0
    compiled = Counted(f, fullgraph=True)
    assert same([compiled(X), compiled(X), compiled(X)], [X, X * 2, X * 3])
    assert (COUNTER, n, TABLE["n"]) == (3, 30, 3)


def test_closures_share_their_cells_with_the_outside() -> None:
    def make():
        n = 0

        def bump():
            nonlocal n
            n += 1
            return n

        def read():
            return n

        return bump, read

    bump, read = make()

    def f(x):
        return x * bump()

    compiled = Counted(f, fullgraph=True)
    assert same(compiled(X), X)
    assert read() == 1
    bump()
    assert same(compiled(X), X * 3)
    assert read() == 3


def test_returned_closure_sees_later_changes() -> None:
    def f(x):
        n = 1

        def get():
            return n

        def inc():
            nonlocal n
            n += 1

        inc()
        return x * n, get, inc

    _, get, inc = Counted(f, fullgraph=True)(X)
    assert get() == 2
    inc()
    assert get() == 3


def test_new_objects_leave_complete_and_shared() -> None:
    def f(x):
        b = Box(v=[1])
        c = Box(other=b, t=x * 2)
        b.back = c
        return b, [b, c]

    b, pair = Counted(f, fullgraph=True)(X)
    assert pair[0] is b and b.back is pair[1] and pair[1].other is b
    assert same(pair[1].t, X * 2) and type(b) is Box


def test_in_place_on_inputs_and_views() -> None:
    def f(x, y):
        x.add_(1)
        x[0] = 5
        y[1:].mul_(2)
        return x[0], y

    both(f, lambda: (torch.ones(3), torch.ones(3)))
    compiled = Counted(f, fullgraph=True)
    y = torch.ones(3)
    assert compiled(torch.ones(3), y)[1] is y


def test_module_state() -> None:
    class M(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("steps", torch.zeros(1))
            self.calls = 0
            self.seen: list[Any] = []

        def forward(self, x):
            self.steps += 1
            self.calls += 1
            self.seen.append(tuple(x.shape))
            self.extra = x.sum()
            return x + self.steps

    a, b = M(), M()
    compiled = Counted(a.forward, fullgraph=True)
    for _ in range(3):
        assert same(compiled(X), b.forward(X))
    assert (a.calls, a.seen) == (b.calls, b.seen)
    assert same(a.steps, b.steps) and same(a.extra, b.extra)


def test_batch_norm_statistics() -> None:
    a, b = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
    x = torch.randn(5, 4)
    compiled = Counted(a.__call__, fullgraph=True)
    for _ in range(2):
        assert same(compiled(x), b(x))
    assert same(dict(a.state_dict()), dict(b.state_dict()))


def test_gradients_are_written() -> None:
    def f(w, x):
        loss = (w * x).sum()
        loss.backward()
        return w.grad * 2

    w1, w2 = (torch.ones(3, requires_grad=True) for _ in range(2))
    compiled = Counted(f, fullgraph=True)
    for _ in range(3):
        assert same(compiled(w1, X), f(w2, X))
        assert same(w1.grad, w2.grad)


def test_effects_before_an_exception_happened() -> None:
    def f(x, log):
        log.append(1)
        x + 1
        log.append(2)
        raise ValueError("stop")

    log: list[int] = []
    compiled = Counted(f)
    for n in (1, 2):
        with pytest.raises(ValueError, match="stop"):
            compiled(X, log)
        assert log == [1, 2] * n


def test_random_state_moves_as_in_eager() -> None:
    def f(x):
        return nn.functional.dropout(x, 0.5), torch.rand(2)

    compiled = Counted(f, fullgraph=True)
    x = torch.ones(64)
    torch.manual_seed(3)
    got = [compiled(x), compiled(x), torch.rand(3)]
    torch.manual_seed(3)
    assert same(got, [f(x), f(x), torch.rand(3)])


def test_unused_random_draw_still_moves_the_state() -> None:
    def f(x):
        torch.rand(5)
        return x + 1

    torch.manual_seed(0)
    Counted(f, fullgraph=True)(X)
    got = torch.rand(2)
    torch.manual_seed(0)
    f(X)
    assert same(got, torch.rand(2))


def test_pythons_random_numbers_are_drawn_in_every_call() -> None:
    def f(x):
        a = random.random()
        b = random.uniform(1.0, 2.0)
        return x * a + b, a * 2, random.gauss(0.0, 1.0)

    compiled = Counted(f, fullgraph=True)
    random.seed(5)
    expected = [f(X), f(X), random.random()]
    random.seed(5)
    got = [compiled(X), compiled(X), random.random()]
    assert same(got, expected)
    assert len(compiled.entries) == 1


def test_random_decisions_have_an_entry_per_outcome() -> None:
    def f(x):
        if random.random() > 0.5:
            x = x + 1
        return x * random.randint(1, 5), random.choice([1, 2, 3])

    compiled = Counted(f, fullgraph=True)
    random.seed(7)
    expected = [f(X) for _ in range(20)], random.random()
    random.seed(7)
    assert same(([compiled(X) for _ in range(20)], random.random()), expected)
    assert len(compiled.entries) == 2


def test_a_drawn_number_that_no_tensor_can_stand_for_is_a_constant() -> None:
    def sizes(x):
        i = random.randint(0, 3)
        return x[torch.tensor([i, 1])], torch.full((2,), i), x.reshape(-1)[i], torch.arange(i + 1), i > 1

    def caught(x):
        i, seen = random.choice([1, 2, 5]), []
        try:
            seen.append(0)
            x.mul_(x[torch.tensor([i % 7])])
        except IndexError:
            return x + 1, i, seen
        return x, i, seen

    for f, outcomes in ((sizes, 4), (caught, 3)):
        compiled = Counted(f, fullgraph=True)
        random.seed(5)
        expected = [f(torch.arange(4.0).reshape(4, 1)) for _ in range(20)], random.random()
        random.seed(5)
        assert same(([compiled(torch.arange(4.0).reshape(4, 1)) for _ in range(20)], random.random()), expected)
        assert len(compiled.entries) == outcomes  # what is made of such a number has no outcomes of its own


def test_random_decisions_with_many_outcomes_break() -> None:
    def f(x):
        for _ in range(6):
            if random.random() > 0.5:
                x = x + 1
        return x, random.choice([torch.sin, torch.cos])(x)

    compiled = Counted(f)
    random.seed(7)
    expected = [f(X) for _ in range(20)], random.random()
    random.seed(7)
    assert same(([compiled(X) for _ in range(20)], random.random()), expected)
    assert "TT0206" in compiled.breaks()


class Tally:
    calls = 0
    last: Any = None


class Inherits(Tally):
    pass


def test_attributes_of_classes() -> None:
    def f(x, obj):
        Tally.calls += 1
        Tally.last = x * 2
        return x * obj.calls + Inherits.calls, type(obj).last

    compiled = Counted(f, fullgraph=True)
    for n in range(1, 6):
        got, last = compiled(torch.ones(2), Inherits())
        assert Tally.calls == n and last is Tally.last
        assert same(got, torch.full((2,), 2.0 * n)) and same(last, torch.full((2,), 2.0))
    assert len(compiled.entries) <= 3
    Inherits.calls = 100
    try:
        assert same(compiled(torch.ones(2), Inherits())[0], torch.full((2,), 200.0))
        assert Tally.calls == 6
    finally:
        del Inherits.calls


def test_context_variables_are_read_at_each_call() -> None:
    variable: contextvars.ContextVar[Any] = contextvars.ContextVar("variable")

    def f(x):
        return x * variable.get()

    compiled = Counted(f, dynamic=False)
    for value, count in ((2, 1), (3, 2), (2, 2)):
        variable.set(value)
        assert same(compiled(torch.ones(2)), torch.full((2,), float(value)))
        assert len(compiled.entries) == count


def test_a_list_that_is_only_appended_to_may_have_any_length() -> None:
    losses: list[Any] = []

    def step(x):
        loss = (x * x).sum()
        losses.append(loss)
        return loss

    compiled = Counted(step, fullgraph=True)
    for n in range(20):
        assert compiled(torch.ones(3)) is losses[-1] and len(losses) == n + 1
    assert len(compiled.entries) == 1


def test_numbers_appended_in_a_loop_do_not_compile_each_time() -> None:
    def train(x, history):
        for _ in range(20):
            x = x * 0.5
            history.append(x.sum().item())
        return x

    compiled = Counted(train)
    got: list[Any] = []
    want: list[Any] = []
    assert same(compiled(torch.ones(2), got), train(torch.ones(2), want))
    assert got == want
    assert not compiled.native() and len(compiled.all_entries()) <= 8


def test_appended_then_looked_at() -> None:
    def f(x, a, b):
        a.append(1)
        b.append(2)
        a.append(3)
        n = len(a)
        b.append(n)
        return x * n, a[-2], b[-1]

    compiled = Counted(f, dynamic=False)
    for make in (lambda: ([], []), lambda: ([0], []), lambda: ([], [7]), lambda: [[5]] * 2):
        a, b = make()
        c, d = make()
        assert same(compiled(torch.ones(1), a, b), f(torch.ones(1), c, d))
        assert a == c and b == d


# --- containers of the program's own classes --------------------------------------------------------------------------
class Loud(list):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.tag = "new"

    def append(self, v: Any) -> None:
        super().append(v * 2)
        self.tag += "!"

    def extend(self, vs: Any) -> None:
        raise AssertionError("nobody calls this")


class Wrapping(dict):
    def __missing__(self, k: str) -> str:
        self[k] = made = k * 2
        return made

    def __setitem__(self, k: str, v: Any) -> None:
        super().__setitem__(k, ("wrapped", v))


class Doubling(set):
    def add(self, v: Any) -> None:
        super().add((v, v))


class Short(collections.OrderedDict):
    def __setitem__(self, k: str, v: Any) -> None:
        super().__setitem__(k[:1], v)


def contents(made: Any) -> Any:
    items = list(made.items()) if isinstance(made, dict) else sorted(made, key=str)
    return type(made).__name__, items, dict(vars(made))


def test_overridden_methods_run_once() -> None:
    def f(x, loud, wrapping, doubling, short):
        loud.append(3)
        loud.tag += "?"
        wrapping["given"] = 1
        doubling.add(4)
        doubling.discard(1)
        short["long"] = 5
        short.move_to_end("a")
        return x + len(loud), wrapping["absent"]

    def make():
        return Loud([1]), Wrapping(a=1), Doubling([1]), Short(a=1)

    compiled = Counted(f, fullgraph=True)
    left, right = make(), make()
    for _ in range(2):
        assert same(compiled(X, *left), f(X, *right))
        assert [contents(c) for c in left] == [contents(c) for c in right]


def test_new_containers_of_such_classes() -> None:
    def f(x):
        loud, wrapping, doubling, short = Loud([1]), Wrapping(a=1), Doubling([1]), Short()
        loud.append(2)
        wrapping["b"] = 2
        wrapping.more = "attribute"
        doubling.add(2)
        short["long"] = 3
        limited = collections.deque([1, 2, 3], maxlen=2)
        return x * 2, loud, wrapping, doubling, short, limited, limited.maxlen

    compiled = Counted(f, fullgraph=True)
    got, expected = compiled(X), f(X)
    assert [contents(c) for c in got[1:5]] == [contents(c) for c in expected[1:5]]
    assert same(got[5:], expected[5:]) and got[5].maxlen == 2


def test_containers_that_change_under_an_iterator() -> None:
    def f(x, table, things):
        said = []
        for over, change in ((table, table.setdefault), (things, lambda k, v: things.add(k))):
            try:
                for _ in over:
                    change("new" + str(len(said)), 1)
            except RuntimeError as e:
                said.append(str(e))
        return x, said

    compiled = Counted(f, fullgraph=True)
    left, right = ({"a": 1}, {"a"}), ({"a": 1}, {"a"})
    assert same(compiled(X, *left), f(X, *right)) and left == right


def test_errors_of_containers_and_classes() -> None:
    def f(x):
        said = []
        for wrong in (
            lambda: dict([1]), lambda: dict([(1, 2, 3)]), lambda: {}.update(["ab", "c"]), lambda: isinstance(1, 2),
            lambda: issubclass(int, 3), lambda: max([]), lambda: setattr(1, "a", 2),
        ):  # fmt: skip
            try:
                wrong()
            except Exception as e:
                said.append((type(e).__name__, str(e)))
        return x, said

    assert same(Counted(f, fullgraph=True)(X), f(X))
