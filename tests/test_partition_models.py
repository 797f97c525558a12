"""The partitioner on real models: bytes against eager's tape, and the two halves against the joint graph."""

import numpy as np
import pytest

import tinytorch as torch
import tinytorch.nn.functional as F
from compiler.aot.joint import trace_joint
from compiler.ir import Interpreter
from compiler.partition import min_cut
from compiler.partition.cost import is_expensive

C, H, T, B, V = 16, 2, 8, 2, 11


def rand(*shape):
    scale = 1 / np.sqrt(shape[0])
    data = np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32) * np.float32(scale)
    return torch.from_numpy(data).requires_grad_(True)


def mlp(x, w1, b1, g, b, w2):
    h = F.gelu(F.linear(x, w1, b1))
    h = F.dropout(F.layer_norm(h, (4 * C,), g, b), 0.2)
    return F.mse_loss(F.linear(h, w2), x.detach() * 0.5)


def attention_block(x, g1, b1, wqkv, wo, g2, b2, w1, w2):
    h = F.linear(F.layer_norm(x, (C,), g1, b1), wqkv)
    q, k, v = (t.view(B, T, H, C // H).transpose(1, 2) for t in h.split(C, dim=2))
    a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, C)
    x = x + F.dropout(F.linear(a, wo), 0.1)
    h = F.gelu(F.linear(F.layer_norm(x, (C,), g2, b2), w1))
    return (x + F.dropout(F.linear(h, w2), 0.1)).square().mean()


def conv_free_classifier(x, w, b):
    return F.cross_entropy(F.relu(F.linear(x, w, b)), torch.arange(B))


MODELS = {
    "mlp": (mlp, [rand(B, C), rand(4 * C, C), rand(4 * C), rand(4 * C), rand(4 * C), rand(C, 4 * C)], 1.9),
    "attention": (
        attention_block,
        [rand(B, T, C), rand(C), rand(C), rand(3 * C, C), rand(C, C), rand(C), rand(C), rand(4 * C, C), rand(C, 4 * C)],
        2.0,
    ),
    "classifier": (conv_free_classifier, [rand(B, C), rand(V, C), rand(V)], 1.0),
}


def tape_bytes(loss, given):
    """What eager's tape keeps alive, by the arrays that own the memory; inputs are alive anyway."""

    def owner(array):
        while isinstance(array.base, np.ndarray):
            array = array.base
        return array

    known = {id(owner(t._data)) for t in given}
    seen, stack, found = set(), [loss.grad_fn], {}
    while stack:
        node = stack.pop()
        if node is None or id(node) in seen or not hasattr(node, "saved"):
            continue
        seen.add(id(node))
        for t, _ in node.saved:
            memory = owner(t._data)
            if id(memory) not in known:
                found[id(memory)] = memory.nbytes
        stack += [e[0] for e in node.edges if isinstance(e, tuple)]
    return sum(found.values())


@pytest.mark.parametrize("name", MODELS)
def test_models_save_less_than_eager_and_compute_the_same(name):
    fn, args, at_least = MODELS[name]
    joint = trace_joint(fn, args)
    gm, n = joint.module, joint.forward_outputs
    fw, bw, report = min_cut(gm, n)
    eager = tape_bytes(fn(*args), args)
    assert report.saved_bytes * at_least <= eager
    assert abs(report.eager_bytes - eager) <= 0.1 * eager
    again = [m for m in bw.graph.nodes if m.meta.get("recomputed")]
    assert not [m for m in again if is_expensive(m)]

    inputs = [torch.from_numpy(a._data) for a in args]
    state = [torch.from_numpy(np.array([7, 3], np.int64)) for p in gm.graph.placeholders if p.name.startswith("rng")]
    tangent = [torch.from_numpy(np.asarray(0.5, np.float32))]
    want = Interpreter(gm).run(*inputs, *state, *tangent)
    for budget in (1.0, 0.5, 0.0):
        fw, bw, _ = min_cut(gm, n, budget)
        out = Interpreter(fw).run(*inputs, *state)
        grads = Interpreter(bw).run(*out[n:], *tangent)
        for got, expected in zip((*out[:n], *grads), want, strict=True):
            assert got is expected is None or np.array_equal(got._data, expected._data)


def test_dropout_masks_are_drawn_again_rather_than_saved():
    fn, args, _ = MODELS["attention"]
    joint = trace_joint(fn, args)
    report = min_cut(joint.module, joint.forward_outputs)[2]
    assert any(e.op == "uniform" for e in report.recomputed)
    assert any(name.startswith("rng_state") for name in report.inputs)
    assert not [e for e in report.saved if e.type.startswith("bool")]
