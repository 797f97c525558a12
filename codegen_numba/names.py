"""Names, literals and index arithmetic as text of kernel source, and lines with indentation.

Stage: codegen_numba, the ground of ``emit``.  In: names and index expressions of the loop IR.  Out: text.  A name that the
source uses for itself is written with an underscore behind it; a quotient of what is never negative is the machine's own.
Read next: ``statements``.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from codegen_numba import spell
from compiler.loop.ir import Int
from compiler.sym.expr import Add, Const, Expr, FloorDiv, Max, Min, Mod, Mul, Symbol
from compiler.sym.ranges import Interval, nonnegative
from tinytorch.dtypes import DType

#: Words of kernel source that no buffer or value may be called.
RESERVED = frozenset(("start", "stop", "part", "parts", "numel", "bad", "bad_value", "error", "range", "t"))


@dataclass
class Text:
    """Lines with indentation."""

    lines: list[str] = field(default_factory=list)
    depth: int = 1

    def __call__(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self(head)
        self.depth += 1
        before = len(self.lines)
        yield
        if len(self.lines) == before:
            self("pass")
        self.depth -= 1


class Names:
    """What things are called in one phase."""

    def __init__(self, sizes: Iterable[str]) -> None:
        self.renamed: dict[str, str] = {}
        self.ranges: dict[Symbol, Interval] = {Symbol(s): Interval(1) for s in sizes}
        self.used: list[str] = []  # buffers, in order of first use

    # --- names and literals ---
    def name(self, name: str) -> str:
        known = self.renamed.get(name)
        if known is None:
            known = name
            while known in RESERVED or keyword.iskeyword(known) or known in spell.WORDS:
                known += "_"
            self.renamed[name] = known
        return known

    def buffer(self, name: str) -> str:
        if name not in self.used:
            self.used.append(name)
        return self.name(name)

    def value(self, v: Any, dtype: DType) -> str:
        return self.name(v) if isinstance(v, str) else spell.literal(v, dtype)

    # --- index arithmetic ---
    def index(self, e: Int) -> str:
        """An integer expression; quotients of what is never negative are the machine's own."""
        if not isinstance(e, Expr):
            return str(e)
        return self._sum(e)

    def _sum(self, e: Expr) -> str:
        if isinstance(e, Add):
            parts = [("-" if c < 0 else "+", self._term(m, abs(c))) for m, c in e.terms]
            parts += [("-" if e.const < 0 else "+", str(abs(e.const)))] if e.const else []
            parts.sort(key=lambda p: p[0] == "-")
            head = parts[0][1] if parts[0][0] == "+" else "-" + parts[0][1]
            return " ".join([head, *(f"{sign} {text}" for sign, text in parts[1:])])
        return self._factor(e)

    def _term(self, m: Expr, c: int) -> str:
        text = self._factor(m)
        return text if c == 1 else f"{c} * {text}"

    def _factor(self, e: Expr) -> str:
        match e:
            case Const():
                return str(e.value)
            case Symbol():
                return self.name(e.name)
            case Mul():
                text = " * ".join(self._closed(a) for a in e.atoms)
                return text if e.coef == 1 else f"{e.coef} * {text}"
            case FloorDiv() | Mod():
                sure = nonnegative(e.num, self.ranges) and nonnegative(e.den, self.ranges)
                words = ("quotient", "floordiv") if isinstance(e, FloorDiv) else ("remainder", "mod")
                return f"{words[0] if sure else words[1]}({self._sum(e.num)}, {self._sum(e.den)})"
            case Min() | Max():
                word = "least" if isinstance(e, Min) else "greatest"
                text = self._sum(e.args[0])
                for a in e.args[1:]:
                    text = f"{word}({text}, {self._sum(a)})"
                return text
        return f"({self._sum(e)})"

    def _closed(self, e: Expr) -> str:
        return f"({self._sum(e)})" if isinstance(e, Add) else self._factor(e)
