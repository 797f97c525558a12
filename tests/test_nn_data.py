"""Datasets, samplers, the loader, packed sequences, checkpointing."""

from __future__ import annotations

import functools
import threading
import time
from collections import namedtuple
from typing import Any

import numpy as np
import pytest

import tinytorch as torch
from tinytorch import engine, nn
from tinytorch.nn.utils import rnn
from tinytorch.utils import _pytree as P
from tinytorch.utils.checkpoint import checkpoint, checkpoint_sequential
from tinytorch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    get_worker_info,
    random_split,
)


class Squares(Dataset):
    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> Any:
        if not 0 <= i < self.n:
            raise IndexError(i)
        return i, float(i * i)


def test_batches_in_order() -> None:
    batches = list(DataLoader(Squares(7), batch_size=3))
    assert [b[0].tolist() for b in batches] == [[0, 1, 2], [3, 4, 5], [6]]
    assert batches[0][0].dtype is torch.int64 and batches[0][1].dtype is torch.float64
    assert len(DataLoader(Squares(7), 3)) == 3 and len(DataLoader(Squares(7), 3, drop_last=True)) == 2
    assert [x[0] for x in DataLoader(Squares(3), batch_size=None)] == [0, 1, 2]


def test_shuffle_is_a_permutation_and_follows_the_generator() -> None:
    def order(seed: int) -> list[int]:
        g = torch.Generator().manual_seed(seed)
        return [i for b in DataLoader(Squares(20), 4, shuffle=True, generator=g) for i in b[0].tolist()]

    assert sorted(order(1)) == list(range(20)) and order(1) == order(1) and order(1) != order(2)


@pytest.mark.parametrize("workers", [1, 3])
def test_threads_keep_the_order(workers: int) -> None:
    class Slow(Squares):
        def __getitem__(self, i: int) -> Any:
            time.sleep(0.002 * (i % 3))
            info = get_worker_info()
            assert info is not None and 0 <= info.id < workers and threading.current_thread() is not threading.main_thread()
            return super().__getitem__(i)

    started: list[int] = []
    loader = DataLoader(Slow(17), 2, num_workers=workers, worker_init_fn=started.append)
    for _ in range(2):
        assert [i for b in loader for i in b[0].tolist()] == list(range(17))
    assert get_worker_info() is None and set(started) <= set(range(workers))


def test_worker_errors_are_raised_where_their_batch_is_due() -> None:
    class Bad(Squares):
        def __getitem__(self, i: int) -> Any:
            if i == 5:
                raise ValueError("five is bad")
            return super().__getitem__(i)

    seen = []
    with pytest.raises(ValueError, match="five is bad"):
        for b in DataLoader(Bad(20), 2, num_workers=2):
            seen.append(b[0].tolist())
    assert seen == [[0, 1], [2, 3]]


def test_leaving_a_threaded_loop_early_ends_the_threads() -> None:
    before = threading.active_count()
    iterator = iter(DataLoader(Squares(100), 2, num_workers=2))
    next(iterator)
    iterator.close()
    assert threading.active_count() == before


def test_iterable_datasets() -> None:
    class Stream(IterableDataset):
        def __iter__(self) -> Any:
            return iter(range(5))

    assert [b.tolist() for b in DataLoader(Stream(), 2)] == [[0, 1], [2, 3], [4]]
    assert [b.tolist() for b in DataLoader(Stream(), 2, drop_last=True)] == [[0, 1], [2, 3]]
    assert list(Stream() + Stream()) == [0, 1, 2, 3, 4] * 2
    with pytest.raises(ValueError, match="IterableDataset"):
        DataLoader(Stream(), shuffle=True)


def test_collate_follows_structure() -> None:
    Point = namedtuple("Point", "x y")
    batch = [{"a": torch.ones(2), "b": (1, "s"), "c": Point(1.5, np.float32(2))} for _ in range(3)]
    out = default_collate(batch)
    assert out["a"].shape == (3, 2) and out["b"][0].tolist() == [1, 1, 1] and out["b"][1] == ["s"] * 3
    assert isinstance(out["c"], Point) and out["c"].y.dtype is torch.float32
    with pytest.raises(TypeError, match="found object"):
        default_collate([object()])
    with pytest.raises(RuntimeError, match="equal size"):
        default_collate([[1], [1, 2]])


