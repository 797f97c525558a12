"""Numba on kernel source: bytecode to typed IR to an llvmlite module, and not a step further.

Stage: codegen_numba.  In: a Python function and the types of its arguments.  Out: the module and its one function.
Kernel source means what comes out here; ``front`` is a short cut, and leaves to this file what it does not know.
This is the only file that touches Numba's inner parts.  Read next: ``compile``.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir
from numba.core import compiler, cpu, typed_passes, types, untyped_passes
from numba.core import typing as numba_typing
from numba.core.compiler_machinery import LoweringPass, PassManager, register_pass
from numba.core.funcdesc import PythonFunctionDescriptor
from numba.core.lowering import Lower
from numba.core.typing.context import BaseContext
from numba.core.typing.templates import AbstractTemplate

from codegen_numba import atomics, intrinsics
from codegen_numba import types as ours


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


class Typing(BaseContext):
    """Types calls by Numba's built-in rules alone, and each call of a function on the same types once."""

    def __init__(self) -> None:
        self._seen: dict[Any, Any] = {}
        super().__init__()

    def resolve_function_type(self, func: Any, args: Any, kws: Any) -> Any:
        if kws:
            return super().resolve_function_type(func, args, kws)
        key = (func, tuple(args))
        found = self._seen.get(key)
        if found is None:
            found = self._seen[key] = super().resolve_function_type(func, args, kws)
        return found


class Target(cpu.CPUContext):
    """Lowers numbers, pointers, ranges: no arrays, no reference counts, no runtime."""

    def load_additional_registries(self) -> None:
        from numba.cpython import builtins, numbers, rangeobj  # noqa: F401


@cache
def contexts() -> tuple[Typing, Target]:
    typing = Typing()
    target = Target(typing)
    typing.refresh()
    target.refresh()
    for word in {**intrinsics.NAMES, **atomics.NAMES}.values():
        if isinstance(word, intrinsics.Word):
            teach(typing, target, word)
    return typing, target


def teach(typing: Typing, target: Target, word: intrinsics.Word) -> None:
    """Make a word known: a template that types its calls, and what to write for one."""

    def generic(self: Any, args: Any, kws: Any) -> Any:
        found = None if kws else word.typed(*map(as_ours, args))
        return None if found is None else numba_typing.signature(*map(as_numba, (found.return_type, *found.args)))

    def write(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
        own = ours.Signature(as_ours(signature.return_type), tuple(map(as_ours, signature.args)))
        out = word.write(builder, own, values)
        return context.get_dummy_value() if own.return_type is ours.void else out

    members = {"key": word, "generic": generic, "prefer_literal": word.literal}
    typing.insert_global(word, types.Function(type(f"Template_{word.name}", (AbstractTemplate,), members)))
    target.insert_func_defn([(write, word, (types.VarArg(types.Any),))])


def as_numba(t: ours.Type) -> Any:
    if isinstance(t, ours.CPointer):
        return types.CPointer(as_numba(t.element))
    if isinstance(t, ours.IntegerLiteral):
        return types.literal(t.literal_value)
    return {"bool": types.boolean, "void": types.void}.get(t.name) or getattr(types, t.name)


def as_ours(t: Any) -> ours.Type:
    if isinstance(t, types.CPointer):
        return ours.CPointer(as_ours(t.dtype))
    if isinstance(t, types.IntegerLiteral):
        return ours.IntegerLiteral(t.literal_value)
    return ours.void if t in (types.void, types.none) else ours.BY_NAME[t.name]


def lower(function: Any, arguments: list[ours.Type], alias: bool) -> tuple[ir.Module, ir.Function]:
    """``function`` on ``arguments`` (pointers do not overlap unless ``alias``) as LLVM IR."""
    typing, target = contexts()
    flags: Any = compiler.Flags()
    flags.no_compile = True
    flags.nrt = False
    flags.error_model = "numpy"
    flags.noalias = not alias
    library = _Library(target.codegen())
    pipeline = Front(typing, target, library, tuple(map(as_numba, arguments)), types.void, flags, {})
    descriptor = pipeline.compile_extra(function)
    return library.module, library.module.globals[descriptor.mangled_name]
