"""What users meet at the edges of the API: imports, missing names, trees, testing, printing, defaults."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from collections import deque
from typing import Any

import numpy as np
import pytest

import tinytorch as torch
import tinytorch.nn.functional as F
from tinytorch import nn


def test_import_loads_nothing_heavy() -> None:
    """What costs tens of milliseconds is imported when first used."""
    code = "import sys, numpy; before = set(sys.modules); import tinytorch; print(*sorted(set(sys.modules) - before))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    heavy = {"numba", "llvmlite", "cupy", "ml_dtypes", "safetensors", "bytecode", "compiler", "networkx", "matplotlib", "sympy", "torch"}
    assert not heavy & {name.partition(".")[0] for name in out}


@pytest.mark.parametrize("name", ["fft", "sparse_coo_tensor", "jit", "lu_solve"])
def test_missing_names_say_what_is_missing(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"{name}.*outside the supported subset"):
        getattr(torch, name)


def test_missing_methods_say_so_too() -> None:
    with pytest.raises(AttributeError, match=r"qr.*outside the supported subset"):
        torch.ones(2).qr  # noqa: B018


def test_default_dtype() -> None:
    try:
        torch.set_default_dtype(torch.float64)
        assert torch.tensor(1.5).dtype is torch.float64 and torch.rand(2).dtype is torch.float64
        assert (torch.ones(2, dtype=torch.int64) / 2).dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    with pytest.raises(TypeError):
        torch.set_default_dtype(torch.int64)


def test_numpy_meets_tensors() -> None:
    x = torch.arange(3.0)
    n = np.array([1.0, 2.0, 3.0], np.float32)
    assert isinstance(x + n, torch.Tensor) and (x + n).tolist() == [1, 3, 5]
    assert isinstance(n * x, torch.Tensor) and (n * x).tolist() == [0, 2, 6]
    assert (x * np.float32(2)).dtype is torch.float32 and (np.float64(2) * x).tolist() == [0, 2, 4]
    assert np.asarray(x).tolist() == [0, 1, 2] and np.sum(x.numpy()) == 3
    assert x[np.int64(1)].item() == 1 and x[np.array([0, 2])].tolist() == [0, 2]
    with pytest.raises(TypeError):
        torch.from_numpy(np.array(["a"]))
    with pytest.raises(ValueError, match="negative"):
        torch.from_numpy(n[::-1])
    for make in (torch.from_numpy, torch.tensor, torch.as_tensor):
        with pytest.raises(ValueError, match="byte order"):
            make(n.astype(">f4"))
    with pytest.raises(ValueError, match="multiple of the element byte size"):
        torch.from_numpy(np.zeros(4, [("a", "u1"), ("b", "f4")])["b"])
    assert torch.from_numpy(np.ma.array([1.0, 2.0], mask=[0, 1])).sum() == 3
    with pytest.raises(RuntimeError, match="detach"):
        x.requires_grad_().numpy()


def test_tensors_are_keys_and_truths() -> None:
    x = torch.ones(2)
    assert {x: 1}[x] == 1 and x in [x]
    assert (x == None) is False  # noqa: E711
    with pytest.raises(RuntimeError, match="ambiguous"):
        bool(x)
    assert torch.tensor([True]) and not torch.tensor(0.0)
    assert [1, 2, 3][torch.tensor(2)] == 3
    assert list(range(5))[torch.tensor(1) : torch.tensor(3)] == [1, 2]


def test_copies() -> None:
    x = torch.ones(2, requires_grad=True)
    (x * 2).sum().backward()
    y = copy.deepcopy(x)
    assert y.requires_grad and torch.equal(y, x) and torch.equal(y.grad, x.grad) and y.grad is not x.grad
    z = pickle.loads(pickle.dumps(x))
    assert torch.equal(x, z) and z.requires_grad
    with pytest.raises(RuntimeError, match="graph leaves"):
        copy.deepcopy(x * 2)


def test_types_pickle_as_themselves() -> None:
    for dtype in (torch.bool, torch.float32, torch.bfloat16, torch.complex64):
        assert pickle.loads(pickle.dumps(dtype)) is dtype and copy.deepcopy(dtype) is dtype
    assert pickle.loads(pickle.dumps(torch.Size([2, 3]))) == torch.Size([2, 3])


def test_printing_of_large_tensors_is_short() -> None:
    assert repr(torch.zeros(100, 100)).count("\n") == 6
    torch.set_printoptions(precision=2)
    try:
        assert repr(torch.tensor([1.23456])) == "tensor([1.23])"
    finally:
        torch.set_printoptions(precision=4)


def test_devices() -> None:
    assert torch.device("cuda:1").index == 1 and torch.device("cpu") == torch.zeros(1).device
    assert str(torch.device("cuda", 0)) == "cuda:0" and repr(torch.device("cpu")) == "device(type='cpu')"
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="cuda"):
            torch.zeros(1, device="cuda")
        assert torch.accelerator.current_accelerator() is None and torch.cuda.device_count() == 0


def test_the_emulated_device() -> None:
    """``TT_CUDA_EMULATE=1``: a cuda of NumPy arrays, with a cuda's rules."""
    code = """
import tinytorch as torch
x = torch.arange(6., device="cuda").reshape(2, 3)
assert x.is_cuda and str(x.device) == "cuda:0" and (x + 1).is_cuda and x.cpu().device.type == "cpu"
assert torch.zeros_like(x).is_cuda and torch.randn(2, device="cuda").is_cuda and x.new_ones(2).is_cuda
assert (x * torch.tensor(2.0)).is_cuda  # 0-d CPU tensors may join
try:
    x + torch.ones(2, 3)
    raise SystemExit("mixed devices went through")
except RuntimeError as e:
    assert "same device" in str(e), e
try:
    x.numpy()
    raise SystemExit("numpy() of a cuda tensor went through")
except TypeError:
    pass
w = torch.ones(3, requires_grad=True)
(x.cpu() @ w).sum().backward()
y = w.to("cuda")
(y * 2).sum().backward()
assert w.grad.device.type == "cpu" and w.grad.tolist() == [5, 7, 9]
x[0] = 7
x[x > 6] = torch.tensor(1.0, device="cuda")
assert x.tolist() == [[1, 1, 1], [3, 4, 5]] and "device='cuda:0'" in repr(x)
torch.manual_seed(0); a = torch.rand(4)
torch.manual_seed(0); assert torch.rand(4, device="cuda").cpu().tolist() == a.tolist()
"""
    run = subprocess.run([sys.executable, "-c", code], env={**os.environ, "TT_CUDA_EMULATE": "1"}, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_the_default_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever makes a tensor without being told where asks for it: functions, layers, compiled code."""
    monkeypatch.setenv("TT_CUDA_EMULATE", "1")
    make = torch.compile(lambda x: torch.zeros(3) + x, backend="eager")
    makers = [
        lambda: torch.tensor([1.0]), lambda: torch.arange(3), lambda: torch.randn(2), lambda: torch.eye(2), lambda: torch.as_tensor([1, 2]),
        lambda: torch.nn.Linear(2, 2).weight, lambda: torch.nn.BatchNorm1d(3).running_mean, lambda: torch.nn.LSTM(2, 3).weight_hh_l0,
        lambda: make(torch.ones(3)),
    ]  # fmt: skip
    assert not any(f().is_cuda for f in makers)
    with torch.device("cuda"):
        assert all(f().is_cuda for f in makers) and str(torch.get_default_device()) == "cuda:0"
        with torch.device("cpu"):
            assert not any(f().is_cuda for f in makers)
        assert torch.from_numpy(np.ones(2)).device.type == "cpu" and torch.zeros(1, device="cpu").device.type == "cpu"
    assert not any(f().is_cuda for f in makers)
    torch.set_default_device("cuda")
    try:
        assert all(f().is_cuda for f in makers)
    finally:
        torch.set_default_device(None)
    assert not torch.zeros(1).is_cuda


def test_compiled_code_follows_the_default_type() -> None:
    make = torch.compile(lambda x: torch.zeros(3) + x, backend="eager")
    x = torch.ones(3, dtype=torch.int32)
    for dtype in (torch.float32, torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        assert make(x).dtype is dtype


# --- testing ----------------------------------------------------------------------------------------------------------
def test_assert_close() -> None:
    close = torch.testing.assert_close
    x = torch.tensor([1.0, 2.0, 3.0])
    close(x, x + 1e-6)
    close([x, {"a": x}], [x, {"a": x}])
    close(torch.tensor(float("nan")), torch.tensor(float("nan")), equal_nan=True)
    wrong: list[Any] = [
        (x, x + 1e-3, "Mismatched elements: 3 / 3"), (x, x[:2], "shape"), (x, x.double(), "dtype"),
        (torch.tensor(float("nan")), torch.tensor(float("nan")), "not close"), (x, torch.tensor([1.0, float("inf"), 3.0]), "1 / 3"),
        ([x], [x, x], "length"), ({"a": x}, {"b": x}, "keys"),
    ]  # fmt: skip
    for a, b, text in wrong:
        with pytest.raises(AssertionError, match=text):
            close(a, b)
    close(x, x.double(), check_dtype=False)


def test_make_tensor() -> None:
    make = torch.testing.make_tensor
    for dtype in (torch.float32, torch.int8, torch.bool, torch.bfloat16):
        assert make(2, 3, dtype=dtype).dtype is dtype
    assert not make(3, 4, dtype=torch.float32, noncontiguous=True).is_contiguous()
    assert make((5,), dtype=torch.float64, low=2, high=3).min().item() >= 2


# --- linalg -----------------------------------------------------------------------------------------------------------
def test_linalg() -> None:
    a = torch.tensor([[4.0, 1.0], [1.0, 3.0]], dtype=torch.float64)
    eye = torch.eye(2, dtype=torch.float64)
    close = torch.testing.assert_close
    close(a @ torch.inverse(a), eye)
    close(a @ torch.linalg.solve(a, torch.ones(2, dtype=torch.float64)), torch.ones(2, dtype=torch.float64))
    lower = torch.linalg.cholesky(a)
    close(lower @ lower.mT, a)
    assert abs(torch.linalg.det(a).item() - 11) < 1e-12
    assert torch.linalg.matrix_norm(a, 1).item() == 5 and torch.linalg.vector_norm(a, 1).item() == 9
    with pytest.raises(torch.linalg.LinAlgError):
        torch.inverse(torch.zeros(2, 2))
    with pytest.raises(RuntimeError, match="square matrices"):
        torch.inverse(torch.zeros(2, 3))


@pytest.mark.parametrize(
    ("a", "b", "strides", "by_rows"),
    [
        ((3, 3), (3,), (1,), None),
        ((3, 3), (3, 2), (1, 3), None),
        ((4, 3, 3), (4, 3, 2), (6, 1, 3), None),
        ((4, 3, 3), (3, 2), (6, 1, 3), None),
        ((3, 3), (4, 3, 2), (6, 1, 3), None),
        ((4, 3, 3), (4, 3), (1, 4), None),
        ((4, 3, 3), (3,), (1, 4), None),
        ((2, 1, 3, 3), (5, 3, 3), (45, 9, 1, 3), (45, 9, 3, 1)),
    ],
)
def test_solutions_lie_as_in_pytorch(a: Any, b: Any, strides: Any, by_rows: Any) -> None:
    """By columns, by rows for ``left=False`` (strides that PyTorch 2.13 gives); compiled too."""
    torch.compiler.reset()
    torch.manual_seed(0)
    left = torch.randn(a, dtype=torch.float64) + 3 * torch.eye(3, dtype=torch.float64)
    right = torch.randn(b, dtype=torch.float64)
    for solve in (torch.linalg.solve, torch.compile(torch.linalg.solve)):
        x = solve(left, right)
        assert x.stride() == strides
        vector = b in ((3,), a[:-1])
        got = left @ (x.unsqueeze(-1) if vector else x)
        torch.testing.assert_close(got.squeeze(-1) if vector else got, right.expand(x.shape))
        if by_rows is not None:
            x = solve(left, right, left=False)
            assert x.stride() == by_rows
            torch.testing.assert_close(x @ left, right.expand(x.shape))
    for factor in (torch.linalg.inv, torch.linalg.cholesky):
        assert factor(left @ left.mT).stride()[-2:] == (1, 3)


def test_solve_says_which_shapes_do_not_fit() -> None:
    for left, shape in ((True, (4, 2)), (False, (2, 4))):
        with pytest.raises(RuntimeError, match=r"Incompatible shapes of A and B for the equation .* \(3x3 and"):
            torch.linalg.solve(torch.eye(3), torch.ones(shape), left=left)



# --- what model code expects of small things --------------------------------------------------------------------------
def test_any_sequence_becomes_a_tensor() -> None:
    assert torch.tensor(deque([1.0, 2.0])).tolist() == [1.0, 2.0]
    assert torch.tensor([deque([1, 2]), (3, 4)]).tolist() == [[1, 2], [3, 4]]
    with pytest.raises(RuntimeError, match="Could not infer dtype of set"):
        torch.tensor({1, 2})


def test_fill_diagonal() -> None:
    x = torch.zeros(5, 2)
    assert x.fill_diagonal_(1.0, wrap=True) is x
    assert x.tolist() == [[1, 0], [0, 1], [0, 0], [1, 0], [0, 1]]
    assert torch.zeros(2, 2, 2).fill_diagonal_(3).nonzero().tolist() == [[0, 0, 0], [1, 1, 1]]
    with pytest.raises(RuntimeError, match="equal length"):
        torch.zeros(2, 2, 3).fill_diagonal_(1)


@pytest.mark.parametrize("how", ["linear", "lower", "higher", "midpoint", "nearest"])
@pytest.mark.parametrize("dim", [None, 1])
def test_quantiles_are_numpys(how: str, dim: int | None) -> None:
    x = np.random.default_rng(0).standard_normal((3, 8, 2))
    q = [0.0, 0.3, 1.0]
    got = torch.quantile(torch.tensor(x), torch.tensor(q, dtype=torch.float64), dim, interpolation=how)
    np.testing.assert_allclose(got.numpy(), np.quantile(x, q, dim, method=how))
    x[0, 2:4, 1] = np.nan
    assert torch.quantile(torch.tensor(x), 0.5, dim).isnan().any()
    some = torch.nanquantile(torch.tensor(x), 0.3, dim, keepdim=True, interpolation=how)
    np.testing.assert_allclose(some.numpy(), np.nanquantile(x, 0.3, dim, method=how, keepdims=True))


@pytest.mark.parametrize("p", [1, 2, 3, float("inf")])
def test_distances(p: float) -> None:
    a, b = torch.randn(2, 3, 4, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)
    got = torch.cdist(a, b, p)
    want = np.linalg.norm(a.numpy()[:, :, None] - b.numpy(), p, -1)
    np.testing.assert_allclose(got.numpy(), want)
    same = torch.ones(2, 3).requires_grad_()
    torch.cdist(same, same, p).sum().backward()
    assert same.grad.isfinite().all()
    with pytest.raises(RuntimeError, match="same number of columns"):
        torch.cdist(a, b[:, 1:])


@pytest.mark.parametrize("call", [
    lambda x: x @ x, lambda x: x + torch.ones(5), lambda x: torch.cat([x, x[0]]), lambda x: x.view(7), lambda x: x.sum(4),
])  # fmt: skip
def test_errors_stand_alone(call: Any) -> None:
    """No exception of the library's own book-keeping is shown in front of them."""
    for _ in range(2):
        with pytest.raises((RuntimeError, IndexError)) as caught:
            call(torch.ones(2, 3))
        assert caught.value.__context__ is None


WRONG = {
    "running_mean should contain 4": lambda x: F.batch_norm(x, torch.zeros(1), torch.ones(4)),
    "bias should contain 4": lambda x: F.batch_norm(x, None, None, torch.ones(4), torch.ones(1), training=True),
    "weight should contain 4": lambda x: F.group_norm(x, 2, torch.ones(1)),
    "running_var should contain 4": lambda x: F.instance_norm(x, torch.zeros(4), torch.ones(3)),
    "same shape as normalized_shape": lambda x: F.layer_norm(x, (6,), torch.ones(6), torch.ones(1)),
    "but got weight of shape": lambda x: F.rms_norm(x, (6,), torch.ones(1)),
    "expected bias to be 1-dimensional with 8": lambda x: F.conv2d(x, torch.ones(8, 4, 3, 3), torch.ones(1)),
    "non-positive stride": lambda x: F.conv2d(x, torch.ones(8, 4, 3, 3), stride=0),
    "non-positive dilation": lambda x: F.conv2d(x, torch.ones(8, 4, 3, 3), dilation=0),
    "negative padding": lambda x: F.conv2d(x, torch.ones(8, 4, 3, 3), padding=-1),
    "for all 4 classes": lambda x: F.cross_entropy(x, torch.zeros(2, 6, 6, dtype=torch.int64), torch.ones(5)),
    "either for all 4": lambda x: F.cross_entropy(x, x, torch.ones(1)),
    "is repeated for operand 0": lambda x: torch.einsum("bccd->bd", x),
    "contracted dimensions need to match": lambda x: torch.tensordot(x, torch.ones(4, 2), 1),
    "expected grid to have size 2": lambda x: F.grid_sample(x, torch.ones(2, 2, 2, 3), align_corners=False),
    "same number of spatial dimensions": lambda x: F.interpolate(x, size=(3, 3, 3)),
    "attn_mask dtype": lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=torch.ones(6, 6, dtype=torch.int64)),
    "found std -1": lambda x: torch.normal(0.0, -1.0, (2,)),
    "negative dimension -1": lambda x: torch.randperm(-1),
    "n must be greater": lambda x: torch.eye(-1),
    "type uint8 without overflow": lambda x: torch.tensor([1, 300], dtype=torch.uint8),
}


