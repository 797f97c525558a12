"""The doors: ``compile`` in all its spellings, backends, modules, ``explain``, stances; and whole programs through them."""

from __future__ import annotations

import copy
import pickle
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinytorch as torch
import tinytorch.nn.functional as F
from compiler import logs
from compiler.backend import GROUP
from compiler.config import config
from compiler.errors import BackendError
from compiler.optimized_module import OptimizedModule
from tinytorch import nn

BACKENDS = ["eager", "aot_eager", "aot_eager_decomp_partition", "numba"]


@pytest.fixture(autouse=True)
def fresh() -> Any:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


class Counter:
    """A backend that counts graphs and ops, and runs them as they are."""

    def __init__(self) -> None:
        self.graphs: list[Any] = []

    def __call__(self, gm: Any, examples: Any) -> Any:
        self.graphs.append(gm)
        return gm

    @property
    def ops(self) -> int:
        return sum(n.op.startswith("call") for gm in self.graphs for n in gm.graph.nodes)


# --- spellings --------------------------------------------------------------------------------------------------------
def test_compile_as_a_call_a_decorator_and_a_decorator_with_options() -> None:
    counter = Counter()

    @torch.compile(backend=counter)
    def f(x: Any) -> Any:
        return x * 2

    @torch.compile
    def g(x: Any) -> Any:
        return x + 1

    h = torch.compile(lambda x: x - 1, backend=counter, fullgraph=True, dynamic=False)
    assert not counter.graphs  # nothing before the first call
    x = torch.arange(3).float()
    assert f(x).tolist() == [0, 2, 4] and h(x).tolist() == [-1, 0, 1] and g(x).tolist() == [1, 2, 3]
    assert len(counter.graphs) == 2 and f.__name__ == "f"


def test_mode_and_options_exclude_each_other_and_names_are_checked() -> None:
    with pytest.raises(RuntimeError, match="both can't be specified"):
        torch.compile(lambda x: x, mode="default", options={"autotune": True})
    with pytest.raises(RuntimeError, match="Unrecognized mode=fastest"):
        torch.compile(lambda x: x, mode="fastest")
    with pytest.raises(RuntimeError, match="Unexpected optimization option nothing"):
        torch.compile(lambda x: x, options={"nothing": 1})
    assert set(torch.compiler.list_mode_options()) >= {"default", "reduce-overhead", "max-autotune"}
    assert "numerics" in torch.compiler.list_options()


def test_options_reach_our_backends_and_custom_ones_as_they_are() -> None:
    seen: list[Any] = []

    def mine(gm: Any, examples: Any, **kwargs: Any) -> Any:
        seen.append(kwargs)
        return gm

    torch.compile(lambda x: x + 1, backend=mine, options={"level": 3})(torch.ones(2))
    torch.compile(lambda x: x + 2, backend=mine, mode="max-autotune")(torch.ones(2))
    assert seen == [{"options": {"level": 3}}, {"mode": "max-autotune"}]

    def ours(gm: Any, examples: Any, *, config: Any) -> Any:
        seen.append(config.numerics)
        return gm

    torch.compile(lambda x: x + 3, backend=ours, options={"numerics": "strict"})(torch.ones(2))
    assert seen[-1] == "strict" and config.numerics == "fast"


def test_disable_gives_the_function_back() -> None:
    def f(x: Any) -> Any:
        return x

    assert torch.compile(f, disable=True) is f
    with config.patch(disable=True):
        assert torch.compile(f) is f
    with pytest.raises(RuntimeError, match="takes a function or a module"):
        torch.compile(3)


# --- backends ---------------------------------------------------------------------------------------------------------
def test_backends_are_listed_looked_up_and_registered() -> None:
    assert {"inductor", "numba", "cupy"} <= set(torch.compiler.list_backends())
    assert "eager" not in torch.compiler.list_backends() and "eager" in torch.compiler.list_backends(None)
    with pytest.raises(ValueError, match="Did you mean 'inductor'"):
        torch.compile(lambda x: x, backend="inducter")
    with pytest.raises(TypeError, match="name or a callable"):
        torch.compiler.lookup_backend(3)  # type: ignore[arg-type]
    counter = Counter()
    torch.compiler.register_backend(counter, name="counting")
    assert torch.compiler.lookup_backend("counting") is counter
    torch.compile(lambda x: x * 3, backend="counting")(torch.ones(1))
    assert counter.ops == 1


