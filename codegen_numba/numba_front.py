"""The few passes of Numba that kernels need: bytecode to typed IR to an llvmlite module, and not a step further.

Stage: codegen_numba.  In: a Python function and the types of its arguments.  Out: the module and its one function.
This is the only file that touches Numba's inner parts.  Read next: ``compile``.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import compiler, typed_passes, types, untyped_passes
from numba.core.compiler_machinery import LoweringPass, PassManager, register_pass
from numba.core.funcdesc import PythonFunctionDescriptor
from numba.core.lowering import Lower
from numba.core.registry import cpu_target


class _Library:
    """What lowering wants of a code library: a place to put the module."""

    def __init__(self, codegen: Any) -> None:
        self.codegen = codegen
        self.module: Any = None
        self._reload_init: set[Any] = set()

    def add_ir_module(self, module: Any) -> None:
        self.module = module

    def add_linking_library(self, library: Any) -> None:
        """Kernels call nothing of Numba's runtime."""

    def create_ir_module(self, name: str) -> Any:
        return self.codegen._create_empty_module(name)


@register_pass(mutates_CFG=True, analysis_only=False)
class LowerOnly(LoweringPass):
    """Numba's lowering without wrappers, linking or machine code."""

    _name = "tinytorch_lower_only"

    def __init__(self) -> None:
        LoweringPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        descriptor = PythonFunctionDescriptor.from_specialized_function(
            state.func_ir, state.typemap, state.return_type, state.calltypes, mangler=state.targetctx.mangler,
            inline=False, noalias=state.flags.noalias, abi_tags=(),
        )  # fmt: skip
        with state.targetctx.push_code_library(state.library):
            lower = Lower(state.targetctx, state.library, descriptor, state.func_ir, metadata=state.metadata)
            lower.lower()
        state["cr"] = descriptor
        return True


class Front(compiler.CompilerBase):
    """The pipeline, one line a pass."""

    def define_pipelines(self) -> list[Any]:
        passes = PassManager("tinytorch kernel")
        for step in (
            untyped_passes.TranslateByteCode,
            untyped_passes.FixupArgs,
            untyped_passes.IRProcessing,
            untyped_passes.ReconstructSSA,
            typed_passes.NopythonTypeInference,
            typed_passes.PreLowerStripPhis,
            typed_passes.IRLegalization,
            LowerOnly,
        ):
            passes.add_pass(step, step.__name__)
        passes.finalize()
        return [passes]


def lower(function: Any, arguments: tuple[Any, ...], alias: bool) -> tuple[ir.Module, ir.Function]:
    """``function`` on ``arguments`` (Numba types; pointers do not overlap unless ``alias``) as LLVM IR."""
    typing, target = cpu_target.typing_context, cpu_target.target_context
    target.refresh()
    typing.refresh()
    flags = compiler.Flags()
    flags.no_compile = True
    flags.nrt = False
    flags.error_model = "numpy"
    flags.noalias = not alias
    library = _Library(target.codegen())
    pipeline = Front(typing, target, library, arguments, types.void, flags, {})
    descriptor = pipeline.compile_extra(function)
    return library.module, library.module.globals[descriptor.mangled_name]