@pytest.mark.parametrize("message", WRONG)
@pytest.mark.parametrize("compiled", [False, True])
def test_what_numpy_would_broadcast_or_wrap_is_refused(message: str, compiled: bool) -> None:
    fn = torch.compile(WRONG[message]) if compiled else WRONG[message]
    with pytest.raises((RuntimeError, ValueError), match=message):
        fn(torch.ones(2, 4, 6, 6))


def test_one_place_of_a_tensordot_stands_for_all() -> None:
    x, y = torch.arange(6.0).reshape(2, 3, 1), torch.arange(8.0).reshape(4, 2)
    assert torch.equal(torch.tensordot(x, y, 1), torch.tensordot(x.expand(2, 3, 4), y, 1))


def test_isin_takes_numbers_beside_a_tensor_of_another_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TT_CUDA_EMULATE", "1")
    x = torch.tensor([1, 2], device="cuda")
    assert torch.isin(x, 1).tolist() == [True, False] and torch.isin(2, x).tolist() is True


@pytest.mark.parametrize("compiled", [False, True])
def test_a_filled_tensor_holds_what_its_type_can(compiled: bool) -> None:
    wide = lambda x: torch.full((2,), 300, dtype=torch.uint8)  # noqa: E731
    turned = lambda x: x.new_full((2,), -1, dtype=torch.uint8)  # noqa: E731
    wide, turned = (torch.compile(wide), torch.compile(turned)) if compiled else (wide, turned)
    with pytest.raises(RuntimeError, match="without overflow"):
        wide(torch.ones(1))
    assert turned(torch.ones(1)).tolist() == [255, 255]


def test_a_trapezoid_takes_places_of_fewer_dimensions() -> None:
    y, x = torch.arange(24.0).reshape(2, 3, 4), torch.arange(12.0).reshape(3, 4)
    assert torch.equal(torch.trapezoid(y, x, dim=1), torch.trapezoid(y, x.expand(2, 3, 4), dim=1))
    with pytest.raises(RuntimeError, match="divisible by the split_size 0"):
        torch.hsplit(x, 0)


def test_python_types_move_modules() -> None:
    assert nn.Linear(2, 2).to(float).weight.dtype is nn.Linear(2, 2).to(dtype=float).weight.dtype is torch.float64


class Counting(torch.optim.Optimizer):
    def __init__(self, params: Any) -> None:
        super().__init__(params, {})

    def step(self) -> None:
        for p in self.param_groups[0]["params"]:
            self.state[p]["step"] = self.state[p].get("step", 0) + 1


def test_loaded_numbers_of_ones_own_optimizer_stay_numbers() -> None:
    p = nn.Parameter(torch.ones(2))
    first, second = Counting([p]), Counting([p])
    first.step()
    second.load_state_dict(first.state_dict())
    assert second.state[p]["step"] == 1 and isinstance(second.state[p]["step"], int)