def test_a_backend_that_gives_no_callable_is_named() -> None:
    with pytest.raises(BackendError, match="gave NoneType for the graph of f"):

        @torch.compile(backend=lambda gm, examples: None)
        def f(x: Any) -> Any:
            return x + 1

        f(torch.ones(2))


def test_backends_come_from_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import EntryPoint

    point = EntryPoint("from_afar", "compiler.backends.eager:eager", GROUP)
    monkeypatch.setattr("compiler.backend.entry_points", lambda group: [point] if group == GROUP else [])
    assert "from_afar" in torch.compiler.list_backends()
    assert torch.compile(lambda x: x * 3, backend="from_afar")(torch.ones(1)).tolist() == [3]


def test_aot_autograd_makes_a_backend_of_two_compilers() -> None:
    seen: list[str] = []

    def compiler(name: str) -> Callable[..., Any]:
        def run(gm: Any, examples: Any) -> Any:
            seen.append(name)
            return lambda *args: gm(*args)

        return run

    backend = torch.compiler.aot_autograd(compiler("forward"), compiler("backward"), inference_compiler=compiler("inference"))
    f = torch.compile(lambda x: (x.sin() ** 2).sum(), backend=backend)
    x = torch.ones(3, requires_grad=True)
    f(x).backward()
    np.testing.assert_allclose(x.grad.numpy(), np.sin(2 * np.ones(3)), rtol=1e-6)
    with torch.no_grad():
        f(x)
    assert seen == ["forward", "backward", "inference"]


# --- modules ----------------------------------------------------------------------------------------------------------
def test_a_compiled_module_is_the_original_in_all_but_the_call() -> None:
    counter = Counter()
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Dropout(0.5))
    compiled = torch.compile(model, backend=counter)
    assert isinstance(compiled, OptimizedModule) and isinstance(compiled, nn.Module)
    assert compiled._orig_mod is model
    assert list(compiled.state_dict()) == ["_orig_mod.0.weight", "_orig_mod.0.bias"]
    assert [id(p) for p in compiled.parameters()] == [id(p) for p in model.parameters()]
    compiled.eval()
    assert not model.training and not compiled.training
    x = torch.rand(2, 3)
    np.testing.assert_allclose(compiled(x).detach().numpy(), model(x).detach().numpy())
    compiled.note = "kept"
    assert model.note == "kept" and len(compiled) == 3 and compiled[0] is model[0]
    assert len(counter.graphs) == 1
    compiled.train()
    compiled(x)
    assert len(counter.graphs) == 2  # training is guarded


def test_module_compile_works_in_place() -> None:
    model = nn.Linear(3, 2)
    before = list(model.state_dict())
    counter = Counter()
    model.compile(backend=counter)
    x = torch.rand(2, 3)
    got = model(x)
    assert type(model) is nn.Linear and list(model.state_dict()) == before
    np.testing.assert_allclose(got.detach().numpy(), model._call_impl(x).detach().numpy())
    assert len(counter.graphs) == 1


def test_hooks_of_a_compiled_module_fire_when_they_are_there() -> None:
    model = nn.Linear(3, 2)
    compiled = torch.compile(model, backend="aot_eager")
    x = torch.rand(2, 3)
    plain = compiled(x)
    handle = model.register_forward_hook(lambda m, args, out: out * 2)
    np.testing.assert_allclose(compiled(x).detach().numpy(), 2 * plain.detach().numpy(), rtol=1e-6)
    handle.remove()
    np.testing.assert_allclose(compiled(x).detach().numpy(), plain.detach().numpy())


def test_a_compiled_module_has_hooks_of_its_own() -> None:
    model = nn.Linear(3, 2)
    compiled = torch.compile(model, backend="aot_eager")
    x = torch.rand(2, 3)
    plain = model(x)
    told: list[Any] = []
    handles = [
        compiled.register_forward_pre_hook(lambda m, args: (args[0] * 2,)),
        compiled.register_forward_hook(lambda m, args, out: told.append(m) or out * 3),
    ]
    outer = torch.compile(lambda v: compiled(v) + 1, backend="aot_eager")
    want = 3 * ((x * 2) @ model.weight.T + model.bias)
    for got in (compiled(x), outer(x) - 1):
        np.testing.assert_allclose(got.detach().numpy(), want.detach().numpy(), rtol=1e-5)
    assert told == [compiled, compiled]
    for handle in handles:
        handle.remove()
    np.testing.assert_allclose(compiled(x).detach().numpy(), plain.detach().numpy())


