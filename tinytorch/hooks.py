"""Handles that take a hook back.  Mirrors ``torch.utils.hooks.RemovableHandle``.

Stage: eager.  Read next: ``tape``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

_ids = itertools.count()


class RemovableHandle:
    """Returned by every ``register_*hook``; ``remove()`` or leaving its ``with`` block takes the hook away."""

    def __init__(self, hooks: dict[int, Any]) -> None:
        self.hooks = hooks
        self.id = next(_ids)

    def remove(self) -> None:
        self.hooks.pop(self.id, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()


class HookList:
    """Hooks in the order they came."""

    def __init__(self) -> None:
        self.hooks: dict[int, Any] = {}

    def add(self, hook: Any) -> RemovableHandle:
        handle = RemovableHandle(self.hooks)
        self.hooks[handle.id] = hook
        return handle

    def __iter__(self) -> Iterator[Any]:
        return iter(self.hooks.values())
