"""A session: from a call that no entry fits to a new entry.

Stage: capture.  In: a function, its bound arguments, options.  Out: ``Captured``: guards as a function, translated code,
the graph handed to the backend.  The function is traced once; if something in it breaks the graph, it is traced again
up to the instruction of the outermost frame where that happened, and ends there.  Read next: ``entry``.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

from compiler import collector, logs
from compiler.capture import breaks, graphs, recover, regions
from compiler.capture.aliases import guard_aliases
from compiler.capture.emit import Emitter, print_call, print_run
from compiler.capture.guards import compile_text, print_check
from compiler.capture.instrs import Instr
from compiler.capture.leave import leave_at_break
from compiler.capture.models import tensors
from compiler.capture.modes import restore_modes
from compiler.capture.runtime import END, Captured, CodeCache, Tail, call_native, call_raising, enter, warn
from compiler.capture.sizes import size_form
from compiler.capture.source import Source, name
from compiler.capture.tracer import Tracer
from compiler.capture.translate import Frame
from compiler.capture.values.base import Lazy, Value
from compiler.capture.values.function import UserFunction
from compiler.capture.values.generator import StartedGenerator
from compiler.capture.values.number import SpecializeError
from compiler.capture.values.objects import Observed, exception_text
from compiler.capture.values.tensor import TensorValue
from compiler.errors import BackendError, CompileError, InvalidGradError, Unsupported
from compiler.ir.graph import Node
from compiler.ir.module import GraphModule
from tinytorch import tape
from tinytorch.defaults import defaults
from tinytorch.grad_mode import get_modes, set_modes
from tinytorch.tensor import Tensor

_serial = itertools.count()
#: Functions that choose their backend by a mode of the thread.
ATTENTION = frozenset({"scaled_dot_product_attention", "multi_head_attention_forward"})


class _Here(Exception):  # noqa: N818 - a signal
    """The outermost frame stands before the instruction at which the graph breaks."""


class Session:
    """One compilation of one code object."""

    def __init__(
        self,
        cache: CodeCache,
        fn: FunctionType,
        values: tuple[Any, ...],
        nested: Callable[[Any], Any],
        cache_for: Callable[[CodeType, int | None], CodeCache],
    ) -> None:
        self.cache = cache
        self.fn = fn
        self.values = values
        self.nested = nested
        self.cache_for = cache_for  # of a resume function's code
        self.at_step = 0
        self.traces: list[Tracer] = []
        self.config = cache.options.config
        self.stop_at: int | None = None
        self.leaves_may_begin = True
        self.reason: Unsupported | None = None

    # --- tracing ---
    def capture(self) -> Captured | None:
        """Trace, and trace again up to a break; None where a trace changed an object for real and an old entry fits now."""
        started = time.perf_counter()
        modes = get_modes()
        try:
            while True:
                try:
                    made = self._trace(modes)
                    break
                except SpecializeError as e:
                    self.cache.sizes.pinned |= e.places
                    if not e.places and self.cache.fits(self.fn, self.values):
                        return None
                except graphs.LeafEscapes:
                    self.leaves_may_begin, self.stop_at, self.reason = False, None, None
                except Unsupported as e:
                    if self.stop_at is not None and self.at_step <= self.stop_at:
                        if self._stop_earlier(e):
                            continue
                        made = self._give_up(e)
                        break
                    self._plan_break(e)
                finally:
                    set_modes(modes)
        except InvalidGradError as e:
            made = self._refused(e)
        except CompileError:
            raise
        except Exception as e:
            made = self._internal(e)
        finally:
            self._release()
        made.seconds["capture"] = time.perf_counter() - started - made.seconds.get("backend", 0.0)
        self._log(made)
        return made

    def _release(self) -> None:
        """Keep nothing of the program but what the entry holds."""
        for tx in self.traces:
            tx.release()
        self.traces.clear()
        self.values = ()
        if self.reason is not None:
            self.reason.__traceback__ = self.reason.__context__ = None

    def _plan_break(self, e: Unsupported) -> None:
        if self.cache.options.fullgraph or self.tx.strict:
            raise e.with_traceback(None) from None
        self.stop_at, self.reason = self.at_step - 1, e

    def _stop_earlier(self, e: Unsupported) -> bool:
        """A generator cannot cross a break once it has started; the graph ends before its first step instead."""
        if not isinstance(e, StartedGenerator) or self.stop_at is None or e.began_at >= self.stop_at:
            return False
        row, because = breaks.GENERATOR_BREAK, self.reason or e
        reason = Unsupported(row.id, f"{row.name}: {e.name}, at {because.reason}", row.hint)
        reason.stack, self.stop_at, self.reason = because.stack, e.began_at, reason
        reason.args = (reason._text(),)
        return True

    def _trace(self, modes: tuple[Any, ...]) -> Captured:
        tx = self.tx = Tracer(self.config, self.cache.sizes)
        self.traces.append(tx)
        tx.modes = modes
        tx.others = bool(self.cache.entries)
        tx.leaves_may_begin = self.leaves_may_begin
        self.at_step = 0
        fn = tx.wrap(self.fn, name("F"))
        assert isinstance(fn, UserFunction)
        variables: dict[str, Value] = {
            variable: Lazy(v, name(argument))
            for variable, argument, v in zip(self.fn.__code__.co_varnames, self.cache.arguments, self.values, strict=False)
        }
        frame = Frame(tx, fn, variables)
        frame.before_step = self._before_step
        try:
            with collector.held():
                frame.run()
        except Observed as e:
            return self._native(tx, "the function raises", exception_text(e.value))
        except _Here:
            return self._finish(tx, lambda emit: leave_at_break(self, emit, frame))
        result = frame.result
        assert result is not None
        frame.locals.clear()
        frame.cells.clear()
        tx.close_dropped()
        return self._finish(tx, lambda emit: self._return(emit, result))

    def _before_step(self, frame: Frame, instr: Instr) -> None:
        if self.at_step == self.stop_at:
            raise _Here
        self.tx.outer_step = self.at_step
        self.at_step += 1

    def _return(self, emit: Emitter, result: Value) -> list[str]:
        text = emit.load(result)
        self.tx.effects.replay(emit)
        restore_modes(self.tx, emit)
        return [f"return {text}"]

    # --- the end of a trace ---
    def _finish(self, tx: Tracer, leave: Callable[[Emitter], list[str]]) -> Captured:
        """Emit translated code, complete the guards, hand over the graph."""
        emit = Emitter(tx)
        tail = leave(emit)
        outputs = self._outputs(tx, emit)
        has_work = any(n.op not in ("placeholder", "output") for n in tx.graph.nodes)
        for value, node in list(tx.inputs.items()):
            if not node.users and node not in outputs and value not in tx.sizes_from:
                tx.graph.erase_node(node)
                del tx.inputs[value]
        call = [print_call(emit, [emit.read(v.source) for v in tx.inputs if v.source is not None])] if has_work else []
        call = [*tensors.released(tx, emit), *call] if has_work else []
        raised = recover.lines(tx, emit, self.cache.arguments) if has_work else []
        label = f"{self.cache.name} #{next(_serial)}"
        compiled = self._compile_graph(tx, label, bool(raised)) if has_work else {}
        self._late_guards(tx)  # after the backend, which may have asked more of the sizes
        carry = list(emit.reads)
        names = list(emit.reads.values())
        run_text = print_run(emit, call, tail, names, raised)
        made = self._entry(tx, carry, run_text, label)
        if self.reason is not None:
            made.breaks.append(self.reason)
        for field, value in compiled.items():
            setattr(made, field, value)
        self._build_run(made, run_text)
        return made

    def _outputs(self, tx: Tracer, emit: Emitter) -> tuple[Node, ...]:
        """End the graph.  An operation that only checks its operands, for nobody uses its result, is an output too."""
        graphs.check_leaves(tx, emit.outputs)
        tx.graph.output(tuple(emit.outputs))
        tx.graph.eliminate_dead_code()
        for node in tx.graph.nodes:
            if "checks" in node.meta and not node.users and isinstance(node.meta.get("val"), Tensor):
                emit.outputs[node] = f"checked{len(emit.outputs)}"
        outputs = tuple(emit.outputs)
        tx.graph.erase_node(tx.graph.output_node)
        tx.graph.output(outputs)
        return outputs

    def _late_guards(self, tx: Tracer) -> None:
        """Guards known only at the end: sizes, modes, memory that must not overlap."""
        if tx.used_modes or any(n.op != "placeholder" for n in tx.graph.nodes):
            grad, inference, autocast = tx.modes
            form = f"{{0}}.grad is {grad} and {{0}}.inference is {inference} and {{0}}.interpreter is None"
            mode = tx.namespace.source(tape.mode, "mode")
            if autocast is None:
                tx.guards.add("MODE", form + " and {0}.autocast is None", mode)
            else:
                tx.guards.add("MODE", form + " and {0}.autocast == {1}", mode, tx.namespace.source(autocast, "autocast"))
            meant = tx.namespace.source(defaults.now, "dtype_and_device")
            tx.guards.add("MODE", "{0}.now is {1}", tx.namespace.source(defaults, "defaults"), meant)
        if any(getattr(n.target, "__name__", "") in ATTENTION for n in tx.graph.nodes):
            mode = tx.namespace.source(tape.mode, "mode")
            tx.guards.add("MODE", "{0}.sdpa == {1}", mode, tx.namespace.source(tape.mode.sdpa, "sdpa"))
        for guard in tx.shape_env.all_guards():
            form, parts = size_form(tx, str(guard), 0)
            where = f"{guard.stack[-1][0]}:{guard.stack[-1][1]}: {guard.stack[-1][3]}" if guard.stack else guard.why
            tx.guards.add("SIZE", form, *parts, where=where)
        guard_aliases(tx)

    def _entry(self, tx: Tracer, carry: list[Source], run_text: str, label: str = "") -> Captured:
        arguments = ("F", *self.cache.arguments)
        guards = list(tx.guards)
        check_text = print_check(guards, arguments, carry)
        label = label or f"{self.cache.name} #{next(_serial)}"
        check = compile_text(check_text, f"<guards of {label}>", tx.namespace.objects, "check")
        return Captured(
            label, self.fn.__code__, check, _not_built, guards, tx.namespace, self.cache.arguments, check_text, run_text
        )

    def _compile_graph(self, tx: Tracer, label: str, recovers: bool) -> dict[str, Any]:
        """Hand the graph over, in the modes the call began in; the fields of ``Captured`` that tell of it."""
        gm = GraphModule({}, tx.graph, "graph_of_" + "".join(c if c.isalnum() else "_" for c in self.cache.name))
        examples = [v.example if isinstance(v, TensorValue) else v.sym for v in tx.inputs]
        for node, example in zip(tx.graph.placeholders, examples, strict=True):
            node.meta["val"] = example
        if logs.enabled("graph"):
            logs.artifact("graph", label, gm.code)
        started = time.perf_counter()
        modes = get_modes()
        set_modes(tx.modes)
        try:
            graph = regions.compile_graph(gm, list(examples), self.cache.options.backend)
        except CompileError:
            raise
        except Exception as e:
            raise BackendError(f"the backend failed on the graph of {self.cache.name}: {type(e).__name__}: {e}") from e
        finally:
            set_modes(modes)
        if not callable(graph):
            raise BackendError(f"the backend gave {type(graph).__name__} for the graph of {self.cache.name}, not a callable")
        graph = recover.atomic(tx, graph) if recovers else graph
        tx.namespace.objects["graph"] = _keep_modes(graph) if tx.mode_nodes else graph
        return {
            "graph_module": gm,
            "example_inputs": examples,
            "sources": [v.source.text for v in tx.inputs if v.source is not None],
            "seconds": {"backend": time.perf_counter() - started},
        }

    def _build_run(self, made: Captured, run_text: str) -> None:
        around = self.fn.__globals__
        scope = made.namespace.objects | {"nested": self.nested, "END": END, "Tail": Tail, "enter": enter, "SCOPE": around}
        scope |= {key: around[key] for key in ("__name__", "__package__") if key in around}  # what is called may ask for them
        made.run = compile_text(run_text, f"<translated {made.name}>", scope, "run")

    # --- when it does not work out ---
    def _native(self, tx: Tracer, why: str, raises: str = "") -> Captured:
        """An entry that runs the original function, under the guards of the trace that led here.

        A function that raises does so natively, with the user's own traceback and all effects up to there.
        """
        arguments = self.cache.arguments
        self._late_guards(tx)
        names = [name("F"), *(name(a) for a in arguments)]
        values = "(" + "".join(f"{a}, " for a in arguments) + ")"
        call = f"raising(F, F.__code__, {values}, {raises!r})" if raises else f"native(F, F.__code__, {values})"
        run_text = f"def run({', '.join(('F', *arguments))}):\n    return {call}\n"
        made = self._entry(tx, names, run_text)
        made.native = f"{why} {raises}".strip()
        made.namespace.objects.update(native=call_native, raising=call_raising)
        self._build_run(made, made.run_text)
        return made

    def _give_up(self, e: Unsupported) -> Captured:
        """The break itself cannot be left at: the whole function runs eager, loudly."""
        reason = self.reason or e
        warn(f"tinytorch.compile: {self.cache.name} runs eager: {reason.message}; and the frame cannot be left there: {e.message}")
        made = self._native(self.tx, f"{reason.message}; the frame cannot be left there: {e.message}")
        made.breaks.append(reason)
        return made

    def _refused(self, e: InvalidGradError) -> Captured:
        """The backend cannot give the right derivative: eager can."""
        if self.cache.options.fullgraph:
            raise e
        warn(f"tinytorch.compile: {self.cache.name} runs eager: {e.message}")
        return self._native(self.tx, e.message)

    def _internal(self, e: Exception) -> Captured:
        if not self.config.suppress_errors:
            raise breaks_internal(e, self) from e
        warn(f"tinytorch.compile: internal error in {self.cache.name}, which runs eager: {type(e).__name__}: {e}")
        return self._native(Tracer(self.config, self.cache.sizes), f"internal error: {type(e).__name__}: {e}")

    def _log(self, made: Captured) -> None:
        if logs.enabled("guards"):
            logs.artifact("guards", made.name, made.check_text)
        if logs.enabled("capture"):
            logs.artifact("capture", made.name, made.run_text)
        for e in made.breaks:
            logs.counters["graph_breaks"][e.id] += 1
            if logs.enabled("graph_breaks"):
                logs.artifact("graph_breaks", made.name, str(e), ".txt")
        if made.native:
            logs.log("capture", f"{made.name} runs native: {made.native}")


def breaks_internal(e: Exception, session: Session) -> CompileError:
    """An error of ours, with the user's line at which it happened."""
    stack = getattr(e, "_tt_stack", ())
    where = session.cache.name
    return CompileError(f"{breaks.INTERNAL.id}: internal error while tracing {where}: {type(e).__name__}: {e}", stack=stack)


def _not_built(*args: Any) -> Any:
    raise AssertionError("translated code is not built yet")


def _keep_modes(graph: Callable[..., Any]) -> Callable[..., Any]:
    """A graph that switches grad mode puts back what was, also when it raises."""

    def run(*args: Any) -> Any:
        before = get_modes()
        try:
            return graph(*args)
        finally:
            set_modes(before)

    return run