def test_a_compiled_module_knows_when_the_original_stops_training() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5))
    compiled = torch.compile(model, backend="aot_eager")
    model.eval()
    assert not compiled.training
    compiled.train()
    assert model.training and model[1].training


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copy_of_a_compiled_module_is_a_compiled_copy(copied: Callable[[Any], Any]) -> None:
    model = nn.Linear(3, 2)
    compiled = torch.compile(model, backend="aot_eager", dynamic=True)
    x = torch.rand(2, 3)
    before = compiled(x)
    twin = copied(compiled)
    assert type(twin) is OptimizedModule and twin._orig_mod is not model
    np.testing.assert_allclose(twin(x).detach().numpy(), before.detach().numpy())
    with torch.no_grad():
        twin.weight.zero_(), twin.bias.zero_()
    assert not twin(x).any() and compiled(x).any()
    assert copy.copy(compiled)._orig_mod is model


# --- training through every backend ------------------------------------------------------------------------------------
def mlp() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Dropout(0.25), nn.LayerNorm(8), nn.Linear(8, 4))


def train(wrap: Callable[[Any], Any], whole: bool) -> list[float]:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    forward = model if whole else wrap(model)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(forward(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = wrap(step) if whole else step
    x = torch.tensor(np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32))
    y = torch.tensor(np.arange(8) % 4)
    torch.manual_seed(2)
    return [run(x, y).item() for _ in range(4)] + [torch.rand(1).item()]


@pytest.mark.parametrize("whole", [False, True], ids=["model", "whole step"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_training_equals_eager(backend: str, whole: bool) -> None:
    want = train(lambda f: f, whole)
    got = train(lambda f: torch.compile(f, backend=backend, fullgraph=True), whole)
    np.testing.assert_allclose(got, want, rtol=3e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_graph_break_in_the_middle(backend: str, capsys: pytest.CaptureFixture[str]) -> None:
    @torch.compile(backend=backend)
    def f(x: Any, w: Any) -> Any:
        y = (x @ w).relu()
        print("between")
        return (y * 2).sum()

    x, w = torch.rand(4, 3), torch.rand(3, 2, requires_grad=True)
    for _ in range(2):
        w.grad = None
        f(x, w).backward()
    assert capsys.readouterr().out == "between\n" * 2
    np.testing.assert_allclose(w.grad.numpy(), 2 * np.repeat(x.numpy().sum(0)[:, None], 2, 1), rtol=1e-5)


# --- sizes ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_size_that_changes_is_compiled_twice_at_most(backend: str) -> None:
    inner = torch.compiler.lookup_backend(backend)
    graphs: list[Any] = []

    def counting(gm: Any, examples: Any) -> Any:
        graphs.append(gm)
        return inner(gm, examples)

    f = torch.compile(lambda x, w: F.layer_norm(x @ w, (4,)).tanh().sum(0), backend=counting)
    w = torch.rand(3, 4, requires_grad=True)
    for n in (2, 5, 7, 11, 64):
        x = torch.rand(n, 3)
        w.grad = None
        f(x, w).sum().backward()
        got, w.grad = w.grad, None
        F.layer_norm(x @ w, (4,)).tanh().sum(0).sum().backward()
        np.testing.assert_allclose(got.numpy(), w.grad.numpy(), rtol=2e-4, atol=2e-5)
    assert len(graphs) == 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_mark_dynamic_makes_a_size_symbolic_at_once(backend: str) -> None:
    inner = torch.compiler.lookup_backend(backend)
    graphs: list[Any] = []

    def counting(gm: Any, examples: Any) -> Any:
        graphs.append(gm)
        return inner(gm, examples)

    f = torch.compile(lambda x: (x * 2).view(-1).cumsum(0), backend=counting)
    for n in (3, 4, 9):
        x = torch.rand(n, 2)
        torch.compiler.mark_dynamic(x, 0)
        np.testing.assert_allclose(f(x).numpy(), (x * 2).view(-1).cumsum(0).numpy(), rtol=1e-6)
    assert len(graphs) == 1


# --- effects on the caller ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("backend", BACKENDS)
def test_k15_through_the_door(backend: str) -> None:
    @torch.compile(backend=backend)
    def f(x: Any, y: Any) -> Any:
        x.mul_(2)
        return x + y

    assert f(torch.ones(4), torch.ones(4)).tolist() == [3] * 4
    base = torch.ones(8)
    assert f(base[:4], base[2:6]).tolist() == [4, 4, 3, 3]
    assert base.tolist() == [2, 2, 2, 2, 1, 1, 1, 1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_view_that_requires_grad_is_written(backend: str) -> None:
    def f(x: Any, c: Any) -> Any:
        x.copy_(c)
        return x[:2] * 3

    grads = []
    for run in (f, torch.compile(f, backend=backend)):
        leaf = torch.ones(4, 3, requires_grad=True)
        x = (leaf * 1.0)[1]
        (run(x, torch.arange(3).float()).sum() + x.sum()).backward()
        grads.append(leaf.grad.tolist())
    assert grads[0] == grads[1]


def test_what_cannot_be_differentiated_right_runs_eager_and_says_so() -> None:
    @torch.compile(backend="aot_eager")
    def f(x: Any, y: Any) -> Any:
        x.mul_(2)
        return x + y

    leaf = torch.ones(8, requires_grad=True)
    base = leaf * 1.0
    with pytest.warns(RuntimeWarning, match="runs eager"):
        out = f(base[:4], base[2:6])
    assert out.tolist() == [4, 4, 3, 3]


def test_k20_grad_mode_after_an_exception_in_no_grad() -> None:
    @torch.compile(backend="aot_eager")
    def f(x: Any) -> Any:
        with torch.no_grad():
            y = x * 2
            print("break")
            return y.view(7)

    with pytest.raises(RuntimeError, match="invalid for input"):
        f(torch.ones(3))
    assert torch.is_grad_enabled()


def test_compiling_changes_no_random_numbers() -> None:
    torch.manual_seed(3)
    want = torch.rand(3).tolist()
    torch.manual_seed(3)
    f = torch.compile(lambda x: F.dropout(x, 0.5), backend="aot_eager")
    state = torch.default_generator.get_state().tolist()
    with pytest.raises(TypeError):
        f()
    assert torch.default_generator.get_state().tolist() == state
    assert torch.rand(3).tolist() == want


# --- explain, disable, stances -----------------------------------------------------------------------------------------
def test_explain_tells_graphs_breaks_guards_ops_and_stages(capsys: pytest.CaptureFixture[str]) -> None:
    def f(x: Any) -> Any:
        y = x.sin()
        print("here")
        return y.cos() + 1

    e = torch.compiler.explain(f, backend="numba")(torch.ones(3))
    assert (e.graph_count, e.graph_break_count, e.op_count) == (2, 1, 3)
    assert e.ops_per_graph == [["sin"], ["cos", "add"]]
    assert "print" in e.break_reasons[0] and 'print("here")' in e.break_reasons[0]
    assert e.result.tolist() == pytest.approx([float(np.cos(np.sin(1)) + 1)] * 3, rel=1e-6)
    assert {"graph", "guards", "joint", "loops", "kernels"} <= set(e.topics())
    assert "sin" in e.stage("kernels") and e.out_guards
    assert {"joint", "loops", "codegen"} <= set(e.compile_times)
    text = str(e)
    assert "Graph Count: 2" in text and "Graph Break Count: 1" in text and "Op Count: 3" in text
    with pytest.raises(ValueError, match=r"no stage 'loop'; stages are .*loops"):
        e.show("loop")


def test_dump_writes_numbered_files(tmp_path: Any) -> None:
    from compiler.debug.dump import dump

    with dump(tmp_path / "stages"):
        x = torch.ones(3, requires_grad=True)
        torch.compile(lambda x: x.sin().sum(), backend="numba")(x)
    names = sorted(p.name for p in (tmp_path / "stages").iterdir())
    topics = [n.split("_")[1] for n in names if n[0].isdigit()]
    assert {"graph", "joint", "partition", "loops", "kernels", "guards"} <= set(topics)
    assert names[0].startswith("000_graph") and names[-1] == "index.txt"
    endings = {(n.split("_")[1], n.rpartition(".")[2]) for n in names if n[0].isdigit()}
    assert endings >= {("asm", "s"), ("memory", "txt"), ("partition", "txt"), ("loops", "py"), ("kernels", "py")}


def test_cuda_kernels_are_saved_as_cuda() -> None:
    assert logs.suffix_of("kernels", "k", 'extern "C" __global__ void k() {}') == ".cu"


def test_disable_is_recursive_unless_told_otherwise() -> None:
    counter = Counter()

    @torch.compile(backend=counter)
    def inner(x: Any) -> Any:
        return x + 1

    @torch.compiler.disable
    def outer(x: Any) -> Any:
        return inner(x) * 2

    @torch.compiler.disable(recursive=False)
    def loose(x: Any) -> Any:
        return inner(x) * 2

    assert outer(torch.ones(1)).tolist() == [4] and not counter.graphs
    assert loose(torch.ones(1)).tolist() == [4] and len(counter.graphs) == 1


def test_is_compiling_is_true_in_the_trace_only() -> None:
    seen: list[bool] = []

    def f(x: Any) -> Any:
        return x * 2 if torch.compiler.is_compiling() else x * 3

    assert f(torch.ones(1)).tolist() == [3]
    assert torch.compile(f, backend="aot_eager")(torch.ones(1)).tolist() == [2]
    assert not torch.compiler.is_compiling() and not seen


def test_stances() -> None:
    counter = Counter()
    f = torch.compile(lambda x: x + 1, backend=counter)
    with torch.compiler.set_stance("force_eager"):
        f(torch.ones(1))
    assert not counter.graphs
    f(torch.ones(1))
    with torch.compiler.set_stance("fail_on_recompile"), pytest.raises(RuntimeError, match="recompile"):
        f(torch.ones(1).double())
    assert len(counter.graphs) == 1


def test_reset_forgets_compiled_code() -> None:
    counter = Counter()
    f = torch.compile(lambda x: x + 1, backend=counter)
    f(torch.ones(1))
    torch.compiler.reset()
    f(torch.ones(1))
    assert len(counter.graphs) == 2


def test_a_failing_backend_is_named_and_its_error_chained() -> None:
    def broken(gm: Any, examples: Any) -> Any:
        raise ZeroDivisionError("inside")

    with pytest.raises(RuntimeError, match=r"backend failed.*inside") as e:
        torch.compile(lambda x: x + 1, backend=broken)(torch.ones(1))
    assert isinstance(e.value.__cause__, ZeroDivisionError)


def test_many_threads_call_one_compiled_function() -> None:
    f = torch.compile(lambda x, w: (x @ w).relu().sum(), backend="numba")
    results: list[Any] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        x = torch.tensor(rng.standard_normal((4, 3)).astype(np.float32))
        w = torch.tensor(rng.standard_normal((3, 2)).astype(np.float32)).requires_grad_()
        for _ in range(20):
            out = f(x, w)
            out.backward()
        results.append(bool(np.allclose(out.item(), np.maximum(x.numpy() @ w.detach().numpy(), 0).sum(), rtol=1e-5)))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert results == [True] * 4


def test_parameters_may_have_the_names_that_generated_code_uses() -> None:
    one = torch.ones(2)

    def guards(K_code_of_f: Any, v0: Any, v1: Any, F: Any, F_: Any) -> Any:  # noqa: N803
        return K_code_of_f + v0 * 10 + v1 * 100 + F * 1000 + F_ * 10000

    assert torch.compile(guards, backend="eager")(one, one * 2, one * 3, one * 4, F_=one * 5).tolist() == [54321] * 2

    def door(cache: Any, state: Any = 1, check: Any = 2, *run: Any, finish: Any = 3, _: Any = 4) -> Any:
        return cache + state + check + sum(run) + finish + _

    compiled = torch.compile(door, backend="eager")
    assert compiled(one).tolist() == [11, 11]
    assert compiled(one, 2, 3, 4, finish=0, _=0).tolist() == [10, 10]

    def rest(graph: Any, *cache: Any, **state: Any) -> Any:
        return graph + cache[0] + state["run"]

    assert torch.compile(rest, backend="eager")(one, one, run=one).tolist() == [3, 3]
