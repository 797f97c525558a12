"""The one instruction that breaks a graph, as a line of Python that runs it on real objects.

Stage: capture.  In: the instruction and the names of its operands.  Out: statements, and what they leave on the stack.
Some instructions are only made possible (a branch gets a real bool, an unpacking gets a tuple) and run again in the
resume function.  Read next: ``entry``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from compiler.capture.instrs import Instr
from compiler.capture.opcodes.control import FOR_EXIT
from compiler.capture.opcodes.names import NULL_BELOW
from compiler.capture.opcodes.operators import BINARY, COMPARE

NULL = "<null>"
SCOPE = "SCOPE"  # the globals of the function


@dataclass
class Step:
    """``pops`` operands are taken; ``lines`` run; ``push`` (texts or NULL) is what lies there afterwards.

    ``again``: go on at the same instruction.  ``otherwise``: (condition, instruction offset from target, push) of a
    second way out.
    """

    pops: int
    lines: list[str] = field(default_factory=list)
    push: list[str] = field(default_factory=list)
    again: bool = False
    otherwise: tuple[str, list[str], int] | None = None


Spelling = Callable[[Instr, list[str], tuple[str, ...], Any], Step | None]
NATIVE: dict[str, Spelling] = {}


def _spells(*ops: str) -> Callable[[Spelling], Spelling]:
    def register(fn: Spelling) -> Spelling:
        for op in ops:
            NATIVE[op] = fn
        return fn

    return register


def step_for(instr: Instr, stack: list[str], kw_names: tuple[str, ...], constant: Callable[[int], Any]) -> Step | None:
    """How to run ``instr``.  ``stack`` holds texts, top last, ``constant(depth)`` a known operand.  None: cannot."""
    spelling = NATIVE.get(instr.op)
    return None if spelling is None else spelling(instr, stack, kw_names, constant)


# --- calls ------------------------------------------------------------------------------------------------------------
def _callee(lower: str, upper: str) -> tuple[str, list[str]]:
    if lower == NULL:
        return upper, []
    return lower, [] if upper == NULL else [upper]


def _call_step(count: int, names: tuple[str, ...], stack: list[str], extra: int) -> Step:
    operands = stack[-(count + 2 + extra) :]
    fn, first = _callee(operands[0], operands[1])
    args = first + operands[2 : 2 + count]
    split = len(args) - len(names)
    parts = args[:split] + [f"{n}={a}" for n, a in zip(names, args[split:], strict=True)]
    return Step(count + 2 + extra, [f"result = nested({fn})({', '.join(parts)})"], ["result"])


@_spells("CALL")
def _call(instr: Instr, stack: list[str], kw_names: tuple[str, ...], constant: Any) -> Step:
    return _call_step(instr.arg, kw_names, stack, 0)


@_spells("CALL_KW")
def _call_kw(instr: Instr, stack: list[str], kw_names: tuple[str, ...], constant: Any) -> Step:
    return _call_step(instr.arg, constant(1), stack, 1)


@_spells("CALL_FUNCTION_EX")
def _call_ex(instr: Instr, stack: list[str], kw_names: tuple[str, ...], constant: Any) -> Step:
    keywords = instr.arg & 1
    n = 3 + keywords
    operands = stack[-n:]
    fn, _ = _callee(operands[0], operands[1])
    parts = f"*{operands[2]}" + (f", **{operands[3]}" if keywords else "")
    return Step(n, [f"result = nested({fn})({parts})"], ["result"])


# --- attributes and subscripts ----------------------------------------------------------------------------------------
@_spells("LOAD_ATTR")
def _load_attr(instr: Instr, stack: list[str], kw_names: tuple[str, ...], constant: Any) -> Step:
    is_method, name = instr.arg if isinstance(instr.arg, tuple) else (False, instr.arg)
    push = ["result"]
    if is_method:
        push = [NULL, "result"] if NULL_BELOW else ["result", NULL]
    return Step(1, [f"result = {stack[-1]}.{name}"], push)


@_spells("LOAD_METHOD")
def _load_method(instr: Instr, stack: list[str], kw_names: tuple[str, ...], constant: Any) -> Step:
    return Step(1, [f"result = {stack[-1]}.{instr.arg}"], [NULL, "result"])


@_spells("LOAD_SUPER_ATTR")
def _load_super(instr: Instr, stack: list[str], kw_names: tuple[str, ...], constant: Any) -> Step:
    is_method, _, name = instr.arg
    push = ["result"]
    if is_method:
        push = [NULL, "result"] if NULL_BELOW else ["result", NULL]
    return Step(3, [f"result = {stack[-3]}({stack[-2]}, {stack[-1]}).{name}"], push)


@_spells("STORE_ATTR")
def _store_attr(instr: Instr, stack: list[str], kw_names: tuple[str, ...], constant: Any) -> Step:
    return Step(2, [f"{stack[-1]}.{instr.arg} = {stack[-2]}"])


@_spells("DELETE_ATTR")
def _delete_attr(instr: Instr, stack: list[str], kw_names: tuple[str, ...], constant: Any) -> Step:
    return Step(1, [f"del {stack[-1]}.{instr.arg}"])


@_spells("BINARY_SUBSCR")
def _subscr(instr: Instr, stack: list[str], kw_names: tuple[str, ...], constant: Any) -> Step:
    return Step(2, [f"result = {stack[-2]}[{stack[-1]}]"], ["result"])


@_spells("STORE_SUBSCR")
def _store_subscr(instr: Instr, stack: list[str], kw_names: tuple[str, ...], constant: Any) -> Step:
    return Step(3, [f"{stack[-2]}[{stack[-1]}] = {stack[-3]}"])


@_spells("DELETE_SUBSCR")
def _delete_subscr(instr: Instr, stack: list[str], kw_names: tuple[str, ...], constant: Any) -> Step:
    return Step(2, [f"del {stack[-2]}[{stack[-1]}]"])


@_spells("BINARY_SLICE")
def _slice(instr: Instr, stack: list[str], kw_names: tuple[str, ...], constant: Any) -> Step:
    return Step(3, [f"result = {stack[-3]}[{stack[-2]}:{stack[-1]}]"], ["result"])


@_spells("STORE_SLICE")
def _store_slice(instr: Instr, stack: list[str], kw_names: tuple[str, ...], constant: Any) -> Step:
    return Step(4, [f"{stack[-3]}[{stack[-2]}:{stack[-1]}] = {stack[-4]}"])


# --- operators --------------------------------------------------------------------------------------------------------
@_spells("BINARY_OP")
def _binary(instr: Instr, stack: list[str], kw_names: tuple[str, ...], constant: Any) -> Step:
    name = instr.arg.name
    op = BINARY[name.removeprefix("INPLACE_")]
    if name.startswith("INPLACE_"):
        return Step(2, [f"result = {stack[-2]}", f"result {op}= {stack[-1]}"], ["result"])
    return Step(2, [f"result = {stack[-2]} {op} {stack[-1]}"], ["result"])


def _unary(text: str) -> Spelling:
    return lambda instr, stack, kw_names, constant: Step(1, [f"result = {text} {stack[-1]}"], ["result"])


for _op, _text in (("NEGATIVE", "-"), ("POSITIVE", "+"), ("INVERT", "~"), ("NOT", "not")):
    NATIVE[f"UNARY_{_op}"] = _unary(_text)


@_spells("COMPARE_OP")
def _compare(instr: Instr, stack: list[str], kw_names: tuple[str, ...], constant: Any) -> Step:
    name = instr.arg.name
    text = f"{stack[-2]} {COMPARE[name.removesuffix('_CAST')]} {stack[-1]}"
    return Step(2, [f"result = bool({text})" if name.endswith("_CAST") else f"result = {text}"], ["result"])


@_spells("CONTAINS_OP")
def _contains(instr: Instr, stack: list[str], kw_names: tuple[str, ...], constant: Any) -> Step:
    return Step(2, [f"result = {stack[-2]} {'not in' if instr.arg else 'in'} {stack[-1]}"], ["result"])


@_spells("IS_OP")
def _is(instr: Instr, stack: list[str], kw_names: tuple[str, ...], constant: Any) -> Step:
    return Step(2, [f"result = {stack[-2]} {'is not' if instr.arg else 'is'} {stack[-1]}"], ["result"])


@_spells("GET_LEN")
def _len(instr: Instr, stack: list[str], kw_names: tuple[str, ...], constant: Any) -> Step:
    return Step(0, [f"result = len({stack[-1]})"], ["result"])


# --- containers of which a key is not known ----------------------------------------------------------------------------
@_spells("BUILD_SET")
def _build_set(instr: Instr, stack: list[str], kw_names: tuple[str, ...], constant: Any) -> Step:
    return Step(instr.arg, [f"result = {{{', '.join(stack[-instr.arg :])}}}"], ["result"])


@_spells("BUILD_MAP")
def _build_map(instr: Instr, stack: list[str], kw_names: tuple[str, ...], constant: Any) -> Step:
    flat = stack[len(stack) - 2 * instr.arg :]
    pairs = ", ".join(f"{k}: {v}" for k, v in zip(flat[::2], flat[1::2], strict=True))
    return Step(2 * instr.arg, [f"result = {{{pairs}}}"], ["result"])


@_spells("SET_ADD")
def _set_add(instr: Instr, stack: list[str], kw_names: tuple[str, ...], constant: Any) -> Step:
    return Step(1, [f"{stack[-1 - instr.arg]}.add({stack[-1]})"])


@_spells("MAP_ADD")
def _map_add(instr: Instr, stack: list[str], kw_names: tuple[str, ...], constant: Any) -> Step:
    return Step(2, [f"{stack[-2 - instr.arg]}[{stack[-2]}] = {stack[-1]}"])


# --- patterns and exceptions: code of the program's classes runs -------------------------------------------------------
@_spells("MATCH_KEYS")
def _match_keys(instr: Instr, stack: list[str], kw_names: tuple[str, ...], constant: Any) -> Step:
    lines = [
        f"get, found, result = {stack[-2]}.get, [], None",
        f"for key in {stack[-1]}:",
        "    if (value := get(key, END)) is END: break",
        "    found.append(value)",
        "else: result = tuple(found)",
    ]
    return Step(0, lines, ["result"])


@_spells("MATCH_CLASS")
def _match_class(instr: Instr, stack: list[str], kw_names: tuple[str, ...], constant: Any) -> Step:
    subject, cls = stack[-3:-1]
    names = constant(1)
    parts = [f"part{i}" for i in range(instr.arg + len(names))]
    patterns = [*parts[: instr.arg], *(f"{n}={part}" for n, part in zip(names, parts[instr.arg :], strict=True))]
    found = "".join(f"{part}, " for part in parts)
    lines = [
        f"kind = {cls}",
        f"match {subject}:",
        f"    case kind({', '.join(patterns)}): result = ({found})",
        "    case _: result = None",
    ]
    return Step(3, lines, ["result"])


@_spells("RAISE_VARARGS")
def _raise(instr: Instr, stack: list[str], kw_names: tuple[str, ...], constant: Any) -> Step | None:
    """Make an exception of what may be a class of one; it is raised by the same instruction."""
    made = [f"raised{i}" for i in range(instr.arg)]
    lines = [
        f"{name} = {x}() if isinstance({x}, type) and issubclass({x}, BaseException) else {x}"
        for name, x in zip(made, stack[len(stack) - instr.arg :], strict=True)
    ]
    return Step(instr.arg, lines, made, again=True) if made else None


@_spells("CALL_INTRINSIC_1")
def _intrinsic(instr: Instr, stack: list[str], kw_names: tuple[str, ...], constant: Any) -> Step | None:
    return _unary("+")(instr, stack, kw_names, constant) if instr.arg.name == "INTRINSIC_UNARY_POSITIVE" else None


# --- branches and loops -----------------------------------------------------------------------------------------------
@_spells("TO_BOOL")
def _to_bool(instr: Instr, stack: list[str], kw_names: tuple[str, ...], constant: Any) -> Step:
    return Step(1, [f"result = bool({stack[-1]})"], ["result"])


@_spells(
    "POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE", "POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_FORWARD_IF_FALSE",
    "POP_JUMP_BACKWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_FALSE",
)  # fmt: skip
def _branch(instr: Instr, stack: list[str], kw_names: tuple[str, ...], constant: Any) -> Step:
    return Step(1, [f"result = bool({stack[-1]})"], ["result"], again=True)


@_spells("JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP")
def _keep_or_pop(instr: Instr, stack: list[str], kw_names: tuple[str, ...], constant: Any) -> Step:
    jumps = "" if "TRUE" in instr.op else "not "
    return Step(1, [f"condition = {jumps}bool({stack[-1]})"], [], otherwise=("condition", [stack[-1]], 0))


@_spells("GET_ITER")
def _get_iter(instr: Instr, stack: list[str], kw_names: tuple[str, ...], constant: Any) -> Step:
    return Step(1, [f"result = iter({stack[-1]})"], ["result"])


@_spells("FOR_ITER")
def _for_iter(instr: Instr, stack: list[str], kw_names: tuple[str, ...], constant: Any) -> Step:
    it = stack[-1]
    return Step(1, [f"result = next({it}, END)"], [it, "result"], otherwise=("result is END", [], FOR_EXIT))


def _made_known(how: str) -> Spelling:
    """Replace the operand on top by a container of known length, and run the instruction again."""
    return lambda instr, stack, kw_names, constant: Step(1, [f"result = {how}({stack[-1]})"], ["result"], again=True)


for _op, _how in (
    ("UNPACK_SEQUENCE", "tuple"), ("UNPACK_EX", "list"), ("LIST_EXTEND", "list"), ("SET_UPDATE", "list"),
    ("DICT_UPDATE", "dict"), ("DICT_MERGE", "dict"),
):  # fmt: skip
    NATIVE[_op] = _made_known(_how)


# --- text, with, import -----------------------------------------------------------------------------------------------
@_spells("FORMAT_VALUE")
def _format_value(instr: Instr, stack: list[str], kw_names: tuple[str, ...], constant: Any) -> Step:
    flags = int(instr.arg)
    has_spec = bool(flags & 4)
    value, spec = (stack[-2], stack[-1]) if has_spec else (stack[-1], "''")
    convert = {0: "", 1: "str", 2: "repr", 3: "ascii"}[flags & 3]
    return Step(1 + has_spec, [f"result = format({convert}({value}), {spec})"], ["result"])


@_spells("CONVERT_VALUE")
def _convert(instr: Instr, stack: list[str], kw_names: tuple[str, ...], constant: Any) -> Step:
    convert = {1: "str", 2: "repr", 3: "ascii"}[int(instr.arg)]
    return Step(1, [f"result = {convert}({stack[-1]})"], ["result"])


@_spells("FORMAT_SIMPLE")
def _format_simple(instr: Instr, stack: list[str], kw_names: tuple[str, ...], constant: Any) -> Step:
    return Step(1, [f"result = format({stack[-1]})"], ["result"])


@_spells("FORMAT_WITH_SPEC")
def _format_spec(instr: Instr, stack: list[str], kw_names: tuple[str, ...], constant: Any) -> Step:
    return Step(2, [f"result = format({stack[-2]}, {stack[-1]})"], ["result"])


@_spells("BEFORE_WITH")
def _with(instr: Instr, stack: list[str], kw_names: tuple[str, ...], constant: Any) -> Step:
    return Step(1, [f"leave, result = enter({stack[-1]})"], ["leave", "result"])


@_spells("WITH_EXCEPT_START")
def _with_except(instr: Instr, stack: list[str], kw_names: tuple[str, ...], constant: Any) -> Step:
    leave, exc = stack[-4], stack[-1]
    return Step(0, [f"result = {leave}(type({exc}), {exc}, {exc}.__traceback__)"], ["result"])


@_spells("IMPORT_NAME")
def _import(instr: Instr, stack: list[str], kw_names: tuple[str, ...], constant: Any) -> Step:
    text = f"__import__({instr.arg!r}, {SCOPE}, None, {stack[-1]}, {stack[-2]})"
    return Step(2, [f"result = {text}"], ["result"])


@_spells("IMPORT_FROM")
def _import_from(instr: Instr, stack: list[str], kw_names: tuple[str, ...], constant: Any) -> Step:
    return Step(0, [f"result = {stack[-1]}.{instr.arg}"], ["result"])
