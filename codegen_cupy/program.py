"""What a built plan is: a callable that keeps one recipe per sizes and alignment.

Stage: codegen.  In: ``Plan``, ``Config``.  Out: ``Program``, called with (list of arrays, sizes).
Read next: ``host`` (recipes), ``launch`` (running them), ``machine`` (where).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any

from codegen_cupy import attention, convolution, cublaslt, graphs, launch, many, matmul, tune, unfused, ways
from codegen_cupy.cuda_machine import has_clusters
from codegen_cupy.host import EXTERN_KERNELS, Recipe, is_state, prepare
from codegen_cupy.lanes import CHAIN
from codegen_cupy.machine import machine
from codegen_cupy.matmul import allow_tf32
from compiler import logs
from compiler.loop.ir import Plan
from tinytorch.device import emulated as emulating

ALIGNMENT = 16
EXTERN_KERNELS.update(attention.EXTERN_KERNELS)
EXTERN_KERNELS.update(convolution.EXTERN_KERNELS)
EXTERN_KERNELS.update(matmul.EXTERN_KERNELS)


def announce(recipe: Recipe) -> None:
    """Show the kernels to whoever listens (``TT_LOGS=kernels``)."""
    if logs.enabled("kernels"):
        for step in recipe.launches:
            logs.artifact("kernels", step.source.name, step.source.text, ".cu")


class Program:
    """A plan ready to run.  Calling it may compile: new sizes, or inputs that are not 16-byte aligned."""

    boxed_raw = True

    def __init__(self, plan: Plan, config: Any = None) -> None:
        self.plan, self.config = plan, config
        self.strict = getattr(config, "numerics", "fast") == "strict"
        self.emulate = emulating() or bool(getattr(config, "cuda_emulate", False))
        self.graphs = bool(getattr(config, "cudagraphs", False))
        self.rule = None if getattr(config, "graph_lanes", True) else CHAIN
        self.autotune = bool(getattr(config, "autotune", False))
        self.pick = tune.picker(config, self.emulate) if getattr(config, "autotune", False) else None
        self._runs: dict[tuple[tuple[int, ...], bool, bool], Callable[[Sequence[Any]], list[Any]]] = {}
        self._lock = threading.Lock()
        self.states = {i for i, b in enumerate(plan.inputs) if is_state(b)}
        if not plan.sizes:
            self._run_for((), True, allow_tf32())

    def __call__(self, arrays: Sequence[Any], sizes: Sequence[int] = ()) -> list[Any]:
        try:
            aligned = self._aligned(arrays)
        except AttributeError:  # a 0-d tensor of the CPU is among them
            arrays = brought(arrays, self.states, machine(self.emulate).xp)
            aligned = self._aligned(arrays)
        key = (tuple(sizes), aligned, allow_tf32())
        run = self._runs.get(key)
        if run is None:
            run = self._run_for(*key)
        return run(arrays)

    def recipe(self, sizes: Sequence[int] = (), *, aligned: bool = True) -> Recipe:
        """What a call with these sizes does; its launches hold the kernels' texts."""
        named = dict(zip(self.plan.sizes, sizes, strict=True))
        missing = not self.emulate and cublaslt.library() is None
        without = frozenset({"matmul"}) if missing else frozenset()
        if not self.emulate and not has_clusters():
            without |= {"clusters"}
        instead = ways.instead(self.plan, named, self.config, aligned=aligned, strict=self.strict, emulate=self.emulate)
        recipe = prepare(
            self.plan, named, aligned=aligned, strict=self.strict, pick=self.pick, without=without, instead=instead, direct=True
        )
        if self.autotune:
            recipe = matmul.tuned(recipe)
        if not self.emulate:
            device = machine(False)
            recipe = unfused.where_refused(recipe, lambda p: device.product(p) is None, aligned=aligned)
        return many.joined(recipe)

    def _run_for(self, sizes: tuple[int, ...], aligned: bool, tf32: bool) -> Callable[[Sequence[Any]], list[Any]]:
        with self._lock:
            run = self._runs.get((sizes, aligned, tf32))
            if run is None:
                recipe, device = self.recipe(sizes, aligned=aligned), machine(self.emulate)
                announce(recipe)
                run = launch.prepared(recipe, device, fmad=not self.strict)
                if self.graphs:
                    run = graphs.graphed(recipe, device, run, fmad=not self.strict, rule=self.rule)
                if recipe.uploads:
                    run = uploading(run, frozenset(map(recipe.inputs.index, recipe.uploads)), device.xp.asarray)
                self._runs[sizes, aligned, tf32] = run
            return run

    def _aligned(self, arrays: Sequence[Any]) -> bool:
        given = arrays if not self.states else [a for i, a in enumerate(arrays) if i not in self.states]
        if self.emulate:
            return all(a.ctypes.data % ALIGNMENT == 0 for a in given)
        for a in given:
            if a.data.ptr % ALIGNMENT:
                return False
        return True


def brought(arrays: Sequence[Any], states: Collection[int], xp: Any) -> list[Any]:
    """``arrays`` on the device, random states apart."""
    return [a if i in states or isinstance(a, xp.ndarray) else xp.asarray(a) for i, a in enumerate(arrays)]


def uploading(run: Callable[[Sequence[Any]], list[Any]], places: frozenset[int], upload: Any) -> Callable[[Sequence[Any]], list[Any]]:
    """``run`` with the inputs at ``places``, random states that are wanted as memory, brought to the device."""
    return lambda arrays: run([upload(a) if i in places else a for i, a in enumerate(arrays)])


def build(plan: Plan, config: Any = None) -> Program:
    """The callable of a plan."""
    return Program(plan, config)
