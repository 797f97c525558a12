# ruff: noqa: B011, B018, F401, F841, RUF059, UP003, UP031, UP032, UP037 - constructs in all their spellings
"""Functions of one tensor, one construct each: what capture must take whole (``test_capture_constructs``)."""

from __future__ import annotations

import bisect
import collections
import contextlib
import copy
import dataclasses
import enum
import functools
import heapq
import itertools
import math
import operator
import types
import typing
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from typing import NamedTuple

import tinytorch as torch
from tinytorch import nn

CASES: dict[str, typing.Any] = {}


def case(fn):
    CASES[fn.__name__] = fn
    return fn


# --- constants, arithmetic, comparisons -------------------------------------------------------------------------------
@case
def arithmetic(x):
    a, b = 7, 3
    return x * (a + b - a * b), a / b, a // b, a % b, a**b, -a, +a, ~a, a << 2, a >> 1, a & b, a | b, a ^ b, divmod(a, b)


@case
def floats(x):
    return x + 1.5e3, 1.0 // 0.1, 7.5 % 2, round(2.567, 2), abs(-3.5), int(3.9), float("2.5"), pow(2, 10), pow(3, 4, 5)


@case
def comparisons(x):
    a = 3
    return x, 1 < a < 5, a == 3.0, a != 2, a >= 3, not a, a in (1, 2, 3), a not in [4], a is None, None is None


@case
def bool_ops(x):
    a, b, c = 0, "", [1]
    return x + 1, a or b or c, a and b, c and 5, (a if b else c)


@case
def strings(x):
    s = "hello world"
    return (
        x, s.upper(), s.split(), s[1:4], s[::-1], s.replace("o", "0"), ",".join(["a", "b"]), "%s-%d" % ("k", 3),
        s.find("w"), "lo" in s, len(s), s.startswith("he"), "{}:{k}".format(1, k=2), s.encode(), "x".join("abc"),
    )


@case
def bytes_complex(x):
    return x, b"abc"[1], b"a" + b"b", complex(1, 2) * 2j, (1 + 2j).real, 0x10, 1_000


@case
def fstrings(x):
    n, name = 3, "k"
    return x, f"{n}-{name!r}-{n:>5}-{3.14159:.2f}-{x.shape[0]}-{n + 1=}", f"{name:>{n + 2}}"


@case
def augmented(x):
    a = 1
    a += 2
    a *= 5
    a -= 1
    a //= 2
    a **= 2
    a %= 10
    b = [1]
    b += [2]
    b *= 2
    s = "a"
    s += "b"
    return x + a, b, s


@case
def ternary_walrus(x):
    y = (n := 5) + 1
    z = x if n > 3 else -x
    return z, y, n


# --- containers -------------------------------------------------------------------------------------------------------
@case
def lists(x):
    a = [1, 3, x]
    a.append(4)
    a.extend([5, 6])
    a.insert(0, 0)
    a.pop()
    a.pop(0)
    a.remove(3)
    a.reverse()
    b = a[:]
    b[0] = 10
    b[1:2] = [7, 8]
    del b[0]
    return a, b, len(a), a.index(5), a[:2].count(1), [1, 2] + [3], [0] * 3, 5 in a, a.copy()


@case
def list_sort(x):
    a = [3, 1, 2]
    a.sort()
    b = sorted(a, reverse=True)
    c = sorted(["bb", "a", "ccc"], key=len)
    d = sorted([(1, "b"), (1, "a"), (0, "z")], key=lambda p: p[0])
    e = [5, 3]
    e.sort(key=lambda v: -v)
    e.clear()
    return x, a, b, c, d, e


@case
def tuples(x):
    t = (1, x, "a")
    a, b, c = t
    first, *rest = (1, 2, 3)
    *init, last = [1, 2, 3]
    h, *m, z = range(5)
    return b + a, c, rest, init, last, m, t[0], t[1:], t + (4,), t * 2, len(t), (1, 2) < (1, 3), (1, 2).index(2), t[-1]


@case
def dicts(x):
    d = {"a": 1, "b": x}
    d["c"] = 3
    d.update(e=5)
    d |= {"f": 6}
    e = d | {"a": 10}
    v = d.pop("c")
    w = d.get("zz", 9)
    d.setdefault("g", [])
    d["g"].append(1)
    del d["a"]
    keys = [k for k in d]
    return d, e, v, w, keys, list(d.values()), list(d.items()), "b" in d, len(d), dict(a=1), dict([("k", 2)]), {**d, "z": 0}


