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
# # 04 Graph breaks
#
# Sometimes the machine of tutorial 02 meets a question that has no answer while tracing, or a call that must not be
# made then. A graph has to end there. The *program* must not: what came before is compiled, the one instruction runs in
# Python, and the rest of the function becomes a function of its own, which is compiled like any other.
#
# Files to have open: `compiler/capture/breaks.py` (every reason there is), `leave.py` (the last lines before a break),
# `native.py` (the instruction itself), `resume.py` (the rest).
#
# **Predict.** `noisy` prints in the middle. How many graphs? When compiled, what comes first: the print or `log.append`?

# %%
import dis

from hypothesis import given, settings
from hypothesis import strategies as st

import tinytorch as torch
from compiler.capture.breaks import REGISTRY
from compiler.capture.entry import captured_with, compile_function
from compiler.errors import Unsupported


def noisy(x, log):
    y = x * 2
    log.append("doubled")
    print("in the middle, log =", log)
    return y + 1


class Compiled:
    """A compiled function and everything that came of it: resume functions too."""

    def __init__(self, fn, **options):
        def backend(gm, examples):
            return gm

        self.backend = backend
        self.call = compile_function(fn, backend, **options)

    def __call__(self, *args):
        return self.call(*args)

    def entries(self):
        return captured_with(self.backend)

    def graphs(self):
        return [e.graph_module for e in self.entries() if e.graph_module is not None]


compiled = Compiled(noisy)
x, log = torch.ones(3), []
print(compiled(x, log), log)

# %% [markdown]
# ## Three pieces
#
# **Run.** Two entries: `noisy` up to the print, and what follows. Here is the first one's translated code, which is all
# that Python runs of it now.

# %%
first, rest = compiled.entries()
print(first.run_text)
print(first.graph_module.code)

# %% [markdown]
# **Explain.** Four steps, in this order:
#
# 1. the **prefix graph**: all tensor work up to the break;
# 2. the **side effects** up to the break, replayed: `log` is a list of the caller, and tracing must not have touched it;
#    now it is written, once, before the print can see it;
# 3. the **instruction** itself, on real objects;
# 4. a *tail call* of the **resume function**, with what lay on the stack and the variables that are still read.
#
# `log` is not passed on. Nobody reads it below the break.
#
# The resume function is bytecode: the original with a prologue that puts the stack back and jumps into the middle.

# %%
print(rest.name, rest.arguments)
dis.dis(rest.code)

# %%
print(rest.graph_module.code)

# %% [markdown]
# ## A reason, a hint, a line
#
# A break is no secret. Each kind has an id that stays, and each place says which kind it is, why, and what to do.

# %%
print(first.breaks[0])
print(f"\n{len(REGISTRY)} kinds are known; those about data:")
for row in REGISTRY.values():
    if row.id.startswith("TT01"):
        print(f"  {row.id} {row.name}: {row.explanation}")

# %% [markdown]
# Where a break would cost too much, ask for an error instead:

# %%
try:
    Compiled(noisy, fullgraph=True)(x, [])
except Unsupported as e:
    print(str(e).splitlines()[0])

# %% [markdown]
# ## A branch on data
#
# **Predict.** `step` asks for the truth of a tensor. How many entries after one call with positive numbers? After a
# second call with negative ones?


# %%
def step(x):
    total = x.sum()
    if total > 0:
        return x / total
    return x - total


branch = Compiled(step)
for sign in (1, 1, -1, -1):
    assert torch.equal(branch(sign * torch.ones(4)), step(sign * torch.ones(4)))
    print(f"sign {sign:+}: {[e.name.split(' ')[0] for e in branch.entries()]}")

# %% [markdown]
# **Explain.** The prefix ends with the comparison. `bool` of its result is the native instruction, and the resume
# function begins *at the branch*, with the bool as an ordinary argument: guarded by value, like any other bool. So each
# side is compiled when it is first needed, and never if it is not.

# %%
for entry in branch.entries()[1:]:
    print(next(g.text for g in entry.guards if "stack_0" in g.text), "->", [n.name for n in entry.graph_module.graph.nodes if n.op.startswith("call")])

# %% [markdown]
# ## Break it: inside a loop
#
# **Predict.** Ten turns of a loop whose body calls something that must not be compiled. How many graphs: 1, 2, 10, 11?


# %%
@torch.compiler.disable
def note(x):
    seen.append(x.sum().item())


def looped(x, n):
    for _ in range(n):
        x = x + 1
        note(x)
        x = x / 2
    return x


seen: list = []
loop = Compiled(looped)
assert torch.equal(loop(torch.zeros(2), 10), looped(torch.zeros(2), 10))
assert seen[:10] == seen[10:]
print([e.name for e in loop.entries()], f"{len(loop.graphs())} graphs")
loop(torch.zeros(2), 10_000)
print(f"after 10,000 turns more: {len(loop.graphs())} graphs, and the stack is no deeper: a tail call returns first")

