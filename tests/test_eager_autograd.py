"""The tape and its engine: custom functions, hooks, modes, anomaly, gradient checks, graphs of graphs."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest

import tinytorch as torch
from tinytorch.autograd import Function, gradcheck, gradgradcheck
from tinytorch.autograd.function import once_differentiable


def leaf(*values: float, dtype: Any = torch.float64) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, requires_grad=True)


# --- the engine -------------------------------------------------------------------------------------------------------
def test_a_diamond_is_visited_once() -> None:
    """b = a + a; c = b + b: recursion without an order would run b's node twice."""
    runs = []
    a = leaf(1.0)
    b = a + a
    b.grad_fn.register_prehook(lambda g: runs.append(g[0].item()))
    c = b + b
    c.backward()
    assert a.grad.item() == 4 and runs == [2.0]


def test_a_long_chain_needs_no_recursion() -> None:
    a = leaf(1.0)
    x = a
    for _ in range(5000):
        x = x + 1
    x.backward()
    assert a.grad.item() == 1


def test_intermediate_results_are_freed() -> None:
    a = leaf(1.0, 2.0)
    x = a * 3
    seen = weakref.ref(x)
    y = torch.sin(x).sum()
    del x
    assert seen() is not None  # sin keeps its input
    y.backward()
    gc.collect()
    assert seen() is None


def test_a_graph_that_is_dropped_leaves_no_cycle() -> None:
    gc.disable()
    try:
        a = leaf(1.0, 2.0)
        y = torch.exp(a) * torch.sigmoid(a)
        seen = weakref.ref(y.grad_fn)
        del y
        assert seen() is None
    finally:
        gc.enable()


def test_unused_inputs_keep_grad_none() -> None:
    a, b = leaf(1.0), leaf(2.0)
    (a * 2).backward()
    assert b.grad is None


def test_gradients_do_not_share_memory() -> None:
    a, b = leaf(1.0, 2.0), leaf(3.0, 4.0)
    g = torch.ones(2, dtype=torch.float64)
    (a + b).backward(g)
    a.grad.mul_(10)
    assert b.grad.tolist() == [1, 1] and g.tolist() == [1, 1]


def test_accumulation_in_place_keeps_the_tensor() -> None:
    a = leaf(1.0)
    (a * 2).backward()
    first = a.grad
    (a * 3).backward()
    assert a.grad is first and first.item() == 5


def test_create_graph_reaches_the_third_order() -> None:
    a = leaf(2.0)
    (g,) = torch.autograd.grad(a**4, a, create_graph=True)
    (h,) = torch.autograd.grad(g, a, create_graph=True)
    (k,) = torch.autograd.grad(h, a)
    assert (g.item(), h.item(), k.item()) == (32, 48, 48)


def test_gradient_penalty_through_saved_outputs() -> None:
    """exp, sigmoid, tanh save what they gave; the second derivative must pass through it."""
    for fn, second in ((torch.exp, 1.0), (torch.sigmoid, 0.0), (torch.tanh, 0.0), (torch.sqrt, None), (torch.rsqrt, None)):
        a = leaf(0.0 if second is not None else 4.0)
        (g,) = torch.autograd.grad(fn(a).sum(), a, create_graph=True)
        (h,) = torch.autograd.grad(g.sum(), a)
        want = {torch.sqrt: -1 / 32, torch.rsqrt: 3 / 128}.get(fn, second)
        assert abs(h.item() - want) < 1e-12


def test_grad_needs_what_it_is_asked() -> None:
    a, b = leaf(1.0), leaf(2.0)
    with pytest.raises(RuntimeError, match="appears to not have been used in the graph"):
        torch.autograd.grad(a * 2, b)
    assert torch.autograd.grad(a * 2, (a, b), allow_unused=True)[1] is None
    assert torch.autograd.grad(a * 2, b, materialize_grads=True)[0].item() == 0
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.autograd.grad(a * 2, torch.ones(1))


def test_modes_are_of_the_thread() -> None:
    seen = []
    with torch.no_grad():
        t = threading.Thread(target=lambda: seen.append(torch.is_grad_enabled()))
        t.start()
        t.join()
        assert not torch.is_grad_enabled()
    assert seen == [True] and torch.is_grad_enabled()


