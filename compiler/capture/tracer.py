"""``Tracer``: the state of one trace: the graph, the guards, the effects, and who is who.

Stage: capture.  In: real arguments with their sources.  Out: a ``Graph`` and what is needed to use it.
Values, opcodes and handlers all get it as ``tx``.  Read next: ``wrap`` (real objects into values), ``protocol`` (what
operations mean), ``graphs`` (nodes), ``entry`` (the beginning and the end of a trace).
"""

from __future__ import annotations

import builtins
import importlib
import linecache
import re
import sys
from types import CellType, CodeType
from typing import Any, NoReturn

from compiler.capture import breaks, models, protocol, sourceless, wrap
from compiler.capture.effects import Effects
from compiler.capture.guards import GuardSet
from compiler.capture.interp import CaptureInterp
from compiler.capture.kinds import is_definition
from compiler.capture.sizes import Sizes
from compiler.capture.source import Namespace, Source
from compiler.capture.translate import Frame
from compiler.capture.values.base import ConstantValue, Lazy, Value
from compiler.capture.values.drawn import Foresight
from compiler.capture.values.function import CellValue, ModuleValue
from compiler.capture.values.generator import GeneratorValue
from compiler.capture.values.objects import ObjectValue, Observed
from compiler.capture.values.sequence import TupleValue
from compiler.capture.values.tensor import SymIntValue, TensorValue
from compiler.config import Config
from compiler.errors import Location
from compiler.fake import FakeStorage
from compiler.ir.graph import Graph, Node
from compiler.sym.env import ShapeEnv
from compiler.sym.expr import Expr
from tinytorch import grad_mode
from tinytorch.tensor import Tensor

#: Top-level packages whose own functions and classes are taken as they are.
TRUSTED = frozenset(sys.stdlib_module_names) | {"tinytorch", "compiler", "numpy"}


#: Modules whose functions act on the world or on state that no graph holds: called natively, as a whole.
_OPAQUE = frozenset(
    "logging threading subprocess socket os shutil tempfile io pickle asyncio multiprocessing time random warnings traceback".split()
)


