"""What a process pays: the first call without and with a disk cache, and the memory of a step; torch beside tinytorch.

    python benchmarks/processes.py [--only TEXT] [--memory | --first] [--rounds 1] [--save FILE]

Each figure comes from a process of its own.  **First call**: seconds from the first call to its result, after imports and
after the model and its data exist; cold with empty cache folders (``TT_CACHE_DIR``, ``TORCHINDUCTOR_CACHE_DIR``), warm in a
second process with the same folders; the least of ``--rounds``; in brackets the processor's seconds, compilers called on
the way included, which other load changes little.  **Memory**: the most bytes in live blocks of at least
64 KB during a step, over those alive before the first call (``live_bytes.c``, preloaded, counts every library alike and
needs a C compiler), when two steps have been made before: activations, gradients, optimizer state and work memory.
What compilers and the interpreter keep for themselves (machine code generators, tables of names, sources) is no memory of
a step: blocks of Python's own allocators do not count, and another function, of three numbers, has been compiled before.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
NAMES = {"tt.compile": ("tinytorch", True), "torch.compile": ("torch", True), "torch eager": ("torch", False)}


def child(case_name: str, contestant: str, library: str) -> dict[str, float]:
    """In the process that is measured."""
    from benchmarks.cases import CPU
    from benchmarks.cpu import runner

    module, compiled = NAMES[contestant]
    began = time.perf_counter()
    torch = importlib.import_module(module)
    out = {"import_s": time.perf_counter() - began}
    if module == "torch":
        torch.set_num_threads(int(os.environ["TT_NUM_THREADS"]))
    fn = runner(next(c for c in CPU if c.name == case_name), torch, compiled)
    if not library:
        began, used = time.perf_counter(), processor_seconds()
        fn()
        return {**out, "first_s": time.perf_counter() - began, "cpu_s": processor_seconds() - used}
    counter = ctypes.CDLL(library)
    counter.live_bytes.restype = counter.most_bytes.restype = ctypes.c_long
    ctypes.PyDLL(library).leave_python_out()
    compile_something(torch, compiled)
    before = counter.live_bytes()
    for _ in range(2):
        fn()
    counter.forget_most()
    for _ in range(3):
        fn()
    return {"before": before, "most": counter.most_bytes() - before}


def compile_something(torch: Any, compiled: bool) -> None:
    """Load and set up all that a first step does, and leave no tensor behind."""
    x = torch.ones(3, requires_grad=True)
    loss = (torch.compile if compiled else (lambda f: f))(lambda x: (x * x).sum())
    for _ in range(2):
        loss(x).backward()


def processor_seconds() -> float:
    """Of this process and of its children that have ended."""
    return sum(os.times()[:4])


def ask(case: str, contestant: str, caches: Path, library: str = "") -> dict[str, Any]:
    """A process's answer, or what went wrong."""
    env = os.environ | {"TT_CACHE_DIR": str(caches / "tt"), "TORCHINDUCTOR_CACHE_DIR": str(caches / "torch")}
    env |= {"TRITON_CACHE_DIR": str(caches / "triton"), "TT_NUM_THREADS": "2"}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # nobody's process should compile all of its imports anew
    if library:
        env |= {"LD_PRELOAD": library, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    command = [sys.executable, __file__, "--child", case, contestant, library]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    try:
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (IndexError, ValueError):
        return {"error": (done.stderr.strip().splitlines() or ["no answer"])[-1][:120]}


def first_calls(case: str, contestant: str, rounds: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            for kind in ("cold", "warm"):
                got = ask(case, contestant, Path(folder))
                if "error" in got:
                    return got
                for key in ("first_s", "cpu_s"):
                    found[f"{kind}_{key}"] = min(got[key], found.get(f"{kind}_{key}", 1e9))
    return found


def counting_library(folder: str) -> str:
    library = f"{folder}/live_bytes.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", str(HERE / "live_bytes.c"), "-o", library], check=True)
    return library


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(child(*sys.argv[2:5])))
        return
    from benchmarks.cases import CPU

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--first", action="store_true", help="first calls only")
    parser.add_argument("--memory", action="store_true", help="memory only")
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    names = [n for n in NAMES if not options.no_torch or n.startswith("tt")]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        library = "" if options.first else counting_library(folder)
        for case in CPU:
            if options.only not in case.name or (options.memory and case.kernel and not case.train):
                continue
            row: dict[str, Any] = {"case": case.name}
            print(f"\n{case.name}", flush=True)
            for name in names:
                text = ""
                if not options.memory and name.endswith("compile"):
                    row[name] = got = first_calls(case.name, name, options.rounds)
                    text += got.get("error") or "first call" + "".join(
                        f" {kind} {got[f'{kind}_first_s']:7.2f} s ({got[f'{kind}_cpu_s']:.2f})" for kind in ("cold", "warm")
                    )
                if library and (case.train or not case.kernel):
                    with tempfile.TemporaryDirectory() as caches:  # empty: everybody compiles before counting begins
                        got = ask(case.name, name, Path(caches), library)
                    row.setdefault(name, {}).update(got)
                    text += "   " + (got.get("error") or f"{got['most'] / 2**20:8.2f} MiB at most in a step")
                if text:
                    print(f"  {name:14s} {text}", flush=True)
            rows.append(row)
            if options.save:
                options.save.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
