"""Training on the GPU: layers, losses, optimizers, mixed precision, files.

Every program runs with ``cuda`` emulated by NumPy memory, which finds tensors made on the wrong device wherever the tests
run, and on a real GPU where there is one, which finds what CuPy does differently.  Both must give the CPU's results.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinytorch as torch
import tinytorch.nn.functional as F
from tinytorch import nn, optim
from tinytorch.utils.checkpoint import checkpoint
from tinytorch.utils.data import DataLoader, TensorDataset

Loss = Callable[[Any, list[Any]], Any]


@pytest.fixture(params=["emulated", pytest.param("gpu", marks=pytest.mark.cuda)], autouse=True)
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "emulated":
        monkeypatch.setenv("TT_CUDA_EMULATE", "1")
    torch.compiler.reset()  # what was compiled for the other of the two is not for this one
    return str(request.param)


def train(device: str, make: Callable[[], Any], data: Callable[[], list[Any]], loss_of: Loss, optimizer: Any, steps: int = 4) -> list[Any]:
    """Losses, then parameters and buffers, as arrays; everything must have stayed on ``device``."""
    torch.manual_seed(0)
    model, batch = make(), data()
    model, batch = model.to(device), [t.to(device) for t in batch]
    opt = optimizer(model.parameters())
    out = []
    for _ in range(steps):
        opt.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        assert {p.grad.device.type for p in model.parameters() if p.grad is not None} <= {device}
        opt.step()
        assert loss.device.type == device
        out.append(loss.item())
    for t in model.state_dict().values():
        assert t.device.type == device
        out.append(t.cpu().numpy())
    return out


def agree(run: Callable[[str], list[Any]], rtol: float = 2e-3, atol: float = 2e-4) -> None:
    """What ``run`` gives does not depend on the device."""
    torch.manual_seed(0)
    wanted = run("cpu")
    torch.manual_seed(0)
    for want, got in zip(wanted, run("cuda"), strict=True):
        np.testing.assert_allclose(np.asarray(got, np.float64), np.asarray(want, np.float64), rtol=rtol, atol=atol)


def classify(model: Any, batch: list[Any]) -> Any:
    return F.cross_entropy(model(*batch[:-1]).flatten(0, -2), batch[-1].flatten())


def regress(model: Any, batch: list[Any]) -> Any:
    return F.mse_loss(model(batch[0]), batch[1])


def points() -> list[Any]:
    return [torch.randn(16, 8), torch.randint(0, 5, (16,))]


def images() -> list[Any]:
    return [torch.randn(6, 3, 12, 12), torch.randint(0, 5, (6,))]


def words() -> list[Any]:
    return [torch.randint(0, 20, (4, 7)), torch.randint(0, 20, (4, 7))]


def mlp() -> Any:
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Dropout(0.3), nn.Linear(16, 5))


# --- optimizers -------------------------------------------------------------------------------------------------------
OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda p: optim.Adam(p, lr=0.01, amsgrad=True),
    "adamw": lambda p: optim.AdamW(p, lr=0.01),
    "nadam": lambda p: optim.NAdam(p, lr=0.01),
    "adamax": lambda p: optim.Adamax(p, lr=0.01),
    "rmsprop": lambda p: optim.RMSprop(p, lr=0.01, centered=True, momentum=0.9),
    "adagrad": lambda p: optim.Adagrad(p, lr=0.05),
    "adadelta": lambda p: optim.Adadelta(p, lr=1.0),
    "tensor rate": lambda p: optim.Adam(p, lr=torch.tensor(0.01)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_step_there(name: str) -> None:
    agree(lambda device: train(device, mlp, points, classify, OPTIMIZERS[name]))


def test_lbfgs_steps_there() -> None:
    def run(device: str) -> list[Any]:
        model = nn.Linear(8, 3, dtype=torch.float64).to(device)
        x, y = torch.randn(16, 8, dtype=torch.float64).to(device), torch.randn(16, 3, dtype=torch.float64).to(device)
        opt = optim.LBFGS(model.parameters(), lr=0.5, max_iter=8)

        def closure() -> Any:
            opt.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            return loss

        return [opt.step(closure).item() for _ in range(3)]

    agree(run)


# --- layers -----------------------------------------------------------------------------------------------------------
class Recurrent(nn.Module):
    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.embed, self.core = nn.Embedding(20, 8), kind(8, 12, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(24, 20)

    def forward(self, x: Any) -> Any:
        return self.head(self.core(self.embed(x))[0])


class Encoder(nn.Module):
    """Causal self-attention over embedded words, tied to its output."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(20, 16, padding_idx=0), nn.Embedding(7, 16)
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Any) -> Any:
        h = self.embed(x) + self.place(torch.arange(x.shape[1], device=x.device))
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        return self.layers(h, mask=mask, is_causal=True) @ self.embed.weight.t()


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.qkv, self.head = nn.Embedding(20, 16), nn.Linear(16, 48), nn.Linear(16, 20)

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(self.embed(x)).chunk(3, -1)
        q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in (q, k, v))
        return self.head(F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1).transpose(1, 2).flatten(2))


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.core, self.head = nn.Embedding(20, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 20)

    def forward(self, x: Any) -> Any:
        packed = nn.utils.rnn.pack_padded_sequence(self.embed(x), torch.tensor([7, 5, 5, 2]), batch_first=True)
        return self.head(nn.utils.rnn.pad_packed_sequence(self.core(packed)[0], batch_first=True)[0])


