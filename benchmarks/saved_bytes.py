"""Activation bytes kept for backward, measured: tinytorch compiled and eager, torch compiled and eager, in one process.

    python benchmarks/saved_bytes.py [--only TEXT] [--no-torch] [--backend NAME] [--save FILE]

Run it in an environment that has both ``torch==2.13.0`` and this package.  Counted is what hangs on the tape between
forward and loss.backward(): the memory of distinct storages, whole even where a view of it is saved, without parameters,
buffers and inputs, which are alive anyway.  tinytorch compiled: the arrays its nodes hold.  tinytorch eager: what the vjp
closures hold.  torch eager: ``saved_tensors_hooks``.  torch compiled: those hooks, and the tensors that the compiled
function's node keeps.  For the GPT also the curve over ``activation_memory_budget``.  The partition is the same for every
backend, so by default no kernels are built on our side (``--backend inductor`` builds them).
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import platform
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TT_NUM_THREADS", "2")

import numpy as np  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.cases import Case, array, cnn_step, gpt_step  # noqa: E402

BUDGETS = (1.0, 0.8, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0)


def mlp(batch: int = 256) -> Case:
    def build(torch: Any, device: str) -> Any:
        nn = torch.nn
        torch.manual_seed(0)

        def block(size: int, out: int) -> list[Any]:
            return [nn.Linear(size, out), nn.LayerNorm(out), nn.GELU(), nn.Dropout(0.1)]

        model = nn.Sequential(*block(784, 512), *block(512, 512), *block(512, 512), nn.Linear(512, 10)).to(device)
        x = torch.from_numpy(array(batch, 784)).to(device)
        y = torch.from_numpy(np.random.default_rng(1).integers(0, 10, batch)).to(device)
        return model, (x, y, None)

    return Case(f"MLP 784-512-512-512-10, layer norm, GELU, dropout, batch {batch}", build, train=True, kernel=False)


CASES = (mlp(), gpt_step(), gpt_step(layers=12, batch=4), cnn_step())


def loss_of(torch: Any, case: Case) -> tuple[Any, Any, tuple[Any, Any]]:
    """(a function of the batch that gives the loss, its model, the batch)."""
    model, (x, y, _) = case.build(torch, "cpu")

    def loss(x: Any, y: Any) -> Any:
        return torch.nn.functional.cross_entropy(model(x), y)

    return loss, model, (x, y)


# --- tinytorch --------------------------------------------------------------------------------------------------------
def memory(a: Any) -> Any:
    """The array that owns the memory an array looks at."""
    while isinstance(a.base, np.ndarray):
        a = a.base
    return a


def nodes(root: Any) -> Iterator[Any]:
    seen: set[int] = set()
    stack = [root]
    while stack:
        node = stack.pop()
        if id(node) not in seen and hasattr(node, "edges"):
            seen.add(id(node))
            yield node
            stack.extend(e[0] for e in node.edges if isinstance(e, tuple))


def held(node: Any) -> Iterator[Any]:
    """The arrays a node keeps: what the saved tensors and the compiled backward's closure hold, however deep."""
    for t, _ in node.saved:
        yield t._data
    stack = [c.cell_contents for c in getattr(node.whole, "__closure__", None) or ()]
    while stack:
        x = stack.pop()
        if isinstance(x, list | tuple):
            stack.extend(x)
        elif isinstance(x, np.ndarray):
            yield x
        elif hasattr(x, "_data"):
            yield x._data


def tinytorch_bytes(case: Case, backend: str | None, budget: float = 1.0) -> int:
    """What hangs on the tape; ``backend`` None is eager."""
    torch = importlib.import_module("tinytorch")
    loss, model, batch = loss_of(torch, case)
    if backend is not None:
        torch.compiler.reset()
        options = {"activation_memory_budget": budget}
        loss = torch.compile(loss, backend=backend, fullgraph=True, options=options)
    root = loss(*batch)
    alive = [memory(t._data) for t in (*model.parameters(), *model.buffers(), *batch, root)]
    known = {id(a) for a in alive}
    found = {id(m): m for n in nodes(root.grad_fn) for m in map(memory, held(n)) if id(m) not in known}
    root.backward()
    return sum(m.nbytes for m in found.values())


# --- torch ------------------------------------------------------------------------------------------------------------
def torch_bytes(case: Case, compiled: bool) -> int:
    torch = importlib.import_module("torch")
    loss, model, batch = loss_of(torch, case)
    if compiled:
        torch._dynamo.reset()
        loss = torch.compile(loss, fullgraph=True)
    kept: list[Any] = []

    def keep(t: Any) -> Any:
        kept.append(t)
        return t

    loss(*batch).backward()  # compile before the hooks are there
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        root = loss(*batch)
    kept += [t for n in _torch_nodes(root.grad_fn) for t in _tensors(torch, vars(n).values() if hasattr(n, "__dict__") else ())]
    known = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers(), *batch, root)}
    found = {s.data_ptr(): s.nbytes() for t in kept for s in [t.untyped_storage()] if s.data_ptr() not in known}
    root.backward()
    return sum(found.values())


def _torch_nodes(root: Any) -> Iterator[Any]:
    seen = set()
    stack = [root]
    while stack:
        node = stack.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            stack.extend(n for n, _ in node.next_functions)


def _tensors(torch: Any, values: Iterable[Any]) -> Iterator[Any]:
    for v in values:
        if isinstance(v, torch.Tensor):
            yield v
        elif isinstance(v, list | tuple):
            yield from _tensors(torch, v)


# --- the table --------------------------------------------------------------------------------------------------------
def kib(n: int | None) -> str:
    return "-" if n is None else f"{n / 1024:,.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--backend", default="aot_eager_decomp_partition")
    parser.add_argument("--save")
    options = parser.parse_args()
    lines = list(report(options))
    if options.save:
        Path(options.save).write_text("\n".join(lines) + "\n")


def report(options: Any) -> Iterator[str]:
    def say(line: str) -> str:
        print(line, flush=True)
        return line

    versions = [f"Python {platform.python_version()}", f"NumPy {np.__version__}"]
    if not options.no_torch:
        versions.append(f"torch {importlib.import_module('torch').__version__}")
    yield say(f"saved for backward, KiB   ({', '.join(versions)}; {platform.machine()}; our backend: {options.backend})")
    yield say(f"{'':70} {'ours':>10} {'eager':>10} {'t.compile':>10} {'t.eager':>10}  eager/ours  t.compile/ours")
    for case in CASES:
        if options.only not in case.name:
            continue
        ours, eager = (tinytorch_bytes(case, b) for b in (options.backend, None))
        peer = [None, None] if options.no_torch else [torch_bytes(case, True), torch_bytes(case, False)]
        ratio = "-" if peer[0] is None else f"{peer[0] / ours:.2f}"
        yield say(f"{case.name:70} {kib(ours):>10} {kib(eager):>10} {kib(peer[0]):>10} {kib(peer[1]):>10}  {eager / ours:10.2f}  {ratio:>14}")
        gc.collect()
    for case in CASES:
        if options.only in case.name and case.name.startswith("GPT"):
            curve = [f"{b:g}: {kib(tinytorch_bytes(case, options.backend, b))}" for b in BUDGETS]
            yield say(f"{case.name}, by budget:  " + "  ".join(curve))


if __name__ == "__main__":
    main()
