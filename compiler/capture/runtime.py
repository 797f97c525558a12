"""What translated code uses while it runs: tails, nested calls, the code caches.

Stage: capture (run time).  In: arguments.  Out: results.  A ``CodeCache`` holds the entries of one code object; a
hit takes no lock.  Translated code that ended in a break returns a ``Tail``, a request to go on in a resume function;
``finish`` serves such requests in a loop, so breaks inside a long loop do not deepen the stack.  Read next: ``session``.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from compiler import logs
from compiler.capture.guards import Guard, first_failure
from compiler.capture.owners import Owners, gone, owners_of, same
from compiler.capture.sizes import Sizes
from compiler.capture.source import Namespace
from compiler.config import Config
from compiler.errors import RecompileLimit, Unsupported
from compiler.ir.module import GraphModule
from tinytorch import tape
from tinytorch.grad_mode import set_modes


def warn(message: str) -> None:
    """Say loudly that something runs uncompiled."""
    warnings.warn(message, RuntimeWarning, stacklevel=3)


END: Any = object()  # what ``next`` gives when a loop is over


class Tail(NamedTuple):
    """Go on in ``cache`` with this function and these arguments.

    ``modes``: grad mode and its like as the function began, if a block that changes them is open here.
    """

    cache: CodeCache
    fn: FunctionType
    args: tuple[Any, ...]
    modes: tuple[Any, ...] | None = None


def finish(result: Any) -> Any:
    """Serve tails until there is a result.

    If a graph raises while a block is open whose exit was traced with it, nobody else puts the modes back.
    """
    modes = None
    try:
        while type(result) is Tail:
            tail: Tail = result
            modes = modes or tail.modes
            result = tail.cache.raw(tail[1], *tail.args)
    except BaseException:
        if modes is not None:
            set_modes(modes)
        raise
    return result


def enter(manager: Any) -> tuple[Any, Any]:
    """What BEFORE_WITH does: the bound ``__exit__`` and the result of ``__enter__``."""
    kind = type(manager)
    leave = kind.__exit__.__get__(manager, kind)
    return leave, kind.__enter__(manager)


@dataclass(frozen=True)
class Options:
    """How one ``compile`` call wants it."""

    backend: Callable[..., Any]
    fullgraph: bool
    dynamic: bool | None
    config: Config

    def key(self) -> tuple[Any, ...]:
        return id(self.backend), self.fullgraph, self.dynamic, tuple(sorted(vars(self.config).items()))


@dataclass
class Captured:
    """One entry: what was captured under which guards.

    ``graph_module`` is None if the frame has no tensor work.  ``example_inputs`` are fakes, their ``sources`` texts.
    ``breaks`` holds the break that ended the trace, if one did.  ``native``: why the frame runs uncompiled, or "".
    """

    name: str
    code: CodeType
    check: Callable[..., Any]
    run: Callable[..., Any]
    guards: list[Guard]
    namespace: Namespace
    arguments: tuple[str, ...]
    check_text: str = ""
    run_text: str = ""
    graph_module: GraphModule | None = None
    example_inputs: list[Any] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    breaks: list[Unsupported] = field(default_factory=list)
    native: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    owners: Owners = ()  # the models and optimizers of the call it was made from


def _never(*args: Any) -> None:
    """The check of an entry that is not there."""


_NOTHING: tuple[Any, Any, Any] = (_never, None, None)

Translate = Callable[["CodeCache", FunctionType, tuple[Any, ...]], Captured | None]


class CodeCache:
    """The entries of one code object under one set of options."""

    def __init__(self, code: CodeType, arguments: tuple[str, ...], options: Options, translate: Translate) -> None:
        self.code = code
        self.arguments = arguments
        self.options = options
        self.translate = translate
        self.name = code.co_name
        self.records: list[Captured] = []
        #: (check, run to the end, run that may give a Tail), most recently used first; replaced, never changed.
        self.entries: tuple[tuple[Any, Any, Any], ...] = ()
        self.first: tuple[Any, Any, Any] = _NOTHING  # the first of them, for doors
        self.lock = threading.RLock()
        self.sizes = Sizes(options.dynamic)
        self.called = False
        self.run_only = ""  # why nothing more is compiled
        self.full: list[Owners] = []  # for whom nothing more is compiled

    def call(self, fn: FunctionType, *values: Any) -> Any:
        return finish(self.raw(fn, *values))

    def raw(self, fn: FunctionType, *values: Any) -> Any:
        """Run an entry whose guards hold, or make one.  The result may be a ``Tail``."""
        for i, entry in enumerate(self.entries):
            check, _, run = entry
            carried = check(fn, *values)
            if carried is not None:
                if i:
                    self._to_front(entry)
                return run(*carried)
        return self.miss(fn, values)

    def _to_front(self, entry: tuple[Any, Any, Any]) -> None:
        """The entry found last is tried first, unless another thread is changing them."""
        if self.lock.acquire(blocking=False):
            try:
                if any(e is entry for e in self.entries):
                    self.set_entries((entry, *(e for e in self.entries if e is not entry)))
            finally:
                self.lock.release()

    def set_entries(self, entries: tuple[tuple[Any, Any, Any], ...]) -> None:
        self.entries = entries
        self.first = entries[0] if entries else _NOTHING

    def miss(self, fn: FunctionType, values: tuple[Any, ...]) -> Any:
        """No entry fits: compile one, once per thread-safe look, and run it."""
        if tape.mode.interpreter is not None or _tracing.active:
            return self.native(fn, values)
        with self.lock:
            found = self._find(fn, values)  # another thread may have made it meanwhile
            if found is None:
                if self._is_full(fn, values) or STATE.stance != "default" and not self._may_compile(fn, values):
                    return self.native(fn, values)
                made = self._compile(fn, values)
                found = self._find(fn, values)
                if found is None:
                    return self.native(fn, values) if made is None else self._contradiction(made, fn, values)
        run, carried = found
        return run(*carried)

    def _find(self, fn: FunctionType, values: tuple[Any, ...]) -> tuple[Any, Any] | None:
        """The entry whose guards hold, and what they carry."""
        for check, _, run in self.entries:
            carried = check(fn, *values)
            if carried is not None:
                return run, carried
        return None

    def fits(self, fn: FunctionType, values: tuple[Any, ...]) -> bool:
        return self._find(fn, values) is not None

    def by_stance(self, fn: FunctionType, *values: Any) -> Any:
        """A call while ``set_stance`` is not the default."""
        if STATE.stance == "force_eager":
            return self.native(fn, values)
        if STATE.stance == "eager_then_compile" and not self.records and not self.called:
            self.called = True
            return self.native(fn, values)
        return self.call(fn, *values)

    def _may_compile(self, fn: FunctionType, values: tuple[Any, ...]) -> bool:
        if STATE.stance == "fail_on_recompile" and self.records:
            raise RuntimeError(f"stance fail_on_recompile: {self.name} would recompile: {self.why(fn, values)}")
        return STATE.stance not in ("force_eager",) and not (STATE.stance == "eager_on_recompile" and self.records)

    def why(self, fn: FunctionType, values: tuple[Any, ...]) -> str:
        """For each entry of the same model (else for the last ones) the guard that says no."""
        names, mine = ("F", *self.arguments), owners_of(fn, values)
        looked_at = [r for r in self.records if same(mine, r.owners)] or self.records[-self.options.config.recompile_limit :]
        reasons = [first_failure(r.guards, names, r.namespace, (fn, *values)) for r in looked_at]
        return "; ".join(dict.fromkeys(reasons))

    def _compile(self, fn: FunctionType, values: tuple[Any, ...]) -> Captured | None:
        """A new entry; None at a limit, and where tracing changed an object for real so that an old entry fits."""
        mine, again, why = owners_of(fn, values), bool(self.records), ""
        if again:
            if self._at_limit(fn, values, mine):
                return None
            why = self.why(fn, values) if logs.enabled("recompiles") else ""
        _tracing.active = True
        try:
            made = self.translate(self, fn, values)
        finally:
            _tracing.active = False
        if made is None:
            return None
        if again:
            self._report_recompile(why)
        made.owners = mine
        self.records.append(made)
        run = made.run
        whole = run if made.graph_module is not None and not made.breaks and not made.native else _whole(run)
        self.set_entries(((made.check, whole, run), *self.entries))
        return made

    def _report_recompile(self, why: str) -> None:
        logs.counters["recompiles"][self.name] += 1
        if why:
            logs.log("recompiles", f"{self.name}: {why}")

    def _is_full(self, fn: FunctionType, values: tuple[Any, ...]) -> bool:
        if self.run_only or not self.full:
            return bool(self.run_only)
        mine = owners_of(fn, values)
        return any(same(mine, o) for o in self.full)

    def _at_limit(self, fn: FunctionType, values: tuple[Any, ...], mine: Owners) -> bool:
        """Whether this call's model, or all together, have as many entries as they may; loudly."""
        config = self.options.config
        own = sum(same(mine, r.owners) for r in self.records) >= config.recompile_limit
        if not own and (len(self.records) < config.accumulated_recompile_limit or self._forget_gone()):
            return False
        limit = config.recompile_limit if own else config.accumulated_recompile_limit
        whose = " for this model" if own and mine else ""
        reason = f"recompile limit of {limit} reached{whose}; last: {self.why(fn, values)}"
        message = f"tinytorch.compile: {self._place()}: {reason}. It runs eager for new inputs from now on."
        if self.options.fullgraph:
            raise RecompileLimit(message)
        if own and mine:
            self.full.append(mine)
        else:
            self.run_only = reason
        warn(message)
        return True

    def _place(self) -> str:
        return f"{self.name} ({self.code.co_filename}:{self.code.co_firstlineno})"

    def _forget_gone(self) -> bool:
        """Make room where models are gone; a program that makes new ones without end is told so."""
        left = [r for r in self.records if gone(r.owners)]
        if left:
            warn(f"tinytorch.compile: {self._place()}: {len(self.records)} entries; those of models that are gone are forgotten.")
        self._forget(left)
        return bool(left)

    def _forget(self, records: list[Captured]) -> None:
        checks = {r.check for r in records}
        self.records = [r for r in self.records if r.check not in checks]
        self.set_entries(tuple(e for e in self.entries if e[0] not in checks))

    def _contradiction(self, made: Captured, fn: FunctionType, values: tuple[Any, ...]) -> Any:
        """Guards that do not hold for the very call they were made from: never loop on them."""
        why = first_failure(made.guards, ("F", *self.arguments), made.namespace, (fn, *values))
        warn(f"tinytorch.compile: {self.name}: a guard does not hold for the call it was made from: {why}; runs eager")
        self._forget([made])
        self.run_only = "a guard contradicted itself"
        return self.native(fn, values)

    def native(self, fn: FunctionType, values: tuple[Any, ...]) -> Any:
        """The original function, uncompiled."""
        return call_native(fn, self.code, values)


