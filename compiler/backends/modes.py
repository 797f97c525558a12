"""``mode=`` is a name for a bundle of settings.

Stage: api.  In: a mode or options.  Out: changes of ``config``.  Mirrors ``torch._inductor.list_mode_options``.
Read next: ``compiler.config``, whose fields ``options`` name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from compiler.config import Config

MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "reduce-overhead": {"cudagraphs": True},
    "max-autotune": {"autotune": True, "coordinate_descent": True, "cudagraphs": True},
    "max-autotune-no-cudagraphs": {"autotune": True, "coordinate_descent": True},
}


def list_mode_options(mode: str | None = None) -> dict[str, Any]:
    """What each mode sets, or what one does."""
    if mode is None:
        return {name: dict(options) for name, options in MODES.items()}
    return dict(_of_mode(mode))


def list_options() -> list[str]:
    """The keys that ``options`` may have."""
    return sorted(f.name for f in fields(Config))


def settings(mode: str | None, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """The changes that ``mode`` or ``options`` ask for; RuntimeError if a name is unknown."""
    if options is not None:
        unknown = [k for k in options if k not in list_options()]
        if unknown:
            raise RuntimeError(f"Unexpected optimization option {unknown[0]}, known options are {list_options()}")
        return dict(options)
    return dict(_of_mode(mode or "default"))


def _of_mode(mode: str) -> dict[str, Any]:
    if mode not in MODES:
        raise RuntimeError(f"Unrecognized mode={mode}, should be one of: {', '.join(MODES)}")
    return MODES[mode]