def test_modes_as_decorators_and_in_generators() -> None:
    @torch.no_grad()
    def f(a: Any) -> Any:
        return a * 2

    @torch.no_grad()
    def numbers(a: Any) -> Any:
        got = yield a * 2
        yield a * got

    a = leaf(1.0)
    assert not f(a).requires_grad
    g = numbers(a)
    assert not next(g).requires_grad and torch.is_grad_enabled()
    assert not g.send(3).requires_grad and torch.is_grad_enabled()
    with pytest.raises(StopIteration):
        next(g)

    @torch.inference_mode()
    def h(a: Any) -> Any:
        return a * 2

    assert h(a).is_inference()


def test_modes_survive_errors() -> None:
    with pytest.raises(ZeroDivisionError), torch.no_grad():
        raise ZeroDivisionError
    assert torch.is_grad_enabled()
    with torch.set_grad_enabled(False):
        assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled()


# --- hooks ------------------------------------------------------------------------------------------------------------
def test_tensor_hooks_change_and_see() -> None:
    a = leaf(1.0, 2.0)
    x = a * 2
    seen = []
    handle = x.register_hook(lambda g: seen.append(g.tolist()))
    x.register_hook(lambda g: g * 10)
    (x * torch.tensor([3.0, 4.0], dtype=torch.float64)).sum().backward(retain_graph=True)
    assert seen == [[3, 4]] and a.grad.tolist() == [60, 80]
    handle.remove()
    (x * 1).sum().backward()
    assert len(seen) == 1


def test_a_hook_stays_with_the_value_it_was_set_on() -> None:
    a = leaf(1.0)
    x = a * 2
    seen = []
    x.register_hook(lambda g: seen.append(g.item()))
    x.mul_(5)
    x.sum().backward()
    assert seen == [5.0]  # the gradient of x before it was changed


def test_retained_gradients_are_of_the_last_value() -> None:
    a = leaf(1.0)
    x = a * 2
    x.retain_grad()
    x.mul_(5)
    (x * 3).sum().backward()
    assert x.grad.item() == 3 and a.grad.item() == 30


def test_leaf_hooks_run_once_on_the_sum() -> None:
    a = leaf(1.0)
    seen = []
    a.register_hook(lambda g: seen.append(g.item()))
    after = []
    a.register_post_accumulate_grad_hook(lambda t: after.append(t.grad.item()))
    (a * 2 + a * 3).backward()
    assert seen == [5.0] and after == [5.0]


def test_node_hooks() -> None:
    a = leaf(1.0)
    x = a * 2
    handle = x.grad_fn.register_hook(lambda gi, go: (gi[0] * 7, None))
    (x * 3).backward(retain_graph=True)
    assert a.grad.item() == 42
    handle.remove()
    assert x.grad_fn.name() == "MulBackward0"
    (end, number) = x.grad_fn.next_functions[0]
    assert end.variable is a and number == 0 and x.grad_fn.next_functions[1] == (None, 0)


