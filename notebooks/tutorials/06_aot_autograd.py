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
# # 06 AOT autograd
#
# Eager autograd finds the backward *while the program runs*: each operation leaves a node on the tape, and
# `loss.backward()` walks the nodes. A compiler wants the backward *before* anything runs, as a graph it can fuse and
# plan. This tutorial shows the trick by which ours gets it: **run the ordinary tape on tensors that have no values, and
# write down every operation it performs.** There is no second implementation of any derivative.
#
# Files to have open: `compiler/aot/trace.py` (the recorder), `joint.py`, `scatter.py`, `runtime.py`.
#
# **Predict.** `y = tanh(x @ w)`. The forward has two operations. How many has the backward, if `x` needs no gradient?

# %%
import inspect

import numpy as np

import tinytorch as torch
from compiler.aot import runtime
from compiler.aot.autograd import aot_autograd, save_everything
from compiler.aot.joint import trace, trace_joint
from compiler.fake import fake_tensor
from tinytorch import ops


def layer(x, w):
    return torch.tanh(x @ w)


x, w = torch.randn(4, 3), torch.randn(3, 2, requires_grad=True)
joint = trace_joint(layer, [x, w])
print(joint.module.code)

# %% [markdown]
# Five more: `1 - y * y`, its product with the incoming gradient (`tangents_0`), and `x` transposed times that. Nothing for
# `x`, which needs no gradient: the tape dropped that rule, and what nobody reads is removed from the graph.
#
# This is the **joint graph**. Its inputs are the *primals* (inputs of your function) and the *tangents* (gradients of its
# results); its outputs are the results and the gradients of the primals. In the picture, forward and backward have a
# colour each: everything that depends on a tangent is backward.

# %%
joint.module.show()

# %% [markdown]
# ## How it is done
#
# Every operator of tinytorch goes through one function, `dispatch.call`, and that function asks the current *interpreter*
# to compute. An interpreter has three methods: `run` an operator, `write` into a tensor, `draw` random numbers. Eager is
# "no interpreter". A tracer is an interpreter that answers with a **fake tensor** (shape, strides and type, no elements)
# and adds a node to a graph. Here is one in a dozen lines:

# %%
from compiler.fake import FakeInterp  # noqa: E402
from tinytorch import dispatch, dtypes  # noqa: E402


class Recorder(FakeInterp):
    """Answers like the fake interpreter, and keeps a list of what it was asked."""

    def __init__(self):
        super().__init__()
        self.lines = []
        self.names = {}
        self.kept = []  # so that no two tensors get the same id

    def name(self, t):
        return self.names.setdefault(id(t._data), f"v{len(self.names)}") if isinstance(t, torch.Tensor) else repr(t)

    def run(self, op, args, params):
        operands = [self.name(a) for a in args] + [f"{k}={v}" for k, v in params.items()]
        out = super().run(op, args, params)
        self.kept.append(out)
        self.lines.append(f"{self.name(out)} = {op}({', '.join(operands)})")
        return out


fx = fake_tensor((4, 3), dtypes.float32)
fw = fake_tensor((3, 2), dtypes.float32, requires_grad=True)
recorder = Recorder()
with dispatch.use(recorder):
    y = layer(fx, fw)
    recorder.lines.append("# --- and now the tape, unchanged, on fakes ---")
    y.backward(fake_tensor((4, 2), dtypes.float32))
print("\n".join(recorder.lines))
print("gradient of w:", fw.grad._data)

# %% [markdown]
# The tape never noticed. A vjp rule is written once, in operators of the table, and serves eager (on arrays) and the
# compiler (on fakes):

# %%
print(inspect.getsource(ops.tanh.vjp))

# %% [markdown]
# **Question.** The rule mentions `out`, the result of the forward. Which node of the joint graph is that, and what would
# the graph look like if the rule were written with `x` instead?
#
# ## Writes become values
#
# The joint graph is **functional**: no node changes a tensor. But programs do. While tracing, every block of memory has a
# *current value* (a node), and a view is a path from the block: `x[1:]` is "slice 1:, of that block". A write computes the
# block's next value; views that are older than the block are looked up again when they are next used.

# %%


def program(x):
    y = x.clone()
    tail = y[1:]
    y.mul_(10)  # tail sees this,
    tail.add_(1)  # and y sees that
    return y + 0, tail * 1


print(trace(program, [torch.arange(4).float()]).code)
print(program(torch.arange(4).float()))

# %% [markdown]
# `slice_scatter(x, src)` is "`x` with `src` laid over a slice": the write as a function.
#
# Writes to *inputs* must reach the caller. They become further outputs of the graph, copied over the inputs when the call
# ends, and views of inputs that the program returns are made again by eager from the real input, so that they share its
# memory. All of this is in one generated function; here is everything that happens when a compiled function is called:

# %%


def update(total, x, w):
    total.add_(x.sum(0))
    return total[:2], torch.tanh(x @ w)


total = torch.zeros(3)
shown = []


def compiler(gm, examples):
    """A compiler of functional graphs that compiles nothing, but keeps what it was given."""
    shown.append(gm)
    return gm


compiled = aot_autograd(compiler, partition_fn=save_everything)(update, [total, x, w])
print(compiled.source)

