"""Compiled convolutions and their gradients, over layouts and over sizes that vary, against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinytorch as torch


def _gradients(x: Any, w: Any, g: Any, stride: int = 1, groups: int = 1) -> Any:
    y = torch.nn.functional.conv2d(x, w, padding=w.shape[-1] // 2, stride=stride, groups=groups)
    return [y, *torch.autograd.grad(y, [x, w], g)]


_LAYOUTS: dict[str, Callable[..., Any]] = {
    "plain": lambda n, c, h: torch.randn(n, c, h, h),
    "some channels": lambda n, c, h: torch.randn(n, c + 2, h, h)[:, 1 : 1 + c],
    "one channel for all": lambda n, c, h: torch.randn(n, 1, h, h).expand(n, c, h, h),
    "one image for all": lambda n, c, h: torch.randn(1, c, h, h).expand(n, c, h, h),
    "one pixel for all": lambda n, c, h: torch.randn(n, c, 1, 1).expand(n, c, h, h),
    "one row for all": lambda n, c, h: torch.randn(n, c, 1, h).expand(n, c, h, h),
    "channels last": lambda n, c, h: torch.randn(n, h, h, c).permute(0, 3, 1, 2),
    "turned": lambda n, c, h: torch.randn(c, n, h, h).transpose(0, 1),
    "every second pixel": lambda n, c, h: torch.randn(n, c, h, 2 * h)[..., ::2],
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("sizes", [(1, 3, 1), (4, 1, 3), (4, 3, 1), (8, 8, 3), (1, 1, 3)], ids=str)
@pytest.mark.parametrize("which", ["x", "w", "g"])
def test_convolutions_of_all_layouts(which: str, sizes: tuple[int, int, int], dynamic: bool) -> None:
    """BLAS wants rows that lie apart: an expanded tensor has none, and the step over a single channel says nothing."""
    outs, ins, k = sizes
    torch.manual_seed(0)
    for name, make in _LAYOUTS.items():
        x, w, g = (_LAYOUTS["plain"](*s) for s in ((2, ins, 6), (outs, ins, k), (2, outs, 6)))
        x, w, g = {"x": (make(2, ins, 6), w, g), "w": (x, make(outs, ins, k), g), "g": (x, w, make(2, outs, 6))}[which]
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        torch.compiler.reset()
        compiled = torch.compile(_gradients, dynamic=dynamic)
        for want, got in zip(_gradients(x, w, g), compiled(x, w, g), strict=True):
            np.testing.assert_allclose(got.detach().numpy(), want.detach().numpy(), rtol=2e-5, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("kind", ["strided", "depthwise"])
@pytest.mark.parametrize("which", ["x", "w", "g"])
def test_strided_and_depthwise_convolutions_of_all_layouts(which: str, kind: str) -> None:
    torch.manual_seed(0)
    stride, groups = (2, 1) if kind == "strided" else (1, 8)
    of_w, of_g = ((16, 8, 3), (2, 16, 3)) if kind == "strided" else ((8, 1, 3), (2, 8, 6))
    sizes = {"x": (2, 8, 6), "w": of_w, "g": of_g}
    for name, make in _LAYOUTS.items():
        x, w, g = ((make if n == which else _LAYOUTS["plain"])(*sizes[n]) for n in "xwg")
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        torch.compiler.reset()
        compiled = torch.compile(_gradients, dynamic=False)
        for want, got in zip(_gradients(x, w, g, stride, groups), compiled(x, w, g, stride, groups), strict=True):
            np.testing.assert_allclose(got.detach().numpy(), want.detach().numpy(), rtol=2e-5, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("count", [0, 3])
def test_convolutions_of_all_types_and_of_no_images(count: int, dtype: Any) -> None:
    torch.manual_seed(0)
    for ins, outs, groups in ((8, 16, 1), (8, 8, 8)):
        x, w = torch.randn(count, ins, 9, 7).to(dtype), torch.randn(outs, ins // groups, 3, 3).to(dtype)
        g = torch.randn(count, outs, 5, 4).to(dtype)
        x, w = x.requires_grad_(), w.requires_grad_()
        torch.compiler.reset()
        compiled = torch.compile(_gradients)
        for want, got in zip(_gradients(x, w, g, 2, groups), compiled(x, w, g, 2, groups), strict=True):
            assert got.dtype is dtype and got.shape == want.shape
            limit = 2e-2 if dtype is torch.bfloat16 else 2e-5
            a, b = (t.detach().float().numpy() for t in (got, want))
            np.testing.assert_allclose(a, b, rtol=limit, atol=limit)


def test_gradients_of_convolutions_whose_sizes_vary_and_whose_cotangents_are_parts() -> None:
    """The height and width of what a gradient fills are parameters of the call."""
    a, b = torch.nn.Conv2d(3, 2, 1), torch.nn.Conv2d(3, 3, 3, stride=2, padding=1)

    def f(x: Any) -> Any:
        return (torch.cat([a(x)[..., ::2, ::2], b(x)], 1).square()[:, 1:4]).sum()

    compiled = torch.compile(f)
    for shape in ((2, 3, 8, 8), (1, 3, 6, 10), (3, 3, 12, 4)):
        found = []
        for call in (f, compiled):
            a.zero_grad(), b.zero_grad()
            x = torch.linspace(-1, 1, int(np.prod(shape))).reshape(shape).requires_grad_()
            call(x).backward()
            found.append([x.grad, a.weight.grad, b.weight.grad])
        for want, got in zip(*found, strict=True):
            np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=2e-4, atol=2e-4)
