"""Every exception the compiler raises on purpose, and the user location it points at.

Stage: all.  In: what went wrong and where in the user's code.  Out: a message that ends in what to do.
Mirrors ``torch._dynamo.exc``.  Read next: ``logs``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Location:
    """One line of the user's program."""

    filename: str
    line: int
    function: str = ""
    text: str = ""

    def __str__(self) -> str:
        where = f'File "{self.filename}", line {self.line}' + (f", in {self.function}" if self.function else "")
        return f"{where}\n    {self.text.strip()}" if self.text else where


class CompileError(RuntimeError):
    """The base of all: compilation could not go on.  ``stack`` holds the user's frames, innermost last."""

    def __init__(self, message: str, *, stack: Sequence[Location] = ()) -> None:
        self.message = message
        self.stack = tuple(stack)
        super().__init__(self._text())

    def _text(self) -> str:
        return "\n".join([self.message, *_from_user_code(self.stack)])


class Unsupported(CompileError):  # noqa: N818 - the name people catch
    """A construct that capture breaks the graph at; an error under ``fullgraph=True``.

    ``id`` names the entry of the graph-break registry, ``reason`` says what was seen, ``hint`` what to do.
    """

    def __init__(self, id: str, reason: str, hint: str = "", *, stack: Sequence[Location] = ()) -> None:
        self.id, self.reason, self.hint = id, reason, hint
        super().__init__(f"{id}: {reason}", stack=stack)

    def _text(self) -> str:
        hint = [f"  hint: {self.hint}"] if self.hint else []
        return "\n".join([self.message, *hint, *_from_user_code(self.stack)])


class GuardError(CompileError):
    """A guard could not be built, is contradictory, or failed where failing is not allowed."""


class RecompileLimit(CompileError):  # noqa: N818 - says what happened
    """One code object has as many entries as the limits in ``config`` allow, and ``fullgraph=True`` forbids running eager."""


class BackendError(CompileError):
    """A backend or codegen failed; the cause is chained."""


class VerifyError(CompileError):
    """A graph or plan broke its invariants; the message shows the lines around the offender."""


class InvalidGradError(CompileError):
    """A derivative that compiled code cannot give right, refused rather than given wrong."""


def _from_user_code(stack: Sequence[Location]) -> list[str]:
    if not stack:
        return []
    lines = [line for where in stack for line in str(where).splitlines()]
    return ["", "from user code:", *("  " + line for line in lines)]
