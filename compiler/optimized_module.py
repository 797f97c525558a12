"""``OptimizedModule``: a module whose call is compiled, and which is the original in everything else.

Stage: api.  In: a module and its compiled call.  Out: a module.  Mirrors ``torch._dynamo.eval_frame.OptimizedModule``:
the original is ``_orig_mod``, so state_dict keys start with ``_orig_mod.``.  ``module.compile()`` changes no keys.
Read next: ``api``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tinytorch.nn.module import Module

_OWN = frozenset({"_orig_mod", "_compiled", "_compile", "training", "__doc__"})


class OptimizedModule(Module):
    """Attributes are read from and written to the original; calls run compiled."""

    _orig_mod: Module

    def __init__(self, module: Module, compiled: Callable[..., Any], again: Callable[[Module], Any]) -> None:
        """``again``: what wraps a copy of the module in the same way."""
        super().__init__()
        self._modules["_orig_mod"] = module
        object.__setattr__(self, "_compiled", compiled)
        object.__setattr__(self, "_compile", again)
        self.__dict__["__doc__"] = module.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._forward_hooks or self._forward_pre_hooks or self._backward_hooks or self._backward_pre_hooks:
            return self._call_with_hooks(args, kwargs)
        return self._compiled(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The compiled call, inside of this module's own hooks."""
        return self._compiled(*args, **kwargs)

    def __reduce__(self) -> Any:
        """A copy is a compiled copy: code belongs to the module that it was compiled for."""
        return self._compile, (self._orig_mod,)

    @property
    def training(self) -> bool:  # type: ignore[override]
        """The original's, whoever has set it."""
        return self._modules["_orig_mod"].training  # type: ignore[union-attr]

    @training.setter
    def training(self, mode: bool) -> None:
        self._modules["_orig_mod"].training = mode  # type: ignore[union-attr]

    def __getattr__(self, name: str) -> Any:
        modules = self.__dict__.get("_modules")
        if modules is None:  # asked while it is being made
            raise AttributeError(name)
        return modules["_orig_mod"] if name == "_orig_mod" else getattr(modules["_orig_mod"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self._orig_mod, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._orig_mod, name)

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *dir(self._orig_mod)})

    def __len__(self) -> int:
        return len(self._orig_mod)

    def __getitem__(self, index: Any) -> Any:
        return self._orig_mod[index]  # type: ignore[index]

    def __iter__(self) -> Any:
        return iter(self._orig_mod)
