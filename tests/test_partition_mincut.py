"""The partitioner: optimal against brute force, right against the joint graph, never worse than eager."""

import operator
from itertools import chain, combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tinytorch as torch
from compiler.fake import fake_like, fake_tensor, propagate
from compiler.ir import Graph, GraphModule, Interpreter, verify
from compiler.partition import cost, min_cut, pareto, plot_pareto
from compiler.partition.budget import choose, knapsack
from compiler.partition.cost import Joint
from compiler.partition.flow import INF
from compiler.partition.mincut import EXACT, WEIGHT, Cut, Prices, find_cut
from compiler.sym.env import ShapeEnv
from tinytorch import ops


def tensor(a):
    return torch.Tensor._wrap(np.asarray(a, np.float32), torch.device("cpu"))


def joint_of(build, primals, tangents):
    """A joint graph written down: ``build(graph, primals, tangents) -> (forward outputs, gradients)``."""
    g = Graph()
    ps, ts = [], []
    for i, v in enumerate(primals):
        ps.append(g.placeholder(f"primals_{i}"))
        ps[-1].meta["val"] = v
    for i, v in enumerate(tangents):
        ts.append(g.placeholder(f"tangents_{i}"))
        ts[-1].meta["val"] = v
    outs, grads = build(lambda op, *args, **kw: g.call_function(op, args, kw), ps, ts)
    g.output((*outs, *grads))
    propagate(g)
    gm = GraphModule({}, g)
    verify(gm, functional=True, level=2)
    return gm, len(outs)


def saved_names(gm, n, budget=1.0):
    return [e.name for e in min_cut(gm, n, budget)[2].saved]


F = lambda *shape: fake_tensor(shape, torch.float32)  # noqa: E731


# --- what is chosen ---------------------------------------------------------------------------------------------------
def chain_of_pointwise(call, ps, ts):
    """y = sin(cos(exp(x @ w))): every step's input is wanted by its derivative."""
    m = call(ops.matmul, ps[0], ps[1])
    a = call(ops.exp, m)
    b = call(ops.cos, a)
    y = call(ops.sin, b)
    g = call(ops.mul, ts[0], call(ops.cos, b))
    g = call(ops.mul, g, call(ops.sin, a))
    g = call(ops.mul, g, a)
    return [y], [call(ops.matmul, g, call(ops.permute, ps[1], dims=(1, 0))), None]


def test_a_pointwise_chain_is_computed_again_from_its_input():
    gm, n = joint_of(chain_of_pointwise, [F(64, 8), F(8, 64)], [F(64, 64)])
    _, bw, report = min_cut(gm, n)
    assert len(report.saved) == 1 and report.inputs == ("primals_1",)
    assert report.saved_bytes == 64 * 64 * 4 and report.eager_bytes == 2 * report.saved_bytes
    assert {e.op for e in report.recomputed} <= {"exp", "cos"}
    assert [p.name for p in bw.graph.placeholders][-1] == "tangents_0"
    assert "matmul" not in [n.name for n in bw.graph.nodes if n.meta.get("recomputed")]
    assert "2.00 times less" in str(report) and "primals_1" in str(report)


def test_a_product_is_not_computed_twice_unless_the_budget_says_so():
    gm, n = joint_of(chain_of_pointwise, [F(64, 8), F(8, 64)], [F(64, 64)])
    joint = Joint.of(gm.graph, n)
    assert all(m.target is not ops.matmul for m in choose(joint, 1.0).recomputed)
    frugal = choose(joint, 0.0)
    assert frugal.bytes == 0 and any(m.target is ops.matmul for m in frugal.recomputed)


@pytest.mark.parametrize("rows, again", [(256, True), (32, False)])
def test_scores_much_larger_than_their_operands_are_computed_again(rows, again):
    """As flash attention does: q @ k is rows x rows, its operands rows x 16."""

    def attention(call, ps, ts):
        q, k = (call(ops.matmul, p, ps[2]) for p in ps[:2])
        scores = call(ops.matmul, q, call(ops.permute, k, dims=(1, 0)))
        weights = call(ops.exp, scores)
        return [call(ops.sum, weights, dim=(1,), keepdim=True)], [call(ops.matmul, call(ops.mul, ts[0], weights), k), q]

    gm, n = joint_of(attention, [F(rows, 16), F(rows, 16), F(16, 16)], [F(rows, 1)])
    report = min_cut(gm, n)[2]
    assert ("exp" not in [e.op for e in report.saved]) == again
    assert report.saved_bytes == (2 * rows * 16 * 4 if again else (2 * rows * 16 + rows * rows) * 4)


