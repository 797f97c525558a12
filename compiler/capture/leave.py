"""Leaving a frame at a graph break: the last lines of translated code.

Stage: capture.  In: the outermost frame, standing before an instruction that cannot be traced.  Out: statements that run
it natively on real objects and ask for a resume function (or one of two: a loop's body or its end; or a third for the
handler, if the instruction raises).  Read next: ``resume``, ``native``.
"""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Any

from compiler.capture import breaks
from compiler.capture.emit import Emitter
from compiler.capture.instrs import Instr, decode
from compiler.capture.modes import restore_modes
from compiler.capture.native import NULL, step_for
from compiler.capture.resume import Point, SlotKind, live_variables, origin, resume_code
from compiler.capture.translate import Frame
from compiler.capture.values.base import NULL as NULL_VALUE
from compiler.capture.values.base import Marker, Value, realize
from tinytorch.grad_mode import get_modes

if TYPE_CHECKING:
    from compiler.capture.session import Session


def leave_at_break(session: Session, emit: Emitter, frame: Frame) -> list[str]:
    """Emit everything alive, replay effects, and give the statements that end ``run``."""
    return _Leaving(session, emit, frame).statements()


class _Leaving:
    def __init__(self, session: Session, emit: Emitter, frame: Frame) -> None:
        self.session = session
        self.emit = emit
        self.frame = frame
        self.code = frame.fn.code
        self.instr = frame.instrs[frame.ip]
        self.live = live_variables(self.code)

    def statements(self) -> list[str]:
        emit, frame, instr = self.emit, self.frame, self.instr
        texts = [self._slot(v) for v in frame.stack]
        step = step_for(instr, [t for t, _ in texts], frame.kw_names, self._constant)
        if step is None:
            breaks.unsupported(breaks.HANDLER_STATE, f"{instr.op} cannot be run natively")
        kinds = [k for _, k in texts]
        if step.pops and "state" in kinds[len(kinds) - step.pops :]:
            breaks.unsupported(breaks.HANDLER_STATE, f"{instr.op} on exception state")
        kept = len(frame.stack) - step.pops
        below, below_kinds = [t for t, _ in texts[:kept]], kinds[:kept]
        self.cells = "(" + "".join(f"{emit.load(self._cell(n))}, " for n in (*self.code.co_freevars, *self.code.co_cellvars)) + ")"
        self.scope = emit.obj(frame.globals)
        next_index = frame.ip if step.again else frame.ip + 1
        handled = None if frame.tx.handled is None or not step.lines else emit.load(frame.tx.handled)  # sys.exc_info() of the instruction
        variables = {n: emit.load(v) for n, v in frame.locals.items() if self._is_live(n, next_index, step, instr)}
        frame.tx.effects.replay(emit)
        restore_modes(frame.tx, emit)
        tail = self._goto(next_index, below, below_kinds, step.push, variables)
        if step.otherwise is not None:
            condition, push, skip = step.otherwise
            assert instr.target is not None
            other = self._goto(instr.target.index + skip, below, below_kinds, push, variables)
            tail = [f"if {condition}:", f"    {other[0]}", *tail]
        here = self._here()
        lines = [f"{line}{here}" for line in step.lines]
        if handled is not None:
            lines = ["try:", f"    raise {handled}", "except BaseException:", *(f"    {line}" for line in lines)]
        if instr.handler is not None:
            lines = self._guarded(instr, lines, texts, variables)
        return [f"# {instr.op}, native: {self.session.reason.message.splitlines()[0] if self.session.reason else ''}", *lines, *tail]

    def _here(self) -> str:
        """The program's line as a comment: a traceback through the native instruction shows it."""
        if not self.instr.place.line:
            return ""
        at = self.frame.tx.location(self.code, self.instr.place.line)
        return f"  # {at.filename}:{at.line} in {at.function}: {at.text.strip()}"

    def _constant(self, depth: int) -> Any:
        return realize(self.frame.tx, self.frame.stack[-depth]).const()

    def _cell(self, name: str) -> Value:
        return self.frame.cells[name]

    def _slot(self, v: Value) -> tuple[str, SlotKind]:
        if v is NULL_VALUE:
            return NULL, "null"
        if isinstance(v, Marker):
            return self.emit.load(v.current), "state"
        return self.emit.load(v), "value"

    def _is_live(self, variable: str, index: int, step: Any, instr: Instr) -> bool:
        points = [index]
        if step.otherwise is not None and instr.target is not None:
            points.append(instr.target.index + step.otherwise[2])
        if instr.handler is not None:
            points.append(instr.handler.target.index)
        return any(variable in self.live[p] for p in points if p < len(self.live))

    def _guarded(self, instr: Instr, lines: list[str], texts: list[tuple[str, SlotKind]], variables: dict[str, str]) -> list[str]:
        """If the native instruction raises, its handler goes on in a resume function."""
        handler = instr.handler
        assert handler is not None
        below = texts[: handler.depth]
        tail = self._goto(
            handler.target.index, [t for t, _ in below], [k for _, k in below], ["error"], variables,
            raises=True, lasti=handler.lasti,
        )  # fmt: skip
        return ["try:", *(f"    {line}" for line in lines), "except BaseException as error:", f"    {tail[0]}"]

    def _goto(
        self, index: int, below: list[str], kinds: list[SlotKind], push: list[str], variables: dict[str, str],
        raises: bool = False, lasti: bool = False,
    ) -> list[str]:  # fmt: skip
        """A statement that returns a Tail into the resume function at ``index``."""
        stack: list[SlotKind] = [*kinds, *("null" if p == NULL else "value" for p in push)]
        live = self.live[index]
        names = tuple(n for n in variables if n in live)
        user_code, at = origin(self.code, index)
        code = resume_code(user_code, Point(at, tuple(stack), names, raises, lasti))
        cache = self.session.cache_for(code, decode(user_code).instrs[at].place.line)
        emit = self.emit
        fn = f"{emit.obj(FunctionType)}({emit.obj(code)}, {self.scope}, {self.code.co_name!r}, None, {self.cells})"
        values = [t for t, k in zip(below, kinds, strict=True) if k != "null"]
        values += [p for p in push if p != NULL] + [variables[n] for n in names]
        cached = emit.tx.namespace.name(cache, f"cache_of_{cache.name}")
        began = f", {emit.obj(emit.tx.modes)}" if emit.tx.modes != get_modes() else ""
        return [f"return Tail({cached}, {fn}, ({''.join(v + ', ' for v in values)}){began})"]
