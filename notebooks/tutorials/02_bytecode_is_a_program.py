# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 02 Bytecode is a program you can run
#
# Python does not run your source. It runs a list of small instructions for a machine with a stack, and that list is an
# object you can read like any other. This tutorial reads it, writes the machine in a few lines, and then makes the one
# change that turns a machine into a compiler's front: it runs the program on *stand-ins* and keeps a record.
#
# Files to have open: `compiler/capture/instrs.py` (code objects as lists), `translate.py` (the machine of the house),
# `opcodes/` (one method per instruction), `graphs.py` (the record).
#
# **Predict.** The function below has three operators and one branch. How deep does the stack get? Which instructions
# would you need to run it for `n = 3` on paper?

# %%
import dis
import operator
import sys

from hypothesis import given, settings
from hypothesis import strategies as st

import tinytorch as torch
from compiler.capture.entry import captured, compile_function
from compiler.capture.instrs import assemble, copy_instrs, decode


def f(x, n):
    y = x * 2
    if n > 2:
        y = y + x
    return y - 1


dis.dis(f)

# %% [markdown]
# **Explain.** An instruction takes what it needs from the top of the stack and leaves its result there. `x * 2` pushes
# `x`, pushes `2`, and `BINARY_OP` replaces both by the product. Names live in slots, beside the stack. Two values is as
# deep as it gets here: `co_stacksize` says so, because the frame is allocated before it runs.
#
# What `dis` shows is an encoding: jumps are byte offsets, constants are indices, some entries are only space for the
# interpreter's caches. `decode` gives the same as records: names, constants and *targets*.

# %%
print("deepest stack:", f.__code__.co_stacksize)
for instr in decode(f.__code__).instrs:
    print(instr)

# %% [markdown]
# ## A machine
#
# **Run.** Here is a machine for this much of the language. It is short because there is nothing else to it: a list of
# instructions, a position, a stack, and slots.

# %%
BINARY = {
    "ADD": operator.add, "SUBTRACT": operator.sub, "MULTIPLY": operator.mul, "FLOOR_DIVIDE": operator.floordiv,
    "REMAINDER": operator.mod, "AND": operator.and_, "OR": operator.or_, "XOR": operator.xor,
}  # fmt: skip
COMPARE = {
    "LT": operator.lt, "LE": operator.le, "EQ": operator.eq, "NE": operator.ne, "GT": operator.gt, "GE": operator.ge,
}  # fmt: skip


class Machine:
    """Runs one function; ``show`` prints the stack after each instruction."""

    def __init__(self, fn, *args, show=False):
        self.code = fn.__code__
        self.slots = dict(zip(self.code.co_varnames, args, strict=False))
        self.stack, self.show = [], show

    def run(self):
        instrs, at = decode(self.code).instrs, 0
        while True:
            instr = instrs[at]
            at += 1
            if instr.op.startswith("RETURN"):
                return instr.arg if instr.op == "RETURN_CONST" else self.stack.pop()
            if instr.op.startswith("JUMP_"):
                at = instr.target.index
            elif instr.op.startswith("POP_JUMP_"):
                if self.truth(self.stack.pop()) == ("IF_TRUE" in instr.op):
                    at = instr.target.index
            else:
                self.step(instr)
            if self.show:
                print(f"{instr!r:44} {self.stack}")

    def truth(self, value):
        return bool(value)

    def step(self, instr):
        op, stack = instr.op, self.stack
        if op == "LOAD_CONST":
            stack.append(instr.arg)
        elif op == "LOAD_FAST":
            stack.append(self.slots[instr.arg])
        elif op == "STORE_FAST":
            self.slots[instr.arg] = stack.pop()
        elif op == "LOAD_FAST_LOAD_FAST":  # from 3.13 on: two in one
            stack.extend(self.slots[name] for name in instr.arg)
        elif op == "STORE_FAST_LOAD_FAST":
            self.slots[instr.arg[0]] = stack.pop()
            stack.append(self.slots[instr.arg[1]])
        elif op == "STORE_FAST_STORE_FAST":
            for name in instr.arg:
                self.slots[name] = stack.pop()
        elif op == "BINARY_OP":
            right, left = stack.pop(), stack.pop()
            stack.append(BINARY[instr.arg.name.removeprefix("INPLACE_")](left, right))
        elif op == "COMPARE_OP":
            right, left = stack.pop(), stack.pop()
            stack.append(COMPARE[instr.arg.name.removesuffix("_CAST")](left, right))
        elif op == "UNARY_NEGATIVE":
            stack.append(-stack.pop())
        elif op not in ("RESUME", "NOP", "TO_BOOL"):
            raise NotImplementedError(f"{op}: this machine has no such instruction")


