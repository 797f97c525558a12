"""Write ``docs/api_subset.md``: what of PyTorch's API is here, and what of it was compared with PyTorch's answers.

``python docs/make_api_subset.py`` writes; with ``--check`` it only says whether the file is current (exit status 1 if not).
Everything is read from the package and from ``tests/record``; nothing is listed by hand but the differences on purpose.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "api_subset.md"
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "record")]

import tinytorch as torch  # noqa: E402
from tinytorch.functions.namespace import PUBLIC  # noqa: E402

SHORT = {
    "float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64", "int8": "i8", "int16": "i16", "int32": "i32",
    "int64": "i64", "uint8": "u8", "bool": "bool", "complex64": "c64", "complex128": "c128",
}  # fmt: skip

INTRO = """# The API subset

`import tinytorch as torch`: names, signatures, defaults, results and errors are PyTorch's for what this page lists. Any other
name raises `AttributeError` and says that it is outside the subset. This page is generated (`python docs/make_api_subset.py`).

## Where tinytorch differs on purpose

| what | PyTorch 2.13 | tinytorch | why |
|---|---|---|---|
| an index out of range in `gather`, `scatter`, `index_add` | `RuntimeError` | `IndexError` | one error for one mistake, also from inside fused kernels |
| integer division and remainder by zero | `RuntimeError` | 0, as NumPy gives | a fused loop must not be able to kill or unwind the process |
| values that could only be refused by reading them all: classes in `one_hot`, probabilities in `bernoulli`, `multinomial` and `binary_cross_entropy`, variances in `gaussian_nll_loss` | `RuntimeError` or `ValueError` | computed with as they are | compiled code reads values once, in the kernel that uses them |
| the sign of a zero that `%` gives | that of the dividend | that of the divisor, as in Python and NumPy | `//` and `%` follow Python throughout |
| overlapping source and target of `copy_` | `RuntimeError` | the source is read before the first write | there is one right answer |
| in-place changes of a result that its own rule saved (`y.exp_().relu_()` and the like) | some raise | the old value is kept; the gradient is right | fewer refusals, never a wrong number |
| `x.data.add_(1)` between forward and backward | unnoticed | counted as a change of `x`: backward raises if `x` was saved | memory has one version |
| float64 arithmetic in `arange`, `linspace` with floats | in the result's type | in float64, then cast | better last digits |
| random numbers | Mersenne Twister on the CPU, Philox on the GPU | Philox 4x32-10 everywhere | compiled code can draw the same bits again instead of keeping them |
| `argsort`, `topk`, `sort` of equal elements | unspecified unless `stable=True` | always stable | reproducible |
| `sum` of half types on any device | implementation's order | accumulates in float32 | error no worse than PyTorch's |
"""


def first_line(obj: Any) -> str:
    text = inspect.getdoc(obj) or ""
    return text.split("\n")[0].split("  Mirrors")[0].strip().replace("|", "\\|") if text else ""


def signature(fn: Any) -> str:
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return ""
    shown, starred = [], False
    for p in parameters:
        if p.kind is p.VAR_KEYWORD or p.name.startswith("_"):
            continue
        if p.kind is p.KEYWORD_ONLY and not starred:
            shown.append("\\*")
            starred = True
        if p.kind is p.VAR_POSITIONAL:
            shown.append(f"\\*{p.name}")
            starred = True
        else:
            shown.append(p.name if p.default is p.empty else f"{p.name}={p.default!r}".replace("tinytorch.", ""))
    return ", ".join(shown)


def theme(module: Any) -> str:
    """What a module's first sentence names before it goes into details."""
    text = " ".join((inspect.getdoc(module) or module.__name__).split("\n\n")[0].split())
    return re.split(r": |\. |\.$", text)[0].replace("``", "`")


def functions() -> list[str]:
    lines = ["## Functions", ""]
    for room, names in PUBLIC.items():
        title = theme(room)
        lines += [f"### {title}", "", "| `torch.` | arguments | |", "|---|---|---|"]
        lines += [f"| `{n}` | {signature(getattr(room, n))} | {first_line(getattr(room, n))} |" for n in sorted(names.split())]
        lines.append("")
    return lines