def test_a_mask_of_bools_is_saved_rather_than_its_floats():
    def relu(call, ps, ts):
        m = call(ops.matmul, ps[0], ps[1])
        y = call(ops.maximum, m, 0.0)
        return [y], [call(ops.where, call(ops.gt, m, 0.0), ts[0], 0.0)]

    gm, n = joint_of(relu, [F(64, 8), F(8, 64)], [F(64, 64)])
    report = min_cut(gm, n)[2]
    assert [e.op for e in report.saved] == ["gt"] and report.saved_bytes == 64 * 64
    assert not report.recomputed


def test_views_are_made_again_and_count_as_their_base():
    def build(call, ps, ts):
        m = call(ops.matmul, ps[0], ps[1])
        v = call(ops.permute, m, dims=(1, 0))
        return [v], [call(ops.mul, ts[0], v), call(ops.mul, m, 2.0)]

    gm, n = joint_of(build, [F(8, 8), F(8, 8)], [F(8, 8)])
    _, _, report = min_cut(gm, n)
    assert [e.op for e in report.saved] == ["matmul"] and report.saved_bytes == report.eager_bytes == 8 * 8 * 4


def test_a_small_sum_is_saved_rather_than_its_large_operand():
    def build(call, ps, ts):
        m = call(ops.matmul, ps[0], ps[1])
        s = call(ops.sum, call(ops.exp, m), dim=(1,), keepdim=True)
        return [s], [call(ops.mul, ts[0], s)]

    gm, n = joint_of(build, [F(64, 8), F(8, 64)], [F(64, 1)])
    assert saved_names(gm, n) == ["sum_1"]


def test_results_of_tuples_are_saved_one_by_one():
    def build(call, ps, ts):
        m = call(ops.exp, ps[0])
        return [m], [call(ops.mul, ts[0], m), None]

    gm, n = joint_of(build, [F(8, 8)], [F(8, 8)])
    g = gm.graph
    exp = g.find_nodes(op="call_function", target=ops.exp)[0]
    with g.inserting_after(exp):
        both = g.call_function(_pair, (g.placeholders[0],))
        both.meta.update(val=(F(8, 8), F(2, 2)), recompute="never")
    with g.inserting_after(both):
        first = g.call_function(operator.getitem, (both, 0))
        first.meta["val"] = F(8, 8)
    exp.replace_all_uses_with(first)
    g.eliminate_dead_code()
    assert saved_names(gm, n) == ["getitem"]


def _pair(x):
    return x, x


def test_nodes_may_demand_or_forbid_recomputing():
    gm, n = joint_of(chain_of_pointwise, [F(64, 8), F(8, 64)], [F(64, 64)])
    for m in gm.graph.nodes:
        if m.target in (ops.matmul, ops.exp, ops.cos, ops.sin):
            m.meta["recompute"] = "must"
    assert min_cut(gm, n)[2].saved_bytes == 0
    for m in gm.graph.nodes:
        if m.target is ops.exp:
            m.meta["recompute"] = "never"
    assert saved_names(gm, n, 0.0) == ["exp"]


def test_a_checkpointed_region_keeps_what_it_starts_from():
    """Eager's rules for ``relu``-like masks read a byte an element; the region's input is four."""

    def region(call, ps, ts):
        start = call(ops.matmul, ps[0], ps[1])
        mask = call(ops.gt, call(ops.sin, start), 0.0)
        return [call(ops.where, mask, start, 0.0)], [call(ops.where, mask, ts[0], 0.0)]

    gm, n = joint_of(region, [F(64, 8), F(8, 64)], [F(64, 64)])
    assert saved_names(gm, n) == ["gt"]
    for m in gm.graph.nodes:
        if m.target in (ops.sin, ops.gt):
            m.meta["recompute"] = "must"
    assert saved_names(gm, n) == ["matmul"]


# --- both graphs together are the joint graph -------------------------------------------------------------------------
def run_both(gm, n, args, tangents, budget):
    fw, bw, report = min_cut(gm, n, budget)
    for half in (fw, bw):
        verify(half, functional=True, level=2)
    out = Interpreter(fw).run(*args)
    grads = Interpreter(bw).run(*out[n:], *tangents)
    assert len(out) - n == len(bw.graph.placeholders) - len(tangents)
    return (*out[:n], *grads), report