@case
def dict_more(x):
    d = {1: "a", 2: "b"}
    k, v = d.popitem()
    e = dict.fromkeys([1, 2], 0)
    f = {i: i * i for i in range(4) if i % 2}
    g = dict(zip("ab", [1, 2]))
    h = d.copy()
    h.clear()
    return x, k, v, e, f, g, h, list(reversed({"p": 1, "q": 2})), d == {1: "a"}, d != {}, d.keys() & {1, 5}, (1, "a") in d.items()


@case
def sets(x):
    s = {1, 2, 3}
    s.add(4)
    s.discard(1)
    s.remove(2)
    t = frozenset([3, 4, 5])
    return x, sorted(s), sorted(s & t), sorted(s | t), sorted(s ^ t), sorted(s - t), 3 in s, len(s), s <= {3, 4}, s.issubset(t), {3, 4} == s


@case
def deques(x):
    d = deque([1, 2, 3], maxlen=3)
    d.append(4)
    d.appendleft(0)
    d.rotate(1)
    e = deque()
    e.extend([1, 2])
    e.popleft()
    return x, list(d), list(e), len(d), d[0]


@case
def default_dicts(x):
    d = defaultdict(list)
    d["a"].append(x)
    d["b"].append(2)
    c = defaultdict(int)
    for ch in "abca":
        c[ch] += 1
    return dict(d), dict(c), "zz" in c


@case
def ordered_dicts(x):
    d = OrderedDict()
    d["b"] = 1
    d["a"] = x
    d.move_to_end("b")
    return list(d.keys()), d["a"], OrderedDict([("k", 1)])["k"]


@case
def counters(x):
    c = Counter("hello")
    c.update("l")
    return x, c["l"], c.most_common(1), c["zzz"]


Point = namedtuple("Point", ["x", "y"])


class Pair(NamedTuple):
    left: typing.Any
    right: typing.Any = 5

    def total(self):
        return self.left + self.right


@case
def named_tuples(x):
    p = Point(1, x)
    q = p._replace(x=2)
    r = Pair(x)
    a, b = p
    return p, q.x, r.total(), r.right, p._fields, p._asdict()["x"], b


@case
def namespaces(x):
    n = types.SimpleNamespace(a=1, b=x)
    n.c = 3
    return n.a + n.c, n.b


@case
def slices(x):
    s = slice(1, 3)
    a = list(range(10))
    a[2:5] = []
    return x[s], a[s], a[::2], s.start, s.stop, a[-3:]


@case
def ranges(x):
    r = range(2, 10, 3)
    return x, list(r), len(r), r[1], 5 in r, list(reversed(r)), r.start


@case
def nested_containers(x):
    d = {"a": [x, {"b": (1, [2, 3])}]}
    d["a"][1]["b"][1].append(x)
    return d


# --- loops and iterators ----------------------------------------------------------------------------------------------
@case
def loops(x):
    total = 0
    for i in range(5):
        if i == 1:
            continue
        if i == 4:
            break
        total += i
    else:
        total = -1
    while total > 0:
        total -= 2
        x = x + 1
    else:
        x = x * 2
    return x, total


@case
def for_else(x):
    for i in (1, 2, 3):
        x = x + i
    else:
        x = -x
    return x


@case
def iteration_builtins(x):
    a = [3, 1, 2]
    return (
        x, list(enumerate(a, 1)), list(zip(a, "abc")), list(map(lambda v: v + 1, a)), list(filter(None, [0, 1])),
        list(reversed(a)), min(a), max(a), sum(a), sum([1, 2], 10), any(a), all([]), min(4, 2), max("ab", "b", key=len),
        max([], default=7), list(zip([1], [2], strict=True)), list(map(operator.add, [1, 2], [3, 4])),
    )


@case
def iter_next(x):
    it = iter([1, 2, 3])
    a = next(it)
    b = list(it)
    c = next(it, "done")
    n = iter([5, 0, 7])
    return x, a, b, c, list(iter(lambda: next(n), 0))


@case
def tensor_iteration(x):
    total = 0
    for row in x:
        total = total + row.sum()
    a, b, c = x
    return total, a + c, [r * 2 for r in x], len(x)