class Tracer:
    """One trace of one function under one set of assumptions."""

    protocol = protocol
    models = models

    def __init__(self, config: Config, sizes: Sizes) -> None:
        self.config = config
        self.sizes = sizes  # which sizes and numbers are symbolic
        self.graph = Graph()
        self.guards = GuardSet()
        self.effects = Effects()
        self.namespace = Namespace()
        self.shape_env = ShapeEnv()
        self.shape_env.where = self.stack_rows  # type: ignore[method-assign,assignment]
        self.interp = CaptureInterp()
        self.storages: dict[int, FakeStorage] = {}
        self.frames: list[Frame] = []
        self.handled: ObjectValue | None = None
        self.inputs: dict[TensorValue | SymIntValue, Node] = {}
        self.sizes_from: set[TensorValue | SymIntValue] = set()  # inputs that nodes read sizes of
        self.by_id: dict[int, Value] = {}
        self.by_fake: dict[int, TensorValue] = {}
        self.by_real_id: dict[int, Any] = {}
        self.known_ids: dict[int, Any] = {}  # constants that hash by identity
        self.distinct: dict[int, Value] = {}  # objects from outside that the trace told apart by identity
        self.symbols: dict[str, tuple[Source, Value | None]] = {}
        self.written: set[FakeStorage] = set()
        self.may_raise = False  # whether the graph does, for what its inputs hold
        self.caught = False  # and the program may catch it
        self.modes = grad_mode.get_modes()  # as the call began
        self.used_modes = False
        self.mode_nodes = 0
        self.regions = 0  # calls that are to be compiled once
        self.prologue: list[str] = []  # statements of translated code before the graph
        self.locals: set[str] = set()  # the names they bind
        self.foresight = Foresight()  # the draws among them
        self.outcomes: float = 1  # how many ways the random decisions of this trace could go
        self.released: list[tuple[TensorValue, Value | None]] = []  # gradients dropped before anything can go wrong
        self.begun: list[TensorValue] = []  # made here, and changed in whether they require grad
        self.leaves_may_begin = True
        self.strict: bool | None = None  # what error_on_graph_break said
        self.others = False  # whether the code has entries, of which one may fit once an object has changed for real
        self.steps = 0
        self.dropped: list[GeneratorValue] = []  # that the program let go of before their end
        self.outer_step = 0  # which instruction of the outermost frame is being traced, counted as they are run
        self.looked_up: dict[tuple[type, str, type | None], tuple[type, Any] | None] = {}  # attributes of classes
        self._locations: dict[tuple[int, int], Location] = {}
        self._shown: dict[int, tuple[str, tuple[str, int, str, str]]] = {}  # by the id of a location: as text, as a row
        self._trusted: dict[str, bool] = {}

    # --- guards and places ---
    def guard(self, kind: str, form: str, *parts: Source, implied_by: str = "") -> None:
        """The trace relies on ``form`` of ``parts`` from here on."""
        if not self.guards.has(form, parts):
            self.guards.add(kind, form, *parts, where=self.where(), implied_by=implied_by)

    def where(self) -> str:
        """The user's innermost line."""
        for frame in reversed(self.frames):
            if not frame.trusted:
                return self._show(frame.location())[0]
        return ""

    def _show(self, at: Location) -> tuple[str, tuple[str, int, str, str]]:
        found = self._shown.get(id(at))
        if found is None:
            text = at.text.strip()
            row = at.filename, at.line, at.function, text
            found = self._shown[id(at)] = f"{at.filename}:{at.line} in {at.function}: {text}", row
        return found

    def user_stack(self) -> list[Location]:
        """The traced frames, innermost last; those of the library and of our own polyfills are left out."""
        shown = [f.location() for f in self.frames if not f.trusted]
        return shown or [f.location() for f in self.frames[:1]]

    def stack_rows(self) -> list[tuple[str, int, str, str]]:
        return [self._show(w)[1] for w in self.user_stack()]

    def location(self, code: CodeType, line: int) -> Location:
        found = self._locations.get((id(code), line))
        if found is None:
            text = linecache.getline(code.co_filename, line)
            found = self._locations[id(code), line] = Location(code.co_filename, line, code.co_qualname, text)
        return found

    def would_be_caught(self) -> bool:
        """Whether the program has a handler for an exception raised here; ``finally`` and plain blocks are none."""
        return any(f.catches() for f in self.frames if not f.trusted)

    def count_step(self) -> None:
        self.steps += 1
        if self.dropped:
            self.close_dropped()
        if self.steps > self.config.unroll_limit:
            breaks.unsupported(breaks.TOO_LONG, f"{self.steps} instructions")

    def close_dropped(self) -> None:
        """Run what is left of generators without a reference: their ``finally`` blocks."""
        while self.dropped:
            try:
                self.dropped.pop(0).close(self)
            except Observed:
                pass  # CPython prints it, and goes on

    def is_trusted_globals(self, globals_: dict[str, Any]) -> bool:
        return self.is_trusted_module(str(globals_.get("__name__", "")))

    def is_trusted_module(self, name: Any) -> bool:
        """Whether ``name``, what a class or function says its module is, is one of ours; C types may say no name."""
        if not isinstance(name, str):
            return False
        found = self._trusted.get(name)
        if found is None:
            found = self._trusted[name] = name.partition(".")[0] in TRUSTED
        return found

    # --- values ---
    def wrap(self, obj: Any, source: Source | None) -> Value:
        assert source is not None
        return wrap.wrap(self, obj, source)

    def constant(self, obj: Any) -> Value:
        """The value of an object that is known without a guard: from code, from the library."""
        return sourceless.known(self, obj)

    def new_local(self, hint: str, text: str) -> str:
        """One more statement before the graph; the name of its value."""
        name = f"{hint}_{len(self.locals)}"
        self.prologue.append(f"{name} = {text}")
        self.locals.add(name)
        return name

    def from_python(self, obj: Any) -> Value:
        """The value of a fresh result of Python or of a C function run while tracing."""
        return sourceless.fresh(self, obj)

    def wrap_cell(self, cell: CellType, source: Source) -> CellValue:
        known = self.by_id.get(id(cell))
        if isinstance(known, CellValue):
            return known
        try:
            contents: Value | None = Lazy(cell.cell_contents, source.attr("cell_contents"))
        except ValueError:
            contents = None
        return self.remember(cell, CellValue(contents, source, cell))

    def remember(self, obj: Any, value: Any) -> Any:
        self.by_id[id(obj)] = value
        self.by_real_id[id(obj)] = obj
        return value

    def new_tensor(self, fake: Tensor, node: Node | None, source: Source | None = None, obj: Any = None) -> TensorValue:
        value = TensorValue(fake, node, source, obj)
        self.by_fake[id(fake)] = value
        return value

    def specialize(self, value: Value) -> Any:
        """The number behind a symbolic int, guarded; None for anything else."""
        return int(value.sym) if isinstance(value, SymIntValue) else None

    def polyfill(self, name: str) -> Value:
        return self.constant(getattr(models.polyfills, name))

    def check_callable(self, fn: Any) -> None:
        """Break at functions that ask not to be compiled."""
        attributes = fn.__dict__
        if "_tt_disabled" in attributes:
            breaks.unsupported(breaks.SKIPPED_CALL, f"{fn.__qualname__}: {attributes['_tt_disabled']}")
        if (fn.__module__ or "").partition(".")[0] in ("logging", "warnings"):
            breaks.unsupported(breaks.SIDE_EFFECT_CALL, f"{fn.__module__}.{fn.__qualname__}")
        if (fn.__module__ or "").partition(".")[0] in _OPAQUE:
            breaks.unsupported(breaks.SKIPPED_CALL, f"{fn.__module__}.{fn.__qualname__}")

    # --- cells and globals ---
    def read_cell(self, cell: CellValue) -> Value | None:
        if cell.contents is None:
            if cell.source is not None and not self.effects.is_touched(cell):
                breaks.unsupported(breaks.OPERATION, "an empty closure cell")
            return None
        return cell.contents

    def write_cell(self, cell: CellValue, value: Value | None) -> None:
        self.effects.touch(cell)
        cell.contents = value

    def read_global(self, frame: Any, name: str) -> Value:
        scope = frame.globals
        written = self.effects.globals.get((id(scope), name))
        if written is not None:
            if written[1] is not None:
                return written[1]
        elif name in scope:
            return self.module_entry(scope, name, frame.trusted)
        where = self.globals_source(scope)
        if not frame.trusted and written is None:
            self.guard("KEY", f"{name!r} not in {{0}}", where)
        found = scope.get("__builtins__", builtins)
        names = found if isinstance(found, dict) else vars(found)
        if name not in names:
            self.raise_(NameError, f"name '{name}' is not defined")
        return self.constant(names[name])

    def module_entry(self, scope: dict[str, Any], name: str, trusted: bool) -> Value:
        """A name of a module; in trusted modules functions, classes and modules are taken as constants."""
        obj = scope[name]
        if trusted and is_definition(obj):
            return self.constant(obj)
        return Lazy(obj, self.globals_source(scope).item(name))

    def globals_source(self, scope: dict[str, Any]) -> Source:
        hint = "globals_of_" + str(scope.get("__name__", "module")).replace(".", "_")
        return self.namespace.source(scope, hint)

    def write_global(self, frame: Any, name: str, value: Value | None) -> None:
        if value is None and name not in frame.globals:
            self.raise_(NameError, f"name '{name}' is not defined")
        self.effects.globals[id(frame.globals), name] = (self.globals_source(frame.globals), value)

    def import_module(self, name: str, package: str | None, fromlist: Any) -> Value:
        """``import``; the module must be loaded already, or load without touching the trace."""
        try:
            module = importlib.import_module(name, package)
        except ImportError as e:
            self.raise_native(e)
        if not fromlist and package is None:
            module = sys.modules[name.partition(".")[0]]
        for part in fromlist or ():
            if part != "*" and not hasattr(module, part):
                try:
                    importlib.import_module(f"{module.__name__}.{part}")
                except ImportError:
                    pass
        return ModuleValue(module)

    # --- exceptions of the traced program ---
    def new_exception(self, cls: type, args: list[Value]) -> ObjectValue:
        value = ObjectValue(cls)
        value.slots["args"] = TupleValue(list(args))
        value.new_args = list(args)
        return value

    def raise_(self, cls: type, message: str) -> NoReturn:
        self.raise_value(self.new_exception(cls, [ConstantValue(message)]))

    def raise_native(self, e: BaseException) -> NoReturn:
        """An exception that a C function or an operator raised while tracing is the program's."""
        if isinstance(e, RecursionError):  # whose frames filled the stack is not known: Python will see
            breaks.unsupported(breaks.TOO_DEEP, "Python's limit of recursion")
        value = self.new_exception(type(e), [self.from_python(a) for a in e.args])
        self._set_context(value)
        raise Observed(value) from None

    def raise_value(self, value: ObjectValue) -> NoReturn:
        self._set_context(value)
        raise Observed(value)

    def _set_context(self, value: ObjectValue) -> None:
        if self.handled is not None and self.handled is not value:
            value.slots.setdefault("__context__", self.handled)

    def stop_iteration_error(self, exc: Value) -> Value:
        """A StopIteration that leaves a generator becomes a RuntimeError."""
        if isinstance(exc, ObjectValue) and issubclass(exc.cls, StopIteration):
            error = self.new_exception(RuntimeError, [ConstantValue("generator raised StopIteration")])
            error.slots["__cause__"] = exc
            return error
        return exc

    # --- the graph ---
    def node_of(self, value: TensorValue) -> Node:
        """The node of a tensor; an input gets its placeholder at first use."""
        if value.node is None:
            value.node = self._placeholder(value, value.fake)
        return value.node

    def _placeholder(self, value: TensorValue | SymIntValue, example: Any) -> Node:
        assert value.source is not None
        node = self.graph.input(input_name(value.source.text))
        node.meta["val"] = example
        node.meta["source"] = value.source.text
        node.meta["stack"] = self.stack_rows()
        self.inputs[value] = node
        return node

    def use_symbols(self, expr: Expr) -> None:
        """Sizes that a node mentions must be read from some input of the graph."""
        for symbol in expr.free_symbols:
            owner = self.symbols[symbol.name][1]
            assert isinstance(owner, TensorValue | SymIntValue)
            self.sizes_from.add(owner)
            if isinstance(owner, TensorValue):
                self.node_of(owner)
            elif isinstance(owner, SymIntValue) and owner not in self.inputs:
                self._placeholder(owner, owner.sym)

    def symbol_source(self, name: str) -> Source:
        return self.symbols[name][0]

    def note_acts(self, node: Node) -> None:
        """What the operation just run does besides giving a value."""
        for t in self.interp.wrote:
            self.written.add(t._data.storage)
        if self.interp.may_raise and not self.interp.late:
            node.meta["checks"] = True
        if self.interp.drew or self.interp.wrote or "checks" in node.meta:
            node.meta["impure"] = True
        if self.interp.wrote:
            node.meta["writes"] = True

    def release(self) -> None:
        """Let go of the program's objects now, by reference counts: a trace is full of cycles, and what they hold
        would otherwise live until the garbage collector comes."""
        self.shape_env.where = tuple
        for value in (*self.by_id.values(), *self.by_fake.values()):
            value.__dict__.clear()
        for kept in (self.by_id, self.by_fake, self.by_real_id, self.inputs, self.effects.touched, self.effects.globals, self.effects.classes,
                     self.symbols, self.distinct, self.sizes_from):  # fmt: skip
            kept.clear()
        self.handled = None


def input_name(path: str) -> str:
    """A placeholder's name after the path to its value."""
    return "_".join(_WORDS.findall(_NOISE.sub("", path))) or "arg"


_NOISE = re.compile("__dict__|_modules|_parameters|_buffers")
_WORDS = re.compile(r"[^\W_]+")
