"""``Optimizer``: groups of parameters, state per parameter, and a ``step`` that each subclass writes.

Stage: eager.  In: parameters with gradients.  Out: parameters changed in place.  A step is ordinary Python over tensor
operations: capture follows it like any other code, and a whole training step can become one graph.  Whatever changes
from step to step is therefore a tensor (``state["step"]`` too): a changing Python number would be guarded and recompiled.
Mirrors ``torch.optim.Optimizer``.  Read next: ``sgd``, ``adam``.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from tinytorch import tape
from tinytorch.device import array_module
from tinytorch.dtypes import float64, get_default_dtype
from tinytorch.hooks import RemovableHandle
from tinytorch.tensor import Tensor
from tinytorch.tracing import is_compiling

Group = dict[str, Any]

#: State that step_count makes.
COUNTS = frozenset({"step", "mu_product"})


class Optimizer:
    """The base of all optimizers.

    ``params``: an iterable of tensors, of (name, tensor) pairs, or of dicts with ``"params"`` and settings that
    override ``defaults``.  Subclasses write ``_update(group)`` and
    ``_new_state(p, group)``.
    """

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        if isinstance(params, Tensor):
            raise TypeError(
                "params argument given to the optimizer should be an iterable of Tensors or dicts, but got Tensor"
            )
        self.defaults = defaults
        self.state: defaultdict[Tensor, dict[str, Any]] = defaultdict(dict)
        self.param_groups: list[Group] = []
        self._step_pre_hooks: dict[int, Callable[..., Any]] = {}
        self._step_post_hooks: dict[int, Callable[..., Any]] = {}
        groups = list(params)
        if not groups:
            raise ValueError("optimizer got an empty parameter list")
        for group in groups if isinstance(groups[0], dict) else [{"params": groups}]:
            self.add_param_group(group)

    def add_param_group(self, param_group: Group) -> None:
        """One more group, with the defaults for settings it does not name."""
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, but got {type(param_group)}")
        group = {**param_group}
        given = group["params"]
        members = [given] if isinstance(given, Tensor) else list(given)
        if members and isinstance(members[0], tuple):
            group["param_names"] = [name for name, _ in members]
            members = [p for _, p in members]
        for p in members:
            if not isinstance(p, Tensor):
                raise TypeError(f"optimizer can only optimize Tensors, but one of the params is {type(p).__name__}")
            if not p.is_leaf:
                raise ValueError("can't optimize a non-leaf Tensor")
        known = {id(p) for g in self.param_groups for p in g["params"]}
        if any(id(p) in known for p in members):
            raise ValueError("some parameters appear in more than one parameter group")
        group["params"] = members
        for name, default in self.defaults.items():
            group.setdefault(name, default)
        self.param_groups.append(group)

    # --- the step ------------------------------------------------------------------------------------------------
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Change all parameters that have a gradient; returns what ``closure``, run first, returns."""
        for hook in list(self._step_pre_hooks.values()):
            hook(self, (closure,), {})
        loss = None
        if closure is not None:
            with tape.grad_mode(True):
                loss = closure()
        self.prepare()
        with tape.grad_mode(False):
            for group in self.param_groups:
                self._update(group)
        for hook in list(self._step_post_hooks.values()):
            hook(self, (closure,), {})
        return loss

    def prepare(self, has_gradient: Callable[[Tensor], bool] = lambda p: p.grad is not None) -> None:
        """Make the state of parameters that have a gradient and no state yet.

        Capture runs this for real when it meets a step, for the parameters that will have one then: the step it traces is
        one like all that follow.  Should the call raise before its step, this state stays, as new as before a first step.
        """
        with tape.grad_mode(False):
            for group in self.param_groups:
                for p in group["params"]:
                    if not self.state.get(p) and has_gradient(p):
                        fresh = self._new_state(p, group)
                        if fresh:
                            self.state[p] = fresh

    def _new_state(self, p: Tensor, group: Group) -> dict[str, Any]:
        """What is remembered of ``p`` before its first step."""
        return {}

    def _update(self, group: Group) -> None:
        """One step of one group; grad mode is off.  Weight decay joins the gradient, or shrinks the weights beforehand."""
        decay, apart = group.get("weight_decay", 0), group.get("decoupled_weight_decay", False)
        for p in group["params"]:
            if p.grad is None:
                continue
            if apart and decay != 0:
                p.mul_(1 - group["lr"] * decay)
            self._change(p, gradient(p, 0 if apart else decay, group.get("maximize", False)), group)

    def _change(self, p: Tensor, g: Tensor, group: Group) -> None:
        """One step of one parameter along the gradient ``g``."""
        raise NotImplementedError

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients, or with ``set_to_none=False`` fill them with zeros."""
        for group in self.param_groups:
            for p in group["params"]:
                if set_to_none:
                    p.grad = None  # not asked for first: one trace then serves steps with and without old gradients
                elif p.grad is not None:
                    p.grad = p.grad.detach().zero_()

    def register_step_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """``hook(optimizer, args, kwargs)`` before each step."""
        handle = RemovableHandle(self._step_pre_hooks)
        self._step_pre_hooks[handle.id] = hook
        return handle

    def register_step_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """``hook(optimizer, args, kwargs)`` after each step."""
        handle = RemovableHandle(self._step_post_hooks)
        self._step_post_hooks[handle.id] = hook
        return handle

    # --- state ---------------------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """``{"state": {number: ...}, "param_groups": [...]}``; parameters are numbered in order of the groups."""
        number = {id(p): i for i, p in enumerate(p for g in self.param_groups for p in g["params"])}
        groups = [{**g, "params": [number[id(p)] for p in g["params"]]} for g in self.param_groups]
        return {"state": {number[id(p)]: s for p, s in self.state.items()}, "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a ``state_dict``; ValueError unless the groups have the same sizes."""
        groups = copy.deepcopy(state_dict["param_groups"])
        if len(groups) != len(self.param_groups):
            raise ValueError("loaded state dict has a different number of parameter groups")
        if any(len(a["params"]) != len(b["params"]) for a, b in zip(groups, self.param_groups, strict=True)):
            raise ValueError("loaded state dict contains a parameter group that doesn't match the size of optimizer's group")
        numbers = [i for g in groups for i in g["params"]]
        by_number = dict(zip(numbers, (p for g in self.param_groups for p in g["params"]), strict=True))
        self.state = defaultdict(dict)
        others = not any(c is not Optimizer and c.__module__.startswith(f"{__package__}.") for c in type(self).__mro__)
        for number, state in state_dict["state"].items():
            p = by_number[number]
            self.state[p] = {k: _fit(k, v, p, others) for k, v in state.items()}
        self.param_groups = [
            {**g, "params": old["params"]} for g, old in zip(groups, self.param_groups, strict=True)
        ]

    def __repr__(self) -> str:
        lines = [type(self).__name__ + " ("]
        for i, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {i}")
            lines += [f"    {k}: {v}" for k, v in sorted(group.items()) if k != "params"]
        return "\n".join(lines) + "\n)"


