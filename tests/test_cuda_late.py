"""An index out of range on a GPU, which runs behind the host: said where the host next waits, once, with the user's line.

The emulator stands in for the GPU, told not to look at its own checks after a launch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tinytorch as torch
from codegen_cupy import emulate
from codegen_cupy.machine import machine
from tinytorch import late

pytestmark = pytest.mark.skipif(not emulate.available(), reason="no C++ compiler")


@pytest.fixture(autouse=True)
def behind_the_host(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TT_CUDA_EMULATE", "1")
    monkeypatch.setattr(machine(True), "synchronous", False)
    late.ran.clear()
    yield
    late.ran.clear()


def looked_up(table: Any, ids: Any) -> Any:
    return table[ids] * 2.0


def given(*ids: int) -> tuple[Any, Any]:
    return torch.arange(5.0, device="cuda"), torch.tensor(ids, device="cuda")


WAITS: dict[str, Callable[[Any], Any]] = {
    "synchronize": lambda y: torch.cuda.synchronize(),
    "synchronize a device": lambda y: torch.cuda.synchronize("cuda:0"),
    "accelerator": lambda y: torch.accelerator.synchronize(),
    "item": lambda y: y[0].item(),
    "float": lambda y: float(y[0]),
    "bool": lambda y: bool(y[0] > 0),
    "cpu": lambda y: y.cpu(),
    "to": lambda y: y.to("cpu"),
    "tolist": lambda y: y.tolist(),
    "numpy": lambda y: y.numpy(force=True),
    "print": repr,
    "copy_": lambda y: torch.empty(3).copy_(y),
    "another result": lambda y: torch.zeros(2, device="cuda").tolist(),
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=list(WAITS))
def test_it_is_said_where_the_host_waits(wait: Callable[[Any], Any]) -> None:
    fn = torch.compile(looked_up)
    y = fn(*given(1, 7, 2))
    with pytest.raises(IndexError, match=r"index 7 is out of (?s:.*) \(in an earlier call(?s:.*)return table\[ids\] \* 2.0    test_cuda_late.py:\d+"):
        wait(y)
    wait(y)  # said once
    assert fn(*given(1, 3, 2)).tolist() == [2.0, 6.0, 4.0]


def test_the_next_call_says_it_too() -> None:
    fn = torch.compile(looked_up)
    fn(*given(1, 7, 2))
    with pytest.raises(IndexError, match="index 7"):
        fn(*given(1, 3, 2))
    assert fn(*given(1, 3, 2)).tolist() == [2.0, 6.0, 4.0]


def test_a_graph_says_it() -> None:
    def long(table: Any, ids: Any) -> Any:
        x = table[ids].cumsum(0)
        return (x - x.sum()).cumsum(0)

    fn = torch.compile(long, mode="reduce-overhead")
    for _ in range(3):
        want = fn(*given(1, 3, 2)).tolist()
    fn(*given(1, -6, 2))
    with pytest.raises(IndexError, match="index -6"):
        torch.cuda.synchronize()
    assert fn(*given(1, 3, 2)).tolist() == want


def test_a_call_that_would_run_again_eagerly_does_not() -> None:
    """The error is an earlier call's: this one, run again, would not find it."""
    seen = []

    @torch.compile
    def fn(table: Any, ids: Any) -> Any:
        y = table[ids]
        seen.append(len(seen))
        return y

    fn(*given(1, 7, 2))
    with pytest.raises(late.LateError, match="index 7"):
        fn(*given(1, 3, 2))
    assert seen == [0]
    fn(*given(1, 3, 2))
    torch.cuda.synchronize()
    assert seen == [0, 1]


def test_nothing_is_asked_where_no_check_has_run() -> None:
    class Never:
        def look(self) -> None:
            raise AssertionError

    x = torch.arange(3.0, device="cuda")
    fn = torch.compile(lambda x: x + 1)
    assert fn(x).tolist() == [1.0, 2.0, 3.0]
    assert not late.ran
    fn = torch.compile(looked_up)
    y = fn(*given(1, 2, 3))
    assert len(late.ran) == 1
    y.tolist()
    assert not late.ran
    late.ran[Never()] = 1  # on a stream that nobody waits for
    y.tolist()
    with pytest.raises(AssertionError):
        torch.cuda.synchronize()
