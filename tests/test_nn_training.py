"""Real trainings, cut short; ``.ci/run`` runs the examples to their named accuracy or loss."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture(autouse=True)
def _examples_on_path() -> Iterator[None]:
    sys.path.insert(0, str(EXAMPLES))
    yield
    sys.path.remove(str(EXAMPLES))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "steps", "good"), [("lstm_chars", 60, 2.95), ("gpt_chars", 60, 3.05)])
def test_characters_are_learnt(name: str, steps: int, good: float) -> None:
    """Below the 3.3 nats that guessing by frequency gives."""
    assert importlib.import_module(name).main(["--steps", str(steps)]) < good


@pytest.mark.slow
def test_digits_are_learnt() -> None:
    assert importlib.import_module("cnn_digits").main(["--steps", "120"]) > 0.97


@pytest.mark.slow
def test_the_demo_keeps_its_promises(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demo = importlib.import_module("tinytorch.demo.__main__")
    assert demo.main(["--save", str(tmp_path), "--lines", "3"]) == 0
    said = capsys.readouterr().out
    for words in ("The captured graph", "The guards", "The joint graph", "partitioner saves", "fused loop nests", "promises kept"):
        assert words in said
    names = [p.name for p in sorted(tmp_path.iterdir())]
    assert names[0].startswith("000_") and {n.split("_")[1] for n in names} >= {"graph", "guards", "joint", "loops", "kernels"}
    assert all(n.endswith({"asm": ".s", "memory": ".txt"}.get(n.split("_")[1], (".py", ".txt"))) for n in names)


def test_the_demo_says_when_there_is_no_gpu(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    demo = importlib.import_module("tinytorch.demo.__main__")
    monkeypatch.setattr(demo, "cuda_available", lambda: False)
    assert demo.main(["--device", "cuda"]) == 2
    assert "no CUDA GPU is available" in capsys.readouterr().out