# %% [markdown]
# From one break to the next, the code is the same each time round: the loop's iterator is passed on as a real iterator,
# stepped in Python. Some compilers leave a function with such a loop alone altogether.
#
# ## Break it: inside `with`
#
# The graph break below stands where gradients are off. Three things could go wrong: gradients on during the print, on
# after it, or off for ever.


# %%
def careful(x):
    with torch.no_grad():
        y = x * 2
        print("    inside:", torch.is_grad_enabled(), y.requires_grad)
        z = y * 3
    return z.requires_grad, (x * 2).requires_grad, torch.is_grad_enabled()


guarded = Compiled(careful)
w = torch.ones(2, requires_grad=True)
print(guarded(w))
assert guarded(w) == careful(w) == (False, True, True)


def explodes(x):
    with torch.no_grad():
        print("    about to raise")
        return (x * 2).view(5, 5)


try:
    Compiled(explodes)(w)
except RuntimeError as e:
    print("raised:", e, "| gradients are", "on" if torch.is_grad_enabled() else "off")

# %% [markdown]
# The block was entered before the break and is left after it, in another function. That works because a resume function
# keeps the *exception table* of the original: `__exit__` lies on the stack like any other value, is passed along, and the
# table says where it is called.
#
# ## Break it: in a callee
#
# A break two calls down: the outer function cannot stop in the middle of an inner one. It breaks at the call, and the
# callee, called in Python, is compiled by itself.


# %%
def inner(x):
    x = torch.sin(x)
    torch.compiler.graph_break()
    return torch.cos(x)


def outer(x):
    return inner(x + 1) - 1


nested = Compiled(outer)
assert torch.equal(nested(x), outer(x))
print([e.name for e in nested.entries()])
print([b.reason for e in nested.entries() for b in e.breaks])

# %% [markdown]
# ## Property test
#
# The claim: *wherever a graph ends, nothing changes but the number of graphs.* Programs are random lines with a log; then
# breaks are put in at random places, under loops and blocks, and the result, the log and the gradients must stay.

# %%
LINES = [
    "x = x * 2", "x = torch.sin(x)", "log.append(x.shape[0])", "log.append(round(x.sum().item(), 3))", "n = n + 1",
    "x = x + n", "x = x - w", "log = log + [n]", "box['x'] = x",
]  # fmt: skip
BLOCKS = ["for i in range(3):", "with torch.no_grad():", "if n % 2:", "if x.sum() > 0:", "try:"]


@st.composite
def bodies(draw, depth=0):
    lines = []
    for _ in range(draw(st.integers(1, 3))):
        if depth < 2 and draw(st.integers(0, 2)) == 0:
            block = draw(st.sampled_from(BLOCKS))
            lines += [block, *("    " + line for line in draw(bodies(depth + 1)))]
            lines += ["finally:", "    n = n + 5"] if block == "try:" else []
        else:
            lines.append(draw(st.sampled_from(LINES)))
        if draw(st.booleans()):
            lines.append("torch.compiler.graph_break()")
    return lines


@settings(max_examples=20, deadline=None, database=None)
@given(bodies())
def breaks_change_nothing(lines):
    scope = {"torch": torch}
    head = "def program(x, w, log, box):\n    n = 0\n    "
    exec(head + "\n    ".join([*lines, "return x, n, log, box"]), scope)

    def outcome(fn):
        w = torch.full((3,), 0.5, requires_grad=True)
        given, box = [], {}
        x, n, log, _ = fn(torch.tensor([0.5, -1.0, 2.0]), w, given, box)
        if x.requires_grad:
            x.sum().backward()
        grad = None if w.grad is None else w.grad.tolist()
        return x.tolist(), n, log, given, list(box), [v.tolist() for v in box.values()], grad

    assert outcome(Compiled(scope["program"])) == outcome(scope["program"])


breaks_change_nothing()
print("20 random programs with breaks anywhere: results, logs, dictionaries and gradients as in eager")

# %% [markdown]
# **Exercises.** (1) Rewrite `step` with `torch.where` so that `fullgraph=True` accepts it. What is computed now that was
# not before? (2) `docs/graph_breaks.md` lists all kinds. Choose three and provoke them. (3) A generator that has started
# cannot be passed on. Why not, when a range iterator can?
#
# **Next:** `05 The graph IR`, and what happens to a graph once it is there.

# %%
# Optional: the same function under PyTorch.
try:
    import torch as real
    import torch._dynamo as dynamo
except ImportError:
    print("PyTorch is not installed here: nothing to compare with")
else:
    told = dynamo.explain(noisy)(real.ones(3), [])
    print(told.graph_count, "graphs,", told.graph_break_count, "break")