@case
def comprehensions(x):
    n = 2
    a = [i * n for i in range(3)]
    b = {i: x * i for i in a}
    c = {i % 2 for i in range(4)}
    d = [(i, j) for i in range(2) for j in range(2) if i != j]
    e = [[j for j in range(i)] for i in range(3)]
    f = list(i * n for i in range(3))
    i = 100
    return a, b, sorted(c), d, e, f, i, sum(v for v in range(4))


@case
def generators(x):
    def gen(n):
        for i in range(n):
            got = yield i * 2
            if got:
                yield got
        return "end"

    def outer():
        r = yield from gen(2)
        yield r

    g = gen(3)
    a = next(g)
    b = g.send(10)
    rest = list(g)
    try:
        next(g)
    except StopIteration as e:
        v = e.value
    return x, a, b, rest, v, list(outer())


@case
def generator_close(x):
    log = []

    def gen():
        try:
            yield 1
            yield 2
        except ValueError:
            log.append("value")
            yield 3
        finally:
            log.append("fin")

    g = gen()
    a = next(g)
    b = g.throw(ValueError("z"))
    g.close()
    return x, a, b, log


# --- functions --------------------------------------------------------------------------------------------------------
@case
def closures(x):
    count = 0

    def inc(by=1):
        nonlocal count
        count += by
        return count

    inc()
    inc(by=5)
    fs = [lambda v, i=i: v * i for i in range(3)]
    return x + count, [f(2) for f in fs]


@case
def arguments(x):
    def f(a, /, b, *args, c=3, **kw):
        return a, b, args, c, kw

    return x, f(1, 2), f(1, 2, 3, 4, c=5, d=6), f(*[1, 2], **{"c": 7}), f(1, *(2, 3), z=x)


def _fact(n):
    return 1 if n < 2 else n * _fact(n - 1)


@case
def recursion(x):
    return x * _fact(5)


@case
def partials(x):
    def f(a, b, c=0):
        return a + b * c

    g = functools.partial(f, 1, c=3)
    h = functools.partial(g, 2)
    return x, g(5), h(), g.func is f, g.args


def _deco(fn):
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        return fn(*args, **kwargs) + 1

    return wrapper


@_deco
def _decorated(x):
    return x * 2


@case
def decorators(x):
    return _decorated(x), _decorated.__name__


@functools.lru_cache
def _cached(n):
    return n * 2


@case
def lru_cache(x):
    return x * _cached(3)


@case
def functools_more(x):
    return (
        x, functools.reduce(lambda a, b: a * b, [1, 2, 3], 2), functools.reduce(operator.add, [[1], [2]]),
        sorted([3, 1, 2], key=functools.cmp_to_key(lambda a, b: b - a)),
    )


@case
def lambdas_and_callables(x):
    ops = {"a": lambda v: v + 1, "m": torch.relu, "n": operator.neg}
    return [ops[k](x) for k in ("a", "m", "n")], callable(ops["a"]), callable(3)


G_LIST = [1, 2, 3]
G_SCALE = 2.5


@case
def global_reads(x):
    return x * G_SCALE, len(G_LIST), G_LIST[1], math.pi


# --- classes ----------------------------------------------------------------------------------------------------------
class Base:
    kind = "base"
    registry: typing.ClassVar = []

    def __init__(self, v):
        self.v = v
        self._hidden = 1

    def double(self):
        return self.v * 2

    @property
    def hidden(self):
        return self._hidden

    @hidden.setter
    def hidden(self, value):
        self._hidden = value * 10

    @classmethod
    def make(cls, v):
        return cls(v)

    @staticmethod
    def helper(a):
        return a + 1


class Child(Base):
    kind = "child"

    def __init__(self, v, w):
        super().__init__(v)
        self.w = w

    def double(self):
        return super().double() + self.w

    @functools.cached_property
    def lazy(self):
        return self.w * 100


@case
def classes(x):
    b = Base.make(x)
    c = Child(x, 3)
    c.hidden = 4
    c.extra = "e"
    del c.extra
    return (
        b.double(), c.double(), c.hidden, c.lazy, c.kind, Base.helper(1), isinstance(c, Base), issubclass(Child, Base),
        type(c).__name__, hasattr(c, "extra"), getattr(c, "nope", 5), vars(b)["_hidden"], c.__class__ is Child,
    )


