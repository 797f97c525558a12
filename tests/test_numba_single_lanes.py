"""Masked stores of one element write that element and nothing else, whatever LLVM makes of them."""

from __future__ import annotations

import ctypes

import llvmlite.binding as llvm
import numpy as np
import pytest

from codegen_numba import single_lanes, target

DTYPES = {"i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64}


def narrowing_store(wide: str, narrow: str, mask: list[bool]) -> str:
    n = len(mask)
    lanes = ", ".join(f"i1 {str(m).lower()}" for m in mask)
    return f"""
declare void @llvm.masked.store.v{n}{narrow}.p0(<{n} x {narrow}>, ptr, i32, <{n} x i1>)
define void @f(ptr %from, ptr %to) {{
  %v = load <{n} x {wide}>, ptr %from, align 1
  %small = trunc <{n} x {wide}> %v to <{n} x {narrow}>
  call void @llvm.masked.store.v{n}{narrow}.p0(<{n} x {narrow}> %small, ptr %to, i32 1, <{n} x i1> <{lanes}>)
  ret void
}}"""


def run(text: str, source: np.ndarray, to: np.ndarray) -> None:
    module = llvm.parse_assembly(str(llvm.parse_assembly(text)))
    assert single_lanes.found(module)
    fixed = llvm.parse_assembly(single_lanes.apart(str(module)))
    fixed.verify()
    engine = llvm.create_mcjit_compiler(fixed, target._machine() if hasattr(target, "_machine") else target.machine())
    engine.finalize_object()
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(engine.get_function_address("f"))
    call(source.ctypes.data, to.ctypes.data)


@pytest.mark.parametrize("lanes", [[0], [1], [3], [0, 1], [1, 2, 3]], ids=str)
@pytest.mark.parametrize(("wide", "narrow", "n"), [("i32", "i16", 4), ("i32", "i16", 8), ("i64", "i32", 4), ("i16", "i8", 8)])
def test_neighbours_of_a_masked_store_stay(wide: str, narrow: str, n: int, lanes: list[int]) -> None:
    source = (np.arange(n) * 37 + 5 - (1 << 14)).astype(DTYPES[wide])
    to = np.full(n + 4, 77, DTYPES[narrow])
    want = to.copy()
    want[lanes] = source[lanes].astype(DTYPES[narrow])
    run(narrowing_store(wide, narrow, [k in lanes for k in range(n)]), source, to)
    np.testing.assert_array_equal(to, want)


def test_only_masks_of_one_constant_lane_are_rewritten() -> None:
    one, two = (narrowing_store("i32", "i16", [True, more, False, False]) for more in (False, True))
    assert "call void" not in single_lanes.apart(str(llvm.parse_assembly(one)))
    text = str(llvm.parse_assembly(two))
    assert single_lanes.apart(text).splitlines() == text.splitlines()
