"""The graph IR: editing, printing and parsing, running, verifying, rewriting."""

import operator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tinytorch as torch
from compiler.config import config
from compiler.errors import VerifyError
from compiler.fake import fake_like, fake_tensor, propagate
from compiler.ir import Graph, GraphModule, Interpreter, Pass, parse, record, rule, run_passes, same, verify
from compiler.ir.graph import Namespace
from compiler.ir.meta import describe
from compiler.ir.printer import source, tabular
from compiler.sym.env import ShapeEnv
from tinytorch import ops


def tensor(a):
    return torch.Tensor._wrap(np.asarray(a, np.float32), torch.device("cpu"))


def module(fn, *examples):
    gm = GraphModule({}, record(fn))
    for p, e in zip(gm.graph.placeholders, examples, strict=False):
        p.meta["val"] = fake_like(e)
    propagate(gm.graph)
    return gm


def example(x, y):
    a = ops.add(x, y)
    b = ops.exp(a)
    return (ops.sum(b, dim=(0,), keepdim=False), ops.mul(b, 2.0))


X, Y = tensor(np.arange(6).reshape(2, 3)), tensor([1, 2, 3])


# --- editing ----------------------------------------------------------------------------------------------------------
def test_use_lists_follow_every_edit():
    g = record(example)
    add, exp = g.find_nodes(op="call_function", target=ops.add)[0], g.find_nodes(op="call_function", target=ops.exp)[0]
    assert add.all_input_nodes == g.placeholders and list(add.users) == [exp]
    with g.inserting_after(add):
        twice = g.call_function(ops.mul, (add, 2))
    exp.replace_input_with(add, twice)
    assert list(add.users) == [twice] and exp.args == (twice,)
    assert [n.name for n in g.nodes][:4] == ["x", "y", "add", "mul_1"]
    assert add < exp and not exp < add
    with pytest.raises(RuntimeError, match="still used by exp"):
        g.erase_node(twice)
    twice.replace_all_uses_with(add)
    g.erase_node(twice)
    g.lint()
    assert same(g, record(example)) is None


def test_single_operands_are_replaced():
    gm = module(example, X, Y)
    x, y, add, exp, total, *_ = gm.graph.nodes
    assert exp.prev is add and add.prev is y
    exp.update_arg(0, x)
    total.update_kwarg("keepdim", True)
    assert exp.args == (x,) and exp in x.users and exp not in add.users
    assert total.kwargs == {"dim": (0,), "keepdim": True}


def test_nodes_may_be_erased_and_inserted_while_iterating():
    g = record(lambda x: ops.exp(ops.exp(ops.exp(x))))
    for n in g.nodes:
        if n.target is ops.exp:
            with g.inserting_before(n):
                new = g.call_function(ops.log, n.args)
            n.replace_all_uses_with(new)
            g.erase_node(n)
    g.lint()
    assert [n.target for n in g.nodes if n.op == "call_function"] == [ops.log] * 3


def test_dead_code_goes_and_effects_stay():
    g = Graph()
    x = g.placeholder("x")
    g.call_function(ops.exp, (g.call_function(ops.exp, (x,)),))
    g.call_method("add_", (x, 1))
    marked = g.call_function(ops.log, (x,))
    marked.meta["impure"] = True
    g.output(x)
    assert g.eliminate_dead_code() and not g.eliminate_dead_code()
    assert [n.name for n in g.nodes] == ["x", "add", "log", "output"]


def test_copying_keeps_names_and_meta():
    gm = module(example, X, Y)
    new = gm.copy()
    assert same(new.graph, gm.graph) is None
    assert describe(new.graph.nodes[2].meta["val"]) == "float32[2, 3]"
    assert not set(new.graph.nodes) & set(gm.graph.nodes)
    with pytest.raises(ValueError, match="another graph"):
        gm.graph.call_function(ops.exp, (new.graph.nodes[0],))


def test_names_are_stable_and_valid():
    names = Namespace()
    asked = ["add", "add", "add_1", "for", "1x", "sum", "a.b", "", "ops", "add"]
    got = [names.create_name(n) for n in asked]
    assert got == ["add", "add_1", "add_2", "for_1", "_1x", "sum_1", "a_b", "_unnamed", "ops_1", "add_3"]


