"""Backends that compile functional graphs to fused kernels: ``numba``, ``cupy``, and ``inductor``, which picks.

Stage: backend.  In: a captured graph.  Out: a callable over machine code.  Here the stages meet: aot, partition, loop, and
a codegen found by name.  Read next: ``compiler.loop.host``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakValueDictionary

from compiler import logs, timing
from compiler.aot.autograd import aot_autograd
from compiler.aot.kept import Memory
from compiler.aot.runtime import Raw
from compiler.backend import load_codegen
from compiler.backends import devices
from compiler.config import Config
from compiler.config import config as settings
from compiler.ir import meta
from compiler.ir.graph import Node
from compiler.ir.module import GraphModule
from compiler.ir.verify import verify
from compiler.loop import interp, kept, printer
from compiler.loop.footprint import footprint
from compiler.loop.ir import Plan
from compiler.partition import min_cut
from tinytorch.device import emulated
from tinytorch.functions.misc import get_float32_matmul_precision
from tinytorch.tensor import Tensor

Build = Callable[[Plan, Config], Callable[[list[Any], tuple[int, ...]], Sequence[Any]]]
_built: WeakValueDictionary[Any, Any] = WeakValueDictionary()


def inductor(gm: GraphModule, example_inputs: Sequence[Any], *, config: Config = settings) -> Callable[..., Any]:
    """Kernels for the device that the graph's tensors are on."""
    return through_loops(lambda module: _codegen_for(module, config), config, "inductor")(gm, example_inputs)


def numba(gm: GraphModule, example_inputs: Sequence[Any], *, config: Config = settings) -> Callable[..., Any]:
    """CPU kernels by Numba."""
    return through_loops(lambda module: load_codegen("codegen_numba").build, config, "numba")(gm, example_inputs)


def cupy(gm: GraphModule, example_inputs: Sequence[Any], *, config: Config = settings) -> Callable[..., Any]:
    """CUDA kernels by CuPy."""
    return through_loops(lambda module: load_codegen("codegen_cupy").build, config, "cupy")(gm, example_inputs)


def interpreted(gm: GraphModule, example_inputs: Sequence[Any], *, config: Config = settings) -> Callable[..., Any]:
    """The loop IR run by its plain-Python interpreter: slow, needs no codegen, and defines what kernels mean."""
    return through_loops(lambda module: _interpret, config)(gm, example_inputs)


def through_loops(
    codegen_for: Callable[[GraphModule], Build], config: Config, name: str = ""
) -> Callable[[Any, Sequence[Any]], Callable[..., Any]]:
    """The pipeline after capture, with ``codegen_for(module)`` as its last stage.

    ``name`` says which that is: programs that were compiled under it before are found again.
    """

    def compiler(module: GraphModule, examples: Sequence[Any]) -> Raw:
        def one(part: GraphModule) -> Raw:
            return compile_loops(part, codegen_for(part), config)

        return devices.on_both(module, one) if devices.mixed(module) else one(module)

    def partition(joint: GraphModule, forward_outputs: int) -> tuple[Any, ...]:
        ahead = config.gradients_ahead and not config.deterministic  # which of the two ways is taken depends on the past
        forward, backward, report = min_cut(joint, forward_outputs, config.activation_memory_budget, ahead=ahead)
        return forward, backward, report.ahead

    memory = Memory([name, config.key()], lambda found: _again(found[0], found[1], config)) if name and config.cache and not config.verify else None
    return aot_autograd(compiler, partition_fn=partition, memory=memory)


def compile_loops(module: GraphModule, build: Build, config: Config) -> Raw:
    """A functional graph as a function from arrays to arrays."""
    verify(module, functional=True)
    lifted, constants = lift_attributes(module)
    with timing.phase("loops"):
        name, plan = kept.plan_of(lifted, config)
    if logs.enabled("loops"):
        logs.artifact("loops", module.class_name, printer.format_plan(plan))
    if logs.enabled("memory"):
        logs.artifact("memory", module.class_name, str(footprint(plan)), ".txt")
    with timing.phase("codegen"):
        built = _built_before(name, plan, build, config)
    run = _bind(built, lifted, plan, constants)
    package = build.__module__.partition(".")[0]
    if name and not plan.sizes and not constants and getattr(sys.modules.get(package), "build", None) is build:
        run.kept = (name, package)  # type: ignore[attr-defined]
    return run