print(Machine(f, 10, 3, show=True).run(), "and Python says", f(10, 3))
assert Machine(f, 10, 3).run() == f(10, 3) and Machine(f, 10, 1).run() == f(10, 1)

# %% [markdown]
# ## From machine to compiler
#
# **Predict.** Nothing in `Machine` says that `x` is a number. What happens if `x` is an object that answers `x * 2` with
# a new object, and writes down that somebody asked?


# %%
class StandIn:
    """Has no value. Every operation on it is a line of the record."""

    record: list = []

    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return self.name

    def _call(self, symbol, other):
        result = StandIn(f"v{len(self.record)}")
        self.record.append(f"{result} = {self} {symbol} {other!r}")
        return result


for method, symbol in (("add", "+"), ("sub", "-"), ("mul", "*"), ("gt", ">")):
    setattr(StandIn, f"__{method}__", lambda self, other, s=symbol: self._call(s, other))


def capture(fn, *args):
    StandIn.record = []
    result = Machine(fn, *args).run()
    return "\n".join([*StandIn.record, f"return {result}"])


print("n = 3:", capture(f, StandIn("x"), 3), "\n\nn = 1:", capture(f, StandIn("x"), 1), sep="\n")

# %% [markdown]
# **Explain.** The record is straight: no branch is left. `n > 2` was a question about a number that the machine *had*, so
# it took one way, and the way it took is only right for such `n`. Two things follow, and the next two tutorials are
# about them: the record must say what it relied on (**guards**), and if the question is about a stand-in, there is no
# answer (**graph break**).

# %%
class Strict(Machine):
    def truth(self, value):
        if isinstance(value, StandIn):
            raise TypeError(f"the way to go depends on {value}, which has no value yet")
        return bool(value)


try:
    Strict(f, 10, StandIn("n")).run()
except TypeError as e:
    print(e)

# %% [markdown]
# ## The machine of the house
#
# `compiler.capture.translate.Frame` is this machine, grown up: every instruction of three Python versions, calls (a
# frame inside), exceptions, generators, containers with their changes. Its stand-ins run once on tensors that have shape
# and type but no numbers, so that `y.shape[0] // 2` is a number it *has*.