class Vec:
    __slots__ = ("a", "b")

    def __init__(self, a, b):
        self.a, self.b = a, b

    def __add__(self, o):
        return Vec(self.a + o.a, self.b + o.b)

    def __radd__(self, o):
        return self if o == 0 else NotImplemented

    def __mul__(self, k):
        return Vec(self.a * k, self.b * k)

    def __eq__(self, o):
        return isinstance(o, Vec) and self.b == o.b

    def __hash__(self):
        return hash(self.b)

    def __len__(self):
        return 2

    def __getitem__(self, i):
        return (self.a, self.b)[i]

    def __iter__(self):
        yield self.a
        yield self.b

    def __contains__(self, v):
        return v == self.b

    def __bool__(self):
        return self.b > 0

    def __call__(self, v):
        return self.a + v

    def __neg__(self):
        return Vec(-self.a, -self.b)

    def __lt__(self, o):
        return self.b < o.b

    def __index__(self):
        return self.b

    def __repr__(self):
        return f"Vec(b={self.b})"

    def __format__(self, spec):
        return f"<{self.b}{spec}>"

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        return False


@case
def dunders(x):
    v, w = Vec(x, 1), Vec(x * 2, 2)
    s = v + w
    t = sum([v, w])
    a, b = s
    return (
        s.a, s.b, (v * 3).b, v == Vec(x, 1), v != w, len(v), v[1], 1 in v, bool(Vec(x, 0)), v(x), (-v).b, v < w,
        sorted([w, v])[0].b, [10, 20, 30][w], repr(v), f"{w:q}", b, t.b, hash(v) == hash(Vec(0, 1)),
    )


class Dynamic:
    def __init__(self):
        self.store = {"k": 7}

    def __getattr__(self, name):
        if name in self.store:
            return self.store[name]
        raise AttributeError(name)

    def __setattr__(self, name, value):
        object.__setattr__(self, name, value)


class Descriptor:
    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, obj, cls=None):
        return self if obj is None else getattr(obj, self.name, 0) + 1

    def __set__(self, obj, value):
        setattr(obj, self.name, value * 2)


class Described:
    field = Descriptor()


@case
def dynamic_attributes(x):
    d = Dynamic()
    try:
        d.missing
    except AttributeError as e:
        msg = str(e)
    o = Described()
    o.field = 5
    return x + d.k, msg, o.field


@dataclasses.dataclass
class Config:
    size: int
    name: str = "n"
    tags: list = dataclasses.field(default_factory=list)

    def scaled(self, k):
        return self.size * k


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: int
    b: int = 2


@case
def dataclass_(x):
    c = Config(3)
    c.tags.append("t")
    d = dataclasses.replace(c, size=4)
    f = Frozen(1)
    try:
        f.a = 5
    except dataclasses.FrozenInstanceError:
        frozen = True
    return x * c.scaled(2), c == Config(3, tags=["t"]), d.size, f == Frozen(1), frozen, dataclasses.is_dataclass(c), [
        q.name for q in dataclasses.fields(c)
    ]


class Color(enum.Enum):
    RED = 1
    BLUE = 2

    def next(self):
        return Color.BLUE if self is Color.RED else Color.RED


class Flags(enum.IntFlag):
    A = 1
    B = 2


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 5


@case
def enums(x):
    c = Color(1)
    return (
        x * c.value, c.name, c is Color.RED, c == Color.BLUE, c.next().name, [m.name for m in Color], Color["BLUE"].value,
        (Flags.A | Flags.B).value, Level.HIGH > 3, {Color.RED: 1}[c],
    )


class Shape:
    def area(self):
        raise NotImplementedError


class Square(Shape):
    def __init__(self, s):
        self.s = s

    def area(self):
        return self.s * self.s


@case
def polymorphism(x):
    return [s.area() for s in (Square(2), Square(x))], Square.__mro__[1].__name__, Square.__name__


class Stack(list):
    def push(self, v):
        self.append(v)
        self.last = v

    def peek(self):
        return self[-1]


class Registry(dict):
    def __missing__(self, key):
        return f"no {key}"


@case
def builtin_subclasses(x):
    s = Stack()
    s.push(1)
    s.push(x)
    r = Registry(a=1)
    return s.peek(), len(s), s.last, r["a"], r["zz"], isinstance(s, list)


# --- exceptions -------------------------------------------------------------------------------------------------------
class MyError(ValueError):
    def __init__(self, code, msg="m"):
        super().__init__(msg)
        self.code = code


