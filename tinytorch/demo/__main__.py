"""``python -m tinytorch.demo [--device cuda] [--save DIR] [--full]``: train on digits, eager and compiled, and show how.

Stage: demo.  In: options.  Out: the stages, a line per epoch, a closing table; exit code 1 if a promise is broken.
Read next: ``training``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import tinytorch as torch
from compiler import logs
from compiler.config import config
from tinytorch.demo import stages, training
from tinytorch.demo.model import load_digits
from tinytorch.demo.training import Parts, Run, Settings
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
    return parser.parse_args(argv)


class Compiled:
    """The compiled run: what compiling cost, and what the cache gave back."""

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self.seconds = 0.0
        self.artifacts: list[stages.Artifact] = []
        self.cache: Counter[str] = Counter()
        self.graphs = 0

    def first_step(self, settings: Settings, x: torch.Tensor, y: torch.Tensor) -> Parts:
        """Compile by taking one step with a throw-away model, and note what the stages said."""
        torch.compiler.reset()
        before = Counter(logs.counters["cache"])
        p = training.parts(settings, lambda fn: torch.compile(fn, backend=self.backend))
        begin = time.perf_counter()
        with logs.collecting() as found:
            training.step(p, x, y)
        self.seconds = time.perf_counter() - begin
        self.artifacts = found
        self.cache = Counter(logs.counters["cache"])
        self.cache.subtract(before)
        self.graphs = sum(topic == "graph" for topic, _, _ in found)
        return p

    @property
    def kernels(self) -> tuple[int, int]:
        """(how many, how many different)."""
        texts = [text for topic, name, text in self.artifacts if topic == "kernels" and name != "host"]
        return len(texts), len(set(texts))

    def cached(self) -> tuple[int, int]:
        """(found in the cache, asked for)."""
        hits = sum(n for name, n in self.cache.items() if name.endswith("hit"))
        return hits, hits + sum(n for name, n in self.cache.items() if name.endswith(("miss", "corrupt")))


def main(argv: Sequence[str] | None = None) -> int:
    args = options(argv)
    if args.device == "cuda" and not cuda_available():
        print("--device cuda: no CUDA GPU is available here (it needs CuPy and a GPU). Without --device it runs on the CPU.")
        return 2
    with tempfile.TemporaryDirectory(prefix="tinytorch-demo-") as folder, config.patch(cache_dir=str(Path(folder, "cache"))):
        return demonstrate(args)


def demonstrate(args: argparse.Namespace) -> int:
    settings = Settings(epochs=args.epochs, device=args.device)
    data = load_digits(settings.device)
    print(f"tinytorch demo: {len(data.train_x)} digits to learn, {len(data.test_x)} to test, on {settings.device}\n")
    print(training.parts(settings, lambda fn: fn).model, "\n")
    x, y = data.train_x[: settings.batch], data.train_y[: settings.batch]

    print("compiling the loss and the optimizer's step (nothing cached yet) ...", flush=True)
    cold = Compiled(args.backend)
    cold.first_step(settings, x, y)
    print(stages.page(cold.artifacts, None if args.full else args.lines))
    if args.save:
        print(f"\n{len(stages.save(cold.artifacts, args.save))} files written to {args.save}")
    warm = Compiled(args.backend)
    warm.first_step(settings, x, y)

    print(f"\n── training, {settings.epochs} epochs of batches of {settings.batch} ".ljust(100, "─"))
    say = lambda line: print(line, flush=True)  # noqa: E731
    eager = training.train("eager", settings, data, training.parts(settings, lambda fn: fn), say)
    wrapped = training.parts(settings, lambda fn: torch.compile(fn, backend=args.backend))
    compiled = training.train("compiled", settings, data, wrapped, say)
    return close(eager, compiled, cold, warm)


def close(eager: Run, compiled: Run, cold: Compiled, warm: Compiled) -> int:
    """The closing table; 1 if a promise was not kept."""
    largest = max(abs(a - b) for a, b in zip(eager.losses, compiled.losses, strict=True))
    kernels, different = cold.kernels
    hits, asked = warm.cached()
    ratio = eager.step_time() / compiled.step_time()
    rows = [
        ("", "eager", "compiled"),
        ("test accuracy", f"{eager.accuracy:.2%}", f"{compiled.accuracy:.2%}"),
        ("loss, last step", f"{eager.losses[-1]:.6f}", f"{compiled.losses[-1]:.6f}"),
        ("time per step (median)", f"{eager.step_time() * 1e3:.3f} ms", f"{compiled.step_time() * 1e3:.3f} ms"),
        ("", "", f"{ratio:.1f} times as fast as eager"),
        ("compiling and first step, no cache", "", f"{cold.seconds:.1f} s"),
        ("the same on a second run", "", f"{warm.seconds:.1f} s"),
        ("cache hits on a second run", "", f"{hits} of {asked}"),
        ("graphs, kernels (different ones)", "", f"{cold.graphs}, {kernels} ({different})"),
        (f"largest difference of the loss, {len(eager.losses)} steps", "", f"{largest:.1e}"),
    ]
    print("\n── result ".ljust(101, "─"))
    for name, a, b in rows:
        print(f"{name:48}{a:>14}  {b}")
    broken = []
    if min(eager.accuracy, compiled.accuracy) < ACCURACY:
        broken.append(f"test accuracy below {ACCURACY:.0%}")
    if not largest <= LOSS_DIFFERENCE:
        broken.append(f"losses differ by more than {LOSS_DIFFERENCE:g}")
    print("\n" + ("promises kept: " + f"accuracy at least {ACCURACY:.0%}, losses equal within {LOSS_DIFFERENCE:g} at every step" if not broken else "NOT KEPT: " + "; ".join(broken)))
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