def call_native(fn: FunctionType, code: CodeType, values: tuple[Any, ...]) -> Any:
    """Call ``fn`` with its arguments as they were bound to parameters."""
    flags = code.co_flags
    n, k = code.co_argcount, code.co_kwonlyargcount
    args = list(values[:n])
    kwargs = dict(zip(code.co_varnames[n : n + k], values[n : n + k], strict=True))
    rest = list(values[n + k :])
    if flags & 0x04:
        args += rest.pop(0)
    if flags & 0x08:
        kwargs.update(rest.pop(0))
    return fn(*args, **kwargs)


def call_raising(fn: FunctionType, code: CodeType, values: tuple[Any, ...], expected: str) -> Any:
    """Call a function of which the trace says that it raises; if it does not, the trace was wrong, and that is said."""
    result = call_native(fn, code, values)
    warn(f"tinytorch.compile: {code.co_qualname} was expected to raise {expected} and did not; it runs eager")
    return result


def _whole(run: Callable[..., Any]) -> Callable[..., Any]:
    def call(*carried: Any) -> Any:
        return finish(run(*carried))

    return call


class _Tracing(threading.local):
    active = False


_tracing = _Tracing()


class _State:
    """What ``set_stance`` says, for the whole process."""

    stance = "default"
    special = False


STATE = _State()