def members() -> list[str]:
    methods, properties = [], []
    for name in sorted(set(dir(torch.Tensor))):
        if name.startswith("_"):
            continue
        member = inspect.getattr_static(torch.Tensor, name)
        (methods if callable(member) or isinstance(member, staticmethod) else properties).append(name)
    plain = [m for m in methods if not m.endswith("_")]
    in_place = [m for m in methods if m.endswith("_")]
    return [
        "## Tensor", "",
        f"**Methods** ({len(plain)}): " + ", ".join(f"`{m}`" for m in plain) + ".", "",
        f"**In place** ({len(in_place)}): " + ", ".join(f"`{m}`" for m in in_place) + ".", "",
        "**Properties**: " + ", ".join(f"`{p}`" for p in properties) + ".", "",
        "All of Python's arithmetic, comparison and bitwise operators, `@`, indexing and assignment with ints, slices, None, "
        "Ellipsis, bool and integer tensors, lists and arrays, mixed.", "",
    ]  # fmt: skip


def rooms() -> list[str]:
    lines = ["## Other modules", ""]
    for name in ("nn", "nn.functional", "nn.init", "nn.attention", "nn.utils", "nn.utils.rnn", "optim", "optim.lr_scheduler",
                 "optim.swa_utils", "autograd", "autograd.functional", "func", "amp", "compiler", "utils.data", "utils.checkpoint",
                 "distributions", "linalg", "random", "testing", "cuda", "accelerator"):  # fmt: skip
        module = importlib.import_module(f"tinytorch.{name}")
        public = getattr(module, "__all__", None) or [
            n for n, v in vars(module).items()
            if not n.startswith("_") and (inspect.isfunction(v) or inspect.isclass(v)) and v.__module__ == module.__name__
        ]  # fmt: skip
        found = sorted(n for n in set(public) if not inspect.ismodule(getattr(module, n, None)))
        lines += [f"**`torch.{name}`** ({len(found)}): " + ", ".join(f"`{n}`" for n in found) + ".", ""]
    return lines


def compared() -> list[str]:
    """One line per group of recorded cases: how many answers per type."""
    lines = [
        "## Compared with PyTorch 2.13", "",
        "Each number counts recorded answers that the tests compare: values, types, shapes, strides; with **g**, gradients too. "
        "Cases and answers: `tests/record`, `tests/data`.", "",
    ]  # fmt: skip
    total = 0
    for path in sorted((ROOT / "tests" / "data").glob("torch_*.json")):
        theme = path.stem.removeprefix("torch_")
        answers = json.loads(path.read_text())["cases"]
        groups: dict[str, dict[str, list[int]]] = {}
        for case in importlib.import_module(f"cases_{theme}").CASES:
            if case.differs:
                continue
            for key, dtype in case.variants():
                notes = answers[key][1]
                cell = groups.setdefault(_group(case.name, theme), {}).setdefault(dtype, [0, 0])
                cell[0] += 1
                cell[1] += any(n[0] in ("grad", "none") for n in notes)
                total += 1
        if theme == "errors":
            lines += [f"### errors: {len(answers)} calls that must raise, with PyTorch's type and (roughly) text", ""]
            continue
        kinds = [k for k in SHORT if any(k in g for g in groups.values())]
        lines += [f"### {theme}", "", "| | " + " | ".join(SHORT[k] for k in kinds) + " |", "|---" * (len(kinds) + 1) + "|"]
        for name, cells in groups.items():
            shown = [f"{cells[k][0]}{'g' if cells[k][1] else ''}" if k in cells else "" for k in kinds]
            lines.append(f"| {name.replace('|', '&#124;')} | " + " | ".join(shown) + " |")
        lines.append("")
    lines.insert(4, f"{total} answers in all, besides those of layers and losses (`tests/test_nn_recorded.py`).")
    lines.insert(5, "")
    return lines


def _group(name: str, theme: str) -> str:
    if theme in ("pointwise", "reduction"):
        return name.split(".")[0].split(" ")[0]
    if theme == "indexing" and name.split(" ")[0] in ("read", "write", "update", "types", "iterate", "unpack", "contains"):
        return "indexing"
    for mark, title in (("a[", "indexing"), ("einsum", "einsum"), ("matmul", "matmul"), ("print", "repr"), ("to ", "casts"),
                        ("view", "writes through views"), ("out:", "out="), ("a.", "methods"), ("torch.", "functions")):  # fmt: skip
        if mark in name[:12]:
            return title
    return name.split(":")[0].split(".")[0] if theme in ("indexing", "linalg", "shape") else "other"


def page() -> str:
    return "\n".join([INTRO, *compared(), *functions(), *members(), *rooms()]).rstrip() + "\n"


def main() -> int:
    text = page()
    if "--check" in sys.argv:
        current = PAGE.exists() and PAGE.read_text() == text
        print("current" if current else "stale: run python docs/make_api_subset.py")
        return 0 if current else 1
    PAGE.write_text(text)
    print(f"wrote {PAGE.relative_to(ROOT)}: {len(text.splitlines())} lines")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
