"""cublasLt through ctypes: runs a ``Product``, straight into its result, and allowed inside a graph capture.

Stage: codegen (run time).  In: a ``Product`` (``matmul``), addresses.  Out: work on a stream.  The library lists
algorithms for a product, likeliest first; where a product takes long enough for it to matter the first few are timed
and the fastest is kept on disk.  Read next: ``machine``, which owns a ``Handle``.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from codegen_cupy import libraries
from codegen_cupy.matmul import Matrix, Product
from compiler import cache as disk
from compiler.config import config
from tinytorch.dtypes import DType

#: cudaDataType_t, and cublasComputeType_t with the type of alpha and beta.
TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14, "complex64": 4, "complex128": 5}
COMPUTE = {
    "float32": (68, 0), "float64": (70, 1), "float16": (68, 0), "bfloat16": (68, 0), "complex64": (68, 4), "complex128": (70, 5),
}  # fmt: skip
FAST_TF32 = 77
ALGORITHM = 64  # bytes that describe an algorithm
WORKSPACE = 32 << 20
#: What a product ends in: ``CUBLASLT_EPILOGUE_BIAS``, ``_GELU`` and so on, which add up; and what the descriptor calls the
#: epilogue, its vector and its matrix.  The library could also sum columns, of an operand or the result, for a bias's gradient;
#: that takes the product longer than a kernel of ours takes to read them (``DGELU_BGRAD`` of 16384x3072x768: 432 us for 144).
EPILOGUES = {"bias": 4, "gelu": 32, "aux": 128, "dgelu": 192}
EPILOGUE, VECTOR, MATRIX, MATRIX_LEAD = 7, 8, 11, 12
#: How often a kernel in their place would go through the result's bytes, beside the product.
PASSES = {"gelu": 2, "dgelu": 3}
#: The library's choices are timed for products of about so many microseconds, at so many multiply-adds in each; with
#: ``max-autotune``, from so many multiply-adds.
WORTH, FAST_RATE, SLOW_RATE, TUNED = 25, 300_000_000, 25_000_000, 1 << 28
#: What the disk keeps of a product with a GELU that a kernel does faster.
LOSES = b"apart"


class Heuristic(ctypes.Structure):
    """``cublasLtMatmulHeuristicResult_t``."""

    _fields_ = (
        ("algo", ctypes.c_uint64 * 8), ("workspace", ctypes.c_size_t), ("state", ctypes.c_int), ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )  # fmt: skip


@cache
def library() -> ctypes.CDLL | None:
    """cublasLt, or None."""
    return libraries.opened(libraries.paths("cublasLt", "cublas"))


def _sizes(p: Product) -> list[int]:
    """Bytes of each operand."""
    matrices = [((p.batch - 1) * m.stride + m.cols * m.ld) * p.dtype.itemsize for m in (p.a, p.b, p.d)]
    return matrices + [p.m * p.dtype.itemsize if word == "bias" else matrices[2] for word in p.operands]


def worth_timing(p: Product) -> bool:
    """Does it take so long that some percent matter?"""
    rate = SLOW_RATE if p.dtype.itemsize >= 4 and not p.tf32 else FAST_RATE
    return p.m * p.n * p.k * p.batch >= (rate * WORTH if not p.tuned else TUNED)


def passes(p: Product) -> int:
    """How often a kernel would go through the result's bytes to do what the product could leave to one."""
    return sum(PASSES.get(word, 0) for word in p.then)


def _ok(code: int, what: str) -> None:
    if code:
        raise RuntimeError(f"cublasLt: {what} failed with status {code}")


