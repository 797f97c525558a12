"""In-place changes through views: random programs against the same programs written as functions.

Each program takes views of a tensor (views of views too), changes some of them in place, and reads others.  Its value
and gradients must be those of plain NumPy memory and of finite differences.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tinytorch as torch
from tinytorch.autograd import gradcheck, gradgradcheck

VIEWS: dict[str, Any] = {
    "row": lambda x: x[0],
    "last": lambda x: x[-1:],
    "column": lambda x: x[..., 0],
    "even": lambda x: x[::2],
    "transposed": lambda x: x.transpose(0, -1),
    "flat": lambda x: x.reshape(-1) if x.is_contiguous() else x.contiguous().reshape(-1),
    "viewed": lambda x: x.view(x.shape[0], 1, *x.shape[1:]),
    "diagonal": lambda x: x.diagonal() if x.dim() > 1 else x[1:],
    "narrow": lambda x: x.narrow(0, 0, max(x.shape[0] - 1, 1)),
    "detached": lambda x: x.detach(),
}
CHANGES: dict[str, Any] = {
    "mul": lambda v, w: v.mul_(1.5),
    "mul by other": lambda v, w: v.mul_(w.sum() / 4),
    "square": lambda v, w: v.mul_(v),
    "add": lambda v, w: v.add_(w.mean()),
    "zero": lambda v, w: v.zero_(),
    "fill": lambda v, w: v.fill_(w.reshape(-1)[0] if w.numel() else 1.0),
    "copy": lambda v, w: v.copy_(w.sum() * 0.5),
    "exp": lambda v, w: v.mul_(0.3).exp_(),
    "set": lambda v, w: v.__setitem__(0, w.sum()) if v.dim() and v.shape[0] else None,
    "set by index": lambda v, w: v.__setitem__(torch.tensor([0, 0]), 2.0) if v.dim() and v.shape[0] else None,
    "set by mask": lambda v, w: v.__setitem__(v > 1, 0.25),
    "update": lambda v, w: v.__setitem__(slice(0, 1), v[0:1] * 2) if v.dim() and v.shape[0] else None,
    "sigmoid": lambda v, w: v.sigmoid_(),
    "turn": lambda v, w: v.transpose_(0, -1) if v.dim() else None,
    "unsqueeze": lambda v, w: v.unsqueeze_(0),
    "squeeze": lambda v, w: v.squeeze_(),
}
STEP = st.one_of(
    st.tuples(st.just("view"), st.integers(0, 6), st.sampled_from(sorted(VIEWS))),
    st.tuples(st.just("change"), st.integers(0, 6), st.integers(0, 6), st.sampled_from(sorted(CHANGES))),
)


def run(steps: list[Any], a: Any) -> Any:
    """All tensors the program has at its end; the first is the base, made from ``a``."""
    tensors = [a * 1.0]
    for step in steps:
        x = tensors[step[1] % len(tensors)]
        if step[0] == "view":
            if x.dim() and x.shape[0]:
                tensors.append(VIEWS[step[2]](x))
        else:
            CHANGES[step[3]](x, tensors[step[2] % len(tensors)])
    return tensors


def start() -> Any:
    values = np.linspace(-1.1, 1.3, 12).reshape(3, 4) + 0.013
    return torch.from_numpy(values.copy()).requires_grad_()


def detaches(steps: list[Any]) -> bool:
    return any(step[2] == "detached" for step in steps if step[0] == "view")


@settings(max_examples=150, deadline=None)
@given(st.lists(STEP, min_size=1, max_size=8))
def test_recorded_programs_have_the_values_of_unrecorded_ones(steps: list[Any]) -> None:
    recorded = run(steps, start())
    with torch.no_grad():
        plain = run(steps, start())
    for a, b in zip(recorded, plain, strict=True):
        assert np.array_equal(a.detach().numpy(), b.numpy())
        assert a._version == b._version


@settings(max_examples=60, deadline=None)
@given(st.lists(STEP, min_size=1, max_size=6))
def test_gradients_follow_writes_through_views(steps: list[Any]) -> None:
    if detaches(steps):
        return  # finite differences see what the tape was told to forget

    def f(a: Any) -> Any:
        weights = np.linspace(0.3, 1.7, 400)
        return sum((t * torch.from_numpy(weights[: t.numel()]).reshape(t.shape)).sum() for t in run(steps, a))

    assert gradcheck(f, start())


@settings(max_examples=25, deadline=None)
@given(st.lists(STEP, min_size=1, max_size=4))
def test_second_gradients_follow_too(steps: list[Any]) -> None:
    if detaches(steps):
        return
    assert gradgradcheck(lambda a: sum((t * t).sum() for t in run(steps, a)), start(), atol=1e-4)


def test_a_cotangent_may_lie_otherwise_than_the_base() -> None:
    """Views of the base that its cotangent, coming back transposed, would not have."""
    for steps in (
        [("view", 0, "flat"), ("view", 0, "transposed"), ("change", 1, 0, "add")],
        [("view", 0, "transposed"), ("view", 1, "transposed"), ("view", 0, "flat"), ("change", 3, 0, "add")],
    ):
        assert gradcheck(lambda a, steps=steps: sum((t * t).sum() + (t.T * 2.0).sum() for t in run(steps, a)), start())


# --- one of each kind -------------------------------------------------------------------------------------------------
def test_a_view_taken_before_the_write_sees_it() -> None:
    a = torch.ones(2, 3, requires_grad=True)
    x = a * 2
    v = x[0]
    x.mul_(5)
    assert v.tolist() == [10, 10, 10]
    v.sum().backward()
    assert a.grad.tolist() == [[10, 10, 10], [0, 0, 0]]


def test_a_view_taken_before_its_base_is_turned_in_place() -> None:
    """Its gradient goes to where it was taken, whoever writes later."""
    a = torch.ones(2, 3, requires_grad=True)
    x = a * 2
    v = x[0]
    x.t_()
    w = x[0]
    x.mul_(torch.tensor([[1.0, 2], [3, 4], [5, 6]]))
    assert v.tolist() == [2, 6, 10] and w.tolist() == [2, 4]
    v.sum().backward(retain_graph=True)
    assert a.grad.tolist() == [[2, 6, 10], [0, 0, 0]]
    v.mul_(10)
    a.grad = None
    w.sum().backward()
    assert a.grad.tolist() == [[20, 0, 0], [4, 0, 0]]


def test_a_write_through_one_view_reaches_another() -> None:
    a = torch.ones(4, requires_grad=True)
    x = a * 1
    first, both = x[:2], x[1:3]
    first.mul_(3)
    both.sum().backward()
    assert a.grad.tolist() == [0, 3, 1, 0]


def test_base_without_gradient_gets_one_by_a_write() -> None:
    b = torch.ones(3, requires_grad=True)
    x = torch.zeros(2, 3)
    x[1] = b
    assert x.requires_grad and not x.is_leaf
    (x * 2).sum().backward()
    assert b.grad.tolist() == [2, 2, 2]


def test_leaf_and_view_of_leaf_refuse_writes() -> None:
    a = torch.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        a.add_(1)
    with pytest.raises(RuntimeError, match="a view of a leaf Variable"):
        a[:2].add_(1)
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        a.detach().requires_grad_().mul_(2)
    assert a.tolist() == [1, 1, 1]


def test_in_place_keeps_the_old_value_for_its_own_rule() -> None:
    a = torch.tensor([2.0, 3.0], requires_grad=True)
    b = torch.tensor([5.0, 7.0], requires_grad=True)
    x = a * 1
    x.mul_(b)
    x.sum().backward()
    assert b.grad.tolist() == [2, 3] and a.grad.tolist() == [5, 7]


@pytest.mark.parametrize("change", ["add_", "mul_", "zero_", "copy_", "setitem", "view"])
def test_changing_what_was_saved_raises(change: str) -> None:
    a = torch.ones(3, requires_grad=True)
    x = a * 2
    y = x * x
    if change == "setitem":
        x[0] = 1
    elif change == "view":
        x[:1].add_(1)
    elif change == "zero_":
        x.zero_()
    else:
        getattr(x, change)(torch.ones(3))
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation.*version 1; expected version 0"):
        y.sum().backward()


def test_what_shares_memory() -> None:
    x = torch.arange(12.0).reshape(3, 4)
    for view in (x[1], x[:, ::2], x.t(), x.view(4, 3), x.reshape(2, 6), x.unsqueeze(0), x.expand(2, 3, 4), x.diagonal(),
                 x.detach(), x.data, x.unfold(1, 2, 1), x.chunk(2)[1], x[None], x[...], x.T.squeeze(), x.flatten()):  # fmt: skip
        assert np.shares_memory(view.numpy(), x.numpy())
    for copy in (x[[0, 1]], x[x > 3], x.clone(), x.t().contiguous(), x.t().reshape(12), x.flip(0), x + 0, x.repeat(1, 1),
                 torch.tensor(x), x.double()):  # fmt: skip
        assert not np.shares_memory(copy.numpy(), x.numpy())
    assert x.contiguous() is x and x.float() is x and x.to(torch.float32) is x and x.cpu() is x


def test_versions_are_of_the_memory() -> None:
    x = torch.zeros(3)
    view, detached, copy = x[:2], x.detach(), x.clone()
    view.add_(1)
    assert (x._version, view._version, detached._version, copy._version) == (1, 1, 1, 0)


def test_complex_numbers_lie_at_even_places() -> None:
    with pytest.raises(RuntimeError, match="stride divisible by 2"):
        torch.view_as_complex(torch.zeros(4, 3)[:, 1:3])
    assert torch.view_as_complex(torch.zeros(4, 6)[:, 2:4]).stride() == (3,)
    assert torch.view_as_complex(torch.zeros(1, 3)[:, :2]).shape == (1,)
