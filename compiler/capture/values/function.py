"""Things that can be called, and cells: Python functions, bound methods, C functions, classes, modules.

Stage: capture.  In and out: see ``base``.  A Python function is inlined when called; what it reads of itself (code,
globals, defaults, closure) is guarded as it is read.  Read next: ``objects``, then ``capture.protocol.call``.
"""

from __future__ import annotations

import functools
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from compiler.capture.values.base import NONE, Lazy, Value
from compiler.capture.values.mapping import DictValue
from compiler.capture.values.sequence import TupleValue

if TYPE_CHECKING:
    from compiler.capture.emit import Emitter
    from compiler.capture.source import Source
    from compiler.capture.tracer import Tracer


class CellValue(Value):
    """A variable shared between functions.  ``contents`` is None while unbound."""

    def __init__(self, contents: Value | None, source: Source | None = None, obj: CellType | None = None) -> None:
        self.contents = contents
        self.source = source
        self.obj = obj

    def pytype(self) -> type:
        return CellType

    def real(self) -> Any:
        return self.obj

    def children(self) -> list[Value]:
        return [] if self.contents is None else [self.contents]

    def reconstruct(self, emit: Emitter) -> str:
        if self.source is not None:
            return emit.read(self.source)
        name = emit.begin(self, f"{emit.obj(CellType)}()")
        if self.contents is not None:
            emit.finish(f"{name}.cell_contents = {emit.load(self.contents)}")
        return name


class UserFunction(Value):
    """A Python function, from outside (``obj``) or made in the trace."""

    def __init__(
        self,
        code: CodeType,
        globals_: dict[str, Any],
        source: Source | None = None,
        obj: FunctionType | None = None,
    ) -> None:
        self.code = code
        self.globals = globals_
        self.source = source
        self.obj = obj
        self.name = code.co_name
        self.qualname = code.co_qualname
        self.defaults: list[Value] = []
        self.kwdefaults: dict[str, Value] = {}
        self.closure: list[CellValue] = []
        self.annotations: Value | None = None
        self.attrs: DictValue | None = None
        self.parts: dict[str, Value] = {}  # ``__doc__``, ``__module__``, as the trace has set them
        self.cached: UserFunction | None = None  # the function behind it, if this one remembers results

    @staticmethod
    def wrap(tx: Tracer, fn: FunctionType, source: Source) -> UserFunction:
        """A function from outside; its parts stay untouched until a call needs them."""
        out = UserFunction(fn.__code__, fn.__globals__, source, fn)
        out.name, out.qualname = fn.__name__, fn.__qualname__
        defaults = source.attr("__defaults__")
        out.defaults = [Lazy(v, defaults.item(i)) for i, v in enumerate(fn.__defaults__ or ())]
        kwdefaults = source.attr("__kwdefaults__")
        out.kwdefaults = {k: Lazy(v, kwdefaults.item(k)) for k, v in (fn.__kwdefaults__ or {}).items()}
        out.closure = [tx.wrap_cell(cell, source.cell(i)) for i, cell in enumerate(fn.__closure__ or ())]
        return out

    def pytype(self) -> type:
        return FunctionType

    def real(self) -> Any:
        return self.obj

    def children(self) -> list[Value]:
        attrs: list[Value] = [] if self.attrs is None else [self.attrs]
        return [*self.defaults, *self.kwdefaults.values(), *self.closure, *attrs]

    def describe(self) -> str:
        return self.qualname

    @property
    def doc(self) -> str | None:
        """The docstring that the code gives a new function."""
        first = self.code.co_consts[0] if self.code.co_consts else None
        return first if isinstance(first, str) else None

    def reconstruct(self, emit: Emitter) -> str:
        if self.source is not None:
            return emit.read(self.source)
        closure = "(" + "".join(f"{emit.load(c)}, " for c in self.closure) + ")"
        defaults = "(" + "".join(f"{emit.load(v)}, " for v in self.defaults) + ")"
        where = f"{emit.obj(self.code)}, {emit.obj(self.globals)}, {self.name!r}"
        name = emit.begin(self, f"{emit.obj(FunctionType)}({where}, {defaults}, {closure})")
        emit.finish(f"{name}.__qualname__ = {self.qualname!r}")
        if self.kwdefaults:
            pairs = ", ".join(f"{k!r}: {emit.load(v)}" for k, v in self.kwdefaults.items())
            emit.finish(f"{name}.__kwdefaults__ = {{{pairs}}}")
        for part, v in self.parts.items():
            emit.finish(f"{name}.{part} = {emit.load(v)}")
        if self.annotations is not None:
            emit.finish(f"{name}.__annotations__ = {emit.load(self.annotations)}")
        if self.attrs is not None and self.attrs.entries:
            emit.finish(f"{name}.__dict__.update({emit.load(self.attrs)})")
        return name


