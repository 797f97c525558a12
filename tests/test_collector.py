"""The garbage collector stands still while a stage asks for it, and is afterwards as it was."""

from __future__ import annotations

import gc
import threading

import pytest

import tinytorch as torch
from compiler import collector


def test_blocks_nest_and_give_back() -> None:
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), collector.held():
        with collector.held():
            assert not gc.isenabled()
        assert not gc.isenabled()
        1 / 0  # noqa: B018
    assert gc.isenabled()


def test_blocks_of_threads_overlap() -> None:
    inside, go = threading.Event(), threading.Event()

    def other() -> None:
        with collector.held():
            inside.set()
            go.wait(10)

    thread = threading.Thread(target=other)
    with collector.held():
        thread.start()
        assert inside.wait(10)
    assert not gc.isenabled()
    go.set()
    thread.join()
    assert gc.isenabled()


def test_a_program_without_collector_stays_without() -> None:
    gc.disable()
    try:
        with collector.held():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_trace_that_fails_lets_the_collector_go() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        raise KeyError("x")

    with pytest.raises(KeyError):
        torch.compile(fn)(torch.ones(2))
    assert gc.isenabled()
