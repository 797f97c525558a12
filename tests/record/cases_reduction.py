"""Reductions, scans, order, norms, softmax."""

from __future__ import annotations

from harness import COMPLEX, FLOATS, INTS, REALS, WIDE, Case, T

A, M = T((2, 3, 4)), T((3, 5), "different")
CASES: list[Case] = []


def case(name: str, expr: str, dtypes: tuple[str, ...] = WIDE, grad: bool = True, loose: float = 1.0, **inputs: T) -> None:
    CASES.append(Case(name, expr, inputs or {"a": A}, dtypes, grad, loose=loose))


SCALAR, EMPTY = T(()), T((0, 3))
for name in "sum mean prod amax amin var std all any logsumexp".split():
    kinds = {"sum": (*REALS, "bool", *COMPLEX), "prod": (*REALS, "bool"), "all": (*REALS, "bool"), "any": (*REALS, "bool")}.get(name, FLOATS)
    if name in ("amax", "amin"):
        kinds = (*REALS, "bool")
    need_dim = name == "logsumexp"
    a = T((2, 3, 4), "unit") if name == "prod" else A
    loose = 4.0 if name in ("prod", "var", "std") else 1.0
    if not need_dim:
        case(name, f"torch.{name}(a)", kinds, loose=loose, a=a)
    case(f"{name}.dim", f"torch.{name}(a, 1)", kinds, loose=loose, a=a)
    case(f"{name}.keepdim", f"torch.{name}(a, -1, keepdim=True)", WIDE, loose=loose, a=a)
    if name != "prod":
        case(f"{name}.dims", f"torch.{name}(a, (0, 2))", WIDE, a=a)
        case(f"{name}.dims keepdim", f"a.{name}(dim=(0, -1), keepdim=True)", WIDE, a=a)
    case(f"{name}.0-d", f"torch.{name}(a, 0)", ("float32",), grad=name not in ("std", "var"), a=SCALAR)
    case(f"{name}.negative dim 0-d", f"torch.{name}(a, -1)", ("float32",), grad=name not in ("std", "var"), a=SCALAR)
    if name not in ("amax", "amin"):
        case(f"{name}.empty", f"torch.{name}(a, 0)", ("float32",), a=EMPTY)
        if not need_dim:
            case(f"{name}.all empty", f"torch.{name}(a)", ("float32",), a=EMPTY)
    case(f"{name}.other dim of empty", f"torch.{name}(a, 1)", ("float32",), a=EMPTY)
    case(f"{name}.edges", f"torch.{name}(a, 1)", WIDE, grad=False, a=T((8, 3), "edges"))
    case(f"{name}.transposed", f"torch.{name}(a.transpose(0, 2), 1)", ("float32",), loose=loose, a=a)
    case(f"{name}.expanded", f"torch.{name}(a.expand(3, 4), 1)", ("float32",), grad=name not in ("std", "var"), a=T((3, 1)))
