"""``python -m tinytorch.demo [--device cuda] [--save DIR] [--full]``: train on digits, eager and compiled, and show how.

Stage: demo.  In: options.  Out: the stages, a line per epoch, a closing table; exit code 1 if a promise is broken.
Read next: ``training``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tinytorch as torch
from compiler import logs
from compiler.config import config
from tinytorch.demo import stages, training
from tinytorch.demo.model import load_digits
from tinytorch.demo.training import Run, Settings
from tinytorch.device import cuda_available

#: What the demo promises.
ACCURACY, LOSS_DIFFERENCE = 0.97, 1e-4


def options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tinytorch.demo", description="Train on digits, eager and compiled.")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"], help="cuda runs through CuPy")
    parser.add_argument("--epochs", type=int, default=Settings.epochs)
    parser.add_argument("--backend", default="inductor", help="see tinytorch.compiler.list_backends()")
    parser.add_argument("--save", metavar="DIR", type=Path, help="write every stage as a numbered file")
    parser.add_argument("--full", action="store_true", help="do not cut long stages")
    parser.add_argument("--lines", type=int, default=36, help="lines shown of each stage")
    parser.add_argument("--first-step", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


@dataclass
class Cost:
    """What compiling cost, and what the cache gave back."""

    seconds: float
    hits: int
    asked: int


def first_step(settings: Settings, backend: str) -> Cost:
    """Compile by taking one step with a throw-away model.  Nobody listens: writing down what stages say takes time."""
    data = load_digits(settings.device)
    p = training.parts(settings, lambda fn: torch.compile(fn, backend=backend))
    begin = time.perf_counter()
    training.step(p, data.train_x[: settings.batch], data.train_y[: settings.batch])
    seconds = time.perf_counter() - begin
    counts = logs.counters["cache"]
    hits = sum(n for name, n in counts.items() if name.endswith("hit"))
    return Cost(seconds, hits, sum(counts.values()))


def in_new_process(args: argparse.Namespace) -> Cost:
    """``first_step`` in a process of its own, which finds in the cache what others left there."""
    command = [sys.executable, "-m", "tinytorch.demo", "--first-step", "--device", args.device, "--backend", args.backend]
    out = subprocess.run(
        command, env={**os.environ, "TT_CACHE_DIR": config.cache_dir}, capture_output=True, text=True, check=True
    )
    return Cost(*json.loads(out.stdout.splitlines()[-1]))


def all_stages(settings: Settings, backend: str) -> list[stages.Artifact]:
    """What the stages say about the same step."""
    with logs.collecting() as found:
        first_step(settings, backend)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    args = options(argv)
    if args.device == "cuda" and not cuda_available():
        print("--device cuda: no CUDA GPU is available here (it needs CuPy and a GPU). Without --device it runs on the CPU.")
        return 2
    if args.first_step:
        cost = first_step(Settings(device=args.device), args.backend)
        print(json.dumps([cost.seconds, cost.hits, cost.asked]))
        return 0
    with tempfile.TemporaryDirectory(prefix="tinytorch-demo-") as folder:
        with config.patch(cache_dir=str(Path(folder, "cache"))):
            return demonstrate(args)


def demonstrate(args: argparse.Namespace) -> int:
    settings = Settings(epochs=args.epochs, device=args.device)
    data = load_digits(settings.device)
    print(f"tinytorch demo: {len(data.train_x)} digits to learn, {len(data.test_x)} to test, on {settings.device}\n")
    print(training.parts(settings, lambda fn: fn).model, "\n")
    print("compiling the loss and the optimizer's step, nothing cached yet ...", flush=True)
    cold, warm = in_new_process(args), in_new_process(args)
    artifacts = all_stages(settings, args.backend)
    print(stages.page(artifacts, None if args.full else args.lines))
    if args.save:
        print(f"\n{len(stages.save(artifacts, args.save))} files written to {args.save}")

    print(f"\n── training, {settings.epochs} epochs of batches of {settings.batch} ".ljust(100, "─"))
    say = lambda line: print(line, flush=True)  # noqa: E731
    eager = training.train("eager", settings, data, training.parts(settings, lambda fn: fn), say)
    wrapped = training.parts(settings, lambda fn: torch.compile(fn, backend=args.backend))
    compiled = training.train("compiled", settings, data, wrapped, say)
    return close(eager, compiled, cold, warm, artifacts)


def close(eager: Run, compiled: Run, cold: Cost, warm: Cost, artifacts: list[stages.Artifact]) -> int:
    """The closing table; 1 if a promise was not kept."""
    largest = max(abs(a - b) for a, b in zip(eager.losses, compiled.losses, strict=True))
    kernels = [text for topic, name, text in artifacts if topic == "kernels" and name != "host"]
    graphs = sum(topic == "graph" for topic, _, _ in artifacts)
    rows = [
        ("", "eager", "compiled"),
        ("test accuracy", f"{eager.accuracy:.2%}", f"{compiled.accuracy:.2%}"),
        ("loss, last step", f"{eager.losses[-1]:.6f}", f"{compiled.losses[-1]:.6f}"),
        (f"largest difference of the loss, {len(eager.losses)} steps", "", f"{largest:.1e}"),
        ("time per step (median)", f"{eager.step_time() * 1e3:.3f} ms", f"{compiled.step_time() * 1e3:.3f} ms"),
        ("", "", f"{eager.step_time() / compiled.step_time():.1f} times as fast as eager"),
        ("compiling and first step, nothing cached", "", f"{cold.seconds:.1f} s"),
        ("the same in another process", "", f"{warm.seconds:.1f} s"),
        ("cache hits there", "", f"{warm.hits} of {warm.asked}"),
        ("graphs; kernels, of which different", "", f"{graphs}; {len(kernels)}, {len(set(kernels))}"),
    ]
    print(f"\n── result {'─' * 90}")
    for name, a, b in rows:
        print(f"{name:48}{a:>14}  {b}")
    broken = []
    if min(eager.accuracy, compiled.accuracy) < ACCURACY:
        broken.append(f"test accuracy below {ACCURACY:.0%}")
    if not largest <= LOSS_DIFFERENCE:
        broken.append(f"losses differ by more than {LOSS_DIFFERENCE:g}")
    kept = f"promises kept: accuracy at least {ACCURACY:.0%}, losses equal within {LOSS_DIFFERENCE:g} at every step"
    print("\n" + ("NOT KEPT: " + "; ".join(broken) if broken else kept))
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