def _fit(name: str, value: Any, p: Tensor, others: bool) -> Any:
    """A copy of loaded state on the device of its parameter, and in its type unless it counts steps; a number that counts steps stays
    one in an optimizer of ``others``, which may keep it so."""
    if name in COUNTS and isinstance(value, Tensor if others else Tensor | float | int):
        return step_count(p, float(value))
    if not isinstance(value, Tensor):
        return copy.deepcopy(value)
    return value.detach().clone().to(device=p.device, dtype=p.dtype if value.dtype.is_floating_point else value.dtype)


# --- what the subclasses share ----------------------------------------------------------------------------------------
def check_not_negative(**settings: Any) -> None:
    """ValueError, worded as PyTorch's, for a negative setting."""
    words = {"lr": "learning rate", "eps": "epsilon value", "weight_decay": "weight_decay value"}
    for name, value in settings.items():
        if not isinstance(value, Tensor) and not value >= 0.0:
            raise ValueError(f"Invalid {words.get(name, name + ' value')}: {value}")


def step_count(p: Tensor, start: float = 0.0) -> Tensor:
    """A 0-d tensor that counts the steps of ``p``: float32, as in PyTorch, unless the default type is float64."""
    kind = np.float64 if get_default_dtype() is float64 else np.float32
    if start == 0.0 and not is_compiling():  # without a copy to the device
        return Tensor._wrap(array_module(p.device).zeros((), kind), p.device)
    return Tensor._wrap(array_module(p.device).asarray(np.array(start, kind)), p.device)


def value_of(step: Tensor) -> Any:
    """The count as a Python float where that is cheap (eager on CPU), elsewhere as a tensor that computes like one:
    ``1 - 0.999**step`` in float32 would be wrong in the fifth digit."""
    return step.item() if step.device.type == "cpu" and not is_compiling() else step.double()


def zeros_like(p: Tensor) -> Tensor:
    """New zeros that lie as ``p`` does."""
    if is_compiling():
        return p.detach().clone().zero_()
    return Tensor._wrap(array_module(p.device).zeros_like(p._data), p.device)


def gradient(p: Tensor, weight_decay: float = 0.0, maximize: bool = False) -> Tensor:
    """The gradient to follow, with L2 decay added."""
    g: Tensor = p.grad  # type: ignore[assignment]
    if maximize:
        g = -g
    return g.add(p, alpha=weight_decay) if weight_decay != 0 else g
