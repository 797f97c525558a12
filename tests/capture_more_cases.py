# ruff: noqa: B018, F841, RUF012, RUF059, UP031 - constructs in all their spellings
"""More functions of one tensor, one construct each: those captured whole, and those that break with a named reason."""

from __future__ import annotations

import collections
import contextvars
import copy
import datetime
import enum
import functools
import inspect
import io
import logging
import operator
import random
import re
import sys
import types
import typing
import weakref

import numpy as np

import tinytorch as torch
from tinytorch import nn

WHOLE: dict[str, typing.Any] = {}
BREAKS: dict[str, tuple[typing.Any, str]] = {}


def whole(fn):
    WHOLE[fn.__name__] = fn
    return fn


def breaks(id):
    def register(fn):
        BREAKS[fn.__name__] = (fn, id)
        return fn

    return register


# --- captured whole ---------------------------------------------------------------------------------------------------
@whole
def index_error_handled(x):
    seen = []
    for at in (1, 9):
        try:
            seen.append("tried")
            x = x + x[torch.tensor([at])]
        except IndexError as e:
            seen.append(str(e))
    return x, seen


@whole
def random_choice(x):
    return x * random.choice([1, 2, 3]), random.choice("ab"), random.choice([torch.sin, torch.cos])(x)


@whole
def random_branch(x):
    if random.random() < 0.5:
        return x + 1
    return x * random.randint(1, 6)


@whole
def random_orders(x):
    order = list(range(10))
    random.shuffle(order)
    return x * order[0], order, random.sample(range(100), 3), random.choices([1, 2, 3], weights=[1, 2, 3], k=2)


@whole
def random_ranges(x):
    return x[:, random.randrange(2) :], x * int(random.uniform(1, 9)), random.getrandbits(8), random.triangular(0, 1, 0.5)


@whole
def random_seeded(x):
    random.seed(5)
    return x * random.random()


@whole
def signature(x):
    def inner(a, b=2, *args, c, **rest):
        pass

    found = inspect.signature(inner)
    bound = inspect.signature(kind_of).bind(3)
    return x * len(found.parameters), list(found.parameters), found.parameters["b"].default, bound.args, str(found)


@functools.singledispatch
def kind_by_type(v):
    return "object"


@kind_by_type.register
def _(v: int):
    return "int"


@whole
def single_dispatch(x):
    return x, kind_by_type(1), kind_by_type("s"), kind_by_type(x)


class Pair:
    """Equal by value."""

    def __init__(self, a, b):
        self.a, self.b = a, b

    def __eq__(self, other):
        return isinstance(other, Pair) and (self.a, self.b) == (other.a, other.b)

    def __hash__(self):
        return hash((self.a, self.b))

    def __repr__(self):
        return f"<{self.a} {self.b}>"


@whole
def keys_equal_by_value(x):
    table = {Pair(1, 2): x, Pair(2, 1): x + 1}
    table[Pair(1, 2)] = x * 3
    return table[Pair(1, 2)], len(table), len({Pair(1, 1), Pair(1, 1)}), Pair(2, 1) in table, repr([Pair(3, 4), {1: Pair(5, 6)}])


@whole
def equal_keys_of_different_types(x):
    return x, {1: "int", True: "bool", 1.0: "float"}, {1, True, 1.0}, {True: 1, **{1: 2}}  # noqa: B033, F601


@whole
def order_of_sets(x):
    a, b = {"b", "a", "zz", "q"}, frozenset("hello")
    c = {8, 0, 16}
    c.discard(0)
    c.add(24)
    return x, list(a), list(b), list(a | b), [v for v in c], c.pop(), list({30, 2, 17} ^ {2, 5}), list(b - a), a & b


@whole
def cached_function_parts(x):
    return x * squares.__wrapped__(3), squares.__name__, squares(3)


@functools.lru_cache(None)
def squares(n):
    return n * n


@whole
def integers_of_enumerations(x):
    return x * Bits.B, x + Bits.A, x[Bits.A]


class Bits(enum.IntFlag):
    A = 1
    B = 2


@whole
def generator_results(x):
    def g():
        yield 1
        return 9

    it = g()
    next(it)
    try:
        next(it)
    except StopIteration as e:
        return x, e.value, next(it, "none")


@whole
def generator_dropped(x):
    seen = []

    def g(tag):
        try:
            yield 1
            yield 2
        finally:
            seen.append("closed " + tag)

    for v in g("loop"):
        x = x * v
        break
    seen.append("after")
    held = g("local")
    next(held)
    del held
    seen.append("end")
    left = g("left")
    return x, seen, next(left)


class Slotted:
    __slots__ = ("a",)


@whole
def empty_slots(x):
    try:
        return Slotted().a
    except AttributeError as e:
        return x, str(e)


@whole
def parts_of_exceptions(x):
    seen = []
    try:
        try:
            raise KeyError("k")
        except KeyError as e:
            seen.append((e.__suppress_context__, e.__traceback__ is None, sys.exc_info()[2] is None))
            raise ValueError("v") from e
    except ValueError as e:
        seen.append((e.__suppress_context__, e.__cause__ is e.__context__))
    try:
        raise ExceptionGroup("g", [ValueError(1), ExceptionGroup("h", [TypeError(2)])])
    except* ValueError as e:
        seen.append(str(e))
    except* TypeError as e:
        seen.append([str(v) for v in e.exceptions])
    return x, seen


