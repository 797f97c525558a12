"""``OptimizedModule``: a module whose call is compiled, and which is the original in everything else.

Stage: api.  In: a module and its compiled call.  Out: a module.  Mirrors ``torch._dynamo.eval_frame.OptimizedModule``:
the original is ``_orig_mod``, so state_dict keys start with ``_orig_mod.``.  ``module.compile()`` changes no keys.
Read next: ``api``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tinytorch.nn.module import Module

_OWN = frozenset({"_orig_mod", "_compiled", "training", "__doc__"})


class OptimizedModule(Module):
    """Attributes are read from and written to the original; calls run compiled."""

    _orig_mod: Module

    def __init__(self, module: Module, compiled: Callable[..., Any]) -> None:
        super().__init__()
        self._modules["_orig_mod"] = module
        object.__setattr__(self, "_compiled", compiled)
        self.__dict__["training"] = module.training
        self.__dict__["__doc__"] = module.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._compiled(*args, **kwargs)

    forward = __call__

    def __getattr__(self, name: str) -> Any:
        if name == "_orig_mod":
            return self._modules["_orig_mod"]
        return getattr(self._modules["_orig_mod"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            if name == "training":
                self.__dict__["training"] = value
            else:
                object.__setattr__(self, name, value)
            return
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