class Handle:
    """The library's context and the work space of each stream, on one device.

    ``timer(fn)`` gives the time that what ``fn`` enqueues on ``stream()`` takes; ``noise`` fills memory with numbers.
    """

    def __init__(
        self, alloc: Callable[[int], Any], stream: Callable[[], int], timer: Callable[[Callable[[], None]], float],
        noise: Callable[[Any, int, DType], None], device: str = "",
    ) -> None:  # fmt: skip
        lib = library()
        if lib is None:
            raise RuntimeError("cublasLt was not found: pip install nvidia-cublas-cu12, or install the CUDA toolkit")
        self.lib, self.alloc, self.stream, self.timer, self.noise, self.device = lib, alloc, stream, timer, noise, device
        self.handle = ctypes.c_void_p()
        _ok(lib.cublasLtCreate(ctypes.byref(self.handle)), "cublasLtCreate")
        self.timed = 0  # products whose choices were
        self.spaces: dict[int, Any] = {}
        self.plans: dict[Any, Prepared] = {}
        self.lock = threading.Lock()

    def prepared(self, p: Product) -> Prepared:
        """The descriptors of a product and its algorithm; equal products share them.  RuntimeError if refused, or if its
        GELU takes longer than a kernel would."""
        key = (p.dtype, p.a, p.b, p.d, p.batch, p.tf32, p.alignment, p.tuned, p.then, config.deterministic)
        with self.lock:
            if key not in self.plans:
                made = self.plans[key] = Prepared(self, p)
                if worth_timing(p) and (len(made.choices) > 1 or passes(p)) and not config.deterministic:
                    self._choose(made)
            if not self.plans[key].wins:
                raise RuntimeError(f"a kernel is faster than the GELU of {p}")
            return self.plans[key]

    def _choose(self, made: Prepared) -> None:
        """The choice that was fastest, now or when it was last measured on such a device."""
        p = made.product
        what = replace(p, buffers=(), offsets=(), repeats=(), tuned=False)
        key = disk.key_of("cublasLt", repr(what), self.device, self.lib.cublasLtGetVersion())
        kept = disk.get("product", key)
        listed = [bytes(c)[:ALGORITHM] for c in made.choices]
        if kept == LOSES:
            made.wins = False
        elif kept in listed:
            made.use(made.choices[listed.index(kept)])
        elif self._tune(made):
            disk.put("product", key, bytes(made.choice)[:ALGORITHM] if made.wins else LOSES)

    def _tune(self, made: Prepared) -> bool:
        """On memory of our own, if there is some to spare, and on random numbers: with zeros the chip takes less power
        and runs faster, which turns the order of the choices round."""
        p = made.product
        sizes = _sizes(p)
        self.timed += 1
        try:
            blocks = [self.alloc(n) for n in sizes]
        except Exception:  # out of memory: the library's first choice is a fine one
            return False
        for block, size in zip(blocks, sizes, strict=True):
            self.noise(block, size, p.dtype)
        memory, stream = [b.ptr for b in blocks], self.stream()
        made.tell(*memory[3:])
        took = tune(made, self.timer, memory, stream)
        if passes(p):  # or the rest, and a kernel
            rest = Prepared(self, replace(p, then=tuple(w for w in p.then if w in ("bias", "add"))))
            rest.tell(*memory[3:])  # which it has in the same order
            apart = tune(rest, self.timer, memory, stream)
            twice = self.alloc(sizes[2])
            apart += self.timer(lambda: twice.copy_from_device_async(blocks[2], sizes[2])) / 2 * passes(p)
            made.wins = took < apart
        return True

    def workspace(self, stream: int) -> int:
        """Scratch memory of this stream: calls on one stream follow each other, so they may share it."""
        found = self.spaces.get(stream)
        if found is None:
            found = self.spaces[stream] = self.alloc(WORKSPACE)
        return int(found.ptr)