# --- custom functions -------------------------------------------------------------------------------------------------
class Cube(Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return g * 3 * x * x


class Exp(Function):
    """Saves its output; in the newer style."""

    @staticmethod
    def forward(x: Any) -> Any:
        return x.exp()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (y,) = ctx.saved_tensors
        return g * y


class Pair(Function):
    """Two outputs and arguments of all kinds."""

    @staticmethod
    def forward(ctx: Any, x: Any, scale: float, y: Any, note: str) -> Any:
        ctx.scale = scale
        assert ctx.needs_input_grad == (True, False, False, False)
        return x * scale, (x > 0), y

    @staticmethod
    def backward(ctx: Any, g: Any, mask: Any, gy: Any) -> Any:
        assert gy is not None and mask.dtype is torch.bool
        return g * ctx.scale, None, None, None


@pytest.mark.parametrize("function", [Cube, Exp])
def test_custom_functions_to_second_order(function: Any) -> None:
    a = leaf(0.5, -1.5)
    assert gradcheck(function.apply, a) and gradgradcheck(function.apply, a)
    assert repr(function.apply(a).grad_fn) == f"<{function.__name__}Backward>"


def test_custom_function_of_many_things() -> None:
    x, y = leaf(1.0, -2.0), torch.ones(2)
    out, mask, same = Pair.apply(x, 3.0, y, "note")
    assert not mask.requires_grad and not y.requires_grad and same is not y
    out.sum().backward()
    assert x.grad.tolist() == [3, 3]


def test_custom_function_checks_its_results() -> None:
    class Wrong(Function):
        @staticmethod
        def forward(ctx: Any, x: Any, how: str) -> Any:
            ctx.how = how
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return {"shape": (torch.ones(5), None), "count": g, "type": (1.0, None), "none": (None, None)}[ctx.how]

    x = leaf(1.0, 2.0)
    with pytest.raises(RuntimeError, match="WrongBackward returned an invalid gradient at index 0 - got"):
        Wrong.apply(x, "shape").sum().backward()
    with pytest.raises(RuntimeError, match=r"returned an incorrect number of gradients \(expected 2, got 1\)"):
        Wrong.apply(x, "count").sum().backward()
    with pytest.raises(TypeError, match="expected Variable or None"):
        Wrong.apply(x, "type").sum().backward()
    Wrong.apply(x, "none").sum().backward()
    assert x.grad is None


def test_custom_function_saves_with_versions() -> None:
    x = leaf(1.0, 2.0) * 1
    y = Cube.apply(x)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_custom_function_in_place() -> None:
    class Double(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            x.mul_(2)
            ctx.mark_dirty(x)
            return x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 2

    a = leaf(1.0, 3.0)
    x = a * 1
    y = Double.apply(x)
    assert y is x and x.tolist() == [2, 6]
    x.sum().backward()
    assert a.grad.tolist() == [2, 2]


def test_materialized_and_absent_cotangents() -> None:
    seen = []

    class Split(Function):
        @staticmethod
        def forward(ctx: Any, x: Any, materialize: bool) -> Any:
            ctx.set_materialize_grads(materialize)
            return x * 1, x * 2

        @staticmethod
        def backward(ctx: Any, g: Any, h: Any) -> Any:
            seen.append(None if h is None else h.tolist())
            return g, None

    for materialize in (True, False):
        Split.apply(leaf(1.0), materialize)[0].backward()
    assert seen == [[0.0], None]


def test_once_differentiable() -> None:
    class Once(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, g: Any) -> Any:
            return 2 * ctx.saved_tensors[0] * g

    a, weight = leaf(3.0), leaf(1.0)
    (g,) = torch.autograd.grad(Once.apply(a), a, weight, create_graph=True)
    assert g.item() == 6
    with pytest.raises(RuntimeError, match="once_differentiable"):
        g.sum().backward()


def test_freed_tensors_say_so() -> None:
    y = Cube.apply(leaf(1.0)).sum()
    y.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.backward()


# --- anomaly, checks --------------------------------------------------------------------------------------------------
def test_anomaly_mode_names_the_forward_line() -> None:
    a = torch.zeros(2, requires_grad=True)
    with torch.autograd.detect_anomaly(), pytest.raises(RuntimeError, match=r"SqrtBackward0.*returned nan") as e:
        y = torch.sqrt(a) * 0  # this line
        y.sum().backward()
    note = "".join(e.value.__notes__)
    assert "test_eager_autograd.py" in note and "# this line" in note
    torch.sqrt(a).mul(0).sum().backward()  # without the mode, as ever
    assert a.grad.isnan().all()


def test_anomaly_mode_names_the_line_of_an_error() -> None:
    class Boom(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 1

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            raise ValueError("boom")

    with torch.autograd.set_detect_anomaly(True), pytest.raises(ValueError, match="boom") as e:
        Boom.apply(leaf(1.0)).backward()
    assert "Boom.apply(leaf(1.0))" in "".join(e.value.__notes__)


def test_gradcheck_finds_a_wrong_rule() -> None:
    class Wrong(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g

    with pytest.raises(RuntimeError, match="Jacobian mismatch for output 0 with respect to input 0"):
        gradcheck(Wrong.apply, leaf(3.0))
    assert not gradcheck(Wrong.apply, leaf(3.0), raise_exception=False)
    with pytest.raises(ValueError, match="at least one input tensor to require gradient"):
        gradcheck(torch.sin, torch.ones(1))


def test_gradcheck_of_complex_functions() -> None:
    z = torch.tensor([0.3 + 0.4j, -1.2 - 0.5j], dtype=torch.complex128, requires_grad=True)
    for fn in (torch.exp, torch.sin, torch.tanh, torch.abs, torch.sqrt, lambda z: z * z.conj(), lambda z: z.real * z.imag,
               lambda z: z**3, lambda z: 1 / z, torch.view_as_real, lambda z: z @ z):  # fmt: skip
        assert gradcheck(fn, z)
        assert gradgradcheck(fn, z)
