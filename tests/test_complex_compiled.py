"""Complex arithmetic in compiled functions: its rows run whole, as eager computes them."""

from __future__ import annotations

from typing import Any

import pytest

import tinytorch as torch


def turned(x: Any, angle: Any) -> Any:
    z = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    c = torch.polar(torch.ones_like(angle), angle)
    y = (z * c + 2 * z.conj() - 1j * z) / (1 + z.abs())
    product = torch.complex(angle, angle) @ y.T
    return torch.view_as_real(y * y.exp()).flatten(1), product.abs().sum() + y.mean(0).imag.square().sum()


@pytest.mark.parametrize("dynamic", [False, True])
def test_complex_functions_and_their_gradients(dynamic: bool) -> None:
    torch.compiler.reset()
    results = []
    for fn in (turned, torch.compile(turned, fullgraph=True, dynamic=dynamic)):
        torch.manual_seed(0)
        x = torch.randn(3, 4).requires_grad_()
        angle = torch.randn(3, 2).requires_grad_()
        pairs, number = fn(x, angle)
        (pairs.square().sum() + number).backward()
        results.append((pairs, number, x.grad, angle.grad))
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)
