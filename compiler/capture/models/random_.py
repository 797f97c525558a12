"""Python's random numbers: drawn when translated code runs, before the graph, in the program's order.

Stage: capture.  See ``registry``.  A drawn number is a number of the graph, or of Python in translated code.  Where the
program decides by one (a branch, a choice among functions), the guards draw ahead, put the generator back, and the entry is
for calls with the same outcome; that is for few outcomes only, and a break otherwise.  The generator moves as in eager.
Read next: ``values.drawn``.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any

from compiler.capture import breaks
from compiler.capture.models.registry import model
from compiler.capture.source import Source, literal
from compiler.capture.values.base import NONE, ConstantValue, NotConstantError, Value, realize
from compiler.capture.values.drawn import DrawnValue
from compiler.capture.values.sequence import ListValue

if TYPE_CHECKING:
    from compiler.capture.tracer import Tracer

_ONE = ConstantValue(1)


# --- numbers ----------------------------------------------------------------------------------------------------------
def _number(fn: Any, kind: type, options: Any = None) -> Any:
    """A model for a function of the global generator that gives one number; ``options(*args)`` says how many it may give."""

    def run(tx: Tracer, *args: Value, **kwargs: Value) -> Value:
        given, named = _known(fn, args), {k: _known(fn, (v,))[0] for k, v in kwargs.items()}
        at, hint, foreseen = _draw(tx, fn, given, named)
        count = math.inf if options is None or type(hint) is not kind else options(*given, **named)
        return DrawnValue(tx, at, foreseen, type(hint), hint, count)

    return run


def _known(fn: Any, args: tuple[Value, ...]) -> list[Any]:
    try:
        found = [a.const() for a in args]
    except NotConstantError:
        breaks.unsupported(breaks.RANDOM_STATE, f"random.{fn.__name__} of values that are not known")
    if any(literal(c) is None for c in found):
        breaks.unsupported(breaks.RANDOM_STATE, f"random.{fn.__name__} of objects")
    return found


def _draw(tx: Tracer, fn: Any, args: list[Any], kwargs: dict[str, Any] | None = None) -> tuple[str, Any, Source]:
    """One more statement that draws: its name in translated code, what it gives this time, and where guards foresee it."""
    ahead = tx.foresight
    ahead.draws.append((fn, args, kwargs or {}))
    try:
        hint = ahead()[-1]
    except Exception as e:
        ahead.draws.pop()
        tx.raise_native(e)
    given = [*map(str, map(literal, args)), *(f"{k}={literal(v)}" for k, v in (kwargs or {}).items())]
    at = tx.new_local("drawn", f"{tx.namespace.name(fn, 'random_' + fn.__name__.strip('_'))}({', '.join(given)})")
    foreseen = Source("{0}()", tx.namespace.source(ahead, "foreseen")).item(len(ahead.draws) - 1)
    return at, hint, foreseen


for _float in (random.random, random.uniform, random.gauss, random.normalvariate, random.expovariate, random.betavariate,
               random.triangular, random.lognormvariate, random.gammavariate, random.vonmisesvariate, random.paretovariate,
               random.weibullvariate):  # fmt: skip
    model(_float)(_number(_float, float))
model(random.randint)(_number(random.randint, int, lambda a, b: b - a + 1))
model(random.randrange)(_number(random.randrange, int, lambda *bounds: len(range(*bounds))))
model(random.getrandbits)(_number(random.getrandbits, int, lambda k: 2**k))


@model(random.seed)
def seed(tx: Tracer, a: Value = NONE, version: Value = NONE) -> Value:
    if a is NONE or version is not NONE:
        breaks.unsupported(breaks.RANDOM_STATE, "random.seed from the system's entropy")
    _draw(tx, random.seed, _known(random.seed, (a,)))
    return NONE


# --- choices: which elements, by their places -------------------------------------------------------------------------
def chosen(n: int) -> tuple[int, ...]:
    return (random.choice(range(n)),)


def shuffled(n: int) -> tuple[int, ...]:
    order = list(range(n))
    random.shuffle(order)
    return tuple(order)


def sampled(n: int, k: int) -> tuple[int, ...]:
    return tuple(random.sample(range(n), k))


def chosen_many(n: int, weights: Any, cum_weights: Any, k: int) -> tuple[int, ...]:
    return tuple(random.choices(range(n), weights, cum_weights=cum_weights, k=k))


def _elements(tx: Tracer, of: list[Value], fn: Any, args: list[Any], options: float) -> list[Value]:
    """The elements at the places that ``fn`` draws.  Plain numbers stay unknown; for anything else the outcome is guarded."""
    at, places, foreseen = _draw(tx, fn, args)
    items = [realize(tx, v) for v in of]
    kinds = {type(v.const()) if isinstance(v, ConstantValue) else None for v in items}
    if kinds not in ({int}, {float}):
        DrawnValue.decide(tx, f"{{0}} == {places!r}", options, foreseen)
        return [of[i] for i in places]
    numbers = tuple(v.const() for v in items)
    values = tx.namespace.source(numbers, "values")
    return [
        DrawnValue(tx, tx.new_local("drawn", f"{values}[{at}[{j}]]"), Source("{0}[{1}]", values, foreseen.item(j)),
                   type(numbers[i]), numbers[i], options)
        for j, i in enumerate(places)
    ]  # fmt: skip


@model(random.choice)
def choice(tx: Tracer, seq: Value) -> Value:
    items = tx.protocol.unpack(tx, seq)
    if not items:
        tx.raise_(IndexError, "Cannot choose from an empty sequence")
    return realize(tx, _elements(tx, items, chosen, [len(items)], len(items))[0])


@model(random.shuffle)
def shuffle(tx: Tracer, x: Value) -> Value:
    if not isinstance(x, ListValue) or x.kind is not list:
        breaks.unsupported(breaks.RANDOM_STATE, f"random.shuffle of {x.describe()}")
    n = len(x.items)
    found = _elements(tx, x.items, shuffled, [n], math.factorial(min(n, 20)))
    tx.effects.touch(x)
    x.items[:] = found
    return NONE


@model(random.sample)
def sample(tx: Tracer, population: Value, k: Value, *, counts: Value = NONE) -> Value:
    if counts is not NONE or issubclass(population.pytype(), set | frozenset | dict):
        breaks.unsupported(breaks.RANDOM_STATE, "random.sample with counts, or of a set")
    items = tx.protocol.unpack(tx, population)
    (count,) = _known(random.sample, (k,))
    return ListValue(_elements(tx, items, sampled, [len(items), count], math.perm(len(items), max(count, 0))))


@model(random.choices)
def choices(
    tx: Tracer, population: Value, weights: Value = NONE, *, cum_weights: Value = NONE, k: Value = _ONE
) -> Value:
    items = tx.protocol.unpack(tx, population)
    given = [_weights(tx, w) for w in (weights, cum_weights)]
    (count,) = _known(random.choices, (k,))
    return ListValue(_elements(tx, items, chosen_many, [len(items), *given, count], len(items) ** max(count, 0)))


def _weights(tx: Tracer, v: Value) -> Any:
    v = realize(tx, v)
    return None if v is NONE else tuple(_known(random.choices, tuple(realize(tx, w) for w in tx.protocol.unpack(tx, v))))