# %%
first_two, y = compiled(total, x, w)
assert np.allclose(total.numpy(), x.numpy().sum(0), rtol=1e-5)
assert np.shares_memory(first_two.numpy(), total.numpy())
print(y.grad_fn, "- one node on the tape for the whole function")
y.sum().backward()
print(w.grad)

# %% [markdown]
# ## Two graphs
#
# The joint graph is split into a forward, which also returns what must be kept, and a backward, which takes that and the
# tangents. *Which* values to keep is tutorial 07; the simplest answer keeps everything the backward reads.

# %%
for gm in shown:
    print(gm.code)

# %% [markdown]
# ## Facts that must survive
#
# A compiled function is a citizen of the tape. What eager users rely on is kept, each by one line somewhere:
#
# | fact | how |
# |---|---|
# | a parameter that the loss never used keeps `grad is None` | gradients know which tangents they depend on |
# | writing a saved tensor before backward raises | saved inputs are kept with their version counter |
# | `backward()` twice needs `retain_graph=True` | the node drops what it saved |
# | dropout draws eager's mask, and backward draws it *again* | each draw is a function of a seed and a place in a stream |
# | second derivatives | the gradient part of the joint graph is itself a program: trace it again |

# %%
cube = aot_autograd(compiler)(lambda x: ((x**3).sum(),), [torch.ones(3, requires_grad=True)])
x3 = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
(value,) = cube(x3)
(slope,) = torch.autograd.grad(value, x3, create_graph=True)
(curvature,) = torch.autograd.grad(slope.sum(), x3)
print(slope.detach().numpy(), curvature.numpy())
assert np.allclose(curvature.numpy(), 6 * x3.detach().numpy())

# %% [markdown]
# ## Break it
#
# 1. Ask for the gradient of an integer. Eager refuses at `requires_grad_`, so the compiler never sees it:

# %%
try:
    torch.arange(3).requires_grad_()
except RuntimeError as e:
    print("eager:", e)

# %% [markdown]
# But an integer may stand *between* floats. Predict the gradient of this function, then look at its joint graph:

# %%
through_int = trace_joint(lambda x: (x * 2).to(torch.int32).to(torch.float32) * x, [torch.ones(3, requires_grad=True)])
print(through_int.module.code)

# %% [markdown]
# No path leads back through the cast: only the right factor `* x` has a gradient. Integers have no tangent, and a rule that
# gives None cuts the path.
#
# 2. Need a value while tracing. A fake has none, so this cannot be traced; capture (tutorial 04) breaks the graph there:

# %%
try:
    trace(lambda x: x * 2 if x.sum() > 0 else x, [torch.ones(3)])
except Exception as e:
    print(type(e).__name__, "-", str(e).splitlines()[0])

# %% [markdown]
# 3. Write to something that backward needs. Eager raises *in backward*; a compiler must not raise earlier, nor later:

# %%


def spoiled(x):
    y = x.exp()
    z = y * 2
    y.add_(1)  # exp wants its result back
    return (z + y,)


x4 = torch.ones(3, requires_grad=True)
(out,) = aot_autograd(compiler)(spoiled, [x4])(x4)
print("forward:", out.detach().numpy())
try:
    out.sum().backward()
except RuntimeError as e:
    print("backward:", str(e)[:86], "...")

# %% [markdown]
# ## A property to test
#
# Compiled equals eager, on programs nobody wrote: random chains of views and in-place operations, checked for values and
# for *who shares memory with whom*. The real test (`tests/test_aot_aliasing.py`) also compares version counters, strides,
# identities and gradients. Here is its core:

# %%


def random_program(rng):
    """A function of one tensor: a few random steps over the values so far."""
    steps = [(rng.choice(["slice", "t", "mul_", "add", "clone"]), int(rng.integers(0, 9))) for _ in range(6)]

    def run(x):
        values = [x]
        for kind, which in steps:
            v = values[which % len(values)]
            if kind == "slice":
                values.append(v[1:] if v.shape[0] > 1 else v)
            elif kind == "t":
                values.append(v.t())
            elif kind == "mul_":
                v.mul_(1.5)
            elif kind == "add":
                values.append(v + 1)
            else:
                values.append(v.clone())
        return tuple(values[-2:])

    return run


rng = np.random.default_rng(0)
for _ in range(60):
    f = random_program(rng)
    a, b = torch.arange(12).float().view(3, 4), torch.arange(12).float().view(3, 4)
    want, got = f(a), aot_autograd(compiler)(f, [b])(b)
    assert np.array_equal(a.numpy(), b.numpy()), "the input was written as eager writes it"
    for p, q in zip(want, got, strict=True):
        assert np.array_equal(p.numpy(), q.numpy())
        assert np.shares_memory(p.numpy(), a.numpy()) == np.shares_memory(q.numpy(), b.numpy())
print("60 random programs: same values, same memory")

# %% [markdown]
# ## To go on
#
# - Print `compiled.source` for a function with `F.dropout` and find the seed.
# - `aot_autograd(fw_compiler, bw_compiler)` is all you need for a backend of your own: give it to
#   `torch.compile(model, backend=...)` and your compilers receive graphs of rows, forward and backward.
# - Next: 07, which decides what the forward keeps.

# %%
print(runtime.__doc__)