def test_subsets_splits_and_sums() -> None:
    parts = random_split(range(10), [0.5, 0.25, 0.25])  # type: ignore[arg-type]
    assert [len(p) for p in parts] == [6, 2, 2] and sorted(x for p in parts for x in p) == list(range(10))
    assert [len(p) for p in random_split(Squares(5), [2, 3])] == [2, 3]
    with pytest.raises(ValueError, match="does not equal"):
        random_split(Squares(5), [2, 2])
    both = Squares(2) + Squares(3)
    assert isinstance(both, ConcatDataset) and len(both) == 5 and both[4] == (2, 4.0) and both[-5] == (0, 0.0)
    assert Subset(Squares(9), [7, 1])[0] == (7, 49.0)
    x, y = TensorDataset(torch.arange(3), torch.eye(3))[1]
    assert x.item() == 1 and y.tolist() == [0, 1, 0]
    with pytest.raises(AssertionError, match="Size mismatch"):
        TensorDataset(torch.ones(2), torch.ones(3))


def test_samplers() -> None:
    assert list(BatchSampler(SequentialSampler(range(5)), 2, drop_last=False)) == [[0, 1], [2, 3], [4]]
    assert sorted(SubsetRandomSampler([3, 5, 8])) == [3, 5, 8]
    assert set(WeightedRandomSampler([0.0, 1.0, 0.0], 6)) == {1}
    draws = list(RandomSampler(range(3), replacement=True, num_samples=50))
    assert len(draws) == 50 and set(draws) == {0, 1, 2}
    assert len(list(RandomSampler(range(4), num_samples=10))) == 10
    with pytest.raises(ValueError, match="batch_size should be a positive integer"):
        BatchSampler(range(3), 0, False)
    with pytest.raises(ValueError, match="mutually exclusive"):
        DataLoader(Squares(3), shuffle=True, sampler=SequentialSampler(range(3)))


def test_packing_round_trip() -> None:
    seqs = [torch.randn(n, 2) for n in (2, 4, 1)]
    padded = rnn.pad_sequence(seqs, padding_value=9.0)
    assert padded.shape == (4, 3, 2) and padded[3, 0].tolist() == [9, 9]
    packed = rnn.pack_sequence(seqs, enforce_sorted=False)
    assert packed.batch_sizes.tolist() == [3, 2, 1, 1] and packed.data.shape == (7, 2)
    again, lengths = rnn.pad_packed_sequence(packed, padding_value=9.0)
    assert lengths.tolist() == [2, 4, 1]
    np.testing.assert_array_equal(again.numpy(), padded.numpy())
    with pytest.raises(RuntimeError, match="decreasing order"):
        rnn.pack_sequence(seqs)


@pytest.mark.parametrize("how", ["module", "closure", "kwargs"])
def test_checkpoint_gives_the_same_gradients(how: str) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 4))
    x0 = torch.randn(6, 4)

    def run(ck: bool) -> list[Any]:
        torch.manual_seed(5)
        model.zero_grad()
        x = x0.clone().requires_grad_()
        h = x * 2
        call: Any = checkpoint if ck else (lambda fn, *a, **k: fn(*a, **k))
        if how == "module":
            y = call(model, h)
        elif how == "closure":
            y = call(lambda t: model(t) + t, h)
        else:
            y = call(lambda pair, scale: model(pair[0]) * scale["by"], (h, 1), scale={"by": h})
        (y.sum() + torch.rand(())).backward()
        return [x.grad.numpy(), *(p.grad.numpy().copy() for p in model.parameters())]

    for a, b in zip(run(False), run(True), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_checkpoint_keeps_nothing_inside() -> None:
    runs: list[int] = []

    def block(x: Any) -> Any:
        runs.append(1)
        return (x.exp() * x.sin()).sum()

    x = torch.randn(5, requires_grad=True)
    y = checkpoint(block, x)
    assert len(runs) == 1
    y.backward()
    assert len(runs) == 2
    model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(5)))
    a = torch.randn(2, 3, requires_grad=True)
    np.testing.assert_array_equal(checkpoint_sequential(model, 2, a).detach().numpy(), model(a).detach().numpy())


LAYER = nn.Linear(3, 3)
HELD = {"layers": [LAYER]}


class Holder:
    layer = LAYER

    def block(self, x: Any) -> Any:
        return self.layer(x).tanh()


def by_name(x: Any) -> Any:
    return LAYER(x).tanh()


def by_default(x: Any, layer: Any = LAYER) -> Any:
    return layer(x).tanh()