@whole
def parts_of_functions(x):
    def wrap(f):
        @functools.wraps(f)
        def inner(*args, **kwargs):
            return f(*args, **kwargs) + 1

        return inner

    @wrap
    def named(v):
        "What it does."
        return v * 2

    def plain():
        return "not a docstring"

    return named(x), named.__name__, named.__doc__, named.__wrapped__(x), named.__annotations__, plain.__doc__, plain()


@whole
def dir_of_objects(x):
    space = types.SimpleNamespace(b=1)
    space.a = 2
    return x, [n for n in dir(space) if n < "_" or n in "ab"], "b" in dir(Pair(1, 2)), collections.deque([1], maxlen=3).maxlen


@whole
def regular_expressions(x):
    return x, re.sub("a", "b", "aaa"), re.match(r"(\d+)", "12a").group(1), datetime.timedelta(days=1).total_seconds()


class Meta(type):
    def __call__(cls, *args):
        made = super().__call__(*args)
        made.tag = cls.__name__
        return made


class Made(metaclass=Meta):
    def __init__(self, v):
        self.v = v


@whole
def metaclass(x):
    m = Made(3)
    return x * m.v, m.tag


class Typed:
    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, obj, cls):
        return self if obj is None else obj.__dict__.get(self.name, 7)

    def __set__(self, obj, value):
        obj.__dict__[self.name] = value * 2


class Described:
    field = Typed()


@whole
def data_descriptor(x):
    d = Described()
    before = d.field
    d.field = 5
    return x * d.field, before, type(Described.field).__name__


class Chain(collections.UserDict):
    pass


@whole
def user_dict(x):
    d = Chain({"a": 1})
    d["b"] = 2
    return x * d["b"], len(d), "a" in d, sorted(d)


@whole
def user_list(x):
    u = collections.UserList([1, 2])
    u.append(3)
    return x * u[-1], len(u), list(u)


class Point(typing.TypedDict):
    a: int
    b: int


@whole
def typed_dict(x):
    p = Point(a=1, b=2)
    return x * p["b"], p


class Mode(enum.Flag):
    A = 1
    B = 2


@whole
def flags(x):
    m = Mode.A | Mode.B
    return x * m.value, Mode.A in m, bool(m & Mode.B)


@whole
def chain_map(x):
    c = collections.ChainMap({"a": 1}, {"a": 2, "b": 3})
    return x * c["b"], c["a"]


@whole
def class_methods(x):
    class_ = types.SimpleNamespace(n=2)
    return x * class_.n, int.from_bytes(b"\x01\x02", "big"), dict.fromkeys("ab", 1)


@whole
def operator_getters(x):
    get = operator.itemgetter(1)
    return x * get([1, 2]), operator.attrgetter("ndim")(x), operator.methodcaller("sum")(x)


@functools.singledispatch
def kind_of(v):
    return "other"


@whole
def partial_method(x):
    class_ = functools.partial(lambda a, b, c=0: a * b + c, 2, c=1)
    return class_(x)


@whole
def nested_functions(x):
    def counter():
        n = 0

        def inc(by=1):
            nonlocal n
            n += by
            return n

        return inc

    inc = counter()
    inc()
    return x * inc(5), inc()


