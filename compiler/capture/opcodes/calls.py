"""Calls, and functions made on the way.

Stage: capture.  See ``stack``.  Read next: ``exceptions``.
"""

from __future__ import annotations

import builtins

from compiler.capture import breaks
from compiler.capture.instrs import Instr
from compiler.capture.opcodes.frame_type import Ops
from compiler.capture.values.base import NULL, Value, realize
from compiler.capture.values.function import CellValue, UserFunction
from compiler.capture.values.mapping import DictValue
from compiler.capture.values.sequence import TupleValue


class CallOps(Ops):
    def KW_NAMES(self, instr: Instr) -> None:
        self.kw_names = instr.arg

    def CALL(self, instr: Instr) -> None:
        names, self.kw_names = self.kw_names, ()
        self._call(instr.arg, names)

    def CALL_KW(self, instr: Instr) -> None:
        """3.13: the keywords' names lie on the stack."""
        self._call(instr.arg, self.pop().const())

    def _call(self, count: int, names: tuple[str, ...]) -> None:
        args = self.pop_many(count)
        callee = self._callee(args)
        split = len(args) - len(names)
        kwargs = dict(zip(names, args[split:], strict=True))
        self.push(self.tx.protocol.call(self.tx, callee, args[:split], kwargs))

    def _callee(self, args: list[Value]) -> Value:
        """The function under the arguments; NULL lies below it, or above it since 3.13."""
        upper, lower = self.stack.pop(), self.stack.pop()
        if lower is NULL:
            return realize(self.tx, upper)
        if upper is not NULL:
            args.insert(0, upper)
        return realize(self.tx, lower)

    def CALL_FUNCTION_EX(self, instr: Instr) -> None:
        kwargs: dict[str, Value] = {}
        if instr.arg & 1:
            for key, (_, v) in self.tx.protocol.mapping_entries(self.tx, self.pop()):
                if not isinstance(key, str):
                    self.tx.raise_(TypeError, "keywords must be strings")
                kwargs[key] = v
        args = self.tx.protocol.unpack(self.tx, self.pop())
        upper, lower = self.stack.pop(), self.stack.pop()
        callee = realize(self.tx, upper if lower is NULL else lower)
        self.push(self.tx.protocol.call(self.tx, callee, args, kwargs))

    # --- making functions ---
    def MAKE_FUNCTION(self, instr: Instr) -> None:
        code = self.pop().const()
        fn = UserFunction(code, self.globals)
        for bit in (8, 4, 2, 1):
            if instr.arg is not None and instr.arg & bit:
                self._set_part(fn, bit, self.pop())
        self.push(fn)

    def SET_FUNCTION_ATTRIBUTE(self, instr: Instr) -> None:
        fn, part = self.pop(), self.pop()
        assert isinstance(fn, UserFunction)
        self._set_part(fn, instr.arg, part)
        self.push(fn)

    def _set_part(self, fn: UserFunction, bit: int, part: Value) -> None:
        if bit == 1:
            assert isinstance(part, TupleValue)
            fn.defaults = list(part.items)
        elif bit == 2:
            assert isinstance(part, DictValue)
            fn.kwdefaults = {str(k): v for k, (_, v) in part.entries.items()}
        elif bit == 4:
            fn.annotations = self._annotations(part)
        elif bit == 8:
            assert isinstance(part, TupleValue)
            fn.closure = [c for c in part.items if isinstance(c, CellValue)]

    def _annotations(self, part: Value) -> Value:
        """Annotations come as a flat tuple of names and values."""
        if not isinstance(part, TupleValue):
            return part
        items = [realize(self.tx, v) for v in part.items]
        pairs = zip(items[::2], items[1::2], strict=True)
        return DictValue({k.const(): (k, v) for k, v in pairs})

    def LOAD_BUILD_CLASS(self, instr: Instr) -> None:
        self.push(self.tx.constant(builtins.__build_class__))

    # --- intrinsics (3.12) ---
    def CALL_INTRINSIC_1(self, instr: Instr) -> None:
        name = instr.arg.name
        if name == "INTRINSIC_LIST_TO_TUPLE":
            self.LIST_TO_TUPLE(instr)  # type: ignore[attr-defined]
        elif name == "INTRINSIC_UNARY_POSITIVE":
            self.push(self.tx.protocol.unary(self.tx, "+", self.pop()))
        elif name == "INTRINSIC_STOPITERATION_ERROR":
            self.push(self.tx.stop_iteration_error(self.pop()))
        else:
            breaks.unsupported(breaks.OPCODE, f"{instr.op} {name}")

    def CALL_INTRINSIC_2(self, instr: Instr) -> None:
        if instr.arg.name == "INTRINSIC_PREP_RERAISE_STAR":
            self.PREP_RERAISE_STAR(instr)  # type: ignore[attr-defined]
        else:
            breaks.unsupported(breaks.OPCODE, f"{instr.op} {instr.arg.name}")


