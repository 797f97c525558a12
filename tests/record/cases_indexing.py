"""Indexing in all its forms, and gather, scatter and their kin."""

from __future__ import annotations

from harness import FLOATS, REALS, Case, T

A = T((4, 3, 5))
CASES: list[Case] = []


def case(name: str, expr: str, dtypes: tuple[str, ...] = ("float32",), setup: str = "", grad: bool = True, **inputs: T) -> None:
    CASES.append(Case(name, expr, inputs or {"a": A}, dtypes, grad, setup=setup))


SETUP = """
i = torch.tensor([0, 2, -1]); j = torch.tensor([[0, 1], [2, 2]]); m = torch.tensor([True, False, True, False])
n = torch.tensor([True, True, False]); k = torch.tensor([[True, False, True]] * 4); s = torch.tensor(1)
u = torch.tensor([2, 1, 0], dtype=torch.int32)
"""
READS = """
0 -1 (1,2) (1,2,3) ... (...,0) (0,...) (0,...,1) None (None,0) (...,None) slice(1,3) slice(None,None,2) slice(-3,-1) slice(10,20)
slice(3,1) (slice(None),1) (slice(None),slice(1,3),-1) (0,slice(None),slice(None,None,3)) i j s u (i,) (i,i) (i,0) (0,i)
(slice(None),u) (slice(None),j) (slice(None),slice(None),i) (i,slice(None),i) (i,...,i) (0,slice(None),i) (i,slice(None),0)
(i,None) (None,i) (i,None,u) (j,slice(1,None)) (slice(None,None,2),j) (...,j) m n_ k (m,0) (slice(None),n) (m,slice(None),2)
(k,0) (k,slice(1,3)) (0,n) (m,...) [0,2] [[0,1],[1,2]] ([0,1],[1,2]) ([0,1],slice(None),[1,2]) (slice(None),[0,2]) True False
(i,u) (i,u,u) (j,j,j) (m,i[:2]) (s,s) (s,...) (s,slice(None),s) torch.tensor([],dtype=torch.long) (i.reshape(3,1),u) (k,)
(slice(None),None,n) range(2) (u,slice(None),torch.tensor(2))
"""
for text in READS.split():
    if text != "n_":
        case(f"read a[{text}]", f"a[{text}]", setup=SETUP)
for text in ("0", "i", "m", "(slice(None),slice(None,None,2))", "(i,u)"):
    case(f"types a[{text}]", f"a[{text}]", (*REALS, "bool", "complex64"), setup=SETUP)
case("read vector", "(a[2], a[-1], a[1:4], a[a > 0], a[[0, 0, 1]], a[None], a[::3])", a=T((6,)))
case("read scalar", "(a[()], a[...], a[None], a[True], a[False], a[torch.tensor(True)])", a=T(()))
case("iterate", "[x for x in a]", a=T((3, 2)))
case("unpack", "(lambda x, y: x * y)(*a)", a=T((2, 3)))
case("contains", "(2.0 in a, 99 in a)", grad=False)

WRITES = """
[0]=1.5
[-1,0]=b[0,0]
[0]=b[0]
[:,1]=b[0,:1]
[:,1:3]=2
[...,0]=0
[1:3]=b[1:3]
[::2]=b[::2]*2
[None]=b
[i]=b[i]
[i]=3.0
[i,u]=7
[i,:,u]=b[i,:,u]
[:,i]=b[:,u]
[m]=0
[m]=b[:2]
[m,0]=b[0,0]
[k]=1
[k]=b[k]
[b>0]=-1
[b>0]=b[b>0]*2
[[0,2]]=b[[1,3]]
[0,n]=5
[s]=b[s]
[s,s]=1
[:,:,[0,0]]=b[:,:,1:3]
[a.detach()>0]=0.0
[1]=torch.arange(5)
[...]=b
[True]=4
[0,0,0]=torch.tensor(9.0)
[:2,:,i]=b[:2,:,u]
"""
for text in WRITES.strip().splitlines():
    case(f"write a{text}", "a", setup=f"{SETUP}\na = a.clone()\na{text}", a=A, b=T((4, 3, 5)))
for text in ("[0]=1.5", "[i]=3.5", "[m]=2", "[:,1:3]=b[:,:2]"):
    case(f"write types a{text}", "a", (*REALS, "bool"), setup=f"{SETUP}\na = a.clone()\na{text}", a=A, b=T((4, 3, 5)))
for text in ("[[0,0]]+=a[[0,0]]", "[i]*=2", "[m]-=1", "[0]/=2", "[:,1]+=b[:,0]", "[b>0]+=1", "[...,::2]*=b[...,::2]"):
    case(f"update a{text}", "a", setup=f"{SETUP}\na = a.clone()\na{text}", a=A, b=T((4, 3, 5)))

