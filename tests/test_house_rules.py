"""The shape of the house: who imports whom, where imports stand, and words that do not belong in it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("tinytorch", "compiler", "codegen_numba", "codegen_cupy")
FILES = sorted(p for name in PACKAGES for p in (ROOT / name).rglob("*.py"))

#: package -> packages of ours that it may import
MAY_IMPORT = {
    "tinytorch": {"tinytorch"},
    "compiler": {"tinytorch", "compiler"},
    "codegen_numba": {"tinytorch", "compiler", "codegen_numba"},
    "codegen_cupy": {"tinytorch", "compiler", "codegen_cupy"},
}
#: rooms of the compiler that stand side by side and never import one another
SIBLINGS = ("capture", "aot", "partition", "loop")
#: rooms under all of them
GROUND = ("ir", "sym", "fake", "config", "errors", "logs")
#: packages that may be imported inside functions: heavy, optional, or only needed in rare cases
LAZY = {
    "numba", "llvmlite", "cupy", "cupyx", "cupy_backends", "ml_dtypes", "safetensors", "networkx", "matplotlib", "IPython", "nvidia",
    "cuda", "ctypes",
}  # fmt: skip


def short(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [a.name for a in node.names]
    if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
        return [node.module, *(f"{node.module}.{a.name}" for a in node.names)]
    return []


def all_imports(path: Path) -> list[tuple[int, str]]:
    return [(n.lineno, name) for n in ast.walk(tree(path)) for name in imported(n)]


@pytest.mark.parametrize("package", PACKAGES)
def test_layers_import_downward(package: str) -> None:
    """codegens -> compiler -> tinytorch.  The demo is an application: it stands on all of them."""
    wrong = []
    for path in FILES:
        if not short(path).startswith(package + "/") or short(path).startswith("tinytorch/demo/"):
            continue
        for line, name in all_imports(path):
            top = name.partition(".")[0]
            if top in PACKAGES and top not in MAY_IMPORT[package]:
                wrong.append(f"{short(path)}:{line} imports {name}")
    assert not wrong, "\n".join(wrong)


def room(path: Path) -> str:
    parts = path.relative_to(ROOT / "compiler").parts
    return parts[0].removesuffix(".py")


def test_siblings_never_import_one_another() -> None:
    wrong = []
    for path in FILES:
        if not short(path).startswith("compiler/"):
            continue
        here = room(path)
        barred = set(SIBLINGS) - {here} if here in SIBLINGS else set(SIBLINGS) | {"api"} if here in GROUND else set()
        for line, name in all_imports(path):
            parts = name.split(".")
            if parts[0] == "compiler" and len(parts) > 1 and parts[1] in barred:
                wrong.append(f"{short(path)}:{line} ({here}) imports {name}")
    assert not wrong, "\n".join(wrong)


def attempts(path: Path) -> set[ast.AST]:
    """Imports that may fail: what stands in a ``try`` with ``except ImportError``."""
    return {
        n
        for t in ast.walk(tree(path))
        if isinstance(t, ast.Try) and any(h.type and "ImportError" in ast.unparse(h.type) for h in t.handlers)
        for statement in t.body
        for n in ast.walk(statement)
    }


def test_imports_stand_at_the_top() -> None:
    """In functions only: heavy or optional packages, and our own where they bring heavy ones or would close a circle."""
    wrong = []
    for path in FILES:
        inside = {
            n
            for fn in ast.walk(tree(path))
            if isinstance(fn, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            for n in ast.walk(fn)
            if isinstance(n, ast.Import | ast.ImportFrom)
        }
        for node in inside - attempts(path):
            tops = {name.partition(".")[0] for name in imported(node)}
            if not tops <= LAZY | set(PACKAGES):
                wrong.append(f"{short(path)}:{node.lineno} imports {', '.join(sorted(tops))} inside a function")
    assert not wrong, "\n".join(wrong)


def test_own_imports_inside_functions_stay_few() -> None:
    """Our own packages imported inside functions: the number may fall, not rise."""
    count = 0
    for path in FILES:
        for fn in ast.walk(tree(path)):
            if isinstance(fn, ast.FunctionDef):
                count += sum(any(n.partition(".")[0] in PACKAGES for n in imported(x)) for x in ast.walk(fn))
    assert count <= 40, f"{count} imports of our own inside functions"


def test_every_file_says_what_it_is() -> None:
    """A module docstring; rooms on the way from program to kernel name their stage."""
    silent = [short(p) for p in FILES if not ast.get_docstring(tree(p)) and p.read_text().strip()]
    assert not silent, "\n".join(silent)


#: What is left to do belongs to the issue tracker, and paths of one machine belong nowhere.
LEFTOVER = re.compile(r"\b(TODO|FIXME|XXX)\b|(?<![\w.])/root/")


def test_no_leftovers() -> None:
    texts = [*FILES, *ROOT.glob("*.md"), *ROOT.glob("*.cfg"), *ROOT.glob("*.toml"), *(ROOT / "docs").rglob("*.md")]
    texts += [*(ROOT / "notebooks").rglob("*.py"), *(p for p in (ROOT / "tests").rglob("*.py") if p.name != Path(__file__).name)]
    wrong = []
    for path in texts:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if LEFTOVER.search(line):
                wrong.append(f"{short(path)}:{number}: {line.strip()}")
    assert not wrong, "\n".join(wrong)


def test_no_file_grows_without_end() -> None:
    """Most files hold one idea in under 400 lines; none more than 800."""
    lengths = {short(p): len(p.read_text(encoding="utf-8").splitlines()) for p in FILES}
    assert max(lengths.values()) <= 800, max(lengths, key=lambda k: lengths[k])
    assert sum(n <= 400 for n in lengths.values()) / len(lengths) >= 0.85


def test_import_is_light() -> None:
    """``import tinytorch`` loads neither the compiler nor anything heavy."""
    code = "import sys, tinytorch; print(*{m.partition('.')[0] for m in sys.modules})"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = set(out.stdout.split())
    assert not loaded & {"compiler", "numba", "llvmlite", "cupy", "ml_dtypes", "safetensors", "networkx", "matplotlib"}


def test_refuses_the_namesake(tmp_path: Path) -> None:
    """Beside Harvard's package of the same name nothing starts, and the message says what to do."""
    (tmp_path / "tinytorch" / "core").mkdir(parents=True)
    (tmp_path / "tinytorch" / "core" / "autograd.py").write_text("")
    code = f"import sys; sys.path.append({str(tmp_path)!r}); import tinytorch"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert out.returncode == 1
    assert "another package called tinytorch is installed" in out.stderr