@case
def exceptions(x):
    log = []
    try:
        raise MyError(3)
    except (KeyError, ValueError) as e:
        log.append((e.code, str(e), e.args))
    else:
        log.append("else")
    finally:
        log.append("finally")
    try:
        x = x + 1
    except Exception:
        log.append("never")
    else:
        log.append("else")
    return x, log


@case
def exception_chains(x):
    try:
        try:
            raise ValueError("a")
        except ValueError as e:
            raise RuntimeError("b") from e
    except RuntimeError as e:
        cause = type(e.__cause__).__name__
        same = isinstance(e.__context__, ValueError)
    try:
        try:
            {}["k"]
        except KeyError:
            raise
    except KeyError as e:
        args = e.args
    return x, cause, same, args


def _finally_return(log):
    try:
        return "try"
    finally:
        log.append("f")


@case
def finally_flow(x):
    log = []
    r = _finally_return(log)
    for i in range(3):
        try:
            if i == 1:
                continue
            if i == 2:
                break
        finally:
            log.append(i)
    return x, r, log


@case
def python_errors(x):
    found = []
    for f in (
        lambda: 1 / 0, lambda: [1][5], lambda: {}["a"], lambda: int("z"), lambda: None.foo, lambda: "a" + 1,
        lambda: (1, 2)[7], lambda: undefined_name, lambda: [].pop(), lambda: next(iter([])), lambda: len(5),  # noqa: F821
    ):
        try:
            f()
        except Exception as e:
            found.append((type(e).__name__, str(e)))
    return x, found


@case
def tensor_errors(x):
    try:
        x @ torch.ones(77, 2)
    except RuntimeError as e:
        kind = type(e).__name__
    try:
        x.reshape(5, 77)
    except RuntimeError:
        bad = True
    return x, kind, bad


@case
def exception_groups(x):
    log = []
    try:
        raise ExceptionGroup("g", [ValueError("v"), TypeError("t")])
    except* ValueError as e:
        log.append(len(e.exceptions))
    except* TypeError:
        log.append("t")
    return x, log


@case
def assertions(x):
    assert x.shape[0] > 0, "empty"
    try:
        assert False, "no"
    except AssertionError as e:
        msg = str(e)
    return x, msg


# --- with -------------------------------------------------------------------------------------------------------------
class Ctx:
    def __init__(self, log, swallow=False):
        self.log, self.swallow = log, swallow

    def __enter__(self):
        self.log.append("enter")
        return 5

    def __exit__(self, kind, value, tb):
        self.log.append(kind.__name__ if kind else "exit")
        return self.swallow


@contextlib.contextmanager
def _managed(log):
    log.append("a")
    try:
        yield 3
    except ValueError:
        log.append("caught")
    finally:
        log.append("b")


@case
def with_blocks(x):
    log = []
    with Ctx(log) as v, Ctx(log):
        x = x + v
    with Ctx(log, swallow=True):
        raise KeyError("k")
    with _managed(log) as m:
        x = x * m
    with _managed(log):
        raise ValueError
    with contextlib.suppress(KeyError):
        {}["z"]
    with contextlib.nullcontext(4) as n:
        x = x + n
    return x, log


@case
def exit_stack(x):
    log = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(Ctx(log))
        stack.callback(log.append, "cb")
        x = x + 1
    return x, log


@case
def no_grad_block(x):
    w = x * 1
    with torch.no_grad():
        y = w * 2
        inner = torch.is_grad_enabled()
    with torch.enable_grad():
        z = w * 3
    return y, z, inner, torch.is_grad_enabled(), y.requires_grad


@torch.no_grad()
def _without(x):
    return x * 2


@case
def no_grad_decorator(x):
    return _without(x)


# --- match ------------------------------------------------------------------------------------------------------------
def _matched(v):
    match v:
        case 0 | 1:
            return "small"
        case int(n) if n > 100:
            return f"big {n}"
        case str() as s:
            return s
        case [a, b]:
            return ("pair", a, b)
        case [first, *rest]:
            return ("seq", first, rest)
        case {"k": k, **others}:
            return ("map", k, others)
        case Point(x=px, y=py):
            return ("point", px, py)
        case Config(size=s):
            return ("cfg", s)
        case Color.RED:
            return "red"
        case None:
            return "none"
        case _:
            return "other"