def values(results):
    return [None if r is None else r._data.tolist() for r in results]


@st.composite
def programs(draw, limit=7):
    """Random joint graphs over square matrices of several widths of element."""

    def build(call, ps, ts):
        early = list(ps)
        for _ in range(draw(st.integers(1, limit))):
            kind = draw(st.sampled_from(["exp", "add", "matmul", "cast", "permute", "sum", "half"]))
            x, y = draw(st.sampled_from(early)), draw(st.sampled_from(early))
            match kind:
                case "exp" | "add":
                    new = call(ops.sin, x) if kind == "exp" else call(ops.add, x, y)
                case "matmul":
                    args = [call(ops.cast, v, dtype=torch.float32) for v in (x, y)]
                    new = call(ops.matmul, *args)
                case "cast":
                    new = call(ops.cast, x, dtype=draw(st.sampled_from([torch.float64, torch.float16])))
                case "permute":
                    new = call(ops.permute, x, dims=(1, 0))
                case "sum":
                    new = call(ops.expand, call(ops.sum, x, dim=(0,), keepdim=True), shape=(4, 4))
                case "half":
                    new = call(ops.mul, x, 0.5)
            early.append(new)
        late = list(ts)
        for _ in range(draw(st.integers(1, 4))):
            x, g = draw(st.sampled_from(early)), draw(st.sampled_from(late))
            late.append(call(draw(st.sampled_from([ops.mul, ops.add])), g, call(ops.cos, x) if draw(st.booleans()) else x))
        outs = draw(st.lists(st.sampled_from(early), min_size=1, max_size=2))
        grads = draw(st.lists(st.sampled_from([*late, *early, None]), min_size=1, max_size=3))
        return outs, grads

    return joint_of(build, [F(4, 4), F(4, 4)], [F(4, 4)])


ARGS = [tensor(np.linspace(-1, 1, 16).reshape(4, 4)), tensor(np.linspace(0.5, 2, 16).reshape(4, 4))]
TANGENTS = [tensor(np.linspace(-2, 3, 16).reshape(4, 4))]


@settings(deadline=None, max_examples=80)
@given(programs(), st.sampled_from([0.0, 0.3, 0.7, 1.0]))
def test_forward_and_backward_compute_what_the_joint_graph_does(program, budget):
    gm, n = program
    want = values(Interpreter(gm).run(*ARGS, *TANGENTS))
    got, report = run_both(gm, n, ARGS, TANGENTS, budget)
    assert values(got) == want
    assert report.saved_bytes <= report.eager_bytes


@settings(deadline=None, max_examples=60)
@given(programs(limit=5))
def test_the_cut_is_the_optimum_that_brute_force_finds(program):
    """Least bytes where memory is all that counts; else the least price."""
    gm, n = program
    joint = Joint.of(gm.graph, n)
    assert find_cut(joint, exact=True).bytes == brute_force(joint, Prices(joint, frozenset(), EXACT, False)) // EXACT
    assert find_cut(joint, frugal=True).bytes == brute_force(joint, Prices(joint, frozenset(), EXACT, True)) // EXACT
    prices = Prices(joint, frozenset(), WEIGHT, False)
    cut = find_cut(joint)
    assert price(prices, cut.saved, needed(joint, cut.saved)) == brute_force(joint, prices)


def brute_force(joint, prices):
    """The least price over all subsets of values that could be saved."""
    nodes = [m for m in joint.graph.nodes if m in joint.forward | joint.between]
    candidates = [m for m in nodes if cost.can_save(m) and not cost.is_given(m)]
    given_ = [m for m in nodes if cost.is_given(m)]
    best = INF
    for chosen in chain.from_iterable(combinations(candidates, k) for k in range(len(candidates) + 1)):
        again = needed(joint, {*chosen, *given_})
        inputs = {i for m in again for i in m.all_input_nodes if cost.is_given(i)}
        inputs |= {m for m in joint.demanded() if cost.is_given(m)}
        best = min(best, price(prices, {*chosen, *inputs}, again))
    return best