# %%
def g(x, scale):
    parts = [x * s for s in range(1, 4) if s != 2]  # a loop, a branch and a list, none of which is tensor work
    total = sum(parts)
    return {"mean": total.mean() * scale, "half": total[: x.shape[0] // 2]}


def show_only(gm, examples):
    """A backend that compiles nothing."""
    return gm


compiled = compile_function(g, show_only, fullgraph=True)
got = compiled(torch.arange(4.0), 10)
(entry,) = captured(compiled)
print(entry.graph_module.code)
assert torch.equal(got["mean"], g(torch.arange(4.0), 10)["mean"])

# %% [markdown]
# The dictionary is not in the graph either. It is rebuilt around it, by *translated code*: what is left of `g` once the
# tensor work has moved out.

# %%
print(entry.run_text)

# %% [markdown]
# ## Break it
#
# **A program you can run is a program you can change.** Below, one instruction of `f` is replaced; `assemble` makes a
# code object of the list again. The compiler does this too: a *resume function* is the original with a jump in front.

# %%
instrs, _ = copy_instrs(decode(f.__code__).instrs)
for instr in instrs:
    if instr.op == "BINARY_OP" and instr.arg.name == "MULTIPLY":
        instr.arg = type(instr.arg).ADD
changed = type(f)(assemble(instrs, f.__code__), globals(), "changed")
print(f"f(10, 3) = {f(10, 3)}, changed(10, 3) = {changed(10, 3)}; the source still says x * 2")

# %% [markdown]
# **And it is a program in a language that changes.** Bytecode is nobody's public interface: each release of CPython
# renames, splits and merges instructions. The same two lines of source:
#
# | `y = a + b` then `if y: ...` | 3.11 | 3.12 | 3.13 |
# |---|---|---|---|
# | load `a`, load `b` | `LOAD_FAST`, `LOAD_FAST` | `LOAD_FAST`, `LOAD_FAST` | `LOAD_FAST_LOAD_FAST` |
# | add | `BINARY_OP` | `BINARY_OP` | `BINARY_OP` |
# | store, load again | `STORE_FAST`, `LOAD_FAST` | `STORE_FAST`, `LOAD_FAST` | `STORE_FAST_LOAD_FAST` |
# | branch | `POP_JUMP_FORWARD_IF_FALSE` | `POP_JUMP_IF_FALSE` | `TO_BOOL`, `POP_JUMP_IF_FALSE` |
# | `return None` | `LOAD_CONST`, `RETURN_VALUE` | `RETURN_CONST` | `RETURN_CONST` |
#
# So a machine needs a rule for what it does not know. Ours is: an instruction is modelled, or refused *by name*. Take one
# away and look.


# %%
def h(a, b):
    y = a + b
    if y:
        return y
    return a[b]


print("here:", sys.version.split()[0], [i.op for i in decode(h.__code__).instrs])
try:
    Machine(h, 0, 0).run()
except NotImplementedError as e:
    print(e)

# %% [markdown]
# ## Property test
#
# The claim: *the machine computes what Python computes, and a code object survives being taken apart.* Programs are
# random: assignments, operators, branches and loops over three names.

# %%
NAMES = st.sampled_from("abc")
EXPRESSION = st.tuples(NAMES, st.sampled_from(["+", "-", "*", "&", "|", "^"]), NAMES | st.integers(-3, 9).map(str))


@st.composite
def programs(draw, depth=0):
    lines = []
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["assign", "if", "while"] if depth < 2 else ["assign"]))
        left, op, right = draw(EXPRESSION)
        if kind == "assign":
            lines.append(f"{draw(NAMES)} = ({left} {op} {right}) % 1009")
            continue
        inner = ["    " + line for line in draw(programs(depth + 1))]
        counter = f"i{depth}"
        if kind == "if":
            lines += [f"if {left} > {right}:", *inner]
        else:
            lines += [f"{counter} = 0", f"while {counter} < 3:", f"    {counter} = {counter} + 1", *inner]
    return lines


@settings(max_examples=60, deadline=None, database=None)
@given(programs(), st.tuples(*[st.integers(-50, 50)] * 3))
def the_machine_is_python(lines, values):
    scope = {}
    exec("def program(a, b, c):\n    " + "\n    ".join([*lines, "return a * 4 + b * 2 + c"]), scope)
    program = scope["program"]
    want = program(*values)
    assert Machine(program, *values).run() == want
    again = type(program)(assemble(decode(program.__code__).instrs, program.__code__), scope, "again")
    assert again(*values) == want


the_machine_is_python()
print("60 random programs: machine, reassembled code and CPython agree")

# %% [markdown]
# **Exercises.** (1) Teach `Machine` to call: `LOAD_GLOBAL`, `PUSH_NULL`, `CALL`. A Python callee is a `Machine` inside.
# (2) Make `StandIn` guess shapes. (3) Read `opcodes/exceptions.py` and find out where a `try` block is written down: it
# is not in the instructions.
#
# **Next:** `03 Guards and the code cache`.

# %%
# Optional: PyTorch reads the same bytecode.
try:
    import torch._dynamo as dynamo
except ImportError:
    print("PyTorch is not installed here: nothing to compare with")
else:
    print(dynamo.explain(lambda x: f(x, 3))(__import__("torch").ones(2)).graphs[0].code)