# --- printing and parsing ---------------------------------------------------------------------------------------------
def test_printed_program():
    gm = module(example, X, Y)
    gm.graph.nodes[2].meta["stack"] = [("/home/me/model.py", 7, "forward", "    h = x +  y\n")]
    assert gm.code == (
        "def forward(\n"
        "    self,\n"
        "    x,  # float32[2, 3]\n"
        "    y,  # float32[3]\n"
        "):\n"
        "\n"
        "    # model.py:7 in forward: h = x + y\n"
        "    add = ops.add(x, y)  # float32[2, 3]\n"
        "    exp = ops.exp(add)  # float32[2, 3]\n"
        "    sum_1 = ops.sum(exp, dim=(0,), keepdim=False)  # float32[3]\n"
        "    mul = ops.mul(exp, 2.0)  # float32[2, 3]\n"
        "    return (sum_1, mul)\n"
    )
    assert same(parse(gm.code), gm.graph) is None


def my_function(x):
    return x


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, y: (x + 1) * (2 - x) @ y // 3 % -4.5,
        lambda x, y: -x**2 + ~y & (x | 1) ^ (y << 2) >> 1,
        lambda x, y: (x < y, x <= 1, x == y, x != 2),
        lambda x, y: x[0, ..., None, 1:, :-1, ::2, y],
        lambda x, y: x[1:2],
        lambda x, y: x.reshape(2, -1).sum(dim=(0, 1)).T,
        lambda x, y: {"a": [x, (y,)], "b": slice(None, 3)},
        lambda x, y: (ops.full(shape=(2, 0), value=float("inf"), dtype=torch.float32), ops.add(x, -0.0)),
        lambda x, y: ops.cast(x, dtype=torch.bool),
        lambda x, y: ops.mul(x, float("-inf")),
        lambda x, y: None,
        lambda x, y: ((), 1, "text", True),
    ],
)
def test_print_parses_back(fn):
    g = record(fn)
    src = source(g)
    back = parse(src.text, src.objects)
    assert same(back, g) is None
    back.lint()
    verify(GraphModule({}, g), level=2)


def test_targets_without_a_public_name_become_objects():
    g = Graph()
    x = g.placeholder("x")
    odd = object()
    g.output(g.call_function(my_function, (x, odd)))
    src = source(g)
    assert set(src.objects.values()) == {my_function, odd}
    assert same(parse(src.text, src.objects), g) is None
    assert GraphModule({}, g).code.count("_my_function(x, _object)") == 1


def test_attributes_print_as_self():
    g = Graph()
    x = g.placeholder("x")
    g.output(g.call_function(ops.add, (x, g.get_attr("layer.weight"))))
    gm = GraphModule({"layer.weight": Y}, g)
    assert "layer_weight = self.layer.weight" in gm.code
    assert same(parse(gm.code), g) is None
    assert gm(X)._data.tolist() == (X._data + Y._data).tolist()

    class Layer:
        weight = Y

    class Model:
        layer = Layer

    assert GraphModule(Model, g)(X)._data.tolist() == gm(X)._data.tolist()


def test_symbolic_sizes_print_as_reads_of_the_inputs():
    env = ShapeEnv()
    g = Graph()
    x = g.placeholder("x")
    x.meta["val"] = fake_like(X, env, dynamic=(0,))
    n = env.create_integer(5)
    p = g.placeholder("n")
    p.meta["val"] = n
    size = x.meta["val"].shape[0]
    g.output((g.call_function(ops.view, (x,), {"shape": (size * 3,)}), size + n))
    gm = GraphModule({}, g)
    assert gm.code.splitlines()[5:8] == ["    s0 = x.shape[0]", "    s1 = int(n)", "    view = ops.view(x, shape=(3*s0,))"]
    assert same(parse(gm.code), g) is None
    verify(gm, level=2)
    for run in (gm, Interpreter(gm).run):
        out, total = run(X, 10)
        assert out._data.tolist() == X._data.ravel().tolist() and total == 12