def needed(joint, saved):
    """What backward computes again if just ``saved`` is there."""
    again, stack = set(), [m for m in joint.demanded() if m not in saved]
    while stack:
        m = stack.pop()
        if m not in again:
            again.add(m)
            stack += [i for i in m.all_input_nodes if i not in saved]
    return again


def price(prices, saved, again):
    return min(INF, sum(map(prices.saved, saved)) + sum(map(prices.again, again)))


@settings(deadline=None, max_examples=30)
@given(programs())
def test_less_budget_is_less_memory_and_more_time(program):
    gm, n = program
    points = pareto(gm, n, [0, 0.25, 0.5, 0.75, 1])
    for p, q in pairwise(points):
        assert p.saved_bytes <= q.saved_bytes
    full = points[-1].saved_bytes
    assert all(p.saved_bytes <= p.budget * full for p in points if p.budget)


def test_expensive_nodes_run_once_at_full_budget_in_any_program():
    @settings(deadline=None, max_examples=40)
    @given(programs())
    def check(program):
        gm, n = program
        _, bw, _ = min_cut(gm, n, 1.0)
        again = [m for m in bw.graph.nodes if m.meta.get("recomputed")]
        assert not [m for m in again if m.target.recompute == "save"]

    check()


# --- sizes, budgets, reports ------------------------------------------------------------------------------------------
def test_sizes_that_no_saved_value_shows_become_integer_inputs():
    env = ShapeEnv()
    x = fake_like(tensor(np.zeros((6, 4))), env, dynamic=(0,))
    rows = x.shape[0]

    def build(call, ps, ts):
        y = call(ops.sum, ps[0], dim=(0, 1), keepdim=False)
        g = call(ops.expand, call(ops.view, ts[0], shape=(1, 1)), shape=(rows, 4))
        return [y], [g]

    gm, n = joint_of(build, [x], [F()])
    fw, bw, _ = min_cut(gm, n)
    assert [p.name for p in bw.graph.placeholders] == ["s0", "tangents_0"]
    args = [tensor(np.ones((5, 4)))]
    out = Interpreter(fw).run(*args)
    assert out[1] == 5
    (grad,) = Interpreter(bw).run(*out[1:], tensor(2.0))
    assert grad._data.tolist() == np.full((5, 4), 2.0).tolist()


@pytest.mark.parametrize("budget", [-0.1, 1.5])
def test_a_budget_lies_between_zero_and_one(budget):
    gm, n = joint_of(chain_of_pointwise, [F(64, 8), F(8, 64)], [F(64, 64)])
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        min_cut(gm, n, budget)


def test_a_forward_output_may_not_depend_on_a_tangent():
    gm, _ = joint_of(chain_of_pointwise, [F(64, 8), F(8, 64)], [F(64, 64)])
    with pytest.raises(ValueError, match="depends on a tangent"):
        min_cut(gm, 2)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 20)), max_size=8), st.integers(0, 200))
def test_the_knapsack_fits_and_is_best_where_weights_are_exact(items, capacity):
    weights, worths = [w for w, _ in items], [float(v) for _, v in items]
    chosen = knapsack(weights, worths, capacity)
    assert sum(weights[i] for i in chosen) <= capacity
    best = max(
        sum(worths[i] for i in s)
        for k in range(len(items) + 1)
        for s in combinations(range(len(items)), k)
        if sum(weights[i] for i in s) <= capacity
    )
    assert sum(worths[i] for i in chosen) == best


def test_the_curve_can_be_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    gm, n = joint_of(chain_of_pointwise, [F(64, 8), F(8, 64)], [F(64, 64)])
    chart = plot_pareto(pareto(gm, n), str(tmp_path / "curve.png"))
    assert (tmp_path / "curve.png").read_bytes()[:4] == chart._repr_png_()[:4] == b"\x89PNG"


def test_a_cut_that_keeps_more_than_eager_is_refused(monkeypatch):
    """The promise is checked at every partition, whatever chose the cut."""
    gm, n = joint_of(chain_of_pointwise, [F(64, 8), F(8, 64)], [F(64, 64)])
    greedy = lambda joint, budget: Cut(frozenset(x for x in joint.forward if cost.can_save(x)), frozenset())  # noqa: E731
    monkeypatch.setattr("compiler.partition.budget.choose", greedy)
    with pytest.raises(AssertionError, match="the partition saves 65536 bytes, eager 32768"):
        min_cut(gm, n)
