"""Who remembers: ``no_grad``, ``enable_grad``, ``set_grad_enabled``, ``inference_mode``, as blocks and as decorators.

Stage: eager.  In, out: the tape's mode of this thread.  Mirrors ``torch.autograd.grad_mode``.  Read next: ``tape``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from tinytorch.tape import mode


class _Mode:
    """A block that sets the mode and puts back what was; also a decorator, for generators too."""

    def _modes(self) -> tuple[bool, bool]:
        raise NotImplementedError

    def clone(self) -> _Mode:
        return type(self)()

    def __enter__(self) -> None:
        self.before = mode.grad, mode.inference
        mode.grad, mode.inference = self._modes()

    def __exit__(self, *exc: object) -> None:
        mode.grad, mode.inference = self.before

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.isgeneratorfunction(fn):
            return self._wrap_generator(fn)

        @functools.wraps(fn)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with self.clone():
                return fn(*args, **kwargs)

        return wrapped

    def _wrap_generator(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """The mode holds while the generator runs, not while its caller does."""

        @functools.wraps(fn)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with self.clone():
                generator = fn(*args, **kwargs)
            sent: Any = None
            while True:
                try:
                    with self.clone():
                        value = generator.send(sent)
                except StopIteration as stop:
                    return stop.value
                try:
                    sent = yield value
                except GeneratorExit:
                    generator.close()
                    raise
                except BaseException as e:
                    with self.clone():
                        value = generator.throw(e)
                    sent = yield value

        return wrapped


class no_grad(_Mode):  # noqa: N801 - PyTorch's names
    """Nothing is recorded.  Mirrors ``torch.no_grad``."""

    def __new__(cls, fn: Callable[..., Any] | None = None) -> Any:
        made = super().__new__(cls)
        return made if fn is None else made(fn)

    def _modes(self) -> tuple[bool, bool]:
        return False, mode.inference


class enable_grad(_Mode):  # noqa: N801
    """Recorded again inside ``no_grad``.  Mirrors ``torch.enable_grad``."""

    def __new__(cls, fn: Callable[..., Any] | None = None) -> Any:
        made = super().__new__(cls)
        return made if fn is None else made(fn)

    def _modes(self) -> tuple[bool, bool]:
        return True, mode.inference


class set_grad_enabled(_Mode):  # noqa: N801
    """Sets the mode at once; as a block, puts the old one back at its end.  Mirrors ``torch.set_grad_enabled``."""

    def __init__(self, mode: bool) -> None:
        self.enabled = mode
        self.before = _now()
        _set_grad(bool(mode))

    def clone(self) -> _Mode:
        return set_grad_enabled(self.enabled)

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        mode.grad, mode.inference = self.before
        return super().__call__(fn)

    def __enter__(self) -> None:
        mode.grad = self.enabled

    def _modes(self) -> tuple[bool, bool]:
        return self.enabled, mode.inference


class inference_mode(_Mode):  # noqa: N801
    """Nothing is recorded, and what is made here can never be.  Mirrors ``torch.inference_mode``."""

    enabled: bool

    def __new__(cls, mode: Any = True) -> Any:
        made = super().__new__(cls)
        made.enabled = True if callable(mode) else bool(mode)
        return made(mode) if callable(mode) else made

    def __init__(self, mode: Any = True) -> None:
        pass

    def clone(self) -> _Mode:
        return inference_mode(self.enabled)

    def _modes(self) -> tuple[bool, bool]:
        return (False, True) if self.enabled else (True, False)


def _now() -> tuple[bool, bool]:
    return mode.grad, mode.inference


def _set_grad(enabled: bool) -> None:
    mode.grad = enabled


def is_grad_enabled() -> bool:
    """Whether calls are recorded in this thread."""
    return mode.grad


def is_inference_mode_enabled() -> bool:
    return mode.inference


#: What of ``tape.mode`` a program may change, and a captured graph therefore has to follow.
MODES = ("grad", "inference", "autocast")


def set_mode(name: str, value: Any) -> None:
    """One of ``MODES`` of this thread: how a captured graph switches."""
    setattr(mode, name, value)


def get_modes() -> tuple[Any, ...]:
    """All ``MODES`` of this thread."""
    return mode.grad, mode.inference, mode.autocast


def set_modes(values: tuple[Any, ...]) -> None:
    """Put back what ``get_modes`` gave."""
    mode.grad, mode.inference, mode.autocast = values
