"""``GradScaler``: keep float16 gradients out of underflow by scaling the loss.

Stage: eager.  In: a loss, an optimizer.  Out: steps on unscaled gradients; steps with infinities are left out and halve the
scale.  Mirrors ``torch.amp.GradScaler``.  Read next: ``policy``.
"""

from __future__ import annotations

from typing import Any

from tinytorch import tape
from tinytorch.functions.pointwise import isfinite
from tinytorch.functions.reduction import all as all_true
from tinytorch.optim.optimizer import Optimizer
from tinytorch.tensor import Tensor


class GradScaler:
    """``scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()``."""

    def __init__(
        self,
        device: str = "cuda",
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        if enabled and growth_factor <= 1.0:
            raise AssertionError("The growth factor must be > 1.0.")
        if enabled and backoff_factor >= 1.0:
            raise AssertionError("The backoff factor must be < 1.0.")
        self._scale, self._growth_factor, self._backoff_factor = init_scale, growth_factor, backoff_factor
        self._growth_interval, self._enabled, self._growth_tracker = growth_interval, enabled, 0
        self._found_inf: dict[int, bool] = {}  # optimizer id -> what unscaling it found, until update()
        self._stepped: set[int] = set()

    def scale(self, outputs: Any) -> Any:
        """The outputs times the scale; lists, tuples and dicts member by member."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            return outputs * self._scale
        if isinstance(outputs, dict):
            return {k: self.scale(v) for k, v in outputs.items()}
        return type(outputs)(self.scale(o) for o in outputs)

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients by the scale, in place; clipping comes after this."""
        if not self._enabled:
            return
        if id(optimizer) in self._stepped:
            raise RuntimeError("unscale_() is being called after step().")
        if id(optimizer) in self._found_inf:
            raise RuntimeError("unscale_() has already been called on this optimizer since the last update().")
        found = False
        with tape.grad_mode(False):
            for group in optimizer.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        p.grad.mul_(1.0 / self._scale)
                        found = found or not all_true(isfinite(p.grad)).item()
        self._found_inf[id(optimizer)] = found

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """``optimizer.step()``, unless a gradient is infinite or NaN."""
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if id(optimizer) in self._stepped:
            raise RuntimeError("step() has already been called since the last update().")
        if id(optimizer) not in self._found_inf:
            self.unscale_(optimizer)
        self._stepped.add(id(optimizer))
        return None if self._found_inf[id(optimizer)] else optimizer.step(*args, **kwargs)

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Halve the scale after an infinity, double it after ``growth_interval`` steps without one."""
        if not self._enabled:
            return
        if new_scale is not None:
            self._scale = float(new_scale)
        else:
            assert self._found_inf, "No inf checks were recorded prior to update."
            if any(self._found_inf.values()):
                self._scale *= self._backoff_factor
                self._growth_tracker = 0
            else:
                self._growth_tracker += 1
                if self._growth_tracker == self._growth_interval:
                    self._scale *= self._growth_factor
                    self._growth_tracker = 0
        self._found_inf.clear()
        self._stepped.clear()

    def get_scale(self) -> float:
        return self._scale if self._enabled else 1.0

    def is_enabled(self) -> bool:
        return self._enabled

    def state_dict(self) -> dict[str, Any]:
        if not self._enabled:
            return {}
        return {
            "scale": self._scale,
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._growth_tracker,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if not self._enabled:
            return
        if not state_dict:
            raise RuntimeError("The source state dict is empty, possibly because it was saved from a disabled instance of GradScaler.")
        self._scale = state_dict["scale"]
        self._growth_factor, self._backoff_factor = state_dict["growth_factor"], state_dict["backoff_factor"]
        self._growth_interval, self._growth_tracker = state_dict["growth_interval"], state_dict["_growth_tracker"]
