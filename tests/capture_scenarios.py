# ruff: noqa - programs as people write them
"""Whole scenarios: programs that change things between calls, with what they say and leave behind.

``fn(C)`` gets ``C``, which compiles a function or leaves it alone, and returns all there is to compare.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import itertools
import math
import operator
import random
import sys
import threading
import types
import warnings

import numpy as np

import tinytorch as torch
from compiler.capture import entry
from tinytorch import nn

LOG = []
SCENARIOS = {}


def scenario(fn):
    SCENARIOS[fn.__name__] = fn
    return fn


@entry.disable
def act(*what):
    LOG.append(what)
    return len(what)


def T(*shape):
    shape = shape or (3,)
    return torch.arange(float(math.prod(shape))).reshape(*shape)


def flat(v):
    """State as plain containers."""
    if isinstance(v, (tuple, list)):
        return [type(v).__name__, *map(flat, v)]
    if isinstance(v, dict):
        return [type(v).__name__, {k if isinstance(k, str) else str(k): flat(e) for k, e in v.items()}]
    if isinstance(v, (set, frozenset)):
        return [type(v).__name__, *sorted(map(repr, v))]
    if isinstance(v, (torch.Tensor, np.ndarray, int, float, str, bytes, type(None))):
        return v
    if isinstance(v, type):
        return v.__qualname__
    return (
        [type(v).__name__, flat(vars(v))] if hasattr(v, "__dict__") and not callable(v) else type(v).__name__
    )


@scenario
def class_attributes_change(C):
    class A:
        k = 2

        def m(s, x):
            return x * s.k

    f = C(lambda a, x: a.m(x))
    a = A()
    r = [f(a, T())]
    A.k = 3
    r.append(f(a, T()))
    a.k = 4
    r.append(f(a, T()))
    del a.k
    r.append(f(a, T()))
    A.m = lambda s, x: x - 1
    r.append(f(a, T()))
    return r


@scenario
def closure_shared_with_setter(C):
    def outer():
        n = 1

        def get():
            return n

        def setn(v):
            nonlocal n
            n = v

        return get, setn

    g, s = outer()
    f = C(lambda x: x * g())
    r = [f(T())]
    s(5)
    r.append(f(T()))
    f2 = C(lambda x, v: (s(v), x * g())[1])
    r.append(f2(T(), 7))
    r.append(f(T()))
    return r


@scenario
def dict_grows_and_reorders(C):
    d = {"a": 1, "b": 2}
    f = C(lambda x: [x * v for v in d.values()])
    r = [f(T())]
    d["c"] = 3
    r.append(f(T()))
    d.pop("a")
    d["a"] = 1
    r.append(f(T()))
    return r


@scenario
def list_values_change_type(C):
    l = [1, 2]
    f = C(lambda x: x + sum(l))
    r = [f(T())]
    l.append(3)
    r.append(f(T()))
    l[0] = True
    r.append(f(T()))
    l[0] = 1.0
    r.append(f(T()))
    return r


@scenario
def numbers_told_apart(C):
    f = C(lambda x, k: (x * k, k))
    return [f(T(), v) for v in (1, True, 1.0, 0.0, -0.0, 2, float("nan"), None and 1 or 3)]


@scenario
def same_tensor_and_overlaps(C):
    def f(x, y):
        x.add_(1)
        return x is y, x + y

    g = C(f)
    a = T()
    b = T()
    r = [g(a, b)]
    r.append(g(a, a))
    base = torch.ones(5)
    r.append(g(base[:3], base[2:]))
    r.append(base.clone())
    r.append(g(base[:3], base[:3]))
    return r


@scenario
def module_changes_between_calls(C):
    m = nn.Linear(3, 2)
    torch.nn.init.constant_(m.weight, 1.0)
    torch.nn.init.constant_(m.bias, 0.0)
    f = C(lambda x: m(x))
    r = [f(T())]
    h = m.register_forward_hook(lambda m, i, o: o + 1)
    r.append(f(T()))
    h.remove()
    r.append(f(T()))
    m.weight = nn.Parameter(torch.zeros(2, 3))
    r.append(f(T()))
    m.bias = None
    r.append(f(T()))
    m.forward = lambda x: x * 9
    r.append(f(T()))
    return r


@scenario
def modes_and_rates_change(C):
    m = nn.Sequential(nn.Dropout(1.0), nn.BatchNorm1d(3))
    f = C(lambda x: m(x))
    x = T(2, 3)
    r = [f(x)]
    m.eval()
    r.append(f(x))
    m.train()
    r.append(f(x))
    m[0].p = 0.0
    r.append(f(x))
    r.append(m[1].running_mean.clone())
    r.append(int(m[1].num_batches_tracked))
    return r


@scenario
def keywords_in_all_ways(C):
    def f(x, *a, k=1, **kw):
        return x * k + len(a) + len(kw), sorted(kw), a

    g = C(f)
    r = [g(T()), g(T(), 1), g(T(), 1, 2, k=3), g(T(), z=1), g(T(), **{"y": 2, "x2": 3}), g(x=T())]
    return r


@scenario
def defaults_are_state(C):
    def f(x, a=[]):
        a.append(1)
        return x + len(a)

    g = C(f)
    r = [g(T()), g(T()), g(T(), [])]
    f.__defaults__ = ([1, 2, 3],)
    r.append(g(T()))
    return r


@scenario
def four_threads(C):
    f = C(lambda x: x * 2)
    out = []

    def work():
        for n in (2, 3, 4):
            out.append(float(f(torch.ones(n)).sum()))

    ts = [threading.Thread(target=work) for _ in range(4)]
    [t.start() for t in ts]
    [t.join() for t in ts]
    return sorted(out)


@scenario
def globals_of_executed_code(C):
    ns = {}
    exec("Q=2\ndef f(x):\n    return x*Q\n", ns)
    f = C(ns["f"])
    r = [f(T())]
    ns["Q"] = 5
    r.append(f(T()))
    ns["sum"] = lambda v: 1
    exec("def g(x):\n    return sum([1,2])*x\n", ns)
    g = C(ns["g"])
    r.append(g(T()))
    del ns["sum"]
    r.append(g(T()))
    return r


@scenario
def property_with_state(C):
    class P:
        def __init__(s):
            s._v = 1

        @property
        def v(s):
            s._v += 1
            return s._v

    p = P()
    f = C(lambda x: x * p.v + p.v)
    r = [f(T()) for _ in range(5)]
    return r, p._v


@scenario
def exit_that_sees_errors(C):
    class O:
        def __enter__(s):
            LOG.append("e")
            return 5

        def __exit__(s, *a):
            LOG.append(a[0])
            return False

    def f(x, bad):
        with O() as v:
            y = x * v
            if bad:
                raise KeyError("z")
        return y

    g = C(f)
    r = [g(T(), False)]
    for _ in range(2):
        try:
            g(T(), True)
        except KeyError as e:
            r.append((e.args, type(e.__context__)))
    return r


@scenario
def error_by_shape(C):
    def f(x):
        try:
            return x / 0 if x.shape[0] > 2 else 1 / 0
        except ZeroDivisionError:
            return x - 1
        finally:
            LOG.append("f")

    g = C(f)
    return [g(T()), g(T(2))]


@scenario
def linked_list(C):
    class N:
        def __init__(s, v, nxt=None):
            s.v = v
            s.nxt = nxt

    def f(n, x):
        t = x
        while n is not None:
            t = t + n.v
            n.v += 1
            n = n.nxt
        return t

    g = C(f)
    n = N(1, N(2, N(3)))
    r = [g(n, T()) for _ in range(3)]
    n.nxt.nxt = None
    r.append(g(n, T()))
    return r, n.v


@scenario
def dataclass_with_tensor(C):
    @dataclasses.dataclass
    class D:
        a: torch.Tensor
        b: int = 0
        c: list = dataclasses.field(default_factory=list)

    def f(d):
        d.b += 1
        d.c.append(d.a.sum())
        e = dataclasses.replace(d, b=9)
        return e, d.a * d.b

    g = C(f)
    d = D(T())
    r = [flat(g(d)) for _ in range(3)]
    return r, flat(d)


@scenario
def generator_escapes(C):
    def gen(x):
        for i in range(3):
            yield x * i

    def f(x):
        return gen(x)

    g = C(f)
    it = g(T())
    r = [next(it), list(it)]
    return r


@scenario
def counters_and_ordered_dicts(C):
    c = collections.Counter()
    dd = collections.defaultdict(int)
    od = collections.OrderedDict()

    def f(x, k):
        c[k] += 1
        dd[k] += 2
        od[k] = x
        od.move_to_end(k, last=False)
        return x * c[k] + dd[k]

    g = C(f)
    r = [g(T(), k) for k in "abab"]
    return r, dict(c), dict(dd), list(od)


@scenario
def requires_grad_changes(C):
    w = torch.ones(3, requires_grad=True)

    def f(x):
        return (x * w).sum()

    g = C(f)
    l = g(T())
    l.backward()
    r = [w.grad.clone()]
    with torch.no_grad():
        l = g(T())
        r.append(l.requires_grad)
    w.requires_grad_(False)
    r.append(g(T()).requires_grad)
    return r


@scenario
def operators_of_a_class(C):
    class V:
        def __init__(s, t):
            s.t = t

        def __add__(s, o):
            return V(s.t + (o.t if isinstance(o, V) else o))

        __radd__ = __add__

        def __eq__(s, o):
            return NotImplemented

        def __lt__(s, o):
            return s.t.shape < o.t.shape

        def __getitem__(s, i):
            return s.t[i]

        def __iter__(s):
            yield from (s.t[0], s.t[1])

    f = C(
        lambda a, x: (
            (a + x).t,
            (1 + a).t,
            sum([a, a]).t,
            a == a,
            a != 1,
            sorted([a, a])[0].t,
            a[1:],
            list(a),
            min(a, a).t,
        )
    )
    return f(V(T()), T())


@scenario
def decorators_made_inside(C):
    def f(x):
        nonlocal_ = {}

        def deco(name):
            def inner(fn):
                nonlocal_[name] = fn
                return fn

            return inner

        @deco("a")
        def one(v):
            return v + 1

        @deco("b")
        @functools.lru_cache
        def two(v):
            return v * 2

        return nonlocal_["a"](x), nonlocal_["b"](3), one.__name__

    return C(f)(T())


@scenario
def list_that_keeps_results(C):
    st = []

    def f(x):
        st.append(x)
        y = x * 2
        st.append(y)
        st[0] = None
        return st[-1] is y

    g = C(f)
    r = [g(T()) for _ in range(2)]
    return r, [flat(v) for v in st]


@scenario
def strings(C):
    def f(x, s):
        a, b = s.split("-")
        return x * int(a), b.upper(), f"{b!r:>6}", s.encode()[::-1], "%s" % s, s.partition("-"), s.title()

    g = C(f)
    return [g(T(), "2-ab"), g(T(), "3-cd")]


@scenario
def bounds_of_slices(C):
    def f(x, n):
        return x[:n], x[-n:], x[::n], x.reshape(n, -1) if x.numel() % n == 0 else 0

    g = C(f)
    return [g(T(6), k) for k in (1, 2, 3, 2)]


@scenario
def recursive_modules(C):
    class R(nn.Module):
        def __init__(s, d):
            super().__init__()
            s.l = nn.Linear(3, 3)
            s.sub = R(d - 1) if d else None
            torch.nn.init.constant_(s.l.weight, 0.5)
            torch.nn.init.constant_(s.l.bias, 0.1)
            s.seen = []

        def forward(s, x):
            s.seen.append(x.shape[0])
            x = s.l(x)
            return s.sub(x) if s.sub is not None else x

    m = R(3)
    f = C(m.forward)
    r = [f(T(2, 3)), f(T(4, 3))]
    return r, [len(q.seen) for q in m.modules() if isinstance(q, R)]


@scenario
def imports_inside(C):
    def f(x, flag):
        if flag:
            from math import tau as q
        else:
            import math as q

            q = q.pi
        return x * q

    g = C(f)
    return [g(T(), True), g(T(), False)]


@scenario
def aliases_in_a_list(C):
    x = T()
    lst = [x, x]

    def f(l):
        l[0].add_(1)
        l[1].mul_(2)
        return l[0] is l[1], l[0] + l[1]

    g = C(f)
    r = [g(lst)]
    lst[1] = T()
    r.append(g(lst))
    return r


@scenario
def endless_loop_with_breaks(C):
    def f(x):
        for i in itertools.count():
            if i > 2:
                break
            act(i)
            x = x + i
        else:
            x = x * 0
        return x, i

    return C(f)(T())


@scenario
def singleton(C):
    class Sg:
        inst = None

        def __new__(c, *a):
            if c.inst is None:
                c.inst = super().__new__(c)
            return c.inst

        def __init__(s, v=0):
            s.v = v

    f = C(lambda x: (x * Sg(3).v, Sg.inst is Sg()))
    return [f(T()), f(T())]


@scenario
def errors_three_calls_deep(C):
    def f(x):
        def a():
            return b()

        def b():
            raise LookupError("deep")

        try:
            a()
        except (KeyError, LookupError) as e:
            return x, type(e).__name__, e.args, isinstance(e, Exception)

    return C(f)(T())


@scenario
def error_with_its_own_text(C):
    class E(Exception):
        def __str__(s):
            return "E!" + str(s.args[0] + 1)

    def f(x, n):
        y = x + 1
        raise E(n)

    g = C(f)
    r = []
    for n in (1, 2):
        try:
            g(T(), n)
        except E as e:
            r.append(str(e))
    return r


@scenario
def strides_change(C):
    def f(x):
        return x.view(-1) if x.is_contiguous() else x.t().contiguous().view(-1)

    g = C(f)
    return [g(T(2, 3)), g(T(2, 3).t())]


@scenario
def dtypes_change(C):
    def f(x, y):
        return (x + y).dtype, (x * 2).dtype, (x / 2).dtype, x + 1.5

    g = C(f)
    I = torch.arange(3)
    return [g(T(), I), g(I, I), g(I, T()), g(I > 1, I)]


@scenario
def dict_of_tensors_in_place(C):
    def f(d):
        d["x"].add_(1)
        t = d.pop("y", None)
        d.update(z=d["x"] * 2)
        del d["w"]
        return t, list(d)

    g = C(f)
    d = {"x": T(), "y": 1, "w": 2}
    r = [g(d)]
    d["w"] = 1
    r.append(g(d))
    return r, flat(d)


@scenario
def list_that_holds_itself(C):
    a = [1]
    a.append(a)

    def f(x):
        return x + len(a)

    return C(f)(T())


@scenario
def names_unbound_in_handlers(C):
    def f(x):
        out = []
        try:
            for i in (3, 2, 1, 0):
                out.append(6 // i)
        except ZeroDivisionError as e:
            out.append(str(e))
            del i
        try:
            i
        except NameError as e:
            out.append(type(e).__name__)
        return x, out

    return C(f)(T())


@scenario
def iterator_used_up(C):
    it = iter([1, 2, 3, 4, 5])

    def f(x):
        return x * next(it), [next(it)]

    g = C(f)
    r = [g(T()), g(T())]
    try:
        g(T())
    except StopIteration:
        r.append("stop")
    except RuntimeError:
        r.append("rt")
    return r, list(it)


@scenario
def list_subclass_overridden(C):
    class L(list):
        def __init__(s, *a):
            super().__init__(*a)
            s.tag = "t"

        def append(s, v):
            super().append(v * 2)
            s.tag += "!"

        def __len__(s):
            return 42

    l = L([1])

    def f(x):
        l.append(3)
        return x, len(l), list(l), l.tag, l[-1], bool(l)

    g = C(f)
    return [g(T()), g(T())], list(l), l.tag


@scenario
def dict_subclass_overridden(C):
    class D(dict):
        def __missing__(s, k):
            s[k] = v = k * 2
            return v

        def __setitem__(s, k, v):
            super().__setitem__(k, ("w", v))

    d = D(a=1)

    def f(x):
        return x, d["q"], d["a"], len(d), d.get("zz"), "q" in d

    g = C(f)
    return [g(T()), g(T())], dict(d)


@scenario
def attribute_rebound_and_aliased(C):
    k = types.SimpleNamespace(t=T())
    al = k.t

    def f():
        k.t = k.t + 1
        k.t.mul_(2)
        return al

    g = C(f)
    r = [g().clone() for _ in range(3)]
    return r, k.t


@scenario
def functions_as_arguments(C):
    def f(x, fn):
        return fn(x), fn.__name__ if hasattr(fn, "__name__") else "?"

    g = C(f)
    return [
        g(T(), torch.sin),
        g(T(), torch.cos),
        g(T(), lambda v: v + 1),
        g(T(), lambda v: v + 2),
        g(T(), functools.partial(torch.add, other=1)),
        g(T(), nn.ReLU()),
    ]


@scenario
def views_written(C):
    def f(x):
        x = x.clone()
        v = x[1:]
        v.zero_()
        w = x.view(3, 1)
        w[0] = 7
        y = x.detach()
        y += 1
        return x, v, w

    return C(f)(T())


@scenario
def attributes_of_tensors(C):
    def f(x):
        x.foo = x * 2
        x.bar = [1]
        return x

    g = C(f)
    t = T()
    r = g(t)
    return r is t, t.foo, t.bar


@scenario
def warnings_are_raised(C):
    with warnings.catch_warnings(record=True) as w:
        warnings.simplefilter("always")

        def f(x):
            warnings.warn("hey")
            return x + 1

        r = C(f)(T())
    return r, [str(q.message) for q in w]


@scenario
def algebra_of_dict_views(C):
    def f(a, b):
        return (
            {**a, **b},
            a | b,
            a.items() & b.items(),
            a.keys() - b.keys(),
            a == b,
            list(a.items()) < list(b.items()),
        )

    return C(f)({"x": 1, "y": 2}, {"y": 2, "z": 3})


@scenario
def higher_order_functions(C):
    def f(x):
        return (
            [*map(lambda a, b: a * b, x, (y for y in (1, 2, 3)))],
            list(filter(lambda t: t is not None, [None, 1])),
            functools.reduce(lambda a, b: a + b, x),
        )

    return C(f)(T())


@scenario
def own_iterator(C):
    class It:
        def __init__(s):
            s.i = 0

        def __iter__(s):
            return s

        def __next__(s):
            s.i += 1
            if s.i > 3:
                raise StopIteration
            return s.i

    it = It()

    def f(x):
        return x * sum(it), it.i

    g = C(f)
    return [g(T()), g(T())]


@scenario
def recursion_through_the_name(C):
    def f(x, n=3):
        return f(x + 1, n - 1) if n else x

    nf = C(f)
    return nf(T()), nf(T(), 1)


@scenario
def module_with_caches(C):
    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.register_buffer("c", torch.zeros(()))
            s.cache = None

        def forward(s, x):
            s.c += 1
            if s.cache is None:
                s.cache = x.detach() * 2
            s.cache = s.cache + x
            setattr(s, "n_" + str(len(x)), 1)
            return s.cache * s.c

    m = M()
    g = C(m)
    r = [g(T()) for _ in range(3)]
    return r, m.c, [k for k in vars(m) if k.startswith("n_")]


@scenario
def frozen_dataclass_keys(C):
    @dataclasses.dataclass(frozen=True)
    class K:
        a: int
        b: str = "q"

    t = {K(1): 10, K(2): 20}

    def f(x, k):
        return x * t[k], hash(k) == hash(K(k.a)), k == K(1), {k: 1}[K(k.a)]

    g = C(f)
    return [g(T(), K(1)), g(T(), K(2)), g(T(), K(1))]


@scenario
def property_set_and_deleted(C):
    class Temp:
        def __init__(s, c):
            s.c = c

        @property
        def f(s):
            return s.c * 9 / 5 + 32

        @f.setter
        def f(s, v):
            s.c = (v - 32) * 5 / 9

        @f.deleter
        def f(s):
            s.c = None

    t = Temp(100.0)

    def f(x):
        t.f = 50.0
        y = x * t.c
        t.f += 18
        del t.f
        return y, t.c

    g = C(f)
    return [g(T()), g(T())]


@scenario
def managers_of_contextlib(C):
    def f(x):
        with contextlib.suppress(KeyError, IndexError):
            {}["a"]
        try:
            with contextlib.redirect_stdout(None) if False else contextlib.nullcontext(4) as v:
                raise StopIteration(v)
        except StopIteration as e:
            r = e.value
        return x * r

    return C(f)(T())


@scenario
def generator_closed_early(C):
    def f(x):
        def g():
            yield from (x * i for i in range(2))
            try:
                yield x
            except GeneratorExit:
                LOG.append("ge")
                raise

        a = g()
        l = [next(a), next(a), next(a)]
        a.close()
        return l

    return C(f)(T())


@scenario
def own_stack(C):
    class Stack:
        def __init__(s):
            s._i = []

        def push(s, *v):
            s._i.extend(v)
            return s

        def pop(s):
            return s._i.pop()

        def __len__(s):
            return len(s._i)

        def __bool__(s):
            return bool(s._i)

        def __contains__(s, v):
            return any(q is v for q in s._i)

    st = Stack()

    def f(x):
        st.push(x, x * 2).push(3)
        a = st.pop()
        t = 0
        while st:
            t = t + st.pop() * a
        return t, x in st, len(st)

    g = C(f)
    return [g(T()), g(T())]


@scenario
def classes_that_register(C):
    reg = {}

    class Base:
        def __init_subclass__(c, **k):
            reg[c.__name__] = c

        def run(s, x):
            return x

    class A(Base):
        def run(s, x):
            return super().run(x) + 1

    class B(A):
        def run(s, x):
            return super().run(x) * 2

    def f(x):
        return [reg[n]().run(x) for n in sorted(reg)]

    g = C(f)
    r = [g(T())]

    class Cc(B):
        pass

    r.append(g(T()))
    return r


@scenario
def patterns(C):
    def f(x, n):
        match n:
            case int(v) if v > 5:
                return x * v
            case int() | float():
                return x + n
            case {"op": "mul", "by": b, **rest}:
                return x * b, rest
            case [("add", v), *_]:
                return x + v
            case str(s) if s.startswith("q"):
                return s, x
            case (a, b) | [a, b, _]:
                return a, b
            case _:
                return None

    g = C(f)
    return [
        g(T(), v)
        for v in (
            7,
            3,
            2.5,
            {"op": "mul", "by": 3, "z": 1},
            [("add", 4), 1],
            "qq",
            (1, 2),
            None,
        )
    ]


@scenario
def lock_held(C):
    lock = threading.Lock()

    def f(x):
        with lock:
            y = x + 1
        return y, lock.locked()

    return C(f)(T())


@scenario
def thread_local(C):
    tl = threading.local()
    tl.v = 3

    def f(x):
        tl.v += 1
        return x * tl.v

    g = C(f)
    r = [g(T()), g(T())]
    return r, tl.v


@scenario
def counter_in_a_closure(C):
    def mk():
        c = itertools.count(10)

        def f(x):
            return x + next(c)

        return f

    g = C(mk())
    return [g(T()) for _ in range(4)]


@scenario
def keywords_changed_inside(C):
    def f(x, **kw):
        kw["z"] = 1
        kw.pop("a", None)
        return x * len(kw), list(kw.items())

    g = C(f)
    d = {"a": 1, "b": 2}
    return [g(T(), **d), d, g(T())]


@scenario
def star_arguments(C):
    def f(*xs):
        a, *m, z = xs
        return a + z, len(m), xs[::-1][0]

    g = C(f)
    return [g(T(), T() * 2), g(T(), T(), T() * 3, T())]


@scenario
def positional_and_keyword_only(C):
    def f(x, y=None, /, *, s=slice(None, 2)):
        return x[s] if y is None else x[y]

    g = C(f)
    r = [g(T()), g(T(), 1), g(T(), s=slice(1, None)), g(T(), torch.tensor([0, 2]))]
    try:
        g(T(), y=1)
    except TypeError as e:
        r.append(str(e))
    try:
        g()
    except TypeError as e:
        r.append(str(e))
    return r


@scenario
def module_with_getattr(C):
    class P(nn.Module):
        def __init__(s):
            super().__init__()
            s.w = nn.Parameter(torch.ones(3))
            s.k = 1

        def __getattr__(s, n):
            if n == "virtual":
                return super().__getattr__("w") * 2
            return super().__getattr__(n)

        def forward(s, x):
            return x * s.virtual + s.k

    m = P()
    g = C(m)
    r = [g(T())]
    m.k = 4
    r.append(g(T()))
    try:
        m.nope
    except AttributeError as e:
        r.append(str(e))
    return r


@scenario
def nested_loops_with_breaks(C):
    def f(x):
        for i in range(3):
            for j in range(3):
                if j == 1:
                    break
                if i == 1:
                    continue
                act(i, j)
                x = x + i * 10 + j
            else:
                x = x * 0
        return x

    return C(f)(T())


@scenario
def loops_with_handlers(C):
    def f(x):
        r = []
        for p in (lambda: 1, lambda: 1 / 0):
            try:
                v = p()
            except ZeroDivisionError:
                r.append("z")
                continue
            else:
                r.append(v)
            finally:
                r.append("f")
                act(len(r))
        return x, r

    return C(f)(T())


@scenario
def assignments_by_index(C):
    def f(x, y):
        x[x > 1] = 0
        x[1:,] += 5
        y[...] = x.sum()
        x[[0, 2]] = x[[2, 0]]
        x[-1] = y[0]
        return x

    g = C(f)
    a, b = T(4), T(2)
    g(a, b)
    return a, b


@scenario
def views_of_views(C):
    def f(x):
        y = x.t()
        y += 1
        z = y[0]
        z *= 2
        x.transpose(0, 1)[1] = 7
        w = x.unsqueeze(0)
        w.squeeze(0)[0, 0] = -1
        return y, z, w

    g = C(f)
    t = T(2, 3)
    r = g(t)
    return r, t


@scenario
def chunks_written(C):
    def f(x):
        a = x.chunk(2)
        a[0].add_(1)
        b, c = x.split([1, 3])
        c.mul_(2)
        return x, [q.shape for q in a]

    g = C(f)
    t = T(4)
    return g(t), t


@scenario
def depth_of_managers(C):
    class Ctx:
        depth = 0

        def __enter__(s):
            Ctx.depth += 1
            return Ctx.depth

        def __exit__(s, *a):
            Ctx.depth -= 1

    def f(x):
        with Ctx() as a:
            with Ctx() as b:
                x = x * a + b
        return x, Ctx.depth

    g = C(f)
    return g(T()), g(T()), Ctx.depth


@scenario
def merged_dicts(C):
    def f(x, opts):
        o = {"a": 1, **opts, "b": 3}
        o2 = dict(o, c=4)
        return {k: x * v for k, v in o2.items()}, o.keys() == {"a", "b"}

    g = C(f)
    return [g(T(), {}), g(T(), {"a": 5}), g(T(), {"z": 1})]


@scenario
def cache_of_tensors(C):
    cache = {}

    def f(x, n):
        if n not in cache:
            cache[n] = torch.ones(3) * n
            LOG.append(n)
        return x * cache[n]

    g = C(f)
    return [g(T(), k) for k in (1, 2, 1, 3, 2)], sorted(cache)


@scenario
def cache_by_shape(C):
    memo = {}

    def f(x):
        k = (x.shape, x.dtype)
        memo[k] = memo.get(k, 0) + 1
        return x * memo[k]

    g = C(f)
    return [g(T()), g(T()), g(T(2)), g(T())], sorted(map(str, memo.items()))


@scenario
def code_of_functions(C):
    def f(x):
        def h():
            return sys._getframe().f_code.co_name

        return x, type(h).__name__, h.__code__.co_varnames

    return C(f)(T())


@scenario
def slots_come_to_be(C):
    class A:
        __slots__ = ("a", "b")

        def __init__(s):
            s.a = 1

    def f(o, x):
        o.a += 1
        try:
            o.b
        except AttributeError as e:
            o.b = [str(e)]
        else:
            o.b.append(o.a)
        return x * o.a

    g = C(f)
    o = A()
    r = [g(o, T()) for _ in range(3)]
    return r, o.a, o.b


@scenario
def values_as_numbers(C):
    def f(x):
        return x.sum().item() + 1, float(x[0]) + int(x[1]), x.tolist(), bool(x.any())

    return C(f)(T())


@scenario
def branches_on_data(C):
    def f(x):
        if x.sum() > 0:
            y = x + 1
        else:
            y = x - 1
        if (y > 100).all():
            return y
        for i in range(2):
            if y[i] > 1:
                act("big", i)
                y = y * 2
        return y

    g = C(f)
    return [g(T()), g(-T())]


@scenario
def loop_over_values(C):
    def f(x):
        vals = []
        for v in x:
            if v.item() > 0.5:
                vals.append(v * 2)
        return torch.stack(vals) if vals else x

    g = C(f)
    return [g(T()), g(T() * 0)]


@scenario
def shapes_from_data(C):
    def f(x):
        y = x[x > 0]
        z = y * 2
        act(len(z))
        return z.sum(), torch.nonzero(x).shape[0], torch.unique(x).numel()

    return C(f)(T())


@scenario
def optimizer_step(C):
    w = nn.Parameter(torch.ones(3))
    opt = torch.optim.SGD([w], lr=0.1, momentum=0.9)

    def step(x, lr):
        for gp in opt.param_groups:
            gp["lr"] = lr
        opt.zero_grad()
        l = ((w * x) ** 2).sum()
        l.backward()
        opt.step()
        return l.detach()

    g = C(step)
    r = [g(T(), lr) for lr in (0.1, 0.2, 0.05)]
    return r, w.detach()


@scenario
def autograd_function(C):
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, k):
            ctx.save_for_backward(x)
            ctx.k = k
            return x * k

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * ctx.k + x, None

    def f(x):
        return Scaled.apply(x, 3).sum()

    g = C(f)
    x = T().requires_grad_()
    g(x).backward()
    return x.grad


@scenario
def gradient_inside(C):
    def f(x):
        y = x.detach().requires_grad_()
        z = (y**3).sum()
        (gr,) = torch.autograd.grad(z, y)
        return gr

    return C(f)(T())


@scenario
def state_handed_on(C):
    def f(a):
        a["v"] = a["v"] + 1
        a["h"].append(a["v"])
        return a

    g = C(f)
    s = {"v": T(), "h": []}
    for _ in range(3):
        s = g(s)
    return flat(s)


@scenario
def numpy_mixed(C):
    def f(x):
        a = np.asarray([1.0, 2.0, 3.0])
        b = x.numpy() * a
        b[1] = 7
        return b, x + torch.from_numpy(a).float(), b.dtype.name

    return C(f)(T())


@scenario
def callbacks(C):
    r = []

    def cb(v):
        r.append(v)
        return v

    def f(x, fns):
        for k in fns:
            x = k(x)
        return x

    g = C(f)
    return g(T(), [cb, torch.sin, cb]), [flat(v) for v in r]


@scenario
def zip_from_outside(C):
    it = zip([1, 2, 3], "abc")

    def f(x):
        n, s = next(it)
        return x * n, s

    g = C(f)
    return g(T()), g(T()), list(it)


@scenario
def instance_dict(C):
    class A:
        pass

    a = A()
    a.__dict__.update(x=1, y=2)

    def f(t):
        vars(a)["z"] = 3
        del a.x
        return [k for k in vars(a)], t * a.z, getattr(a, "x", "no")

    g = C(f)
    r = [g(T())]
    a.x = 5
    r.append(g(T()))
    return r, vars(a)


@scenario
def conversions(C):
    def f(x, s):
        return (
            x.to(s),
            x.type(torch.int64),
            x.new_zeros(2),
            torch.zeros_like(x, dtype=torch.float64),
            x.expand(2, -1),
            x.repeat(2),
        )

    g = C(f)
    return g(T(), torch.float64), g(T(), torch.int32)


@scenario
def base_exceptions(C):
    def f(x):
        try:
            raise BaseException("b")
        except Exception:
            return 1
        except BaseException as e:
            return x, e.args

    return C(f)(T())


@scenario
def exception_attributes(C):
    def f(x):
        e = ValueError("a")
        e.extra = 1
        try:
            raise e
        except ValueError as q:
            same = q is e
            n = q.extra

        def g():
            try:
                yield 1
            finally:
                LOG.append("fin")

        for v in g():
            break
        return x, same, n

    return C(f)(T())
