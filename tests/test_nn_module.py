"""The Module protocol: registration, walks, state dicts, hooks, moves, repr."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

import tinytorch as torch
from tinytorch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.second = nn.Sequential(nn.ReLU(), nn.Linear(4, 2, bias=False))
        self.scale = nn.Parameter(torch.ones(2))
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("scratch", torch.zeros(3), persistent=False)

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x)) * self.scale


NAMES = ["scale", "first.weight", "first.bias", "second.1.weight"]


# --- registration -----------------------------------------------------------------------------------------------------
def test_walks_give_names_parents_first() -> None:
    m = Net()
    assert [n for n, _ in m.named_parameters()] == NAMES
    assert [n for n, _ in m.named_buffers()] == ["count", "scratch"]
    assert [n for n, _ in m.named_modules()] == ["", "first", "second", "second.0", "second.1"]
    assert [n for n, _ in m.named_children()] == ["first", "second"]
    assert [n for n, _ in m.named_parameters(prefix="net", recurse=False)] == ["net.scale"]
    assert m.get_submodule("second.1") is m.second[1]
    assert m.get_parameter("second.1.weight") is m.second[1].weight
    with pytest.raises(AttributeError, match="has no attribute `third`"):
        m.get_submodule("third")


def test_shared_members_are_walked_once() -> None:
    m = nn.Module()
    m.a = nn.Linear(2, 2)
    m.b = m.a
    m.c = nn.Linear(2, 2)
    m.c.weight = m.a.weight
    assert [n for n, _ in m.named_parameters()] == ["a.weight", "a.bias", "c.bias"]
    assert len(list(m.modules())) == 3
    assert "c.weight" in dict(m.named_parameters(remove_duplicate=False))
    assert list(m.state_dict()) == ["a.weight", "a.bias", "b.weight", "b.bias", "c.weight", "c.bias"]


def test_assignment_moves_names_between_registries() -> None:
    m = nn.Module()
    m.x = 3
    m.x = nn.Parameter(torch.ones(1))
    assert list(m._parameters) == ["x"] and "x" not in m.__dict__
    m.x = nn.Linear(1, 1)
    assert not m._parameters and list(m._modules) == ["x"]
    m.x = nn.Buffer(torch.zeros(1), persistent=False)
    assert not m._modules and list(m._buffers) == ["x"] and not m.state_dict()
    m.x = torch.ones(2)
    assert m._buffers["x"].shape == (2,)
    del m.x
    assert not hasattr(m, "x")


def test_wrong_assignments_raise() -> None:
    class Early(nn.Module):
        def __init__(self, member: Any) -> None:
            self.member = member

    for member in (nn.Parameter(torch.ones(1)), nn.ReLU()):
        with pytest.raises(AttributeError, match=r"before Module.__init__\(\) call"):
            Early(member)
    m = Net()
    with pytest.raises(TypeError, match="cannot assign 'Tensor' as parameter 'scale'"):
        m.scale = torch.ones(2)
    with pytest.raises(TypeError, match="as child module 'first'"):
        m.first = 3
    with pytest.raises(KeyError, match="already exists"):
        m.register_buffer("first", torch.ones(1))
    with pytest.raises(KeyError, match="contain"):
        m.register_parameter("a.b", None)
    made = nn.Parameter(torch.ones(1)) * 2
    made.__class__ = nn.Parameter
    with pytest.raises(ValueError, match="non-leaf"):
        m.register_parameter("made", made)
    with pytest.raises(AttributeError, match="'Net' object has no attribute 'missing'"):
        m.missing  # noqa: B018


def test_parameter_shares_memory_and_requires_grad() -> None:
    t = torch.zeros(3)
    p = nn.Parameter(t)
    t.fill_(2)
    assert p.requires_grad and p.is_leaf and p.tolist() == [2, 2, 2]
    assert not nn.Parameter(t, requires_grad=False).requires_grad
    assert repr(p).startswith("Parameter containing:\ntensor(")
    with pytest.raises(RuntimeError, match="floating point and complex"):
        nn.Parameter(torch.zeros(2, dtype=torch.int64))
    assert not nn.Parameter(torch.zeros(2, dtype=torch.int64), requires_grad=False).requires_grad


def test_deepcopy_is_independent() -> None:
    m = Net()
    other = copy.deepcopy(m)
    with torch.no_grad():
        other.scale.fill_(7)
    assert m.scale.tolist() == [1, 1]
    assert isinstance(other.scale, nn.Parameter) and other.scale.requires_grad
    assert list(other.state_dict()) == list(m.state_dict())


# --- state dicts ------------------------------------------------------------------------------------------------------
def test_state_dict_round_trip() -> None:
    a, b = Net(), Net()
    state = a.state_dict()
    assert list(state) == ["scale", "count", "first.weight", "first.bias", "second.1.weight"]
    assert not any(t.requires_grad for t in state.values())
    assert str(b.load_state_dict(state)) == "<All keys matched successfully>"
    x = torch.randn(5, 3)
    np.testing.assert_array_equal(a(x).detach().numpy(), b(x).detach().numpy())
    state["scale"].fill_(3)
    assert a.scale.tolist() == [3, 3] and b.scale.tolist() != [3, 3]
    assert a.state_dict(prefix="net.", keep_vars=True)["net.scale"] is a.scale


def test_load_state_dict_reports_everything_at_once() -> None:
    m = Net()
    state = m.state_dict()
    del state["first.bias"]
    state["extra"] = torch.ones(1)
    state["second.1.weight"] = torch.ones(3, 4)
    with pytest.raises(RuntimeError) as e:
        m.load_state_dict(state)
    text = str(e.value)
    assert text.startswith("Error(s) in loading state_dict for Net:\n\t")
    assert 'Missing key(s) in state_dict: "first.bias".' in text
    assert 'Unexpected key(s) in state_dict: "extra".' in text
    assert "size mismatch for second.1.weight: copying a param with shape" in text
    del state["second.1.weight"]
    result = m.load_state_dict(state, strict=False)
    assert result.missing_keys == ["first.bias", "second.1.weight"] and result.unexpected_keys == ["extra"]


def test_load_state_dict_assign_takes_tensors_over() -> None:
    m = nn.Linear(2, 2)
    state = {"weight": torch.ones(2, 2, dtype=torch.float64), "bias": torch.zeros(2, dtype=torch.float64)}
    m.load_state_dict(state, assign=True)
    assert m.weight.dtype is torch.float64 and isinstance(m.weight, nn.Parameter)
    state["weight"].fill_(5)
    assert m.weight[0, 0].item() == 5


def test_extra_state_and_state_dict_hooks() -> None:
    class Counting(nn.Linear):
        steps = 0

        def get_extra_state(self) -> Any:
            return {"steps": self.steps}

        def set_extra_state(self, state: Any) -> None:
            self.steps = state["steps"]

    a, b = Counting(2, 2), Counting(2, 2)
    a.steps = 3
    seen = []
    b.register_load_state_dict_post_hook(lambda module, keys: seen.append(keys.missing_keys))
    a.register_state_dict_post_hook(lambda module, state, prefix, meta: state.update(more=torch.ones(1)))
    state = a.state_dict()
    assert "_extra_state" in state and "more" in state
    b.load_state_dict(state, strict=False)
    assert b.steps == 3 and seen == [[]]


# --- hooks ------------------------------------------------------------------------------------------------------------
def test_forward_hooks_see_and_change() -> None:
    m = nn.Linear(2, 2)
    order: list[str] = []
    pre = m.register_forward_pre_hook(lambda mod, args: (order.append("pre"), (args[0] * 0,))[1])
    post = m.register_forward_hook(lambda mod, args, out: order.append("post") or out + 1)
    first = m.register_forward_hook(lambda mod, args, out: order.append("first"), prepend=True)
    out = m(torch.ones(1, 2))
    assert order == ["pre", "first", "post"]
    np.testing.assert_allclose(out.detach().numpy(), (m.bias + 1).detach().numpy()[None])
    for handle in (pre, post, first):
        handle.remove()
    m(torch.ones(1, 2))
    assert len(order) == 3
    with m.register_forward_hook(lambda *a: order.append("with")):
        m(torch.ones(1, 2))
    m(torch.ones(1, 2))
    assert order.count("with") == 1


def test_forward_hooks_with_kwargs_and_always_call() -> None:
    class Scaled(nn.Module):
        def forward(self, x: Any, *, by: float) -> Any:
            if by == 0:
                raise ValueError("by zero")
            return x * by

    m = Scaled()
    seen: list[Any] = []
    m.register_forward_pre_hook(lambda mod, args, kwargs: (args, {"by": kwargs["by"] + 1}) if kwargs["by"] else None, with_kwargs=True)
    m.register_forward_hook(lambda mod, args, kwargs, out: seen.append(kwargs["by"]), with_kwargs=True, always_call=True)
    assert m(torch.ones(1), by=2.0).item() == 3 and seen == [3.0]
    with pytest.raises(ValueError, match="by zero"):
        m(torch.ones(1), by=0)
    assert seen == [3.0, 0]


def test_full_backward_hooks() -> None:
    m = nn.Linear(3, 2)
    x = torch.randn(4, 3, requires_grad=True)
    seen: dict[str, Any] = {}

    def hook(mod: Any, grad_input: Any, grad_output: Any) -> Any:
        seen["in"], seen["out"] = grad_input[0], grad_output[0]
        return (grad_input[0] * 2,)

    m.register_full_backward_hook(hook)
    m.register_full_backward_pre_hook(lambda mod, grad_output: (grad_output[0] * 3,))
    m(x).sum().backward()
    np.testing.assert_array_equal(seen["out"].numpy(), np.full((4, 2), 3, np.float32))
    want = 3 * m.weight.detach().numpy().sum(0, keepdims=True).repeat(4, 0)
    np.testing.assert_allclose(seen["in"].numpy(), want, rtol=1e-6)
    np.testing.assert_allclose(x.grad.numpy(), 2 * want, rtol=1e-6)
    np.testing.assert_array_equal(m.bias.grad.numpy(), [12, 12])


def test_backward_hook_without_input_gradients() -> None:
    m = nn.Linear(3, 2)
    calls: list[Any] = []
    m.register_full_backward_hook(lambda mod, grad_input, grad_output: calls.append((grad_input, len(grad_output))))
    m(torch.randn(4, 3)).sum().backward()
    assert calls == [((), 1)] or calls == [((None,), 1)]


# --- whole-tree changes -----------------------------------------------------------------------------------------------
def test_apply_visits_children_first() -> None:
    seen: list[str] = []
    Net().apply(lambda m: seen.append(type(m).__name__))
    assert seen == ["Linear", "ReLU", "Linear", "Sequential", "Net"]


def test_train_and_eval_reach_everything() -> None:
    m = nn.Sequential(nn.Dropout(0.5), nn.Sequential(nn.Dropout(0.5)))
    assert not any(x.training for x in m.eval().modules())
    x = torch.ones(100)
    assert m(x) is x
    m.train()
    assert 0 < (m(x) == 0).sum().item() < 100
    with pytest.raises(ValueError, match="boolean"):
        m.train(1)  # type: ignore[arg-type]


def test_moves_keep_parameter_objects() -> None:
    m = Net()
    m.register_buffer("table", torch.arange(3))
    before = m.first.weight
    m(torch.ones(1, 3)).sum().backward()
    assert m.double() is m
    assert m.first.weight is before and before.dtype is torch.float64 and before.grad.dtype is torch.float64
    assert m.table.dtype is torch.int64 and m.count.dtype is torch.float64
    assert m.to(torch.float32).first.weight.dtype is torch.float32
    assert m.to("cpu", torch.bfloat16).scale.dtype is torch.bfloat16
    assert m.half().scale.dtype is torch.float16
    assert m.to(torch.zeros(1, dtype=torch.float64)).scale.dtype is torch.float64
    with pytest.raises(TypeError, match="floating point or complex"):
        m.to(torch.int32)


def test_zero_grad_and_requires_grad() -> None:
    m = nn.Linear(2, 1)
    m(torch.ones(1, 2)).sum().backward()
    m.zero_grad(set_to_none=False)
    assert m.weight.grad.tolist() == [[0, 0]]
    m.zero_grad()
    assert m.weight.grad is None
    m.requires_grad_(False)
    assert not m(torch.ones(1, 2)).requires_grad


# --- containers -------------------------------------------------------------------------------------------------------
def test_sequential_is_a_list_of_modules() -> None:
    m = nn.Sequential(OrderedDict(a=nn.Linear(2, 3), b=nn.ReLU()))
    assert m.a is m[0] and len(m) == 2 and list(m[:1].state_dict()) == ["a.weight", "a.bias"]
    m = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    m.append(nn.Linear(3, 1)).insert(1, nn.Tanh())
    assert [type(x).__name__ for x in m] == ["Linear", "Tanh", "ReLU", "Linear"]
    del m[1]
    assert list(m._modules) == ["0", "1", "2"] and isinstance(m[-1], nn.Linear)
    m[1] = nn.Sigmoid()
    assert isinstance(m.pop(1), nn.Sigmoid) and len(m) == 2
    assert len(m + nn.Sequential(nn.ReLU())) == 3
    with pytest.raises(IndexError, match="out of range"):
        m[5]
    with pytest.raises(TypeError, match="not a Module subclass"):
        m.append(3)


def test_module_list_and_dict() -> None:
    layers = nn.ModuleList([nn.Linear(2, 2) for _ in range(3)])
    layers += [nn.ReLU()]
    assert len(layers) == 4 and len(list(layers.parameters())) == 6 and isinstance(layers[1:], nn.ModuleList)
    assert repr(layers).splitlines()[1] == "  (0-2): 3 x Linear(in_features=2, out_features=2, bias=True)"
    with pytest.raises(NotImplementedError, match='missing the required "forward"'):
        layers(1)
    d = nn.ModuleDict({"a": nn.Linear(1, 1), "b": nn.ReLU()})
    d["c"] = nn.Tanh()
    assert list(d) == ["a", "b", "c"] and "c" in d and isinstance(d.pop("c"), nn.Tanh) and len(d) == 2
    assert [k for k, _ in d.items()] == ["a", "b"]


def test_parameter_list_and_dict() -> None:
    m = nn.ParameterList([torch.ones(2), nn.Parameter(torch.zeros(1))])
    m.append(torch.ones(3))
    assert len(m) == 3 and all(isinstance(p, nn.Parameter) for p in m) and list(m.state_dict()) == ["0", "1", "2"]
    assert "(0): Parameter containing: [tinytorch.float32 of size 2]" in repr(m)
    d = nn.ParameterDict({"a": torch.ones(2), "keys": torch.zeros(1)})
    assert isinstance(d["keys"], nn.Parameter) and list(d) == ["a", "keys"] and len(list(d.parameters())) == 2
    assert d.get("none", 5) == 5 and list(d.keys()) == ["a", "keys"]


def test_repr_nests_like_pytorch() -> None:
    assert repr(Net()) == (
        "Net(\n  (first): Linear(in_features=3, out_features=4, bias=True)\n  (second): Sequential(\n    (0): ReLU()\n"
        "    (1): Linear(in_features=4, out_features=2, bias=False)\n  )\n)"
    )


def test_lazy_linear_learns_its_size() -> None:
    m = nn.LazyLinear(4)
    assert m(torch.ones(2, 3)).shape == (2, 4)
    assert type(m) is nn.Linear and m.in_features == 3 and m.weight.shape == (4, 3) and m.weight.requires_grad


# --- init -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("fill", "deviation"),
    [
        (lambda t: nn.init.xavier_uniform_(t), (2 / 500) ** 0.5),
        (lambda t: nn.init.xavier_normal_(t, gain=2.0), 2 * (2 / 500) ** 0.5),
        (lambda t: nn.init.kaiming_uniform_(t, nonlinearity="relu"), (2 / 300) ** 0.5),
        (lambda t: nn.init.kaiming_normal_(t, mode="fan_out", nonlinearity="relu"), (2 / 200) ** 0.5),
        (lambda t: nn.init.normal_(t, 0.0, 0.3), 0.3),
        (lambda t: nn.init.uniform_(t, -1, 1), 3**-0.5),
    ],
)
def test_random_inits_have_their_spread(fill: Any, deviation: float) -> None:
    values = fill(torch.empty(200, 300)).numpy()
    assert abs(values.mean()) < 4 * deviation / values.size**0.5
    assert values.std() == pytest.approx(deviation, rel=0.02)


def test_fixed_inits() -> None:
    q = nn.init.orthogonal_(torch.empty(4, 9), gain=2.0).numpy()
    np.testing.assert_allclose(q @ q.T, 4 * np.eye(4), atol=1e-5)
    np.testing.assert_array_equal(nn.init.eye_(torch.empty(2, 3)).numpy(), np.eye(2, 3))
    cut = nn.init.trunc_normal_(torch.empty(1000), std=1.0, a=-1.0, b=0.5).numpy()
    assert cut.min() >= -1 and cut.max() <= 0.5 and len(np.unique(cut)) > 990
    x = torch.randn(1, 3, 5)
    w = nn.init.dirac_(torch.empty(3, 3, 3))
    np.testing.assert_array_equal(nn.functional.conv1d(x, w, padding=1).numpy(), x.numpy())
    assert (nn.init.sparse_(torch.empty(10, 4), 0.3) == 0).sum(0).tolist() == [3, 3, 3, 3]
    assert nn.init.calculate_gain("leaky_relu", 1.0) == 1.0
    p = nn.Parameter(torch.empty(2))
    assert nn.init.ones_(p) is p and p.is_leaf and p.requires_grad
