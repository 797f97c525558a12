"""Local, global, shared and attribute names.

Stage: capture.  See ``stack``.  Read next: ``operators``.
"""

from __future__ import annotations

from typing import Any

from compiler.capture import breaks
from compiler.capture.instrs import VERSION, Instr
from compiler.capture.opcodes.frame_type import Ops
from compiler.capture.values.base import NULL, Value
from compiler.capture.values.function import CellValue

#: Before 3.13 the NULL of a call lies under the callee, since then above it.
NULL_BELOW = VERSION < (3, 13)


class NameOps(Ops):
    # --- local variables ---
    def LOAD_FAST(self, instr: Instr) -> None:
        self.push(self.local(instr.arg))

    LOAD_FAST_CHECK = LOAD_FAST

    def local(self, name: Any) -> Value:
        if not isinstance(name, str):  # 3.13 loads cells with LOAD_FAST where MAKE_CELL made them local
            return self.cells[name.name]
        value = self.locals.get(name)
        if value is None:
            if name in self.cells:
                return self.cells[name]
            self.tx.raise_(
                UnboundLocalError, f"cannot access local variable '{name}' where it is not associated with a value"
            )
        return value

    def STORE_FAST(self, instr: Instr) -> None:
        value = self.pop_raw()
        if value is NULL:  # the counterpart of LOAD_FAST_AND_CLEAR
            self.locals.pop(instr.arg, None)
        else:
            self.locals[instr.arg] = value

    STORE_FAST_MAYBE_NULL = STORE_FAST

    def DELETE_FAST(self, instr: Instr) -> None:
        self.local(instr.arg)
        del self.locals[instr.arg]

    def LOAD_FAST_AND_CLEAR(self, instr: Instr) -> None:
        """3.12: a comprehension's variable leaves the function's own one alone."""
        self.push(self.locals.pop(instr.arg, NULL))

    def LOAD_FAST_LOAD_FAST(self, instr: Instr) -> None:
        first, second = instr.arg
        self.push(self.local(first))
        self.push(self.local(second))

    def STORE_FAST_LOAD_FAST(self, instr: Instr) -> None:
        stored, loaded = instr.arg
        self.locals[stored] = self.pop_raw()
        self.push(self.local(loaded))

    def STORE_FAST_STORE_FAST(self, instr: Instr) -> None:
        first, second = instr.arg
        self.locals[first] = self.pop_raw()
        self.locals[second] = self.pop_raw()

    # --- cells ---
    def MAKE_CELL(self, instr: Instr) -> None:
        name = instr.arg.name
        self.cells[name] = CellValue(self.locals.pop(name, None))

    def COPY_FREE_VARS(self, instr: Instr) -> None:
        for name, cell in zip(self.fn.code.co_freevars, self.fn.closure, strict=True):
            self.cells[name] = cell

    def LOAD_CLOSURE(self, instr: Instr) -> None:
        self.push(self.cells[_name(instr.arg)])

    def LOAD_DEREF(self, instr: Instr) -> None:
        self.push(self.deref(_name(instr.arg)))

    def deref(self, name: str) -> Value:
        value = self.tx.read_cell(self.cells[name])
        if value is None:
            if name in self.fn.code.co_freevars:
                what = f"cannot access free variable '{name}' where it is not associated with a value in enclosing scope"
                self.tx.raise_(NameError, what)
            self.tx.raise_(
                UnboundLocalError, f"cannot access local variable '{name}' where it is not associated with a value"
            )
        return value

    def STORE_DEREF(self, instr: Instr) -> None:
        self.tx.write_cell(self.cells[_name(instr.arg)], self.pop_raw())

    def DELETE_DEREF(self, instr: Instr) -> None:
        self.deref(_name(instr.arg))
        self.tx.write_cell(self.cells[_name(instr.arg)], None)

    # --- globals ---
    def LOAD_GLOBAL(self, instr: Instr) -> None:
        push_null, name = instr.arg if isinstance(instr.arg, tuple) else (False, instr.arg)
        if push_null and NULL_BELOW:
            self.push(NULL)
        self.push(self.tx.read_global(self, name))
        if push_null and not NULL_BELOW:
            self.push(NULL)

    def LOAD_NAME(self, instr: Instr) -> None:
        self.push(self.tx.read_global(self, instr.arg))

    def STORE_GLOBAL(self, instr: Instr) -> None:
        self.tx.write_global(self, instr.arg, self.pop_raw())

    def DELETE_GLOBAL(self, instr: Instr) -> None:
        self.tx.write_global(self, instr.arg, None)

    # --- attributes ---
    def LOAD_ATTR(self, instr: Instr) -> None:
        is_method, name = instr.arg if isinstance(instr.arg, tuple) else (False, instr.arg)
        owner = self.pop()
        if is_method and NULL_BELOW:
            self.push(NULL)
        self.push(self.tx.protocol.getattr_(self.tx, owner, name))
        if is_method and not NULL_BELOW:
            self.push(NULL)

    def LOAD_METHOD(self, instr: Instr) -> None:
        """3.11: an attribute that will be called next."""
        owner = self.pop()
        self.push(NULL)
        self.push(self.tx.protocol.getattr_(self.tx, owner, instr.arg))

    def STORE_ATTR(self, instr: Instr) -> None:
        owner = self.pop()
        value = self.pop_raw()
        self.tx.protocol.setattr_(self.tx, owner, instr.arg, value)

    def DELETE_ATTR(self, instr: Instr) -> None:
        self.tx.protocol.delattr_(self.tx, self.pop(), instr.arg)

    def LOAD_SUPER_ATTR(self, instr: Instr) -> None:
        """3.12: ``super().name`` and ``super(cls, self).name`` in one instruction."""
        is_method, _, name = instr.arg
        owner, cls, super_ = self.pop(), self.pop(), self.pop()
        if is_method and NULL_BELOW:
            self.push(NULL)
        found = self.tx.protocol.call(self.tx, super_, [cls, owner], {})
        self.push(self.tx.protocol.getattr_(self.tx, found, name))
        if is_method and not NULL_BELOW:
            self.push(NULL)

    # --- imports ---
    def IMPORT_NAME(self, instr: Instr) -> None:
        fromlist, level = self.pop(), self.pop()
        name: str = instr.arg
        if level.const() != 0:
            package = self.globals.get("__package__") or self.globals.get("__name__", "").rpartition(".")[0]
            name = "." * level.const() + name
        else:
            package = None
        self.push(self.tx.import_module(name, package, fromlist.const()))

    def IMPORT_FROM(self, instr: Instr) -> None:
        self.push(self.tx.protocol.getattr_(self.tx, self.top(), instr.arg))

    def LOAD_LOCALS(self, instr: Instr) -> None:
        breaks.unsupported(breaks.OPCODE, instr.op)

    def names_in_scope(self) -> dict[str, Value]:
        """What ``locals()`` shows."""
        found = dict(self.locals)
        for name, cell in self.cells.items():
            value = self.tx.read_cell(cell)
            if value is not None:
                found[name] = value
        return {k: v for k, v in found.items() if k.isidentifier()}


def _name(arg: Any) -> str:
    return arg if isinstance(arg, str) else str(arg.name)
