"""The CPU this process runs on, as LLVM describes it.

Stage: codegen_numba.  In: nothing.  Out: a target machine, and the text that names it in cache keys.
Read next: ``compile``.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import Any

import llvmlite.binding as llvm

_own = threading.local()


def machine() -> Any:
    """A target machine of this thread's own: LLVM lets no two threads use one."""
    if not hasattr(_own, "machine"):
        _own.machine = _machine()
    return _own.machine


def _machine() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features(), opt=3, reloc="pic", codemodel="default"
    )


@cache
def features() -> str:
    return str(llvm.get_host_cpu_features().flatten())


@cache
def has(*names: str) -> bool:
    """Does the CPU have all of these features?"""
    have = llvm.get_host_cpu_features()
    return all(have.get(n, False) for n in names)


@cache
def description() -> str:
    return " ".join([llvm.get_process_triple(), llvm.get_host_cpu_name(), features(), repr(llvm.llvm_version_info)])