@case
def match_statement(x):
    return x, [
        _matched(v)
        for v in (0, 500, "s", [1, 2], [1, 2, 3], {"k": 1, "z": 2}, Config(9), Color.RED, None, 3.5, (7,), 50)
    ]


# --- library ----------------------------------------------------------------------------------------------------------
@case
def itertools_(x):
    return (
        x, list(itertools.chain([1], [2, 3])), list(itertools.product([1, 2], "ab")), list(itertools.repeat(7, 2)),
        list(itertools.accumulate([1, 2, 3])), list(itertools.islice(itertools.count(5), 3)),
        list(itertools.zip_longest([1, 2], [3], fillvalue=0)), list(itertools.combinations([1, 2, 3], 2)),
        list(itertools.permutations([1, 2, 3], 2)), [(k, list(g)) for k, g in itertools.groupby("aabbb")],
        list(itertools.starmap(pow, [(2, 3)])), list(itertools.takewhile(lambda v: v < 3, [1, 2, 3, 1])),
        list(itertools.dropwhile(lambda v: v < 3, [1, 2, 3, 1])), list(itertools.pairwise([1, 2, 3])),
        list(itertools.islice(itertools.cycle("ab"), 5)), list(itertools.chain.from_iterable([[1], [2]])),
        list(itertools.compress("abc", [1, 0, 1])), list(itertools.filterfalse(lambda v: v % 2, [1, 2])),
        list(itertools.islice(range(10), 2, 8, 3)),
    )


@case
def operator_(x):
    return (
        operator.add(x, 1), operator.itemgetter(1)([4, 5]), operator.itemgetter(0, 1)([4, 5]), operator.mul(3, 4),
        operator.attrgetter("shape")(x), operator.methodcaller("sum")(x), operator.getitem([1, 2], 0), operator.lt(1, 2),
        operator.contains([1], 1), operator.neg(3), operator.truth([]), operator.is_(None, None), operator.index(4),
    )


@case
def math_(x):
    return x * math.sqrt(x.shape[-1]), math.floor(2.7), math.ceil(2.1), math.log2(8), math.prod([1, 2, 3]), math.isnan(
        float("nan")
    ), math.inf > 1, math.gcd(12, 8), math.exp(0.0), math.isclose(1.0, 1.0), math.comb(5, 2)


@case
def copies(x):
    a = [1, [2, x]]
    b = copy.copy(a)
    b[1].append(3)
    c = copy.deepcopy({"k": [1, (2, [3])]})
    d = copy.copy(Config(1, tags=["a"]))
    d.size = 5
    return a, len(b), c, d.size, d.tags


@case
def heap_bisect(x):
    h = [5, 1, 4]
    heapq.heapify(h)
    heapq.heappush(h, 0)
    a = heapq.heappop(h)
    i = bisect.bisect_left([1, 3, 5], 3)
    return x, a, sorted(h), i, heapq.nsmallest(2, [3, 1, 2])


@case
def introspection(x):
    def f(a, b=2):
        """doc"""

    f.tag = "t"
    return x, f.__name__, f.__defaults__, f.__doc__, f.tag, type(3) is int, type("s").__name__, isinstance(True, int), issubclass(
        bool, int
    ), isinstance(3, (str, int)), isinstance(3, int | str), callable(f), int.__name__, hasattr(x, "shape"), hasattr(x, "nope")


@case
def typing_(x):
    y: int = 3
    z: "list[int]" = [y]
    return x + y, typing.cast(int, z[0])


@case
def globals_locals(x):
    a = 1
    names = sorted(locals())
    return x, names, "G_SCALE" in globals()


# --- tensors ----------------------------------------------------------------------------------------------------------
@case
def tensor_methods(x):
    return (
        x.sum(), x.mean(dim=1), x.t(), x.T, x.reshape(-1), x.view(4, 3), x.unsqueeze(0), x.transpose(0, 1), x.abs().sqrt(),
        x.max(dim=1), x.argmax(), x.softmax(-1), x.to(torch.float64), x.clone(), x.detach(), x.chunk(2, dim=1),
        x.split([1, 2]), x.std(), x.permute(1, 0), x.flatten(), x.float(), x.cumsum(0), x.norm(),
    )


