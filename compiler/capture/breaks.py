"""The registry of graph breaks: every reason for which a graph can end early.

Stage: capture.  In: an id.  Out: what it means and what to do; the docs' list is printed from here.  Ids are stable:
``TT01xx`` data-dependent programs, ``TT02xx`` calls, ``TT03xx`` Python constructs, ``TT04xx`` values that cannot leave
the trace, ``TT05xx`` limits, ``TT06xx`` asked for by the user.  Read next: ``entry``, which acts on a break.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from compiler.errors import Unsupported


@dataclass(frozen=True)
class Break:
    """One kind of graph break."""

    id: str
    name: str
    explanation: str
    hint: str


REGISTRY: dict[str, Break] = {}


def _row(id: str, name: str, explanation: str, hint: str) -> Break:
    row = Break(id, name, explanation, hint)
    REGISTRY[id] = row
    return row


# --- data-dependent programs ------------------------------------------------------------------------------------------
TENSOR_BRANCH = _row(
    "TT0101",
    "branch on tensor data",
    "The truth of a tensor is known only when the graph has run, so both sides of the branch are compiled apart. On a CPU an "
    "assertion, or another branch of which one side only raises, breaks nothing: the graph raises, and eager says what.",
    "Use torch.where, or decide on shapes and Python values.",
)
SCALAR_OUTPUT = _row(
    "TT0102",
    "tensor value as a Python number",
    "item(), tolist(), int(), float() and numpy() need the value, which is known only when the graph has run.",
    "Keep the value a tensor, or set config.capture_scalar_outputs.",
)
DYNAMIC_OUTPUT = _row(
    "TT0103",
    "shape that depends on data",
    "The size of this result is known only when the graph has run (nonzero, boolean masks, unique).",
    "Use torch.where with a fixed shape.",
)
TENSOR_TEXT = _row(
    "TT0104",
    "text of a tensor",
    "repr, str and format of a tensor show values, which are known only when the graph has run.",
    "Print shapes and dtypes instead, or print outside the compiled function.",
)
LOOKS_AT_VALUES = _row(
    "TT0107",
    "function that looks at values",
    "The function reads elements itself, to check its arguments or to size its result (bincount); a trace has none.",
    "Call it outside of the compiled function, or use one whose result has a known size (one_hot with num_classes, scatter_add).",
)
DATA_ERROR = _row(
    "TT0106",
    "error of a GPU that depends on data, where the program would catch it",
    "A GPU runs behind the host, so an index out of range or a singular matrix shows only when the try block is over.",
    "Check before the call, or catch around the compiled function.",
)
OPAQUE_ITERATOR = _row(
    "TT0105",
    "iterator of unknown rest",
    "An iterator that came from outside (or crossed a break inside a loop) is stepped natively, one graph per body.",
    "Move the call that breaks the graph out of the loop.",
)

# --- calls ------------------------------------------------------------------------------------------------------------
SIDE_EFFECT_CALL = _row(
    "TT0201",
    "call with an effect outside the program",
    "print, input, open and their like act on the world; the act happens between two graphs, in order.",
    "Move it out of the compiled function.",
)
BUILTIN_CALL = _row(
    "TT0202",
    "call of a C function that capture has no model of",
    "What a C function does cannot be read from bytecode; it runs natively between two graphs.",
    "Use a Python or tensor equivalent, or move the call out.",
)
SKIPPED_CALL = _row(
    "TT0203",
    "call of a function that is not to be compiled",
    "The function is disabled, or lies in a module that capture leaves alone.",
    "Remove the disable, or move the call out.",
)
NOT_IN_GRAPH = _row(
    "TT0204",
    "tensor method that cannot be in a graph",
    "The method changes what a tensor is (its history, its hooks, its memory), not what it holds.",
    "Call it outside the compiled function.",
)
RANDOM_STATE = _row(
    "TT0206",
    "Python or NumPy random numbers",
    "A decision with more outcomes than there may be entries, or a call that capture has no model of; it runs natively, so the "
    "stream stays eager's.",
    "Use torch.rand and torch.where, or draw outside and pass the number in.",
)

CUSTOM_FUNCTION = _row(
    "TT0207",
    "autograd.Function that uses more than its arguments",
    "It is one node that the later stages run again, so it may use arguments, constants and functions, but no other state.",
    "Pass what it needs as an argument, and return what it must tell.",
)

# --- Python constructs ------------------------------------------------------------------------------------------------
OPCODE = _row(
    "TT0301",
    "bytecode instruction not modelled",
    "The instruction is known by name and refused: coroutines, annotations of modules, class bodies and their like.",
    "Move the construct out of the compiled function.",
)
ATTRIBUTE = _row(
    "TT0302",
    "attribute that cannot be read symbolically",
    "The attribute comes from C code that capture has no model of.",
    "Read it outside the compiled function.",
)
OPERATION = _row(
    "TT0303",
    "operation not modelled for these types",
    "The operator, conversion or protocol has no symbolic meaning for these operands.",
    "Do it outside the compiled function.",
)
CLASS_BODY = _row(
    "TT0304",
    "class defined inside the function",
    "A class body runs code that makes a new type.",
    "Define the class outside.",
)
UNHASHABLE_KEY = _row(
    "TT0305",
    "key whose hash is not known",
    "Dictionaries and sets need hash and equality of the key while tracing.",
    "Use constants or plain objects as keys.",
)
GENERATOR_TARGET = _row(
    "TT0306",
    "generator or coroutine as compile target",
    "A generator's frame outlives its call, so it runs eager as a whole; generators called inside are inlined.",
    "Compile the function that consumes it.",
)
GENERATOR_BREAK = _row(
    "TT0309",
    "generator alive at a graph break",
    "A generator that has started cannot be rebuilt, so it is stepped in Python from its first step on.",
    "Finish the generator before the break, or make a list of it.",
)
HANDLER_STATE = _row(
    "TT0307",
    "break where the frame cannot be left",
    "The frame holds state that cannot be carried to a resume function here.",
    "Move the breaking call out of this block.",
)
NUMPY_CALL = _row(
    "TT0308",
    "NumPy function without a tensor equivalent",
    "NumPy arrays are traced as tensors; this function has no equivalent.",
    "Use a tensor function, or move the call out.",
)

# --- values that cannot leave the trace -------------------------------------------------------------------------------
RECONSTRUCT = _row(
    "TT0401",
    "value that cannot be rebuilt",
    "A value made inside the trace is needed outside, and there is no Python text that makes it again.",
    "Do not return it or keep it alive across a break.",
)

# --- limits -----------------------------------------------------------------------------------------------------------
TOO_DEEP = _row(
    "TT0501", "calls nested too deep", "Inlining stopped at config.inline_depth.", "Raise the limit, or flatten the calls."
)
TOO_LONG = _row(
    "TT0502",
    "trace too long",
    "Loops over Python values are unrolled; config.unroll_limit instructions were reached.",
    "Shorten the loop, or raise the limit.",
)
INTERNAL = _row(
    "TT0503", "internal error", "Capture failed in a way it should not; the function runs eager.", "Please report it."
)
RECURSIVE_VALUE = _row(
    "TT0504", "endless value", "A container that holds itself cannot be walked.", "Break the cycle before the call."
)

# --- asked for --------------------------------------------------------------------------------------------------------
USER_BREAK = _row("TT0601", "graph_break()", "The program asks for a break here.", "Remove the call.")


def unsupported(row: Break, seen: str = "") -> NoReturn:
    """End the graph here.  ``seen`` says what it was; ``entry`` adds where."""
    raise Unsupported(row.id, f"{row.name}: {seen}" if seen else row.name, row.hint)


_GROUPS = {
    "TT01": "Data-dependent programs", "TT02": "Calls", "TT03": "Python constructs", "TT04": "Values that cannot leave the trace",
    "TT05": "Limits", "TT06": "Asked for",
}  # fmt: skip


def render() -> str:
    """The registry as Markdown, for the docs."""
    lines: list[str] = []
    for prefix, title in _GROUPS.items():
        lines += [f"## {title}", ""]
        for b in REGISTRY.values():
            if b.id.startswith(prefix):
                lines += [f"### {b.id} {b.name}", "", b.explanation, "", f"**What to do.** {b.hint}", ""]
    return "\n".join(lines)
