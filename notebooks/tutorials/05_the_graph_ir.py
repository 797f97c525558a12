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
# # 05 The graph IR
#
# Between your Python function and a fused kernel stands a `Graph`: a list of calls in order, each with a name, that
# knows who uses what. This tutorial takes one apart. You will read a graph, run it three ways, edit it as text, rewrite
# it with rules, watch in-place updates turn into pure functions, and break it on purpose.
#
# Files to have open: `compiler/ir/graph.py` (the data structure), `printer.py`, `interp.py`, `verify.py`, `rewrite.py`.
#
# **Predict.** The function below multiplies twice and adds twice. `a * b` and `b * a` are both there. How many
# multiplications will the finished graph hold?

# %%
import numpy as np

import tinytorch as torch
from compiler.aot.joint import trace
from compiler.errors import VerifyError
from compiler.fake import fake_tensor, propagate
from compiler.ir import GraphModule, Interpreter, parse, record, rule, run_passes, same, verify
from tinytorch import ops


def f(a, b):
    unused = a * 3  # noqa: F841 - to be eliminated
    left = a * b + 1
    right = a * b + 2
    return (left * right).sum(dim=0)


a, b = torch.rand(4, 3), torch.rand(4, 3)
gm = trace(f, [a, b])
print(gm.code)

# %% [markdown]
# Two: one `a * b` (the second was the *same call on the same arguments*, so common subexpression elimination merged
# them), and the last product. `unused` is gone: nobody read it and it has no effect, so dead code elimination took it.
# `b * a` would have stayed: the pass compares calls, it knows no algebra.
#
# What you see is Python. Every line calls one *row* of the operator table (`tinytorch/ops`); behind `#` stands what is
# known of the value: its element type and shape, found without computing anything.
#
# ## A node
#
# Each line is a `Node`. It knows its operands (`args`, `kwargs`) and its readers (`users`); editing keeps both right.

# %%
product = gm.graph.find_nodes(op="call_function", target=ops.mul)[0]
print("name    ", product.name)
print("op      ", product.op)
print("target  ", product.target)
print("args    ", product.args)
print("users   ", list(product.users))
print("value   ", product.meta["val"]._data)

# %% [markdown]
# The picture. In a terminal each value that is still wanted is a lane at the left: `o` starts it, `*` reads it, `+` reads
# it for the last time, `@` does so and starts the next value in the same lane. Count the lanes and you have the number
# of arrays alive at that moment. In a notebook the same object is an image.

# %%
picture = gm.show()
print(picture)

# %%
picture  # noqa: B018 - displayed

# %% [markdown]
# ## What a graph means
#
# There are three ways to run it: call the module (it executes its own printed text), interpret it node by node, or read
# the text, edit it, and parse it back. The interpreter is the definition; everything else is tested against it.

# %%
want = f(a, b).numpy()
assert np.array_equal(gm(a, b)[0].numpy(), want)
assert np.array_equal(Interpreter(gm).run(a, b)[0].numpy(), want)

text = gm.code.replace("ops.add(mul_1, 2)", "ops.add(mul_1, 20)")
assert text != gm.code
edited = GraphModule(gm.attributes, parse(text))
print("edited:", edited(a, b)[0].numpy())
print("first difference:", same(edited.graph, gm.graph))

# %% [markdown]
# An interpreter is also a tool: override one method and it computes something else. Here, the most memory that is alive
# at once.

# %%


class Peak(Interpreter):
    """Runs the graph and remembers the largest total of live arrays."""

    peak = 0

    def run_node(self, node):
        out = super().run_node(node)
        alive = sum(v._data.nbytes for v in self.env.values()) + out._data.nbytes
        self.peak = max(self.peak, alive)
        return out


meter = Peak(gm)
meter.run(a, b)
print("peak bytes:", meter.peak)

# %% [markdown]
# ## Rewriting
#
# A rule is two functions of the same arguments: what to find, what to put. Both are run once on proxies that write down
# what is done to them (`record`), so a rule is itself a pair of small graphs. Here: `exp(x) * exp(y)` is `exp(x + y)`,
# one transcendental function less.

# %%
merge_exponentials = rule(
    "merge_exponentials",
    lambda x, y: ops.mul(ops.exp(x), ops.exp(y)),
    lambda x, y: ops.exp(ops.add(x, y)),
)
softer = trace(lambda x, y: torch.exp(x) * torch.exp(y) - 1, [a, b])
print(run_passes(softer, [merge_exponentials]))
propagate(softer.graph)  # types for the new nodes
print(softer.code)

# %% [markdown]
# **Question.** Is this rule right? In real numbers, yes. Try `x = 200, y = -200` in float32: `exp(200)` overflows to
# infinity, and `inf * 0` is NaN, while the rewritten graph says 1. More accurate, but *not equal*. That is why this
# compiler does not contain the rule: its contract is to compute what eager computes.