case("sum.dtype", "torch.sum(a, 1, dtype=torch.float64)", REALS)
case("sum.empty dims", "torch.sum(a, ())", WIDE)
case("sum.large", "torch.sum(a)", FLOATS, loose=4, a=T((50, 97), "positive"))
case("mean.large", "torch.mean(a)", FLOATS, loose=4, a=T((50, 97), "positive"))
case("mean.dtype", "torch.mean(a, dtype=torch.float32)", INTS)
case("prod.zeros", "torch.prod(a, 1)", WIDE, a=T((4, 4), "index:3", None))
case("prod.one zero", "torch.prod(torch.cat([a, torch.zeros(3, 1, dtype=dtype)], 1), 1)", WIDE, a=T((3, 4), "positive"))
case("nansum", "torch.nansum(a, 1)", WIDE, grad=False, a=T((6, 4), "edges"))
case("count_nonzero", "(torch.count_nonzero(a), torch.count_nonzero(a, 1))", (*REALS, "bool"), a=T((4, 5), "unit"))
case("var.correction", "(torch.var(a, 1, correction=0), torch.var(a, 1, unbiased=False), a.var(unbiased=False), a.std(1, correction=2))", WIDE)
case("var_mean", "torch.var_mean(a, 1)", WIDE)
case("std_mean", "torch.std_mean(a, (0, 1))", WIDE)
case("var.one", "torch.var(a, 1)", ("float32",), grad=False, a=T((3, 1)))
case("std.zero", "torch.std(a * 0, 1)", WIDE)
for name in "max min".split():
    case(name, f"torch.{name}(a)", REALS, a=M)
    case(f"{name}.dim", f"torch.{name}(a, 1)", REALS, a=M)
    case(f"{name}.keepdim", f"a.{name}(dim=0, keepdim=True)", WIDE, a=M)
    case(f"{name}.fields", f"(a.{name}(1).values, a.{name}(1).indices, a.{name}(1)[0])", ("float32",), a=M)
    case(f"{name}.pair", f"torch.{name}(a, b)", WIDE, a=M, b=T((3, 5)))
    case(f"{name}.0-d", f"torch.{name}(a, 0)", ("float32",), a=SCALAR)
    case(f"{name}.edges", f"torch.{name}(a, 1)", WIDE, grad=False, a=T((8, 5), "edges"))
    case(f"{name}.equal", f"torch.{name}(a)", ("float32",), a=T((4,), "index:1", "float32"))
for name in "argmax argmin".split():
    case(name, f"(torch.{name}(a), torch.{name}(a, 1), torch.{name}(a, -1, keepdim=True), a.{name}(keepdim=True))", REALS, a=M)
    case(f"{name}.ties", f"torch.{name}(a, 1)", ("float32", "int64"), a=T((4, 9), "index:3"))
    case(f"{name}.edges", f"torch.{name}(a, 1)", WIDE, a=T((8, 5), "edges"))
    case(f"{name}.0-d", f"torch.{name}(a, 0)", ("float32",), a=SCALAR)
case("aminmax", "(*torch.aminmax(a), *torch.aminmax(a, dim=1))", WIDE, grad=False, a=M)

# --- scans ------------------------------------------------------------------------------------------------------------
for name in "cumsum cumprod".split():
    case(name, f"torch.{name}(a, 1)", (*REALS, "bool"), loose=4, a=T((3, 5), "unit"))
    case(f"{name}.first", f"torch.{name}(a, dim=0)", FLOATS, loose=4, a=T((3, 4), "positive"))
    case(f"{name}.0-d", f"torch.{name}(a, 0)", ("float32",), a=SCALAR)
    case(f"{name}.empty", f"torch.{name}(a, 0)", ("float32",), a=EMPTY)
    case(f"{name}.dtype", f"torch.{name}(a, 0, dtype=torch.float64)", ("int32", "float32"), a=T((3, 4), "positive"))
for name in "cummax cummin".split():
    case(name, f"torch.{name}(a, 1)", REALS, a=T((3, 7)))
    case(f"{name}.edges", f"torch.{name}(a, 1)", WIDE, grad=False, a=T((8, 7), "edges"))
    case(f"{name}.0-d", f"torch.{name}(a, 0)", ("float32",), a=SCALAR)
case("logcumsumexp", "torch.logcumsumexp(a, 1)", FLOATS, loose=4, a=T((3, 5)))
case("logcumsumexp.edges", "torch.logcumsumexp(a, 1)", WIDE, grad=False, loose=4, a=T((8, 5), "edges"))

