"""``state_dict`` and ``load_state_dict``: a module's tensors by name, out and in.

Stage: eager.  In: a tree of modules.  Out: an ordered dict of names to tensors that share the module's memory.
Mirrors the part of ``torch.nn.Module`` of that name.  Read next: ``module``.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tinytorch import tape
from tinytorch.hooks import RemovableHandle
from tinytorch.nn.parameter import Parameter, is_lazy
from tinytorch.tensor import Tensor

_EXTRA = "_extra_state"


class IncompatibleKeys(NamedTuple):
    """What ``load_state_dict`` found amiss; names as in the state dict."""

    missing_keys: list[str]
    unexpected_keys: list[str]

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return f"IncompatibleKeys(missing_keys={self.missing_keys}, unexpected_keys={self.unexpected_keys})"


class StateDict:
    """The methods that give out and take in a module's state."""

    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Tensor | None]
    _modules: dict[str, Any]
    _non_persistent_buffers_set: set[str]
    _state_dict_hooks: dict[int, Callable[..., Any]]
    _state_dict_pre_hooks: dict[int, Callable[..., Any]]
    _load_state_dict_pre_hooks: dict[int, Callable[..., Any]]
    _load_state_dict_post_hooks: dict[int, Callable[..., Any]]

    # --- out -----------------------------------------------------------------------------------------------------
    def state_dict(
        self, *, destination: dict[str, Any] | None = None, prefix: str = "", keep_vars: bool = False
    ) -> dict[str, Any]:
        """Names to tensors of parameters and persistent buffers, of this module and all below it.

        The tensors share memory with the module; ``keep_vars`` gives the parameters themselves.
        """
        out: dict[str, Any] = OrderedDict() if destination is None else destination
        for hook in self._state_dict_pre_hooks.values():
            hook(self, prefix, keep_vars)
        self._save_to_state_dict(out, prefix, keep_vars)
        for name, module in self._modules.items():
            if module is not None:
                module.state_dict(destination=out, prefix=f"{prefix}{name}.", keep_vars=keep_vars)
        for hook in self._state_dict_hooks.values():
            out = hook(self, out, prefix, {}) or out
        return out

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        for name, t in self._own_state().items():
            destination[prefix + name] = t if keep_vars else t.detach()
        if type(self).get_extra_state is not StateDict.get_extra_state:
            destination[prefix + _EXTRA] = self.get_extra_state()

    def _own_state(self) -> dict[str, Tensor]:
        kept = {k: v for k, v in self._buffers.items() if k not in self._non_persistent_buffers_set}
        return {k: v for k, v in itertools.chain(self._parameters.items(), kept.items()) if v is not None}

    def get_extra_state(self) -> Any:
        """Override together with ``set_extra_state`` to keep more than tensors in the state dict."""
        raise RuntimeError("Reached a code path in Module.get_extra_state() that should never be called.")

    def set_extra_state(self, state: Any) -> None:
        raise RuntimeError("Reached a code path in Module.set_extra_state() that should never be called.")

    # --- in ------------------------------------------------------------------------------------------------------
    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> IncompatibleKeys:
        """Copy ``state_dict`` into this module; with ``assign`` take its tensors over instead.

        RuntimeError lists shapes that differ and, if ``strict``, names that are missing or unexpected.
        """
        if not isinstance(state_dict, Mapping):
            raise TypeError(f"Expected state_dict to be dict-like, got {type(state_dict)}.")
        state = OrderedDict(state_dict)
        missing: list[str] = []
        unexpected: list[str] = []
        errors: list[str] = []
        self._load(state, "", strict, assign, missing, unexpected, errors)
        result = IncompatibleKeys(missing, unexpected)
        for hook in self._load_state_dict_post_hooks.values():
            hook(self, result)
        if strict:
            for keys, what in ((unexpected, "Unexpected"), (missing, "Missing")):
                if keys:
                    names = ", ".join(f'"{k}"' for k in keys)
                    errors.insert(0, f"{what} key(s) in state_dict: {names}. ")
        if errors:
            text = "\n\t".join(errors)
            raise RuntimeError(f"Error(s) in loading state_dict for {type(self).__name__}:\n\t{text}")
        return result

    def _load(
        self,
        state: dict[str, Any],
        prefix: str,
        strict: bool,
        assign: bool,
        missing: list[str],
        unexpected: list[str],
        errors: list[str],
    ) -> None:
        metadata = {"assign_to_params_buffers": assign}
        self._load_from_state_dict(state, prefix, metadata, strict, missing, unexpected, errors)
        for name, module in self._modules.items():
            if module is not None:
                start = f"{prefix}{name}."
                below = {k: v for k, v in state.items() if k.startswith(start)}
                module._load(below, start, strict, assign, missing, unexpected, errors)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """This module's own tensors, without those below; override to read older layouts."""
        for hook in self._load_state_dict_pre_hooks.values():
            hook(self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
        assign = local_metadata.get("assign_to_params_buffers", False)
        own = self._own_state()
        for name, t in own.items():
            if prefix + name not in state_dict:
                missing_keys.append(prefix + name)
            else:
                error = self._take(name, t, state_dict[prefix + name], prefix + name, assign)
                if error:
                    error_msgs.append(error)
        extra = prefix + _EXTRA
        has_extra = type(self).set_extra_state is not StateDict.set_extra_state
        if has_extra and extra in state_dict:
            self.set_extra_state(state_dict[extra])
        elif has_extra:
            missing_keys.append(extra)
        for key in state_dict:
            if key.startswith(prefix) and not (key == extra and has_extra):
                head, *tail = key[len(prefix) :].split(".", 1)
                if not (head in self._modules if tail else head in own):
                    unexpected_keys.append(key)

    def _take(self, name: str, own: Tensor, value: Any, key: str, assign: bool) -> str | None:
        """Copy or assign one tensor; an error message if it does not fit."""
        if not isinstance(value, Tensor):
            return (
                f'While copying the parameter named "{key}", expected torch.Tensor or Tensor-like object from '
                f"checkpoint but received {type(value)}"
            )
        if is_lazy(own):
            own.materialize(value.shape)  # type: ignore[attr-defined]
        if tuple(value.shape) != tuple(own.shape):
            return (
                f"size mismatch for {key}: copying a param with shape {value.shape} from checkpoint, "
                f"the shape in current model is {own.shape}."
            )
        with tape.grad_mode(False):
            if not assign:
                own.copy_(value)
            elif isinstance(own, Parameter):
                taken = value if isinstance(value, Parameter) else Parameter(value, own.requires_grad)
                setattr(self, name, taken)
            else:
                setattr(self, name, value)
        return None

    # --- hooks ---------------------------------------------------------------------------------------------------
    def register_state_dict_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """``hook(module, prefix, keep_vars)`` before ``state_dict``."""
        return add_hook(self._state_dict_pre_hooks, hook)

    def register_state_dict_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """``hook(module, state_dict, prefix, local_metadata)`` after ``state_dict``."""
        return add_hook(self._state_dict_hooks, hook)

    _register_state_dict_hook = register_state_dict_post_hook

    def register_load_state_dict_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """``hook(module, state_dict, prefix, metadata, strict, missing, unexpected, errors)`` before loading."""
        return add_hook(self._load_state_dict_pre_hooks, hook)

    def register_load_state_dict_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """``hook(module, incompatible_keys)`` after loading; it may change the lists in place."""
        return add_hook(self._load_state_dict_post_hooks, hook)


def add_hook(hooks: dict[int, Any], hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
    """Put ``hook`` into ``hooks`` and give the handle that takes it out."""
    handle = RemovableHandle(hooks)
    if prepend:
        others = dict(hooks)
        hooks.clear()
        hooks[handle.id] = hook
        hooks.update(others)
    else:
        hooks[handle.id] = hook
    return handle