def test_sizes_that_only_running_tells():
    """``nonzero`` has as many rows as there are; what follows may use that number."""
    env = ShapeEnv()
    rows = env.create_unbacked(min=0)
    g = Graph()
    x = g.placeholder("x")
    x.meta["val"] = fake_like(Y)
    found = g.call_function(ops.nonzero, (x,))
    found.meta["val"] = fake_tensor((rows, 1), torch.int64)
    g.output((g.call_function(ops.view, (found,), {"shape": (rows,)}), rows + 1))
    gm = GraphModule({}, g)
    assert "    u0 = nonzero.shape[0]\n    view = ops.view(nonzero, shape=(u0,))" in gm.code
    assert same(parse(gm.code), g) is None
    for run in (gm, Interpreter(gm).run):
        out, n = run(tensor([0, 3, 4]))
        assert out._data.tolist() == [1, 2] and n == 3


def test_tabular():
    assert [line.split()[:2] for line in tabular(record(example)).splitlines()[2:5]] == [
        ["placeholder", "x"],
        ["placeholder", "y"],
        ["call_function", "add"],
    ]


# --- running ----------------------------------------------------------------------------------------------------------
def test_code_and_interpreter_agree_with_the_function():
    gm = module(example, X, Y)
    for run in (gm, Interpreter(gm).run):
        for got, want in zip(run(X, Y), example(X, Y), strict=True):
            assert got._data.tolist() == want._data.tolist()


def test_an_error_names_the_node_and_the_users_line():
    g = record(lambda x: ops.view(x, shape=(5,)))
    g.nodes[1].meta["stack"] = [("m.py", 3, "f", "x.view(5)")]
    with pytest.raises(RuntimeError, match="is invalid for input") as e:
        Interpreter(GraphModule({}, g)).run(X)
    assert "node view" in e.value.__notes__[0] and "m.py:3 in f: x.view(5)" in e.value.__notes__[0]


def test_the_interpreter_drops_values_after_their_last_use():
    alive = []

    class Watch(Interpreter):
        def run_node(self, node):
            alive.append(len(self.env))
            return super().run_node(node)

    Watch(module(lambda x: ops.exp(ops.exp(ops.exp(ops.exp(x)))), X)).run(X)
    assert alive == [1, 1, 1, 1]


@pytest.mark.parametrize("args", [(), (X,), (X, Y, Y)])
def test_wrong_number_of_arguments(args):
    with pytest.raises(TypeError, match="takes 2 arguments"):
        Interpreter(module(example)).run(*args)


unary = st.sampled_from([ops.exp, ops.neg, ops.abs])
binary = st.sampled_from([ops.add, ops.mul, ops.sub, operator.add, operator.mul])


@st.composite
def graphs(draw):
    g = Graph()
    nodes = [g.placeholder("x"), g.placeholder("y")]
    for _ in range(draw(st.integers(0, 8))):
        pick = st.sampled_from([*nodes, 2.0, -1.5])
        if draw(st.booleans()):
            nodes.append(g.call_function(draw(unary), (draw(st.sampled_from(nodes)),)))
        else:
            nodes.append(g.call_function(draw(binary.filter(lambda f: hasattr(f, "kind"))), (draw(st.sampled_from(nodes)), draw(pick))))
    g.output(tuple(draw(st.lists(st.sampled_from(nodes), max_size=3))))
    return g


@settings(deadline=None, max_examples=60)
@given(graphs())
def test_any_graph_survives_print_parse_copy_and_dce(g):
    gm = GraphModule({}, g)
    with np.errstate(all="ignore"):
        want = [t._data.tolist() for t in Interpreter(gm).run(X, Y)]
        verify(gm, functional=True, level=2)
        clean = gm.copy()
        clean.graph.eliminate_dead_code()
        clean.recompile()
        verify(clean, functional=True, level=2)
        for run in (gm, clean, GraphModule({}, parse(gm.code))):
            assert [t._data.tolist() for t in run(X, Y)] == want


# --- verifying --------------------------------------------------------------------------------------------------------
def _reads_later(gm):
    add, exp = gm.graph.nodes[2], gm.graph.nodes[3]
    exp.append(add)


def _duplicate_name(gm):
    gm.graph.nodes[3].name = "add"


def _stale_users(gm):
    gm.graph.nodes[2].users.clear()