@case
def tensor_operators(x):
    y = x + 1
    return (
        -x, x + y, 2 - x, x * y, x / y, x // 2, x % 2, x**2, 2**x, x @ y.T, x == y, x < y, x >= 0, (x > 0) & (y > 0), ~(x > 0),
        abs(x), +x, 1 / (y + 3), x != y,
    )


@case
def tensor_indexing(x):
    m = x > 0
    idx = torch.tensor([0, 2])
    y = x.clone()
    y[0] = 1.0
    y[:, 1] += 2
    y[..., -1] = y[..., 0]
    y[1, 2] = 7
    z = torch.where(m, x, torch.zeros_like(x))
    return x[0], x[1:], x[:, None], x[..., 0], x[0, 1], x[-1], x[::2], x[idx], x[:, idx], x[0:2, 1:3], y, z, x[(0, 1)], x[None]


@case
def tensor_inplace(x):
    y = x.clone()
    y += 1
    y *= 2
    y.add_(3).mul_(0.5)
    y.clamp_(min=0)
    z = y
    z.zero_()
    return y, y is z


@case
def tensor_attributes(x):
    return (
        x * x.shape[0], x.ndim, x.dtype, x.device.type, x.requires_grad, x.is_leaf, x.numel(), x.size(), x.size(0), x.stride(),
        x.dim(), x.grad, x.is_floating_point(), len(x.shape), x.shape == (3, 4), x.dtype == torch.float32, x.element_size(),
    )


@case
def tensor_creation(x):
    n = x.shape[0]
    return (
        torch.zeros(n, 2), torch.ones_like(x), torch.arange(n), torch.full((2,), 3.0), torch.tensor([1, 2, n]),
        torch.eye(2), torch.empty(0), torch.linspace(0, 1, 3), x.new_zeros(2), torch.tensor(2.5), torch.zeros((2, 3)).shape,
    )


@case
def tensor_functions(x):
    return (
        torch.cat([x, x], dim=0), torch.stack([x, x]), torch.matmul(x, x.T), torch.einsum("ij,kj->ik", x, x), torch.where(x > 0, x, -x),
        torch.exp(x), torch.maximum(x, x * 2), nn.functional.relu(x), nn.functional.softmax(x, dim=-1), torch.sum(x, 0),
        torch.broadcast_to(x[0], (2, 4)), nn.functional.pad(x, (1, 1)), torch.triu(x), torch.flip(x, [0]),
    )


@case
def shape_arithmetic(x):
    b, c = x.shape
    y = x.view(b, c // 2, 2)
    n = b * c + 1
    pad = (-c) % 8
    return y, n, pad, x.shape[0] if b > 2 else 0, list(x.shape), x.shape[-1:], x.shape + (1,), torch.zeros(b + 1, pad).shape, max(x.shape)


@case
def out_of_line(x):
    acc = []
    for i, row in enumerate(x.unbind()):
        acc.append(row * i)
    return torch.stack(acc), dict(zip(["a", "b", "c"], acc))


@case
def random_ops(x):
    return nn.functional.dropout(x, 0.5), torch.rand(2, 2), torch.randn_like(x), torch.randint(0, 5, (3,))


@case
def is_compiling_(x):
    return x + 1, torch.is_grad_enabled(), isinstance(x, torch.Tensor), torch.is_tensor(x)


# --- modules ----------------------------------------------------------------------------------------------------------
class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.lin = nn.Linear(d, d)
        self.norms = nn.ModuleList([nn.LayerNorm(d) for _ in range(2)])
        self.table = nn.ModuleDict({"a": nn.Linear(d, d), "b": nn.Identity()})
        self.register_buffer("calls", torch.zeros(1))
        self.gain = nn.Parameter(torch.ones(d))
        self.count = 0

    def forward(self, x, key="a"):
        self.calls += 1
        self.count += 1
        for norm in self.norms:
            x = norm(x)
        x = self.lin(x) * self.gain
        if self.training:
            x = x + 1
        return self.table[key](x)


MODULE = Block(4)
BN = nn.BatchNorm1d(4)


@case
def modules(x):
    m = MODULE
    names = [n for n, _ in m.named_parameters()][:3]
    return m(x), m(x, key="b"), m.count, len(list(m.parameters())), names, len(m.norms), isinstance(m.lin, nn.Linear), "a" in m.table


@case
def sequential(x):
    s = MODULE.norms
    return s[0](x), nn.functional.layer_norm(x, (4,))


@case
def batch_norm(x):
    return BN(x)