class Prepared:
    """Descriptors and algorithm of a product."""

    def __init__(self, handle: Handle, p: Product) -> None:
        self.handle, lib = handle, handle.lib
        self.product = p
        compute, scale = COMPUTE[p.dtype.name]
        self.desc = ctypes.c_void_p()
        compute = FAST_TF32 if p.tf32 else compute
        _ok(lib.cublasLtMatmulDescCreate(ctypes.byref(self.desc), compute, scale), "cublasLtMatmulDescCreate")
        for attribute, m in ((3, p.a), (4, p.b)):
            self._set(attribute, ctypes.c_int32(int(m.transposed)))
        self.matrix = p.then.index("add") if "add" in p.then else None
        self.wins = True  # over a kernel for the GELU
        epilogue = sum(EPILOGUES.get(word, 0) for word in p.then)
        if epilogue:
            self._set(EPILOGUE, ctypes.c_int32(epilogue))
        told = {"bias": VECTOR, "aux": MATRIX, "dgelu": MATRIX}
        self.told = [(told[word], n) for n, word in enumerate(p.operands) if word in told]
        for attribute, _ in self.told:
            self._set(attribute, ctypes.c_void_p(handle.workspace(0)))  # any aligned address, for the choice
            if attribute == MATRIX:
                self._set(MATRIX_LEAD, ctypes.c_int64(p.d.ld))
        self.layouts = [self._layout(m) for m in (p.a, p.b, p.d)]
        numbers: dict[int, Any] = {0: ctypes.c_float * 1, 1: ctypes.c_double * 1, 4: ctypes.c_float * 2, 5: ctypes.c_double * 2}
        number = numbers[scale]
        self.alpha, self.beta = number(1.0), number(float("add" in p.then))
        self.choices = self._choices(8)
        self.choice = self.choices[0]
        self._arguments()

    def _set(self, attribute: int, value: Any) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        code = self.handle.lib.cublasLtMatmulDescSetAttribute(self.desc, attribute, ctypes.byref(value), size)
        _ok(code, "cublasLtMatmulDescSetAttribute")

    def _layout(self, m: Matrix) -> ctypes.c_void_p:
        lib, out, p = self.handle.lib, ctypes.c_void_p(), self.product
        code = lib.cublasLtMatrixLayoutCreate(
            ctypes.byref(out), TYPES[p.dtype.name], ctypes.c_uint64(m.rows), ctypes.c_uint64(m.cols), ctypes.c_int64(m.ld)
        )
        _ok(code, "cublasLtMatrixLayoutCreate")
        if p.batch > 1:
            for attribute, value in ((5, ctypes.c_int32(p.batch)), (6, ctypes.c_int64(m.stride))):
                size = ctypes.c_size_t(ctypes.sizeof(value))
                _ok(lib.cublasLtMatrixLayoutSetAttribute(out, attribute, ctypes.byref(value), size), "layout attribute")
        return out

    def _choices(self, most: int) -> list[Heuristic]:
        """The library's own list, likeliest first."""
        lib, wish = self.handle.lib, ctypes.c_void_p()
        _ok(lib.cublasLtMatmulPreferenceCreate(ctypes.byref(wish)), "cublasLtMatmulPreferenceCreate")
        settings: list[tuple[int, Any]] = [(1, ctypes.c_size_t(WORKSPACE))]
        settings += [(n, ctypes.c_uint32(self.product.alignment)) for n in (5, 6, 7, 8)]
        for attribute, value in settings:
            size = ctypes.c_size_t(ctypes.sizeof(value))
            _ok(lib.cublasLtMatmulPreferenceSetAttribute(wish, attribute, ctypes.byref(value), size), "preference")
        found, results = ctypes.c_int(), (Heuristic * most)()
        a, b, d = self.layouts
        code = lib.cublasLtMatmulAlgoGetHeuristic(
            self.handle.handle, self.desc, a, b, d, d, wish, most, results, ctypes.byref(found)
        )
        lib.cublasLtMatmulPreferenceDestroy(wish)
        _ok(code, f"the choice of an algorithm for {self.product}")
        good = [r for r in results[: found.value] if r.state == 0]
        if not good:
            raise RuntimeError(f"cublasLt has no algorithm for {self.product}")
        return good

    def _arguments(self) -> None:
        """What every call passes, made once: building ctypes objects takes longer than the call."""
        a, b, d = self.layouts
        self.before = (self.handle.handle, self.desc, ctypes.byref(self.alpha))
        self.la, self.lb, self.ld, self.beta_ref = a, b, d, ctypes.byref(self.beta)
        self.use(self.choice)

    def use(self, choice: Heuristic) -> None:
        self.choice = choice
        self.algo = ctypes.byref(choice, Heuristic.algo.offset)
        self.space = ctypes.c_size_t(choice.workspace)

    def run(self, a: int, b: int, d: int, *more: int) -> None:
        """Enqueue the product on memory at these addresses: factors, result, a further one per word of ``then``, and
        last the stream."""
        if not self.told:
            return self.enqueue(a, b, d, *more)
        with self.handle.lock:  # the vector is told to the descriptor, which equal products share
            self.tell(*more)
            self.enqueue(a, b, d, *more)

    def tell(self, *more: int) -> None:
        """The descriptor learns where the operands are that no call passes."""
        for attribute, n in self.told:
            self._set(attribute, ctypes.c_void_p(more[n]))

    def enqueue(self, a: int, b: int, d: int, *more: int) -> None:
        """As ``run``, with the vector and the matrix that the descriptor knows."""
        pd, stream = ctypes.c_void_p(d), more[-1]
        pc = ctypes.c_void_p(more[self.matrix]) if self.matrix is not None else pd
        scratch = ctypes.c_void_p(self.handle.workspace(stream) if self.choice.workspace else 0)
        code = self.handle.lib.cublasLtMatmul(
            *self.before, ctypes.c_void_p(a), self.la, ctypes.c_void_p(b), self.lb, self.beta_ref, pc, self.ld, pd, self.ld,
            self.algo, scratch, self.space, ctypes.c_void_p(stream),
        )  # fmt: skip
        if code:
            raise RuntimeError(f"cublasLt: {self.product} failed with status {code}")


def tune(prepared: Prepared, timer: Callable[[Callable[[], None]], float], memory: Sequence[int], stream: int) -> float:
    """Time the library's choices on this memory and keep the fastest; gives its time.  Results are overwritten."""
    best: tuple[float, Heuristic] | None = None
    for choice in prepared.choices:
        prepared.use(choice)
        try:
            took = timer(lambda: prepared.enqueue(*memory, stream))
        except RuntimeError:  # one that the library lists and then refuses
            continue
        if best is None or took < best[0]:
            best = took, choice
    assert best is not None
    prepared.use(best[1])
    return best[0]