def _wrong_shape(gm):
    gm.graph.nodes[3].meta["val"] = fake_tensor((2, 4), torch.float32)


def _wrong_dtype(gm):
    gm.graph.nodes[3].meta["val"] = fake_tensor((2, 3), torch.float64)


def _missing_attribute(gm):
    with gm.graph.inserting_before(gm.graph.output_node):
        gm.graph.get_attr("nowhere")


def _method(gm):
    with gm.graph.inserting_before(gm.graph.output_node):
        gm.graph.call_method("exp", (gm.graph.nodes[0],))


def _late_placeholder(gm):
    with gm.graph.inserting_before(gm.graph.output_node):
        gm.graph.placeholder("z")


@pytest.mark.parametrize(
    "damage, message",
    [
        (_reads_later, "not defined before"),
        (_duplicate_name, "name is taken"),
        (_stale_users, "users does not list"),
        (_wrong_shape, r"recorded as float32\[2, 4\], but ops.exp gives float32\[2, 3\]"),
        (_wrong_dtype, "recorded as float64"),
        (_missing_attribute, "holds no 'nowhere'"),
        (_method, "no method calls"),
        (_late_placeholder, "placeholders come first"),
    ],
)
def test_verify_names_what_is_wrong(damage, message):
    gm = module(example, X, Y)
    verify(gm, functional=True, level=2)
    damage(gm)
    with pytest.raises(VerifyError, match=message) as e:
        verify(gm, functional=True, level=2)
    assert ">>> " in str(e.value)


# --- rewriting --------------------------------------------------------------------------------------------------------
DOUBLE = rule("double", lambda x: ops.add(x, x), lambda x: ops.mul(x, 2.0))
SIGMOID = rule(
    "sigmoid", lambda x: ops.div(1.0, ops.add(ops.exp(ops.neg(x)), 1.0)), lambda x: ops.sigmoid(x), lambda match: True
)


def test_a_rule_replaces_all_matches_and_keeps_types():
    gm = module(lambda x: ops.add(ops.add(x, x), ops.add(x, x)), X)
    with config.patch(verify=2):
        assert run_passes(gm, [DOUBLE]) == {"double": 2}
    assert [n.target for n in gm.graph.nodes if n.op == "call_function"] == [ops.mul, ops.mul, ops.add]
    assert all("val" in n.meta for n in gm.graph.nodes if n.op == "call_function")


def test_inner_values_that_others_read_block_a_match():
    def f(x):
        e = ops.exp(ops.neg(x))
        return (ops.div(1.0, ops.add(e, 1.0)), e)

    assert run_passes(module(f, X), [SIGMOID]) == {"sigmoid": 0}
    gm = module(lambda x: f(x)[0], X)
    assert run_passes(gm, [SIGMOID]) == {"sigmoid": 1}
    assert [n.target for n in gm.graph.nodes if n.op == "call_function"] == [ops.sigmoid]


@pytest.mark.parametrize("constant", [1, True, 1.5])
def test_constants_match_by_type_and_value(constant):
    gm = module(lambda x: ops.div(1.0, ops.add(ops.exp(ops.neg(x)), constant)), X)
    assert run_passes(gm, [SIGMOID]) == {"sigmoid": 0}


def test_zero_and_minus_zero_are_different_patterns():
    drop = rule("drop", lambda x: ops.add(x, -0.0), lambda x: x)
    assert run_passes(module(lambda x: ops.add(x, 0.0), X), [drop]) == {"drop": 0}
    gm = module(lambda x: (ops.add(x, -0.0), x), X)
    assert run_passes(gm, [drop]) == {"drop": 1}
    assert gm(X)[0] is X


def test_a_pass_that_breaks_the_graph_is_named():
    broken = Pass("broken", lambda gm: _reads_later(gm) or 1)
    with config.patch(verify=1), pytest.raises(VerifyError) as e:
        run_passes(module(example, X, Y), [broken])
    assert e.value.__notes__ == ["after pass broken"]


def test_recording_refuses_what_it_cannot_know():
    with pytest.raises(TypeError, match="branch"):
        record(lambda x: x if x else 1)
    with pytest.raises(TypeError, match="iterate"):
        record(lambda x: list(x))