def conv_net() -> Any:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=4, bias=False), nn.GroupNorm(2, 8), nn.SiLU(), nn.Dropout2d(0.2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
    )  # fmt: skip


def auto_encoder() -> Any:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.InstanceNorm2d(4, affine=True), nn.LeakyReLU(0.1), nn.AvgPool2d(2),
        nn.ConvTranspose2d(4, 4, 2, stride=2), nn.ELU(), nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.Conv2d(4, 12, 3, padding="same", padding_mode="reflect"), nn.PixelShuffle(2), nn.Upsample(size=(12, 12)), nn.Tanh(),
    )  # fmt: skip


LAYERS: dict[str, tuple[Callable[[], Any], Callable[[], list[Any]], Loss]] = {
    "convolutions": (conv_net, images, classify),
    "auto-encoder": (auto_encoder, lambda: [(x := torch.randn(2, 3, 12, 12)), x.tanh()], regress),
    "lstm": (lambda: Recurrent(nn.LSTM), words, classify),
    "gru": (lambda: Recurrent(nn.GRU), words, classify),
    "rnn": (lambda: Recurrent(nn.RNN), words, classify),
    "packed": (Packed, words, classify),
    "encoder": (Encoder, words, classify),
    "attention": (Attends, words, classify),
    "1d": (
        lambda: nn.Sequential(nn.Conv1d(3, 4, 3, dilation=2), nn.BatchNorm1d(4), nn.Softplus(), nn.MaxPool1d(2), nn.RMSNorm(4), nn.Flatten(), nn.Linear(16, 5)),
        lambda: [torch.randn(6, 3, 12), torch.randint(0, 5, (6,))],
        classify,
    ),
    "bag": (lambda: nn.Sequential(nn.EmbeddingBag(20, 8, mode="mean"), nn.PReLU(8), nn.Linear(8, 5)), lambda: [words()[0], torch.randint(0, 5, (4,))], classify),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_layers_train_there(name: str) -> None:
    make, data, loss = LAYERS[name]
    agree(lambda device: train(device, make, data, loss, lambda p: optim.SGD(p, lr=0.05, momentum=0.9)))


LOSSES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "nll": lambda x, y, t: F.nll_loss(x.log_softmax(1), t, weight=torch.linspace(0.5, 1.5, 5, device=x.device), ignore_index=1),
    "smooth": lambda x, y, t: F.cross_entropy(x, t, label_smoothing=0.1),
    "bce": lambda x, y, t: F.binary_cross_entropy_with_logits(x, y.sigmoid(), pos_weight=torch.full((5,), 2.0, device=x.device)),
    "huber": lambda x, y, t: F.huber_loss(x, y) + F.smooth_l1_loss(x, y) + F.l1_loss(x, y),
    "kl": lambda x, y, t: F.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean"),
    "cosine": lambda x, y, t: F.cosine_embedding_loss(x, y, (t % 2 * 2 - 1).float()),
    "triplet": lambda x, y, t: F.triplet_margin_loss(x, y, x.roll(1, 0)),
    "one hot": lambda x, y, t: ((x.softmax(1) - F.one_hot(t, 5)) ** 2).sum(),
    "margin": lambda x, y, t: F.multi_margin_loss(x, t),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_their_gradients_there(name: str) -> None:
    def run(device: str) -> list[Any]:
        x, y, t = torch.randn(16, 5).to(device).requires_grad_(), torch.randn(16, 5).to(device), torch.randint(0, 5, (16,)).to(device)
        loss = LOSSES[name](x, y, t)
        loss.backward()
        return [loss.item(), x.grad.cpu().numpy()]

    agree(run)


# --- programs ---------------------------------------------------------------------------------------------------------
def loader_and_schedule(device: str) -> list[Any]:
    """Batches from a loader, a warm-up schedule, clipping, an average of the weights."""
    x, y = points()
    model = mlp().to(device)
    average = copy.deepcopy(model)
    opt = optim.AdamW(model.parameters(), lr=0.01)
    schedule = optim.lr_scheduler.LambdaLR(opt, lambda k: min(1.0, (k + 1) / 3))
    out = []
    for _ in range(2):
        for a, b in DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True):
            a, b = a.to(device, non_blocking=True), b.to(device)
            opt.zero_grad(set_to_none=True)
            loss = F.cross_entropy(model(a), b)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            schedule.step()
            with torch.no_grad():
                for mean, p in zip(average.parameters(), model.parameters(), strict=True):
                    mean.lerp_(p, 0.1)
            out += [loss.item(), norm.item()]
    average.eval()
    with torch.no_grad():
        out.append(average(x.to(device)).cpu().numpy())
    return out


