"""What a compiled function keeps alive: its code and its graph, not the program's objects."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from capture_helpers import Counted

import tinytorch as torch
from tinytorch import nn


class Box:
    def __init__(self) -> None:
        self.v = 1
        self.items = [torch.ones(3)]


def plain(x, box):
    box.v += 1
    box.new = [x]
    return x * box.v + box.items[0]


def breaking(x, box):
    y = x + box.v
    print("", end="")
    return y + box.items[0]


def raising(x, box):
    box.v += 1
    raise ValueError(box.v)


@pytest.mark.parametrize("fn", [plain, breaking, raising], ids=lambda f: f.__name__)
def test_arguments_die_with_their_last_reference(fn: Any) -> None:
    compiled = Counted(fn)
    gc.disable()
    try:
        x, box = torch.ones(3), Box()
        try:
            compiled(x, box)
        except ValueError:
            pass
        refs = [weakref.ref(x), weakref.ref(box), weakref.ref(box.items[0])]
        del x, box
        assert [r() for r in refs] == [None] * 3
    finally:
        gc.enable()


def test_models_die_too() -> None:
    def f(m, x):
        return m(x)

    compiled = Counted(f, dynamic=True)
    m = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    compiled(m, torch.ones(2, 3))
    refs = [weakref.ref(m), weakref.ref(m[0].weight), weakref.ref(m[0].weight._data)]
    del m
    gc.collect()
    assert [r() for r in refs] == [None] * 3
