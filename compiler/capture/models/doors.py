"""What the doors of ``tinytorch.compiler`` mean inside a trace.

Stage: capture.  See ``registry`` and ``capture.doors``.  Read next: ``capture.entry``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import tinytorch
from compiler.capture import breaks, doors
from compiler.capture.models.registry import model
from compiler.capture.values.base import ConstantValue, Value
from tinytorch import dtypes, rng
from tinytorch.functions import misc
from tinytorch.functions import random as streams
from tinytorch.nn.backward_hooks import BackwardHooks

if TYPE_CHECKING:
    from compiler.capture.tracer import Tracer


_EMPTY = ConstantValue("")


@model(doors.graph_break)
def graph_break(tx: Tracer, msg: Value = _EMPTY) -> Value:
    breaks.unsupported(breaks.USER_BREAK, str(msg.const()))


@model(doors.set_strict)
def set_strict(tx: Tracer, flag: Value) -> Value:
    before, tx.strict = tx.strict, flag.const()
    return ConstantValue(before)


@model(doors.mark_dynamic, doors.mark_static, doors.disable)
def marked_inside(tx: Tracer, *args: Value, **kwargs: Value) -> Value:
    breaks.unsupported(breaks.SKIPPED_CALL, "a mark made inside compiled code")


@model(doors.set_stance)
def stance_inside(tx: Tracer, *args: Value, **kwargs: Value) -> Value:
    breaks.unsupported(breaks.SKIPPED_CALL, "set_stance inside compiled code")


@model(tinytorch.compile)
def compile_inside(tx: Tracer, *args: Value, **kwargs: Value) -> Value:
    breaks.unsupported(breaks.SKIPPED_CALL, "compile inside compiled code")


@model(
    streams.manual_seed, streams.seed, streams.initial_seed, streams.get_rng_state, streams.set_rng_state,
    rng.Generator.manual_seed, rng.Generator.seed, rng.Generator.initial_seed, rng.Generator.get_state, rng.Generator.set_state,
)
def stream_inside(tx: Tracer, *args: Value, **kwargs: Value) -> Value:
    """A graph draws from where the stream stands when it is called: a program that moves the stream ends the graph."""
    breaks.unsupported(breaks.SKIPPED_CALL, "the place of a random stream")


@model(
    dtypes.set_default_dtype, misc.set_num_threads, misc.get_num_threads, misc.use_deterministic_algorithms,
    misc.are_deterministic_algorithms_enabled, misc.set_float32_matmul_precision, misc.get_float32_matmul_precision,
)
def switch_inside(tx: Tracer, *args: Value, **kwargs: Value) -> Value:
    """Acts on the process, or tells of what no guard asks."""
    breaks.unsupported(breaks.SKIPPED_CALL, "a switch of the library")


@model(BackwardHooks.watch_inputs, BackwardHooks.watch_outputs)
def backward_hooks(tx: Tracer, *args: Value, **kwargs: Value) -> Value:
    breaks.unsupported(breaks.SKIPPED_CALL, "backward hooks of a module")
