"""Run the cases of ``nn_cases`` with PyTorch and keep the results: ``python tests/record/record_nn.py`` where torch is installed.

The file holds facts, not code: outputs and gradients as numbers.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn, optim

TESTS = Path(__file__).parent.parent
sys.path.insert(0, str(TESTS))
from nn_cases import CASES, MINIMISERS, OPTIMIZERS, SCHEDULES, array, seeded  # noqa: E402

warnings.simplefilter("ignore")


def flat(out: Any) -> list[torch.Tensor]:
    if isinstance(out, torch.Tensor):
        return [out]
    return [t for part in out for t in flat(part)] if isinstance(out, tuple | list) else []


def run(case: Any) -> dict[str, np.ndarray]:
    rng = seeded(case.name)
    space: dict[str, Any] = {"torch": torch, "nn": nn, "F": F}
    inputs = []
    for name, spec in zip("xyzw", case.inputs):
        values, differentiate = array(rng, spec)
        space[name] = torch.tensor(values).requires_grad_(differentiate)
        inputs.append(space[name])
    found: dict[str, np.ndarray] = {}
    if case.make:
        space["m"] = m = eval(case.make, space).double()
        m.train(not case.eval)
        fill(m, rng)
        found["keys"] = np.array(list(m.state_dict()))
        found["repr"] = np.array(repr(m))
    outs = flat(eval(case.call, space))
    for i, out in enumerate(outs):
        found[f"out{i}"] = out.detach().numpy()
    live = [o for o in outs if o.requires_grad]
    if live:
        sum((o * torch.tensor(rng.standard_normal(tuple(o.shape))).to(o.dtype)).sum() for o in live).backward()
    for i, x in enumerate(inputs):
        if x.grad is not None:
            found[f"grad{i}"] = x.grad.numpy()
    if case.make:
        for name, p in m.named_parameters():
            if p.grad is not None:
                found[f"grad {name}"] = p.grad.numpy()
        for name, b in m.named_buffers():
            found[f"buffer {name}"] = b.numpy()
    return found


def fill(m: nn.Module, rng: np.random.Generator) -> None:
    with torch.no_grad():
        for p in m.parameters():
            p.copy_(torch.tensor(0.5 * rng.standard_normal(tuple(p.shape))))
        for b in m.buffers():
            if b.dtype.is_floating_point:
                b.copy_(torch.tensor(0.5 + rng.random(tuple(b.shape))))


def run_optimizer(text: str) -> np.ndarray:
    rng = seeded(text)
    ps = [nn.Parameter(torch.tensor(rng.standard_normal(s))) for s in ((3, 2), (4,))]
    opt = eval(f"optim.{text}", {"optim": optim, "ps": ps})
    track = []
    for _ in range(5):
        for p in ps:
            p.grad = torch.tensor(rng.standard_normal(tuple(p.shape)))
        opt.step()
        track.append(np.concatenate([p.detach().numpy().ravel() for p in ps]))
    return np.stack(track)


def run_schedule(text: str) -> np.ndarray:
    opt = optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.2)
    schedule = eval(text, {"opt": opt, "swa_utils": optim.swa_utils, **vars(optim.lr_scheduler)})
    rates = []
    for _ in range(15):
        rates.append(opt.param_groups[0]["lr"])
        opt.step()
        schedule.step()
    return np.array(rates)


def run_minimiser(text: str) -> np.ndarray:
    p = nn.Parameter(torch.tensor([-1.2, 1.0, 0.5, -0.3], dtype=torch.float64))
    opt = eval(f"optim.{text}", {"optim": optim, "p": p})

    def closure() -> torch.Tensor:
        opt.zero_grad()
        loss = (100 * (p[1:] - p[:-1] ** 2) ** 2 + (1 - p[:-1]) ** 2).sum()
        loss.backward()
        return loss

    return np.array([float(opt.step(closure)) for _ in range(6)] + p.detach().tolist())


def main() -> None:
    kept: dict[str, np.ndarray] = {"torch version": np.array(torch.__version__)}
    for case in CASES:
        for key, value in run(case).items():
            kept[f"{case.name}|{key}"] = value.astype(np.float32) if value.dtype == np.float64 else value
    for text in OPTIMIZERS:
        kept[f"optim {text}"] = run_optimizer(text)
    for text in MINIMISERS:
        kept[f"minimise {text}"] = run_minimiser(text)
    for text in SCHEDULES:
        kept[f"schedule {text}"] = run_schedule(text)
    names = sorted(kept)
    print(f"{len(CASES)} cases, {len(names)} arrays")
    save(TESTS / "data" / "nn_recorded.npz", kept)


def save(path: Path, kept: dict[str, np.ndarray]) -> None:
    """One file: numbers in few long arrays, an index of names, since 2,000 members of a zip cost 300 kB."""
    numbers: dict[str, list[np.ndarray]] = {}
    index = []
    for name, value in kept.items():
        kind = value.dtype.kind if value.dtype.kind != "U" else "U"
        if kind == "U":
            index.append((name, "U", value.shape, "\n\n".join(value.ravel().tolist())))
            continue
        group = value.dtype.name
        start = sum(v.size for v in numbers.setdefault(group, []))
        numbers[group].append(value.ravel())
        index.append((name, group, value.shape, start))
    text = repr(index)
    np.savez_compressed(
        path, index=np.frombuffer(text.encode(), np.uint8), **{g: np.concatenate(v) for g, v in numbers.items()}
    )


if __name__ == "__main__":
    main()