G = T((3, 4), "index:3")
case("gather", "torch.gather(a, 0, g)", (*REALS, "bool"), a=T((3, 4)), g=G)
case("gather.1", "a.gather(1, g)", FLOATS, a=T((3, 4)), g=T((2, 6), "index:4"))
case("gather.3-d", "a.gather(-1, g)", a=A, g=T((4, 2, 3), "index:5"))
case("gather.0-d", "a.gather(0, g)", a=T(()), g=T((), "index:1"))
case("take_along_dim", "torch.take_along_dim(a, g, 0)", a=T((3, 4)), g=G)
case("scatter", "torch.scatter(a, 0, g, b)", (*REALS, "bool"), a=T((6, 4)), g=T((1, 4), "index:6"), b=T((1, 4)))
case("scatter.smaller", "a.scatter(1, g, b)", ("float32", "int64"), grad=False, a=T((3, 4)), b=T((3, 4)), setup="g = torch.tensor([[1, 0], [3, 2]])")
case("scatter.number", "(a.scatter(1, g, 5), a.scatter(1, g, value=1.0))", FLOATS, a=T((3, 4)), g=T((3, 2), "index:4"))
case("scatter.unique", "a.scatter(1, g, b)", FLOATS, a=T((3, 4)), b=T((2, 2)), setup="g = torch.tensor([[1, 0], [3, 2]])")
case("scatter.reduce", "(a.scatter(0, g, b, reduce='add'), a.scatter(0, g, b, reduce='multiply'))", grad=False, a=T((3, 4)), g=G, b=T((3, 4)))
case("scatter_add", "a.scatter_add(0, g, b)", REALS, a=T((3, 4)), g=G, b=T((3, 4)))
case("scatter_add.smaller", "a.scatter_add(1, g, b)", FLOATS, grad=False, a=T((3, 4)), g=T((2, 2), "index:4"), b=T((3, 4)))
for how in "sum prod mean amax amin".split():
    for own in (True, False):  # the 1/16 keeps a and b apart: PyTorch counts an equal that is not included
        case(f"scatter_reduce.{how} {own}", f"a.scatter_reduce(0, g, b + 0.0625, '{how}', include_self={own})", FLOATS if how != "mean" else ("float32", "float64"), a=T((3, 4), "positive"), g=G, b=T((3, 4), "positive"))
    case(f"scatter_reduce.{how} ints", f"a.scatter_reduce(0, g, b, '{how}')", ("int64", "int32"), a=T((3, 4), "positive"), g=G, b=T((3, 4), "positive"))
case("index_select", "(torch.index_select(a, 1, g), a.index_select(0, g[:1]))", (*REALS, "bool"), a=T((3, 4)), g=T((5,), "index:3"))
case("index_select.0-d", "a.index_select(0, g)", a=T(()), g=T((1,), "index:1"))
case("index_add", "torch.index_add(a, 0, g, b)", REALS, a=T((3, 4)), g=T((5,), "index:3"), b=T((5, 4)))
case("index_add.alpha", "a.index_add(1, g, b, alpha=2)", FLOATS, a=T((3, 4)), g=T((5,), "index:4"), b=T((3, 5)))
case("index_copy", "a.index_copy(0, g, b)", REALS, setup="g = torch.tensor([2, 0])", a=T((3, 4)), b=T((2, 4)))
case("index_copy.1", "a.index_copy(1, g, b)", setup="g = torch.tensor([2, 0])", a=T((3, 4)), b=T((3, 2)))
case("index_fill", "a.index_fill(1, g, 3)", REALS, a=T((3, 4)), g=T((2,), "index:4"))
case("index_put", "torch.index_put(a, (g, h), b)", REALS, setup="g = torch.tensor([0, 2, 1]); h = torch.tensor([1, 1, 0])", a=T((3, 4)), b=T((3,)))
case("index_put.accumulate", "a.index_put((g,), b, accumulate=True)", FLOATS, a=T((3, 4)), g=T((5,), "index:3"), b=T((5, 4)))
case("masked_select", "(torch.masked_select(a, m), a.masked_select(m[0]))", (*REALS, "bool"), a=T((3, 4)), m=T((3, 4), "bool"))
case("masked_scatter", "a.masked_scatter(m, b)", a=T((3, 4)), m=T((3, 4), "bool"), b=T((12,)))
case("take", "torch.take(a, g)", a=T((3, 4)), g=T((2, 3), "index:12"))
case("nonzero", "(torch.nonzero(a), a.nonzero(as_tuple=True), torch.where(a > 0), torch.argwhere(a))", ("float32", "int64", "bool"), grad=False, a=T((3, 4), "unit"))
case("nonzero.scalar", "(a.nonzero(), (a * 0).nonzero())", grad=False, a=T((), "positive"))