def gradient_penalty(device: str) -> list[Any]:
    """Two networks, two optimizers, a gradient of a gradient."""
    g, d = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).to(device), nn.Sequential(nn.Linear(3, 8), nn.Softplus(), nn.Linear(8, 1)).to(device)
    of_g, of_d = optim.Adam(g.parameters(), lr=0.01, betas=(0.5, 0.9)), optim.Adam(d.parameters(), lr=0.01)
    out = []
    for _ in range(3):
        real, fake = torch.randn(8, 3, device=device), g(torch.randn(8, 4, device=device))
        mix = torch.lerp(real, fake.detach(), torch.rand(8, 1, device=device)).requires_grad_()
        (slope,) = torch.autograd.grad(d(mix).sum(), mix, create_graph=True)
        loss_d = d(fake.detach()).mean() - d(real).mean() + 10 * ((slope.norm(2, dim=1) - 1) ** 2).mean()
        of_d.zero_grad()
        loss_d.backward()
        of_d.step()
        loss_g = -d(fake).mean()
        of_g.zero_grad()
        loss_g.backward()
        of_g.step()
        out += [loss_d.item(), loss_g.item()]
    return out


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return g * 3 * x**2


def checkpoints_and_hooks(device: str) -> list[Any]:
    """A block run again in backward with its dropout, a function of one's own, hooks on modules and tensors."""
    block, seen = mlp().to(device), []
    block[0].register_forward_hook(lambda m, i, o: seen.append(o.detach().mean().item()))
    block[1].register_full_backward_hook(lambda m, gi, go: seen.append(go[0].abs().sum().item()))
    x = torch.randn(6, 8).to(device).requires_grad_()
    y = checkpoint(block, x, use_reentrant=False)
    y.register_hook(lambda g: g * 2)
    Cube.apply(y).sum().backward()
    return [x.grad.cpu().numpy(), *seen]


def writes(device: str) -> list[Any]:
    """In-place and indexed writes that autograd follows."""
    x = torch.randn(5, 6).to(device).requires_grad_()
    y = x * 1.0
    y[1:3, ::2] = y[0:2, 1::2] * 2
    y[torch.tensor([0, 4], device=device)] += x[torch.tensor([3, 3], device=device)]
    y[y > 1] = 0.5
    y.masked_fill_(torch.eye(5, 6, dtype=torch.bool, device=device), 3.0).mul_(x.exp())
    y[:, -1].add_(1).relu_()
    out = y.scatter_add(1, torch.randint(0, 6, (5, 3)).to(device), x[:, :3]).index_add(0, torch.tensor([1, 1], device=device), x[:2])
    out.cumsum(1).sort(dim=1)[0].topk(3)[0].sum().backward()
    return [out.detach().cpu().numpy(), x.grad.cpu().numpy()]


def numbers(device: str) -> list[Any]:
    """Distributions, einsum, linear algebra, complex numbers."""
    a = torch.randn(4, 4, dtype=torch.float64).to(device)
    spd = a @ a.mT + 4 * torch.eye(4, dtype=torch.float64, device=device)
    spd.requires_grad_()
    z = torch.view_as_complex(torch.randn(3, 2).to(device))
    d = torch.distributions.Normal(torch.zeros(3, device=device), 1.0)
    c = torch.distributions.Categorical(logits=torch.randn(2, 5).to(device))
    value = torch.linalg.inv(spd).trace() + torch.einsum("ij,jk->", spd, a)
    value.backward()
    picked = c.sample()
    return [value.item(), spd.grad.cpu().numpy(), (z * z.conj()).real.cpu().numpy(), d.log_prob(d.rsample()).cpu().numpy(), picked.cpu().numpy(), c.log_prob(picked).cpu().numpy()]


PROGRAMS = [loader_and_schedule, gradient_penalty, checkpoints_and_hooks, writes, numbers]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_programs_run_there(program: Callable[[str], list[Any]]) -> None:
    agree(program)


