"""Guards: what a trace relied on, as one Python function.

Stage: capture.  In: ``Guard`` records, each one expression over sources, with the user's line that needed it.
Out: ``check(F, *arguments)``, straight-line Python that returns the values translated code needs, or None.  A source
used twice gets a local name, so a path is walked once.  Read next: ``entry``, which calls it first on every call.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from compiler import cache
from compiler.capture.source import Namespace, Source


@dataclass(frozen=True)
class Guard:
    """``form`` is an expression in which ``{0}``, ``{1}`` stand for ``parts``; true means the trace still holds."""

    kind: str
    form: str
    parts: tuple[Source, ...]
    where: str = ""
    implied_by: str = ""  # text of a source: if that is read, this guard says nothing new

    @property
    def text(self) -> str:
        return self.form.format(*[p.text for p in self.parts])

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}" + (f"  # {self.where}" if self.where else "")


class GuardSet:
    """The guards of one trace, each once, in the order in which they were needed."""

    def __init__(self) -> None:
        self.guards: dict[tuple[str, tuple[Source, ...]], Guard] = {}

    def add(self, kind: str, form: str, *parts: Source, where: str = "", implied_by: str = "") -> None:
        key = (form, parts)
        if key not in self.guards:
            self.guards[key] = Guard(kind, form, parts, where, implied_by)

    def has(self, form: str, parts: tuple[Source, ...]) -> bool:
        return (form, parts) in self.guards

    def __iter__(self) -> Any:
        return iter(self.guards.values())

    def __len__(self) -> int:
        return len(self.guards)


#: What a path can raise when the program's objects no longer have the shape they had.
STALE = "(AttributeError, LookupError, TypeError, ValueError, NameError)"


def print_check(guards: Iterable[Guard], arguments: Sequence[str], carry: Sequence[Source]) -> str:
    """The source text of ``check``."""
    printer = _Printer(without_implied(guards, carry), carry)
    lines = [f"def check({', '.join(arguments)}):", "    try:"]
    lines += [f"        {line}" for line in printer.body()]
    lines += [f"    except {STALE}:", "        return None"]
    return "\n".join(lines) + "\n"


def without_implied(guards: Iterable[Guard], carry: Sequence[Source]) -> list[Guard]:
    """Leave out ``'k' in d`` where ``d['k']`` is read anyway: a missing key fails the check by itself."""
    guards = list(guards)
    read: set[str] = set()
    todo = [p for g in guards for p in g.parts] + list(carry)
    while todo:
        source = todo.pop()
        if source.text not in read:
            read.add(source.text)
            todo += source.parts
    return [g for g in guards if g.implied_by not in read]


_MENTION = re.compile(r"\{(\d+)\}")


class _Printer:
    def __init__(self, guards: Iterable[Guard], carry: Sequence[Source]) -> None:
        self.guards = sorted(guards, key=_cost)
        self.carry = carry
        self.uses: dict[str, int] = {}  # by the text of a source, by which sources are equal
        self.names: dict[str, str] = {}
        self.lines: list[str] = []
        for guard in self.guards:
            for part in guard.parts:
                self._count(part)
        for source in carry:
            self._count(source)
        for guard in self.guards:  # a guard that mentions its part twice wants a name for it
            for n in _MENTION.findall(guard.form):
                self.uses[guard.parts[int(n)].text] += 1
            for part in guard.parts:
                self.uses[part.text] -= 1

    def _count(self, source: Source) -> None:
        seen = self.uses.get(source.text, 0)
        self.uses[source.text] = seen + 1
        if not seen:
            for part in source.parts:
                self._count(part)

    def body(self) -> list[str]:
        where = None
        for guard in self.guards:
            texts = [self._read(p) for p in guard.parts]
            if guard.where != where:
                where = guard.where
                if where:
                    self.lines.append(f"# {where}")
            self.lines.append(f"if not ({guard.form.format(*texts)}): return None")
        carried = "".join(f"{self._read(s)}, " for s in self.carry)
        self.lines.append(f"return ({carried.rstrip() if len(self.carry) == 1 else carried.rstrip(', ')})")
        return self.lines

    def _read(self, source: Source) -> str:
        """Text that reads ``source`` here, through a local name where that saves work."""
        if not source.parts:
            return source.text
        known = self.names.get(source.text)
        if known is not None:
            return known
        text = source.form.format(*[self._read(p) for p in source.parts])
        if self.uses[source.text] < 2:
            return text
        name = self.names[source.text] = f"v{len(self.names)}"
        self.lines.append(f"{name} = {text}")
        return name


def _cost(guard: Guard) -> tuple[int, int]:
    """Cheap and telling first: the arguments' own guards, then what is deeper."""
    depth = max([p.depth for p in guard.parts], default=0)
    return (0 if guard.kind == "MODE" else 1 + (guard.kind in ("ALIAS", "MEMORY")), min(depth, 3))


def compile_text(text: str, name: str, namespace: dict[str, Any], entry: str) -> Any:
    """Run generated ``text`` and take ``entry`` from it; ``linecache`` shows the text in tracebacks."""
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    scope = dict(namespace)
    exec(cache.bytecode(text, name), scope)  # noqa: S102 - text printed by this stage
    return scope[entry]


def first_failure(guards: Iterable[Guard], arguments: Sequence[str], namespace: Namespace, values: Sequence[Any]) -> str:
    """Which guard says no to these arguments, in words; for logs, so speed does not matter."""
    scope = dict(namespace.objects) | dict(zip(arguments, values, strict=True))
    for guard in sorted(guards, key=_cost):
        try:
            holds = eval(guard.text, scope)  # noqa: S307 - text printed by this stage
        except Exception as e:  # the path itself is gone
            return f"{guard}  ({type(e).__name__}: {e})"
        if not holds:
            return f"{guard}{_actual(guard, scope)}"
    return "no guard failed"


def _actual(guard: Guard, scope: dict[str, Any]) -> str:
    asked = re.search(r"\{0\}\.(shape|strides|dtype|device)\b", guard.form) if guard.kind == "TENSOR" else None
    if asked is None and (guard.kind not in ("VALUE", "LENGTH", "TYPE") or len(guard.parts) != 1):
        return ""
    try:
        value = eval(guard.parts[0].text, scope)  # noqa: S307
    except Exception:
        return ""
    if asked is not None:
        return f"  (now {getattr(value, asked[1])})"
    shown = {"LENGTH": lambda: len(value), "TYPE": lambda: type(value).__name__}.get(guard.kind, lambda: value)()
    return f"  (now {shown!r})"