@whole
def autocast_block(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x.t()
    return y, x @ x.t()


@whole
def autocast_off_inside(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.autocast("cpu", enabled=False):
            y = x @ x.t()
    return y


@whole
def inference_block(x):
    with torch.inference_mode():
        y = x * 2
    return y + 0 if False else y.sum() * 1


@whole
def grad_switch(x):
    with torch.set_grad_enabled(False):
        with torch.enable_grad():
            y = torch.is_grad_enabled()
    return x + 1, y


@whole
def out_argument(x):
    out = torch.empty(3, 4)
    torch.add(x, 1, out=out)
    return out


@whole
def detach_and_data(x):
    return x.detach() * 2, x.data + 1


@whole
def transposes(x):
    return x.T, x.mT, x.permute(1, 0), x.transpose(0, 1)


@whole
def gradients_inside(x):
    w = x.detach().clone()
    scale = SCALE
    (g,) = torch.autograd.grad((w * scale * scale).sum(), scale)
    return g


SCALE = torch.full((3, 4), 0.5, requires_grad=True)


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2


@whole
def autograd_function(x):
    return Double.apply(x) + 1, Double.apply(SCALE).sum().detach()


@whole
def drawn_numbers(x):
    return x * random.random() + random.randint(1, 6), x + random.uniform(1, 2)


@whole
def numpy_mixed(x):
    a = x.numpy()
    b = np.maximum(a, 0) * 2 + np.arange(4)
    return torch.from_numpy(b), b.shape, np.float64(2.0) * 3


class Hooked(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.lin.register_forward_pre_hook(lambda m, args: (args[0] + 1,))
        self.lin.register_forward_hook(lambda m, args, out: out * 2)

    def forward(self, x):
        return self.lin(x)


HOOKED = Hooked()


@whole
def module_hooks(x):
    return HOOKED(x)


@whole
def module_walk(x):
    names = [n for n, _ in HOOKED.named_modules()]
    return x + len(names), [n for n, _ in HOOKED.named_children()], HOOKED.training, next(HOOKED.parameters()).shape


@whole
def state_dict_keys(x):
    return x, list(HOOKED.state_dict())


@whole
def identity_of_objects(x):
    a, b = [], []
    return x, a is a, a is b, id(HOOKED) == id(HOOKED), hash("a") == hash("a")


@whole
def while_else_break(x):
    n = 0
    while n < 5:
        n += 1
        if n == 3:
            continue
        if n == 4:
            break
    else:
        n = 100
    return x * n


@whole
def star_calls(x):
    def f(*args, key=0, **kw):
        return sum(args) + key + sum(kw.values())

    first, *rest = [1, 2, 3]
    return x * f(*rest, first, key=4, **{"z": 5}, **{"y": 6}), [*rest, *"ab"], {**{"a": 1}, "b": 2}


@whole
def generator_protocol(x):
    def g():
        try:
            got = yield 1
            yield got * 2
        except ValueError:
            yield "caught"
        finally:
            LOG.append("closed")
        return None

    LOG.clear()
    it = g()
    a, b = next(it), it.send(5)
    it.close()
    jt = g()
    next(jt)
    return x * b, a, jt.throw(ValueError()), list(LOG)


LOG: list[str] = []


@whole
def string_methods(x):
    s = "a,b;c"
    return x, s.split(","), s.replace(";", "-").upper(), f"{3.14159:.2f}|{7:>4}|{'q'!r}", "%s %d" % ("u", 3), s.partition(";")


@whole
def set_algebra(x):
    a, b = {1, 2, 3}, frozenset({2, 3, 4})
    a |= {9}
    return x * len(a & b), sorted(a ^ b), a.isdisjoint({7}), b <= {2, 3, 4, 5}


@whole
def module_constants(x):
    return x * len(typing.get_type_hints.__name__), torch.float32.itemsize, torch.finfo(torch.float32).max > 1


@whole
def context_variable(x):
    return x * VARIABLE.get()


VARIABLE: contextvars.ContextVar[int] = contextvars.ContextVar("VARIABLE", default=3)


class Counter:
    seen = 0
    last = None


@whole
def class_attribute_assignment(x):
    c = Counter()
    Counter.seen = 5
    before = c.seen
    c.seen = 6
    Counter.last = [Counter.seen]
    return x * Counter.seen, before, c.seen, Counter.last


# --- break with a named reason ----------------------------------------------------------------------------------------
@whole
def checks_of_data(x):
    assert torch.isfinite(x).all(), "not finite"
    total = x.square().sum()
    if total < 0:
        message = f"negative: {total}"
        raise ValueError(message)
    return x / total


@breaks("TT0201")
def prints(x):
    print("", end="")
    return x + 1


@breaks("TT0201")
def logs(x):
    logging.getLogger("capture").debug("x")
    return x + 1


@breaks("TT0101")
def branch_on_data(x):
    return x + 1 if x.sum() > 0 else x - 1


@breaks("TT0102")
def item(x):
    return x * x.sum().item()


@breaks("TT0102")
def to_list(x):
    return x, x.tolist()


@breaks("TT0103")
def masked(x):
    return x[x > 0] * 2


@breaks("TT0103")
def nonzero(x):
    return torch.nonzero(x)


@breaks("TT0107")
def counted_bins(x):
    return torch.bincount(torch.tensor([1, 2, 2]))


@breaks("TT0202")
def context_variable_set(x):
    VARIABLE.set(4)
    return x * VARIABLE.get()


@breaks("TT0202")
def string_io(x):
    buffer = io.StringIO()
    buffer.write("a")
    return x + len(buffer.getvalue())


@breaks("TT0104")
def tensor_text(x):
    return x + len(str(x[0, 0]))


@breaks("TT0204")
def requires_grad_in_place(x):
    return (x * 1).requires_grad_()


@breaks("TT0303")
def tensor_deepcopy(x):
    return copy.deepcopy(x) * 2


@breaks("TT0303")
def method_assignment(x):
    Counter.method = lambda self, v: v + 1
    return Counter().method(x)


@breaks("TT0304")
def class_body(x):
    class Local:
        v = 2

    return x * Local.v


@breaks("TT0309")
def generator_over_a_break(x):
    def g():
        yield 1
        yield 2

    it = g()
    a = next(it)
    torch.compiler.graph_break()
    return x * a + next(it)


@breaks("TT0601")
def asked(x):
    x = x + 1
    torch.compiler.graph_break()
    return x * 2


@breaks("TT0202")
def weak_reference(x):
    return x + (weakref.ref(HOOKED)() is HOOKED)


def asserts(x, items):
    """Here, because pytest writes the assertions of its own files anew."""
    items.append(1)
    assert (x > 0).all(), f"not all of {x} positive"
    items.append(2)
    return x.log()