# --- mixed precision --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_mixed_precision_trains_there(dtype: Any) -> None:
    """Autocast lowers products on the GPU only; a step with an infinity is left out."""
    torch.manual_seed(0)
    model = mlp().cuda()
    x, y = (t.cuda() for t in points())
    opt = optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", init_scale=256.0, growth_interval=3)
    losses = []
    for step in range(8):
        opt.zero_grad()
        with torch.autocast("cuda", dtype):
            assert model[0](x).dtype is dtype and nn.Linear(8, 2)(x.cpu()).dtype is torch.float32
            loss = F.cross_entropy(model(x), y)
        assert loss.dtype is torch.float32
        scaler.scale(loss * (float("inf") if step == 2 else 1.0)).backward()
        before = model[0].weight.detach().clone()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        scaler.step(opt)
        assert torch.equal(before, model[0].weight.detach()) == (step == 2)
        scaler.update()
        losses.append(loss.item())
    assert scaler.get_scale() == 256.0 and min(losses[4:]) < losses[0]
    assert {p.grad.dtype for p in model.parameters()} == {torch.float32}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_models_run_there(dtype: Any) -> None:
    def run(device: str) -> list[Any]:
        model, x = nn.Sequential(nn.Linear(8, 16), nn.RMSNorm(16), nn.SiLU(), nn.Linear(16, 4)).to(device, dtype), torch.randn(6, 8).to(device, dtype)
        out = model(x)
        out.float().square().mean().backward()
        assert out.dtype is dtype and out.device.type == device
        return [out.detach().float().cpu().numpy(), model[0].weight.grad.float().cpu().numpy()]

    agree(run, rtol=0.05, atol=0.02)


# --- files and moves --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("ending", ["npz", "safetensors"])
def test_a_run_is_saved_there_and_goes_on_anywhere(ending: str, tmp_path: Any) -> None:
    """Three steps on the GPU, saved; three more on either device give the same parameters."""
    if ending == "safetensors":
        pytest.importorskip("safetensors")

    def more(model: Any, opt: Any, device: str) -> Any:
        for k in range(3):
            opt.zero_grad()
            F.cross_entropy(model(torch.arange(128.0).reshape(16, 8).sin().to(device) + k), (torch.arange(16) % 5).to(device)).backward()
            opt.step()
        return [p.detach().cpu().numpy() for p in model.parameters()]

    torch.manual_seed(0)
    model = mlp().cuda().eval()
    opt = optim.AdamW(model.parameters(), lr=0.01)
    more(model, opt, "cuda")
    path = tmp_path / f"run.{ending}"
    torch.save({"model": model.state_dict(), "opt": opt.state_dict(), "step": 3}, path)
    want = more(model, opt, "cuda")
    for device in ("cpu", "cuda"):
        loaded = torch.load(path, map_location=device)
        assert loaded["model"]["0.weight"].device.type == device
        other = mlp().to(device).eval()
        again = optim.AdamW(other.parameters(), lr=0.5)
        other.load_state_dict(loaded["model"])
        again.load_state_dict(loaded["opt"])
        for a, b in zip(more(other, again, device), want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_optimizer_state_follows_its_parameters() -> None:
    """A state dict from one device is loaded to where the parameters are."""
    here, there = nn.Linear(3, 2), nn.Linear(3, 2).cuda()
    opt, other = optim.Adam(here.parameters()), optim.Adam(there.parameters())
    here(torch.ones(1, 3)).sum().backward()
    opt.step()
    other.load_state_dict(opt.state_dict())
    state = other.state[there.weight]
    assert state["exp_avg"].device.type == "cuda" and state["exp_avg"].shape == (2, 3)
    there(torch.ones(1, 3, device="cuda")).sum().backward()
    other.step()


def test_a_file_in_memory_remembers_the_device() -> None:
    """Without ``map_location`` tensors come back where they were."""
    file = io.BytesIO()
    torch.save([torch.arange(3, device="cuda"), torch.ones(2)], file)
    file.seek(0)
    a, b = torch.load(file)
    assert a.tolist() == [0, 1, 2] and str(a.device) == "cuda:0" and b.device.type == "cpu"
    for where in ("cpu", {"cuda:0": "cpu"}, lambda t, saved_from: t):
        file.seek(0)
        assert torch.load(file, map_location=where)[0].device.type == "cpu"
    file.seek(0)
    assert torch.load(file, map_location=lambda t, saved_from: None)[0].device.type == "cuda"


def test_compiled_training_gives_the_eager_losses() -> None:
    """The same loop through ``torch.compile``, on the GPU's kernels."""
    losses = []
    for wrap in (lambda m: m, lambda m: torch.compile(m, fullgraph=True)):
        torch.manual_seed(0)
        model = mlp().cuda()
        x, y = (t.cuda() for t in points())
        opt, fast = optim.AdamW(model.parameters(), lr=0.01), wrap(model)
        for _ in range(4):
            opt.zero_grad()
            loss = F.cross_entropy(fast(x), y)
            loss.backward()
            opt.step()
            losses.append(loss.item())
    np.testing.assert_allclose(losses[4:], losses[:4], rtol=1e-3)
