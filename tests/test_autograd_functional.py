"""Derivatives of functions, against those worked out by hand, and differentiated again."""

from __future__ import annotations

from typing import Any

import pytest

import tinytorch as torch
from tinytorch.autograd import functional as F

x = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
v = torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64)


def cube(a: Any) -> Any:
    return a**3


def energy(a: Any, b: Any) -> Any:
    return (a**3 * b).sum()


def test_products_are_the_matrix_times_the_vector() -> None:
    jacobian = F.jacobian(cube, x)
    torch.testing.assert_close(jacobian, torch.diag(3 * x**2))
    torch.testing.assert_close(F.vjp(cube, x, v), (x**3, v @ jacobian))
    torch.testing.assert_close(F.jvp(cube, x, v), (x**3, jacobian @ v))


def test_blocks_of_several_inputs() -> None:
    b = torch.full((3,), 2.0, dtype=torch.float64)
    (aa, ab), (ba, bb) = F.hessian(energy, (x, b))
    torch.testing.assert_close(aa, torch.diag(6 * x * b))
    torch.testing.assert_close(ab, torch.diag(3 * x**2))
    torch.testing.assert_close(ba, ab)
    assert not bb.any()
    value, (first, second) = F.hvp(energy, (x, b), (v, v))
    torch.testing.assert_close(value, energy(x, b))
    torch.testing.assert_close((first, second), (aa @ v + ab @ v, ba @ v))


@pytest.mark.parametrize("create", [False, True])
def test_create_graph_keeps_the_history(create: bool) -> None:
    a = x.clone().requires_grad_()
    jacobian = F.jacobian(cube, a, create_graph=create)
    assert jacobian.requires_grad is create
    if create:
        jacobian.sum().backward()
        torch.testing.assert_close(a.grad, 6 * x)


def test_errors() -> None:
    with pytest.raises(RuntimeError, match="single Tensor with one element"):
        F.hessian(cube, x)
    with pytest.raises(RuntimeError, match="strict mode"):
        F.jacobian(lambda a, b: a * 2, (x, x), strict=True)
    with pytest.raises(RuntimeError, match="shapes"):
        F.vjp(cube, x, torch.ones(2))