def with_what_came_before(ck: Any, x: Any) -> Any:
    h = LAYER(x).exp()
    return ck(lambda t: h * t + LAYER(t), x) + h


def one_in_another(ck: Any, x: Any) -> Any:
    h = x * 2
    return ck(lambda t: ck(by_name, t * 2) + t * h, x)


def a_tree(ck: Any, x: Any) -> Any:
    found = ck(lambda t: {"a": by_name(t), "b": [t * 2, (x.detach(), 3)], "c": t > 0}, x)
    return found["a"] * found["b"][0] * found["b"][1][1]


BLOCKS: dict[str, Any] = {
    "global": lambda ck, x: ck(by_name, x),
    "default": lambda ck, x: ck(by_default, x),
    "partial": lambda ck, x: ck(functools.partial(lambda layer, t: layer(t), LAYER), x),
    "method of an object": lambda ck, x: ck(Holder().block, x),
    "in a container": lambda ck, x: ck(lambda t: HELD["layers"][0](t).tanh(), x),
    "only parameters": lambda ck, x: ck(by_name, x.detach()) * x,
    "the input itself": lambda ck, x: ck(lambda t: t, x * 2) * LAYER(x),
    "in place": lambda ck, x: ck(lambda t: LAYER(t).relu_().add_(t), x * 1),
    "with what came before": with_what_came_before,
    "one in another": one_in_another,
    "a tree": a_tree,
}


@pytest.mark.parametrize("name", BLOCKS)
def test_a_checkpointed_block_gives_gradients_to_all_that_it_uses(name: str) -> None:
    """However it comes by it; hooks run once, and second derivatives go through."""

    def run(ck: Any) -> list[Any]:
        x, told = torch.linspace(-1, 1, 6).reshape(2, 3).requires_grad_(), []
        handles = [t.register_hook(lambda g: told.append(1) or g * 0.5) for t in (x, LAYER.weight)]
        y = BLOCKS[name](ck, x)
        gx, gw = torch.autograd.grad(y.square().sum(), [x, LAYER.weight], create_graph=True)
        (gx.sum() + gw.sum()).backward()
        found = [len(told), *(t.detach().numpy().copy() for t in (y, gx, gw, x.grad, LAYER.weight.grad))]
        LAYER.zero_grad()
        for handle in handles:
            handle.remove()
        return found

    for plain, kept in zip(run(lambda fn, *args: fn(*args)), run(checkpoint), strict=True):
        np.testing.assert_allclose(kept, plain, rtol=1e-4, atol=1e-6)


def test_a_checkpointed_block_runs_under_the_same_autocast_again() -> None:
    types = []

    def block(x: Any) -> Any:
        types.append((x @ x).dtype)
        return (x @ x).float()

    x = torch.randn(3, 3, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = checkpoint(block, x)
    y.sum().backward()
    assert types == [torch.bfloat16, torch.bfloat16] and torch.is_grad_enabled()


def test_a_chain_of_checkpoints_looks_at_each_block_once() -> None:
    """The second run of a block walks no tape behind the block."""
    x = torch.ones(2, requires_grad=True)
    y, seen = x, []
    for _ in range(30):
        y = checkpoint(lambda t: t.sin() * 2, y)
    real = engine._Run._leads_to_wanted

    def counted(self: Any, node: Any) -> bool:
        found = real(self, node)
        seen.append(len(self.needed))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine._Run, "_leads_to_wanted", counted)
        y.sum().backward()
    assert seen and max(seen) < 8


def test_trees() -> None:
    Point = namedtuple("Point", "x y")
    tree = {"a": [1, (2, 3)], "b": Point(4, {"c": 5}), "d": None}
    leaves, spec = P.tree_flatten(tree)
    assert leaves == [1, 2, 3, 4, 5, None] and spec.num_leaves == 6
    again = P.tree_unflatten(leaves, spec)
    assert again == tree and isinstance(again["b"], Point) and type(again["a"][1]) is tuple
    assert P.tree_map(lambda x, y: x + y, [1, (2,)], [10, (20,)]) == [11, (22,)]
    assert P.tree_map_only(int, str, (1, 2.5, [3])) == ("1", 2.5, ["3"])
    assert P.tree_structure([1, [2]]) == P.tree_structure([3, [4]]) != P.tree_structure([[1], 2])
    with pytest.raises(ValueError, match="holds 6 items"):
        P.tree_unflatten([1], spec)
