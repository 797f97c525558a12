"""Fake tensors: what eager would give, but for the values."""

import numpy as np
import pytest

import tinytorch as torch
from compiler.errors import Unsupported
from compiler.fake import FakeInterp, fake_like, fake_tensor, is_fake
from compiler.sym.env import ShapeEnv
from tinytorch import dispatch, ops


def tensor(*shape):
    return torch.Tensor._wrap(np.zeros(shape, np.float32), torch.device("cpu"))


def test_fake_agrees_with_eager_on_shape_strides_and_dtype():
    def program(x, y):
        z = ops.add(x, y)
        v = ops.permute(z, dims=(1, 0))
        w = ops.expand(ops.slice(v, dim=0, start=1, stop=3, step=1), shape=(5, 2, 4))
        return [z, v, w, ops.sum(w, dim=(1,), keepdim=False), ops.lt(z, 1.0), ops.exp(v)]

    x, y = tensor(4, 3), tensor(3)
    real = program(x, y)
    with dispatch.use(FakeInterp()):
        fake = program(fake_like(x), fake_like(y))
    for r, f in zip(real, fake, strict=True):
        assert is_fake(f) and not is_fake(r)
        assert (tuple(f.shape), f.dtype, f.device) == (tuple(r.shape), r.dtype, r.device)
    assert fake[2].stride() == real[2].stride()


def test_views_share_storage_and_know_their_offset():
    with dispatch.use(FakeInterp()):
        x = fake_tensor((4, 6), torch.float32)
        row = ops.select(ops.slice(x, dim=1, start=2, stop=6, step=2), dim=0, index=3)
        y = ops.exp(x)
    assert row._data.storage is x._data.storage and y._data.storage is not x._data.storage
    assert row._data.offset == (3 * 6 + 2) * 4 and row._data.strides == (8,)
    assert row._base is x


def test_the_tape_works_on_fakes():
    with dispatch.use(FakeInterp()):
        x = fake_tensor((4, 6), torch.float32, requires_grad=True)
        y = ops.sum(ops.exp(x), dim=(0, 1), keepdim=False)
        y.backward()
    assert is_fake(x.grad) and tuple(x.grad.shape) == (4, 6)


def test_values_are_refused():
    x = fake_tensor((1,), torch.float32)
    for use in (bool, float, np.asarray):
        with pytest.raises(Unsupported, match="data-dependent-value"):
            use(x._data)


def test_symbolic_sizes_flow_through_infer():
    env = ShapeEnv()
    with dispatch.use(FakeInterp()):
        x = fake_like(tensor(4, 6), env, dynamic=(0,))
        y = ops.permute(ops.add(x, x), dims=(1, 0))
        z = ops.view(x, shape=(x.shape[0] * 6,))
    assert str(x.shape[0]) == "s0" and str(y._data.strides) == "(4, 24)" and str(z.shape[0]) == "6*s0"
    assert env.guards == []


def test_symbolic_strides_follow_the_sizes():
    env = ShapeEnv()
    x = fake_like(tensor(4, 6, 3), env, dynamic={1: (2, 64)})
    assert str(x._data.strides) == "(12*s0, 12, 4)"
    t = torch.Tensor._wrap(np.zeros((4, 6), np.float32).T, torch.device("cpu"))
    assert str(fake_like(t, env, dynamic=(0,))._data.strides) == "(4, 4*s1)"


def test_two_symbolic_sizes_that_must_agree_are_guarded():
    env = ShapeEnv()
    with dispatch.use(FakeInterp()):
        x, y = (fake_like(tensor(4, 6), env, dynamic=(0,)) for _ in range(2))
        z = ops.add(x, y)
    assert len(env.guards) == 1 and str(z.shape[0]) == "s0"


def test_inputs_that_share_memory_share_fake_storage():
    base = tensor(8)
    a = ops.slice(base, dim=0, start=0, stop=4, step=1)
    b = ops.slice(base, dim=0, start=2, stop=6, step=1)
    storages = {}
    fa, fb, fc = (fake_like(t, storages=storages) for t in (a, b, tensor(8)))
    assert fa._data.storage is fb._data.storage is not fc._data.storage
    assert fb._data.offset - fa._data.offset == 8