# %%
big = torch.full((1,), 200.0)
print("as written:", (torch.exp(big) * torch.exp(-big)).numpy(), " rewritten:", torch.exp(big + -big).numpy())

# %% [markdown]
# ## In-place updates disappear
#
# The later stages want *functions*: no value ever changes. So the tracer keeps, for each piece of memory, the node that
# holds its current value, and a write makes a new node. A write through a view becomes a scatter into the base.
#
# **Predict** what `y` is in the end, then read the graph: which node is `y` at `return`?

# %%


def in_place(x):
    y = x + 1
    head, tail = y[:2], y[1:]  # two views that overlap in y[1]
    head.mul_(10)
    tail.add_(5)
    return y.clone(), head.sum()


pure = trace(in_place, [torch.arange(4.0)])
print(pure.code)
print(in_place(torch.arange(4.0))[0].numpy(), pure(torch.arange(4.0))[0].numpy())

# %% [markdown]
# `head.sum()` was computed after `tail.add_(5)`, and the two overlap: the graph must read the *new* value of the shared
# element. It does, because a view is not remembered as a value but as "this slice of whatever the base holds now".
#
# ## Break it
#
# Four ways to damage a graph, and what `verify` says about each. It prints the lines around the offender.

# %%
def use_before_definition(gm):
    nodes = list(gm.graph.nodes)
    nodes[-2].append(nodes[2])


def wrong_shape(gm):
    gm.graph.nodes[2].meta["val"] = fake_tensor((7, 7), torch.float32)


def same_name_twice(gm):
    gm.graph.nodes[3].name = gm.graph.nodes[2].name


def forgotten_user(gm):
    gm.graph.nodes[2].users.clear()


for damage in (use_before_definition, wrong_shape, same_name_twice, forgotten_user):
    victim = gm.copy()
    damage(victim)
    try:
        verify(victim, level=1)
    except VerifyError as e:
        print(f"{damage.__name__}: {str(e).splitlines()[0]}")

# %% [markdown]
# And one that `verify` cannot see, because the graph is perfectly well formed: a rule that is wrong for one value.

# %%
drop_zero = rule("drop_zero", lambda x: ops.add(x, 0.0), lambda x: x)
zero = trace(lambda x: 1.0 / (x + 0.0), [torch.zeros(1)])
before = zero(torch.tensor([-0.0]))[0].numpy()
print("matches:", run_passes(zero, [drop_zero]))
print("before:", before, " after:", zero(torch.tensor([-0.0]))[0].numpy())

# %% [markdown]
# `-0.0 + 0.0` is `+0.0`, so adding zero is *not* nothing. (Adding `-0.0` is.)
#
# ## Property test
#
# The honest way to trust a pass: random programs, before and after, bit for bit.

# %%
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

UNARY = [ops.neg, ops.abs, ops.exp, ops.square]
BINARY = [ops.add, ops.sub, ops.mul]
negate_twice = rule("negate_twice", lambda x: ops.neg(ops.neg(x)), lambda x: x)


@st.composite
def programs(draw):
    steps = draw(st.lists(st.tuples(st.sampled_from(UNARY + BINARY), st.integers(0, 9), st.integers(0, 9)), max_size=8))

    def program(x, y):
        values = [x, y]
        for op, i, j in steps:
            operands = (values[i % len(values)], values[j % len(values)])
            values.append(op(*operands) if op in BINARY else op(operands[0]))
        return values[-1]

    return program


@settings(deadline=None, max_examples=100, database=None)
@given(programs())
def the_rule_changes_no_bit(program):
    graph = GraphModule({}, record(program))
    x, y = torch.tensor([0.0, -0.0, 1.5, float("inf")]), torch.tensor([float("nan"), 2.0, -3.0, 0.0])
    want = graph(x, y).numpy().tobytes()
    run_passes(graph, [negate_twice])
    verify(graph, level=2)
    assert graph(x, y).numpy().tobytes() == want


the_rule_changes_no_bit()
print("100 random programs, no bit changed")

# %% [markdown]
# **Exercise.** Replace `negate_twice` by a rule that turns `x - y` into `x + (-y)`, then by one that turns `x + x` into
# `2 * x`, then by one that turns `x * 0` into `0`. Which survive? Explain the counterexample of the one that does not.
#
# ## Beside PyTorch
#
# The names are those of `torch.fx`. If you have PyTorch, print the same function there.

# %%
try:
    import torch.fx as fx
except ImportError:
    print("PyTorch is not installed: nothing to compare with")
else:
    print(fx.symbolic_trace(f).code)
