"""``einsum``: permutes, sums and one batched matrix product per operand.

Stage: eager.  In: an equation and tensors.  Out: a tensor.  Mirrors ``torch.einsum`` (letters, spaces, "...", implicit
output).  Operands are joined from left to right; letters that nobody needs any more are summed as soon as they can be.
"""

from __future__ import annotations

from typing import Any

from tinytorch import ops
from tinytorch.tensor import Tensor


def einsum(equation: str, *operands: Any) -> Tensor:
    """Sums of products named by letters: ``einsum("bij,bjk->bik", x, y)``."""
    if len(operands) == 1 and isinstance(operands[0], tuple | list):
        operands = tuple(operands[0])
    terms, result = _parse(equation, operands)
    tensors = [_diagonals(i, x, term) for i, (x, term) in enumerate(zip(operands, terms, strict=True))]
    x, have = tensors[0]
    for i, (y, letters) in enumerate(tensors[1:], 1):
        later = set(result).union(*[t for _, t in tensors[i + 1 :]])
        x, have = _join(x, have, y, letters, later)
    gone = tuple(i for i, c in enumerate(have) if c not in result)
    if gone:
        x = ops.sum(x, dim=gone, keepdim=False)
        have = [c for c in have if c in result]
    return x.permute(*[have.index(c) for c in result]) if have != result else x


def _parse(equation: str, operands: tuple[Tensor, ...]) -> tuple[list[list[str]], list[str]]:
    """Letters of each operand and of the result; dimensions under "..." get numbers for letters."""
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    specs = left.split(",")
    if len(specs) != len(operands):
        raise RuntimeError(
            "einsum(): more operands were provided than specified in the equation"
            if len(specs) < len(operands)
            else "einsum(): fewer operands were provided than specified in the equation"
        )
    terms, most = [], 0
    for i, (spec, x) in enumerate(zip(specs, operands, strict=True)):
        named = spec.replace("...", "")
        bad = [c for c in named if not c.isalpha()]
        if bad:
            raise RuntimeError(
                f"einsum(): invalid subscript given at index {text.index(bad[0])} in the equation string, subscripts must be in [a-zA-Z]"
            )
        hidden = x.ndim - len(named)
        if hidden < 0 or (hidden and "..." not in spec):
            raise RuntimeError(
                f"einsum(): the number of subscripts in the equation ({len(named)}) does not match the number of "
                f"dimensions ({x.ndim}) for operand {i} and no ellipsis was given"
            )
        most = max(most, hidden)
        before, _, after = spec.partition("...")
        middle = [f"{k}" for k in range(hidden - 1, -1, -1)] if "..." in spec else []
        terms.append([*before, *middle, *after])
    ellipsis = [f"{k}" for k in range(most - 1, -1, -1)]
    letters = [c for t in terms for c in t if c.isalpha()]
    if arrow:
        before, dots, after = right.partition("...")
        result = [*before, *(ellipsis if dots else []), *after]
        for c in result:
            if c.isalpha() and c not in letters:
                raise RuntimeError(
                    f"einsum(): output subscript {c} does not appear in the equation for any input operand"
                )
    else:
        result = ellipsis + sorted(c for c in set(letters) if letters.count(c) == 1)
    return terms, result


def _diagonals(operand: int, x: Tensor, term: list[str]) -> tuple[Tensor, list[str]]:
    """A letter that an operand has twice means its diagonal."""
    letters = list(term)
    for c in dict.fromkeys(term):
        while letters.count(c) > 1:
            first = letters.index(c)
            second = letters.index(c, first + 1)
            if x.shape[first] != x.shape[second]:
                raise RuntimeError(
                    f"einsum(): subscript {c} is repeated for operand {operand} but the sizes don't match, "
                    f"{x.shape[second]} != {x.shape[first]}"
                )
            x = x.diagonal(0, first, second)
            letters = [k for i, k in enumerate(letters) if i not in (first, second)] + [c]
    return x, letters


def _join(x: Tensor, a: list[str], y: Tensor, b: list[str], later: set[str]) -> tuple[Tensor, list[str]]:
    """One batched matrix product: batch letters are shared and needed, inner ones shared and not needed again."""
    for c in [c for c in a if c not in b and c not in later]:
        x, a = ops.sum(x, dim=(a.index(c),), keepdim=False), [k for k in a if k != c]
    for c in [c for c in b if c not in a and c not in later]:
        y, b = ops.sum(y, dim=(b.index(c),), keepdim=False), [k for k in b if k != c]
    batch = [c for c in a if c in b and c in later]
    inner = [c for c in a if c in b and c not in later]
    rows, cols = [c for c in a if c not in b], [c for c in b if c not in a]
    size: dict[str, Any] = {}
    for letters, t in ((a, x), (b, y)):
        for c, n in zip(letters, t.shape, strict=True):
            if c in size and size[c] != n and not _one(n) and not _one(size[c]):
                raise RuntimeError(
                    f"einsum(): subscript {c} has size {n} for an operand which does not broadcast with previously seen "
                    f"size {size[c]}"
                )
            size[c] = n if c not in size or _one(size[c]) else size[c]
    x = _arranged(x, a, [*batch, *rows, *inner], size)
    y = _arranged(y, b, [*batch, *inner, *cols], size)
    count = [_total([size[c] for c in part]) for part in (batch, rows, inner, cols)]
    if batch:
        out = ops.matmul(x.reshape(count[0], count[1], count[2]), y.reshape(count[0], count[2], count[3]))
    else:
        out = ops.matmul(x.reshape(count[1], count[2]), y.reshape(count[2], count[3]))
    have = [*batch, *rows, *cols]
    return out.reshape([size[c] for c in have]), have


def _one(n: Any) -> bool:
    return type(n) is int and n == 1


def _total(parts: list[Any]) -> Any:
    n: Any = 1
    for p in parts:
        n = n * p
    return n


def _arranged(x: Tensor, have: list[str], want: list[str], size: dict[str, Any]) -> Tensor:
    x = x.permute(*[have.index(c) for c in want]) if have != want else x
    return x.expand(*[size[c] for c in want])
