"""``LBFGS``: steps along the gradient as an approximate inverse Hessian turns it.

Stage: eager.  In: a closure that computes the loss again.  Out: parameters changed in place.  The inverse Hessian is known by
the last few steps and changes of gradient (Nocedal, 1980).  Mirrors ``torch.optim.LBFGS``.  Read next: ``line_search``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tinytorch import ops, tape
from tinytorch.optim.line_search import Point, strong_wolfe
from tinytorch.optim.optimizer import Optimizer, check_not_negative
from tinytorch.tensor import Tensor


class LBFGS(Optimizer):
    """One group of parameters; ``step(closure)`` takes up to ``max_iter`` steps."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = None,
    ) -> None:
        check_not_negative(lr=lr)
        if line_search_fn not in (None, "strong_wolfe"):
            raise RuntimeError("only 'strong_wolfe' is supported")
        evaluations = max_iter * 5 // 4 if max_eval is None else max_eval
        settings = {"lr": lr, "max_iter": max_iter, "max_eval": evaluations, "history_size": history_size}
        super().__init__(
            params,
            {
                **settings,
                "tolerance_grad": tolerance_grad,
                "tolerance_change": tolerance_change,
                "line_search_fn": line_search_fn,
            },
        )
        if len(self.param_groups) != 1:
            raise ValueError("LBFGS doesn't support per-parameter options (parameter groups)")

    def _flat_gradient(self, ps: list[Tensor]) -> Tensor:
        parts = [p.detach().reshape(-1) * 0.0 if p.grad is None else p.grad.reshape(-1) for p in ps]
        return ops.cat(*parts, dim=0)  # type: ignore[no-any-return]

    def _move(self, ps: list[Tensor], direction: Tensor, length: Any) -> None:
        start = 0
        for p in ps:
            p.add_(direction[start : start + p.numel()].reshape(p.shape) * length)
            start += p.numel()

    def step(self, closure: Callable[[], Any]) -> Any:  # type: ignore[override]
        """Steps until a tolerance or a limit is reached; returns the loss before them."""
        group = self.param_groups[0]
        ps, state = group["params"], self.state[group["params"][0]]
        with tape.grad_mode(False):
            loss = self._evaluate(closure)
            first, evaluations = loss, 1
            gradient = self._flat_gradient(ps)
            if gradient.abs().max().item() <= group["tolerance_grad"]:
                return first
            for iteration in range(1, group["max_iter"] + 1):
                direction = self._direction(state, gradient, group["history_size"])
                slope = gradient.dot(direction).item()
                length = group["lr"]
                if state["n_iter"] == 1:  # nothing is known of the curvature yet
                    length = min(1.0, 1.0 / gradient.abs().sum().item()) * length
                if slope > -group["tolerance_change"]:
                    break
                before = loss
                if group["line_search_fn"] is not None:
                    start = Point(0.0, float(loss), gradient, slope)
                    found, asked = self._search(closure, ps, direction, start, length)
                    loss, gradient, length = found.value, found.gradient, found.at
                    self._move(ps, direction, length)
                    evaluations += asked
                else:
                    self._move(ps, direction, length)
                    if iteration != group["max_iter"]:
                        loss = self._evaluate(closure)
                        evaluations += 1
                        gradient = self._flat_gradient(ps)
                state["t"] = length
                if iteration == group["max_iter"] or evaluations >= group["max_eval"]:
                    break
                if gradient.abs().max().item() <= group["tolerance_grad"]:
                    break
                if (direction * length).abs().max().item() <= group["tolerance_change"]:
                    break
                if abs(float(loss) - float(before)) < group["tolerance_change"]:
                    break
            return first

    def _search(
        self, closure: Callable[[], Any], ps: list[Tensor], direction: Tensor, start: Point, length: float
    ) -> tuple[Point, int]:
        """Look along the direction from where the parameters are, and put them back."""
        here = [p.detach().clone() for p in ps]

        def look(at: float) -> Point:
            self._move(ps, direction, at)
            loss = float(self._evaluate(closure))
            gradient = self._flat_gradient(ps).clone()
            for p, value in zip(ps, here, strict=True):
                p.copy_(value)
            return Point(at, loss, gradient, gradient.dot(direction).item())

        return strong_wolfe(look, start, length, direction.abs().max().item())

    def _evaluate(self, closure: Callable[[], Any]) -> Any:
        with tape.grad_mode(True):
            return closure()

    def _direction(self, state: dict[str, Any], gradient: Tensor, size: int) -> Tensor:
        """Minus the gradient, turned by the remembered steps (the two-loop recursion)."""
        state["n_iter"] = state.get("n_iter", 0) + 1
        if state["n_iter"] == 1:
            state["steps"], state["changes"], state["scale"] = [], [], 1.0
            direction = -gradient
        else:
            change = gradient - state["gradient"]
            moved = state["direction"] * state["t"]
            curvature = change.dot(moved).item()
            if curvature > 1e-10:
                state["steps"] = [*state["steps"], moved][-size:]
                state["changes"] = [*state["changes"], change][-size:]
                state["scale"] = curvature / change.dot(change).item()
            direction = self._turned(-gradient, state["steps"], state["changes"], state["scale"])
        state["gradient"], state["direction"] = gradient.clone(), direction
        return direction

    def _turned(self, q: Tensor, steps: list[Tensor], changes: list[Tensor], scale: float) -> Tensor:
        weights = [1.0 / y.dot(s).item() for s, y in zip(steps, changes, strict=True)]
        shares = []
        for s, y, rho in zip(reversed(steps), reversed(changes), reversed(weights), strict=True):
            shares.append(rho * s.dot(q).item())
            q = q - y * shares[-1]
        q = q * scale
        for s, y, rho, share in zip(steps, changes, weights, reversed(shares), strict=True):
            q = q + s * (share - rho * y.dot(q).item())
        return q