# --- order ------------------------------------------------------------------------------------------------------------
case("sort", "torch.sort(a)", REALS, a=M)
case("sort.descending", "torch.sort(a, 0, descending=True)", REALS, a=M)
case("sort.stable", "torch.sort(a, stable=True)", ("int64", "float32"), a=T((3, 9), "index:3"))
case("sort.stable descending", "torch.sort(a, descending=True, stable=True)", ("int64", "float32"), a=T((3, 9), "index:3"))
case("sort.edges", "torch.sort(a, dim=1, stable=True)", WIDE, grad=False, a=T((4, 9), "edges"))
case("sort.edges descending", "torch.sort(a, dim=1, descending=True, stable=True)", WIDE, grad=False, a=T((4, 9), "edges"))
case("sort.0-d", "torch.sort(a)", ("float32",), a=SCALAR)
case("argsort", "(torch.argsort(a), a.argsort(0, descending=True))", REALS, a=M)
case("topk", "torch.topk(a, 2)", tuple(k for k in REALS if k != "uint8"), a=M)
case("topk.smallest", "torch.topk(a, 2, dim=0, largest=False)", tuple(k for k in REALS if k != "uint8"), a=M)
case("topk.none", "torch.topk(a, 0)", ("float32",), a=M)
case("kthvalue", "(*torch.kthvalue(a, 2), *a.kthvalue(1, 0, keepdim=True))", WIDE, a=M)
case("median", "(torch.median(a), *torch.median(a, 1))", WIDE, a=M)
case("median.even", "(torch.median(a), *torch.median(a, 0))", WIDE, a=T((4, 2), "different"))
case("unique", "torch.unique(a, return_inverse=True, return_counts=True)", ("int64", "float32"), grad=False, a=T((3, 4), "index:5"))
case("unique.plain", "torch.unique(a)", ("int64", "bool"), a=T((3, 4)))
case("bincount", "(torch.bincount(a), torch.bincount(a, minlength=9))", ("int64",), a=T((9,), "index:5"))
case("bincount.weights", "torch.bincount(a, b)", ("float64",), grad=False, a=T((9,), "index:5"), b=T((9,)))
CASES.append(Case("searchsorted", "(torch.searchsorted(b, a), torch.searchsorted(b, a, right=True), torch.bucketize(a, b))", {"a": T((3, 4))}, WIDE, False, setup="b = torch.tensor([-2., -1, 0, 1, 1, 3], dtype=dtype)"))

# --- norms, softmax ---------------------------------------------------------------------------------------------------
for p in ("2", "1", "0", "3", "0.5", "float('inf')", "float('-inf')", "'fro'"):
    case(f"norm {p}", f"torch.norm(a, {p}, 1)" if p != "'fro'" else "torch.norm(a)", FLOATS if p == "2" else WIDE, grad=p != "0", loose=4, a=M)
case("norm.method", "(a.norm(), a.norm(2, -1, keepdim=True), a.norm(p=1), a.norm(dim=0))", WIDE, a=A)
case("norm.zero", "torch.norm(a * 0, 2, 1)", WIDE)
case("dist", "torch.dist(a, b)", WIDE, a=A, b=T((2, 3, 4)))
for name in "softmax log_softmax".split():
    case(name, f"torch.{name}(a, 1)", FLOATS)
    case(f"{name}.method", f"a.{name}(-1)", WIDE)
    case(f"{name}.dtype", f"torch.{name}(a, 0, dtype=torch.float64)", ("float32", "int64"))
    case(f"{name}.0-d", f"torch.{name}(a, 0)", ("float32",), a=SCALAR)
    case(f"{name}.large", f"torch.{name}(a * 300, 1)", WIDE)
    case(f"{name}.edges", f"torch.{name}(a, 1)", WIDE, grad=False, a=T((6, 4), "edges"))
    case(f"{name}.empty", f"torch.{name}(a, 1)", ("float32",), a=EMPTY)

# --- nothing in it ----------------------------------------------------------------------------------------------------
for shape in ((0, 3), (3, 0), (2, 0, 4)):
    for expr in ("a.sum()", "a.mean()", "a.prod()", "a.max()", "a.argmin(1)", "a.max(1)", "a.view(-1)", "a.softmax(-1)", "a.sum(0)",
                 "a.mean(1)", "a.any()", "a.all(0)", "a.cumsum(0)", "a.sort()", "a.logsumexp(-1)", "a.norm()", "a.amax(1)", "a.var(0)"):  # fmt: skip
        case(f"empty {shape} {expr}", expr, ("float32",), grad=expr != "a.var(0)", a=T(shape))

case("nanmean", "torch.nanmean(a)", ("float32",), a=T((3, 4)))
case("nanmean.dim", "torch.where(a > 0, a, float('nan')).nanmean(1, keepdim=True)", ("float32",), a=T((3, 4)))
