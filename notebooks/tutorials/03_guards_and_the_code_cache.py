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
# # 03 Guards and the code cache
#
# A captured graph is a straight line: every question that Python asked on the way was answered once and for all. So the
# graph is right for *some* calls and wrong for others. A **guard** is the test that tells them apart, and a compiled
# function is nothing but a list of pairs, guard and graph.
#
# Files to have open: `compiler/capture/guards.py` (how they are kept and printed), `runtime.py` (the cache), `door.py`
# (what is called), `wrap.py` and, for tensors, `inputs.py` (where most guards come from).
#
# **Predict.** Write down everything that the graph of `model` below will depend on, beside the numbers in `x`.

# %%
import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

import tinytorch as torch
from compiler.capture.entry import captured, compile_function, reset
from compiler.config import Config as CompilerConfig

SCALE = 3.0


def model(x, settings, unused=None):
    y = x * SCALE
    if settings["relu"]:
        y = torch.relu(y)
    return y + len(settings["names"])


def run_as_is(gm, examples):
    """A backend that compiles nothing: the graph is called as it is."""
    return gm


compiled = compile_function(model, run_as_is, dynamic=False)
x = torch.linspace(-1, 1, 4)
print(compiled(x, {"relu": True, "names": ["a", "b"]}))

# %% [markdown]
# **Run.** The guards are one Python function. It gets the arguments and gives what the translated code needs, or None:
# "not me".

# %%
(entry,) = captured(compiled)
print(entry.check_text)

# %% [markdown]
# **Explain.** Each group stands below the line of yours that made it necessary.
#
# - `x`: type, shape, strides, element type, device, whether it requires a gradient. Not one number in it.
# - `SCALE`: a global, read at each call, for anyone may rebind it.
# - `settings["relu"]` by value; `settings["names"]` only by *length*, for that is all the program asked.
# - `unused` is missing, and so is the rest of `settings`: nobody looked. A guard too many costs a recompilation some day.
#
# ## The cache
#
# **Predict.** Seven calls follow. Which compile, which are served, and by which entry?

# %%
calls = [
    ("the same again", (x, {"relu": True, "names": ["c", "d"]})),
    ("relu off", (x, {"relu": False, "names": ["c", "d"]})),
    ("relu on", (x, {"relu": True, "names": ["c", "d"]})),
    ("more keys", (x, {"relu": True, "names": ["c", "d"], "other": 1})),
    ("float64", (x.double(), {"relu": True, "names": ["c", "d"]})),
    ("every second", (torch.linspace(-1, 1, 8)[::2], {"relu": True, "names": ["c", "d"]})),
    ("unused given", (x, {"relu": False, "names": ["c", "d"]}, "anything")),
]


def timeline(compiled, calls):
    """One row per call: ``C`` where it compiled, ``o`` at the entry that served it."""
    for label, args in calls:
        before = len(captured(compiled))
        compiled(*args)
        entries = captured(compiled)
        served = next(i for i, e in enumerate(entries) if e.check(model, *args, *[None] * (3 - len(args))) is not None)
        row = ["C" if i >= before else "o" if i == served else "." for i in range(len(entries))]
        print(f"{label:16} {' '.join(row)}")


timeline(compiled, calls)

# %% [markdown]
# Columns are entries. `1 == True == 1.0` in Python, and `0.0 == -0.0`, but programs can tell them apart, so guards do.
# One more surprise, for those who come from mathematics: NaN is not equal to itself, and must still not recompile for
# ever.


# %%
def scaled(x, k):
    return x * k, str(k)


by_value = compile_function(scaled, run_as_is, dynamic=False)
for k in (1, True, 1.0, 0.0, -0.0, float("nan"), float("nan"), 1):
    before = len(captured(by_value))
    by_value(x, k)
    print(f"{k!r:5} {'compiled' if len(captured(by_value)) > before else 'served'}")
assert len(captured(by_value)) == 6

# %% [markdown]
# ## Break it
#
# A guard that is too strict costs time. One that is too weak costs the answer. Here is a compiler of our own, in ten
# lines, whose guards look at the shape and nothing else. (It leaves the capturing to the house.)


# %%
def weak_compile(fn):
    entries = []

    def call(*args):
        for shapes, graph in entries:
            if shapes == [tuple(a.shape) for a in args if isinstance(a, torch.Tensor)]:
                return graph(*[a for a in args if isinstance(a, torch.Tensor)])[0]
        inner = compile_function(fn, run_as_is, dynamic=False)
        inner(*args)
        shapes = [tuple(a.shape) for a in args if isinstance(a, torch.Tensor)]
        entries.append((shapes, captured(inner)[0].graph_module))
        return call(*args)

    return call


def affine(x, k=2):
    return x * k + SCALE