def _again(name: str, package: str, config: Config) -> Raw | None:
    """What ``compile_loops`` made of a plan kept under ``name`` whose inputs are all arrays, without the graph."""
    with timing.phase("loops"):
        plan = kept.plan_named(name)
    if plan is None:
        return None
    with timing.phase("codegen"):
        built = _built_before(name, plan, load_codegen(package).build, config)

    def run(arrays: list[Any]) -> Sequence[Any]:
        return built(arrays, ())

    run.boxed_raw = True  # type: ignore[attr-defined]
    return run


def _built_before(name: str, plan: Plan, build: Build, config: Config) -> Callable[[list[Any], tuple[int, ...]], Sequence[Any]]:
    """What a plan was built to: as long as somebody has it, the same again: traces with one graph share its memory."""
    key = (name, build, emulated(), get_float32_matmul_precision())
    told = any(map(logs.enabled, ("kernels", "asm", "autotune")))  # what building says is wanted
    found = _built.get(key) if name and not told else None
    if found is None:
        found = build(plan, config)
        if name:
            _built[key] = found
    return found


def lift_attributes(module: GraphModule) -> tuple[GraphModule, list[Any]]:
    """The module with its constants as further inputs, and the arrays of these."""
    attributes = module.graph.find_nodes(op="get_attr")
    if not attributes:
        return module, []
    module = module.copy()
    graph = module.graph
    made: dict[str, Node] = {}
    for node in graph.find_nodes(op="get_attr"):
        last = graph.placeholders[-1] if graph.placeholders else None
        if node.target not in made:
            with graph.inserting_after(last) if last is not None else graph.inserting_before(None):
                made[node.target] = graph.placeholder(node.name)
            made[node.target].meta = dict(node.meta)
        node.replace_all_uses_with(made[node.target])
        graph.erase_node(node)
    module.changed()
    return module, [module.attributes[name]._data for name in made]


def _bind(
    built: Callable[[list[Any], tuple[int, ...]], Sequence[Any]], module: GraphModule, plan: Plan, constants: list[Any]
) -> Raw:
    """Give the built function its sizes, and only the inputs that are arrays."""
    inputs = module.graph.placeholders
    is_array = [isinstance(p.meta["val"], Tensor) for p in inputs]
    where = {name: (inputs.index(p), dim) for name, (p, dim) in meta.size_sources(module.graph).items()}
    reads = [where[name] for name in plan.sizes]
    only_arrays = all(is_array)

    if not reads and only_arrays and not constants:

        def run(arrays: list[Any]) -> Sequence[Any]:
            return built(arrays, ())

    else:

        def run(arrays: list[Any]) -> Sequence[Any]:
            values = arrays + constants
            sizes = tuple(int(values[i]) if dim is None else values[i].shape[dim] for i, dim in reads)
            return built(values if only_arrays else [a for a, is_ in zip(values, is_array, strict=True) if is_], sizes)

    run.boxed_raw = True  # type: ignore[attr-defined]
    return run


def _codegen_for(module: GraphModule, config: Config) -> Build:
    """By device: a graph that touches a GPU is for the CUDA codegen."""
    vals = [n.meta.get("val") for n in module.graph.nodes]
    on_gpu = any(isinstance(v, Tensor) and v.device.type == "cuda" for v in vals)
    return load_codegen(config.cuda_codegen if on_gpu else config.cpu_codegen).build


def _interpret(plan: Plan, config: Config) -> Callable[[list[Any], tuple[int, ...]], Sequence[Any]]:
    return lambda arrays, sizes: interp.run_plan(plan, arrays, sizes)
