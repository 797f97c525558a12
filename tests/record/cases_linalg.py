"""Products of matrices and vectors in all their shapes, and einsum."""

from __future__ import annotations

from harness import COMPLEX, FLOATS, INTS, Case, T

CASES: list[Case] = []


def case(name: str, expr: str, dtypes: tuple[str, ...] = ("float32",), **inputs: T) -> None:
    CASES.append(Case(name, expr, inputs, dtypes, loose=4))


SHAPES = [
    ((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((2, 3), (3, 4)), ((5, 2, 3), (5, 3, 4)), ((5, 2, 3), (3, 4)), ((2, 3), (5, 3, 4)),
    ((5, 2, 3), (3,)), ((3,), (5, 3, 4)), ((6, 1, 2, 3), (5, 3, 4)), ((1, 2, 3), (5, 3, 4)), ((6, 5, 2, 3), (6, 5, 3, 4)),
    ((6, 5, 2, 3), (1, 3, 4)), ((2, 0), (0, 3)), ((0, 2), (2, 3)), ((0, 2, 3), (3, 4)), ((5, 2, 0), (0, 4)), ((1, 1), (1, 1)),
]  # fmt: skip
for a, b in SHAPES:
    case(f"matmul {a} {b}", "torch.matmul(a, b)", ("float32",), a=T(a), b=T(b))
case("matmul.types", "a @ b", (*FLOATS, *INTS, *COMPLEX), a=T((3, 4)), b=T((4, 2)))
case("matmul.layouts", "(a.t() @ b, a.t() @ c.t(), b.t() @ a, a[::2] @ c[:, ::2])", a=T((4, 3)), b=T((4, 3)), c=T((3, 4)))
case("mm", "(torch.mm(a, b), a.mm(b))", FLOATS, a=T((3, 4)), b=T((4, 2)))
case("bmm", "torch.bmm(a, b)", FLOATS, a=T((2, 3, 4)), b=T((2, 4, 2)))
case("mv", "(torch.mv(a, b), a.mv(b))", FLOATS, a=T((3, 4)), b=T((4,)))
case("dot", "torch.dot(a, b)", (*FLOATS, "int64"), a=T((5,)), b=T((5,)))
case("outer", "torch.outer(a, b)", (*FLOATS, "int64"), a=T((3,)), b=T((4,)))
case("addmm", "torch.addmm(c, a, b, beta=0.5, alpha=2)", FLOATS, a=T((3, 4)), b=T((4, 2)), c=T((3, 2)))
case("addmm.row", "torch.addmm(c, a, b)", FLOATS, a=T((3, 4)), b=T((4, 2)), c=T((2,)))
case("addmv", "torch.addmv(c, a, b)", a=T((3, 4)), b=T((4,)), c=T((3,)))
case("addr", "torch.addr(c, a, b, beta=2)", a=T((3,)), b=T((4,)), c=T((3, 4)))
case("baddbmm", "torch.baddbmm(c, a, b)", a=T((2, 3, 4)), b=T((2, 4, 2)), c=T((2, 3, 2)))
case("trace", "torch.trace(a)", (*FLOATS, "int64"), a=T((3, 4)))
case("tensordot", "(torch.tensordot(a, b, 1), torch.tensordot(a, b, dims=([1], [0])), torch.tensordot(a, c, dims=([0, 1], [0, 1])))", a=T((3, 4)), b=T((4, 2)), c=T((3, 4, 2)))
for eq, *shapes in [
    ("ij,jk->ik", (2, 3), (3, 4)), ("bij,bjk->bik", (5, 2, 3), (5, 3, 4)), ("ij->ji", (2, 3)), ("ij->", (2, 3)), ("ij->j", (2, 3)),
    ("ii->i", (3, 3)), ("ii", (3, 3)), ("i,i->", (3,), (3,)), ("i,j->ij", (2,), (3,)), ("ij,ij->ij", (2, 3), (2, 3)), ("ij,ij->i", (2, 3), (2, 3)),
    ("bhid,bhjd->bhij", (2, 2, 3, 4), (2, 2, 5, 4)), ("...ij,...jk->...ik", (2, 3, 4), (2, 4, 5)), ("...i->...", (2, 3)), ("ij,kj", (2, 3), (4, 3)),
    ("bij,bj->bi", (2, 3, 4), (2, 4)), ("ijk,jil->kl", (2, 3, 4), (3, 2, 5)), ("i j, j k -> i k", (2, 3), (3, 4)), ("ab,bc,cd->ad", (2, 3), (3, 4), (4, 2)),
    ("abc,abd->acd", (2, 3, 4), (2, 3, 5)), ("iij->j", (3, 3, 2)), ("bn,anm,bm->ba", (2, 3), (5, 3, 4), (2, 4)), ("...a,...b->...ab", (2, 3), (2, 4)),
    ("bcx,c->bx", (2, 3, 4), (3,)), ("ba", (2, 3)),
]:  # fmt: skip
    names = "xyz"[: len(shapes)]
    case(f"einsum {eq}", f"torch.einsum('{eq}', {', '.join(names)})", ("float32", "float64"), **{n: T(s) for n, s in zip(names, shapes, strict=True)})

for name, x, y in (("1", (4,), (4,)), ("2", (3, 4), (2, 4)), ("3", (2, 3, 4), (4,)), ("0", (), (2, 3))):
    CASES.append(Case(f"inner.{name}", "torch.inner(a, b)", {"a": T(x), "b": T(y)}, ("float64",)))
for name, x, y in (("2", (2, 3), (3, 2)), ("mixed", (3,), (2, 2)), ("3", (2, 1, 3), (2, 2))):
    CASES.append(Case(f"kron.{name}", "torch.kron(a, b)", {"a": T(x), "b": T(y)}, ("float64",)))
CASES.append(Case("cross", "torch.cross(a, b, dim=1)", {"a": T((4, 3)), "b": T((4, 3))}, ("float64",)))
CASES.append(Case("cross.method", "a.cross(b, dim=0)", {"a": T((3, 2)), "b": T((3, 2))}, ("float64",)))