weak, sound = weak_compile(affine), compile_function(affine, run_as_is, dynamic=False)
for k in (2, 5):
    print(f"k = {k}: eager {affine(x, k).tolist()}, weak {weak(x, k).tolist()}, sound {sound(x, k).tolist()}")
    assert torch.equal(sound(x, k), affine(x, k))
SCALE = -1.0
print(f"global changed: eager {affine(x).tolist()}, weak {weak(x).tolist()}, sound {sound(x).tolist()}")
assert torch.equal(sound(x), affine(x))
SCALE = 3.0

# %% [markdown]
# No error, no warning, a wrong number. That is why a compiler's guards are *sound by default*: what the trace looked at
# is checked, whether it looks likely to change or not.
#
# The kind that is forgotten most easily is about *memory*. `bump` writes to `a` and then reads `b`. Whether `b` has
# changed depends on where the two lie.


# %%
def bump(a, b):
    a.mul_(10)
    return a + b


sound = compile_function(bump, run_as_is, dynamic=False)
apart = sound(torch.ones(3), torch.ones(3))
base = torch.ones(6)
overlapping = sound(base[:3], base[1:4])
same = torch.ones(3)
print(apart.tolist(), overlapping.tolist(), sound(same, same).tolist(), f"{len(captured(sound))} entries")
assert overlapping.tolist() == [20, 20, 11]
print([g.text for g in captured(sound)[0].guards if g.kind in ("MEMORY", "ALIAS")])

# %% [markdown]
# ## Sizes
#
# If every size made an entry of its own, a loop over batches would compile for ever. The second size seen makes the
# dimension a *symbol*, and its guards become what the program said about it. 0 and 1 stay special, since broadcasting
# treats them so.


# %%
def halves(x):
    if x.shape[0] > 100:
        return x[::2]
    return x[: x.shape[0] // 2]


dynamic = compile_function(halves, run_as_is)
for n in (10, 12, 50, 1, 200, 300, 11):
    before = len(captured(dynamic))
    assert torch.equal(dynamic(torch.arange(float(n))), halves(torch.arange(float(n))))
    new = captured(dynamic)[before:]
    print(n, "served" if not new else [g.text for g in new[0].guards if g.kind in ("SHAPE", "SIZE")])

# %% [markdown]
# ## Property test
#
# The claim: *compiled equals eager, whatever is changed between two calls; what was seen before is never compiled again;
# what is not looked at never counts.* The changes are random.


# %%
config = CompilerConfig(recompile_limit=100)


class Config:
    factor, offset, note = 1, 0.0, ""


def configured(x, c, items):
    for i in items:
        x = x * c.factor + i
    return x + c.offset


CHANGES = {
    "factor": [1, True, 2.0], "offset": [0.0, -0.0], "note": ["a", "b", "c"], "items": [(), (1,), (1, 2)],
}  # fmt: skip


@settings(max_examples=25, deadline=None, database=None)
@given(st.lists(st.sampled_from([(k, v) for k, vs in CHANGES.items() for v in vs]), max_size=12))
def guards_are_sound_and_minimal(changes):
    reset()  # entries belong to the code of a function, and every example compiles the same one
    checked = compile_function(configured, run_as_is, dynamic=False, config=config)
    c, items, seen = Config(), (), set()
    for name, value in changes:
        if name == "items":
            items = value
        else:
            setattr(c, name, value)
        got, want = checked(x, c, items), configured(x, c, items)
        assert torch.equal(got, want) and got.dtype is want.dtype
        # Without items, nothing asks for the factor; the note is never asked for.
        seen.add((repr(c.factor) if items else None, repr(c.offset), items, tuple(sorted(vars(c).keys() - {"note"}))))
        assert len(captured(checked)) <= len(seen)


guards_are_sound_and_minimal()
print("25 random histories: right answers, and never more entries than situations")

# %% [markdown]
# **Exercises.** (1) Make `weak_compile` sound for globals. What do you have to know of the trace? (2) With
# `TT_LOGS=recompiles`, every recompilation names the guard that failed and your line. Provoke one for each group above.
# (3) `itertools.count()` as an argument: what can a guard say about it?

# %%
steps = compile_function(lambda x, it: x + next(it), run_as_is)
it = itertools.count(5)
print([steps(x, it)[0].item() for _ in range(3)], "- the answer: that it is the same kind of iterator, and no more")

# %% [markdown]
# **Next:** `04 Graph breaks`, for questions that have no answer while tracing.

# %%
# Optional: the guards that PyTorch makes for the same function.
try:
    import torch as real
    import torch._dynamo as dynamo
except ImportError:
    print("PyTorch is not installed here: nothing to compare with")
else:
    for guard in list(dynamo.explain(affine)(real.ones(2)).out_guards)[:8]:
        print(guard.name, guard.create_fn_name())
