"""save and load: round trips, formats other programs read, nothing that can run."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import tinytorch as torch
from tinytorch import nn, optim

SUFFIXES = [".npz", ".safetensors", ".pt"]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return type(a) is type(b) and a.dtype is b.dtype and a.shape == b.shape and a.tolist() == b.tolist()
    if isinstance(a, dict):
        return type(a) is type(b) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_structures_come_back_as_they_were(tmp_path: Path, suffix: str) -> None:
    obj = {
        "tensors": [torch.randn(2, 3), torch.arange(4), torch.tensor(True), torch.zeros(0, 2)],
        "kinds": OrderedDict((d.name, torch.ones(2, dtype=d)) for d in (torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.uint8)),
        "numbers": (1, -2.5, float("inf"), True, None, "text"),
        "parameter": nn.Parameter(torch.ones(1)),
        3: {"nested": torch.randn(4)[::2]},
        "a.b": torch.ones(1),
        "a": {"b": torch.zeros(1)},
        "dtype": torch.float16,
        "size": torch.Size([1, 2]),
    }
    path = tmp_path / f"x{suffix}"
    torch.save(obj, path)
    assert same(torch.load(path), obj)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_training_continues_from_a_file(tmp_path: Path, suffix: str) -> None:
    def make() -> Any:
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        return model, optim.Adam(model.parameters(), lr=0.1)

    def steps(model: Any, opt: Any) -> None:
        for _ in range(3):
            opt.zero_grad()
            model(torch.ones(1, 3)).sum().backward()
            opt.step()

    model, opt = make()
    steps(model, opt)
    torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, tmp_path / f"c{suffix}")
    steps(model, opt)
    again, again_opt = make()
    state = torch.load(tmp_path / f"c{suffix}", map_location="cpu")
    again.load_state_dict(state["model"])
    again_opt.load_state_dict(state["opt"])
    steps(again, again_opt)
    np.testing.assert_array_equal(again.weight.detach().numpy(), model.weight.detach().numpy())


def test_other_programs_read_the_files(tmp_path: Path) -> None:
    state = nn.Linear(3, 2).state_dict()
    torch.save(state, tmp_path / "w.npz")
    torch.save(state, tmp_path / "w.safetensors")
    with np.load(tmp_path / "w.npz") as f:
        np.testing.assert_array_equal(f["weight"], state["weight"].numpy())
    assert set(safetensors.numpy.load_file(tmp_path / "w.safetensors")) == {"weight", "bias"}


def test_files_of_other_programs_are_read(tmp_path: Path) -> None:
    arrays = {"a": np.arange(3.0), "b": np.eye(2, dtype=np.float32)}
    np.savez(tmp_path / "x.npz", **arrays)
    safetensors.numpy.save_file(arrays, tmp_path / "x.safetensors")
    for name in ("x.npz", "x.safetensors"):
        got = torch.load(tmp_path / name)
        assert {k: v.tolist() for k, v in got.items()} == {k: v.tolist() for k, v in arrays.items()}
        assert got["a"].dtype is torch.float64
        got["a"].add_(1)  # writable


def test_binary_files_and_map_location() -> None:
    buffer = io.BytesIO()
    torch.save({"x": torch.ones(2)}, buffer)
    for where in ("cpu", torch.device("cpu"), {"cpu": "cpu"}, lambda t, device: t):
        buffer.seek(0)
        assert torch.load(buffer, map_location=where)["x"].tolist() == [1, 1]


def test_code_is_refused_both_ways(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"cannot write a Linear at the top: save its state_dict\(\)"):
        torch.save(nn.Linear(1, 1), tmp_path / "m.pt")
    with pytest.raises(TypeError, match=r"cannot write a function at a\.0"):
        torch.save({"a": [print and (lambda: 0)]}, tmp_path / "m.pt")
    with pytest.raises(TypeError, match="keys are strings or ints"):
        torch.save({(1, 2): 3}, tmp_path / "m.pt")
    with zipfile.ZipFile(tmp_path / "theirs.pt", "w") as z:
        z.writestr("archive/data.pkl", pickle.dumps({}))
    with pytest.raises(ValueError, match="holds a pickle"):
        torch.load(tmp_path / "theirs.pt")
    (tmp_path / "raw.pkl").write_bytes(pickle.dumps([1]))
    with pytest.raises(ValueError, match="neither"):
        torch.load(tmp_path / "raw.pkl")
    np.savez(tmp_path / "objects.npz", x=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match="pickle"):
        torch.load(tmp_path / "objects.npz")


def test_a_failed_save_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    torch.save(torch.ones(1), path)
    with pytest.raises(TypeError):
        torch.save(object(), path)
    assert torch.load(path).tolist() == [1] and len(list(tmp_path.iterdir())) == 1