class BoundMethod(Value):
    """A function and the first argument it will get."""

    def __init__(self, func: Value, owner: Value, source: Source | None = None, obj: Any = None) -> None:
        self.func = func
        self.owner = owner
        self.source = source
        self.obj = obj

    def pytype(self) -> type:
        return MethodType

    def real(self) -> Any:
        return self.obj

    def children(self) -> list[Value]:
        return [self.func, self.owner]

    def describe(self) -> str:
        return self.func.describe()

    def reconstruct(self, emit: Emitter) -> str:
        if self.source is not None:
            return emit.read(self.source)
        if isinstance(self.func, BuiltinValue):
            return f"{emit.load(self.func)}.__get__({emit.load(self.owner)})"
        return f"{emit.obj(MethodType)}({emit.load(self.func)}, {emit.load(self.owner)})"


class BuiltinValue(Value):
    """A C function, method descriptor or slot wrapper."""

    def __init__(self, fn: Any, source: Source | None = None) -> None:
        self.fn = fn
        self.source = source

    def pytype(self) -> type:
        return type(self.fn)

    def real(self) -> Any:
        return self.fn

    def const(self) -> Any:
        return self.fn

    def is_const(self) -> bool:
        return True

    def describe(self) -> str:
        return getattr(self.fn, "__qualname__", None) or getattr(self.fn, "__name__", None) or repr(self.fn)

    def reconstruct(self, emit: Emitter) -> str:
        return emit.obj(self.fn)


class ClassValue(Value):
    """A type."""

    def __init__(self, cls: type, source: Source | None = None) -> None:
        self.cls = cls
        self.source = source

    def pytype(self) -> type:
        return type(self.cls)

    def real(self) -> Any:
        return self.cls

    def const(self) -> Any:
        return self.cls

    def is_const(self) -> bool:
        return True

    def describe(self) -> str:
        return self.cls.__qualname__

    def reconstruct(self, emit: Emitter) -> str:
        return emit.obj(self.cls)


class ModuleValue(Value):
    """A Python module (the ``import`` kind)."""

    def __init__(self, module: ModuleType, source: Source | None = None) -> None:
        self.module = module
        self.source = source

    def pytype(self) -> type:
        return type(self.module)

    def real(self) -> Any:
        return self.module

    def const(self) -> Any:
        return self.module

    def is_const(self) -> bool:
        return True

    def describe(self) -> str:
        return f"module {self.module.__name__}"

    def reconstruct(self, emit: Emitter) -> str:
        return emit.obj(self.module)


class PartialValue(Value):
    """``functools.partial`` of values."""

    def __init__(self, func: Value, args: list[Value], kwargs: dict[str, Value], source: Source | None = None) -> None:
        self.func, self.args, self.kwargs, self.source = func, args, kwargs, source

    def pytype(self) -> type:
        return functools.partial

    def children(self) -> list[Value]:
        return [self.func, *self.args, *self.kwargs.values()]

    def describe(self) -> str:
        return f"partial({self.func.describe()})"

    def reconstruct(self, emit: Emitter) -> str:
        if self.source is not None:
            return emit.read(self.source)
        parts = [emit.load(self.func), *(emit.load(a) for a in self.args)]
        parts += [f"{k}={emit.load(v)}" for k, v in self.kwargs.items()]
        return f"{emit.obj(self.pytype())}({', '.join(parts)})"


def tuple_or_none(items: list[Value]) -> Value:
    """What ``__defaults__`` shows."""
    return TupleValue(list(items)) if items else NONE
