"""Cases of ``nn`` and ``optim`` that mean the same in PyTorch and here: expressions, and inputs made from a seed.

``record/record_nn.py`` runs them with PyTorch and keeps the results in ``data/nn_recorded.npz``; ``test_nn_recorded`` runs them
here.  Parameters and inputs are functions of the case's name, so only results are stored.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Case:
    """``make`` builds a module ``m`` (or is empty); ``call`` computes from ``m`` and the inputs ``x``, ``y``, ``z``.

    Inputs: a shape for numbers to differentiate by, "shape:i10" for integers below 10, "shape:b" for bools,
    "shape:p" for numbers in (0, 1) without gradient.
    """

    name: str
    make: str
    call: str
    inputs: tuple[Any, ...]
    eval: bool = False


def array(rng: np.random.Generator, spec: Any) -> tuple[np.ndarray, bool]:
    """(values, whether to differentiate)."""
    if isinstance(spec, tuple):
        return rng.standard_normal(spec), True
    shape_text, kind = spec.split(":")
    shape = tuple(int(s) for s in shape_text.split(",") if s)
    if kind.startswith("i"):
        return rng.integers(0, int(kind[1:]), shape), False
    if kind == "b":
        return rng.random(shape) < 0.4, False
    if kind == "pg":
        return 0.05 + 0.9 * rng.random(shape), True
    return 0.05 + 0.9 * rng.random(shape), False


def seeded(name: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(name.encode()))


CASES: list[Case] = []


def module(make: str, *inputs: Any, call: str | None = None, eval: bool = False, tag: str = "") -> None:
    names = ", ".join("xyzw"[: len(inputs)])
    CASES.append(Case(make + tag + (" eval" if eval else ""), make, call or f"m({names})", inputs, eval))


def function(call: str, *inputs: Any) -> None:
    CASES.append(Case(f"{call} {inputs}", "", call, inputs))


# --- connectionist temporal classification --------------------------------------------------------------------------
_CTC = "F.ctc_loss(x.log_softmax(2), y + 1, (9, 7, {short}, 6), (5, 3, 2, {last}), {more})"
for reduction in ("mean", "sum", "none"):
    function(_CTC.format(short=5, last=0, more=f"reduction='{reduction}'"), (9, 4, 6), "4,5:i5")
    function(_CTC.format(short=1, last=5, more=f"reduction='{reduction}', zero_infinity=True"), (9, 4, 6), "4,5:i5")
function("F.ctc_loss(x, y + 1, torch.tensor([9, 7]), torch.tensor([4, 3]))", (9, 2, 6), "2,4:i5")
function("F.ctc_loss(x.log_softmax(2), y, (9, 7), (4, 3), blank=5)", (9, 2, 6), "7:i5")
function("F.ctc_loss(x.log_softmax(1), y, torch.tensor(9), torch.tensor(4), blank=5)", (9, 6), "4:i5")
module("nn.CTCLoss(blank=2, reduction='sum', zero_infinity=True)", (9, 2, 6), "2,4:i2", call="m(x.log_softmax(2), y, (9, 8), (4, 2))")

# --- linear, embedding, norms -----------------------------------------------------------------------------------------
module("nn.Linear(4, 3)", (2, 5, 4))
module("nn.Linear(4, 3, bias=False)", (4,))
module("nn.Bilinear(3, 4, 2)", (5, 3), (5, 4))
module("nn.Identity()", (2, 3))
module("nn.Embedding(7, 3)", "2,4:i7")
module("nn.Embedding(7, 3, padding_idx=2)", "2,9:i7")
module("nn.EmbeddingBag(7, 3, mode='sum')", "2,4:i7")
module("nn.EmbeddingBag(7, 3, mode='mean')", "2,4:i7")
module("nn.LayerNorm(6)", (4, 6))
module("nn.LayerNorm((3, 4), elementwise_affine=False)", (2, 3, 4))
module("nn.LayerNorm(6, bias=False, eps=0.1)", (4, 6))
module("nn.RMSNorm(6)", (4, 6))
module("nn.RMSNorm((3, 4), eps=0.1)", (2, 3, 4))
module("nn.GroupNorm(2, 6)", (3, 6, 5))
module("nn.GroupNorm(3, 6, affine=False)", (2, 6, 2, 2))
module("nn.LocalResponseNorm(3)", (2, 5, 3, 3))
module("nn.LocalResponseNorm(2, alpha=0.5, k=2.0)", (2, 5, 4))
for kind, shape in (("1d", (5, 3)), ("1d", (4, 3, 5)), ("2d", (3, 3, 2, 4)), ("3d", (2, 3, 2, 2, 3))):
    module(f"nn.BatchNorm{kind}(3)", shape, tag=f" {len(shape)}")
    module(f"nn.BatchNorm{kind}(3)", shape, eval=True, tag=f" {len(shape)}")
module("nn.BatchNorm1d(3, momentum=None)", (4, 3), call="m(x) + m(x * 2)")
module("nn.BatchNorm1d(3, affine=False, track_running_stats=False)", (4, 3))
module("nn.BatchNorm1d(3, affine=False, track_running_stats=False)", (4, 3), eval=True)
module("nn.InstanceNorm1d(3)", (2, 3, 5))
module("nn.InstanceNorm1d(3)", (3, 5), tag=" unbatched")
module("nn.InstanceNorm2d(3, affine=True, track_running_stats=True)", (2, 3, 4, 2))
module("nn.InstanceNorm2d(3, affine=True, track_running_stats=True)", (2, 3, 4, 2), eval=True)

# --- activations ------------------------------------------------------------------------------------------------------
for name in (
    "ReLU()", "ReLU6()", "LeakyReLU(0.2)", "ELU(0.7)", "CELU(0.7)", "SELU()", "GELU()", "GELU(approximate='tanh')",
    "SiLU()", "Mish()", "Softplus()", "Softplus(3.0, 2.0)", "LogSigmoid()", "Sigmoid()", "Tanh()", "Tanhshrink()",
    "Hardshrink(0.3)", "Softshrink(0.3)", "Softsign()", "Hardsigmoid()", "Hardswish()", "Hardtanh(-0.5, 0.7)",
    "Threshold(0.1, 0.4)", "GLU(0)", "Softmax(1)", "LogSoftmax(0)", "Softmin(-1)", "PReLU()", "PReLU(3)",
):  # fmt: skip
    module(f"nn.{name}", (4, 3))
module("nn.RReLU(0.1, 0.3)", (4, 3), eval=True)
module("nn.Softmax2d()", (2, 3, 2, 2))
module("nn.PReLU(3)", (2, 3, 4), tag=" 3d")
module("nn.ReLU(inplace=True)", (4, 3), call="m(x * 2)")
module("nn.LeakyReLU(0.2, inplace=True)", (4, 3), call="m(x * 2)")
module("nn.ELU(inplace=True)", (4, 3), call="m(x * 2)")
function("F.relu(x * 3)", (20,))
function("F.softmax(x, 1, dtype=torch.float32)", (3, 4))
function("F.normalize(x)", (3, 4))
function("F.normalize(x, p=1.0, dim=0)", (3, 4))
function("F.hardtanh(x * 3)", (20,))
function("F.logsigmoid(x * 40)", (20,))
function("F.softplus(x * 20)", (20,))
function("F.gelu(x * 5)", (20,))
function("F.one_hot(x, 5)", "3,2:i5")
function("F.one_hot(x)", "9:i5")

# --- dropout does nothing in evaluation -------------------------------------------------------------------------------
for name in ("Dropout(0.3)", "Dropout1d(0.3)", "Dropout2d(0.3)", "AlphaDropout(0.3)"):
    module(f"nn.{name}", (2, 3, 4, 2) if "2d" in name else (2, 3, 4), eval=True)

# --- losses -----------------------------------------------------------------------------------------------------------
for reduction in ("mean", "sum", "none"):
    r = f"reduction='{reduction}'"
    module(f"nn.L1Loss({r})", (4, 3), (4, 3))
    module(f"nn.MSELoss({r})", (4, 3), (4, 3))
    module(f"nn.SmoothL1Loss({r}, beta=0.5)", (4, 3), (4, 3))
    module(f"nn.HuberLoss({r}, delta=0.5)", (4, 3), (4, 3))
    module(f"nn.CrossEntropyLoss({r})", (4, 5), "4:i5")
    module(f"nn.CrossEntropyLoss({r}, label_smoothing=0.1)", (4, 5), "4:i5")
    module(f"nn.CrossEntropyLoss({r}, ignore_index=1, label_smoothing=0.2)", (6, 3, 2), "6,2:i3")
    module(f"nn.NLLLoss({r})", (4, 5), "4:i5")
    module(f"nn.BCELoss({r})", "4,3:pg", "4,3:p")
    module(f"nn.BCEWithLogitsLoss({r})", (4, 3), "4,3:p")
    module(f"nn.KLDivLoss({r})", (4, 3), "4,3:p")
    module(f"nn.SoftMarginLoss({r})", (4, 3), "4,3:i2", call="m(x, y * 2.0 - 1.0)")
    module(f"nn.HingeEmbeddingLoss({r})", (4, 3), "4,3:i2", call="m(x, y * 2 - 1)")
    module(f"nn.MarginRankingLoss({r}, margin=0.2)", (6,), (6,), "6:i2", call="m(x, y, z * 2 - 1)")
    module(f"nn.CosineEmbeddingLoss({r}, margin=0.1)", (6, 4), (6, 4), "6:i2", call="m(x, y, z * 2 - 1)")
    module(f"nn.TripletMarginLoss({r})", (5, 4), (5, 4), (5, 4))
    module(f"nn.TripletMarginLoss({r}, swap=True, p=1)", (5, 4), (5, 4), (5, 4))
    module(f"nn.PoissonNLLLoss({r}, full=True)", (4, 3), "4,3:i5", call="m(x, y * 1.0)")
    module(f"nn.GaussianNLLLoss({r}, full=True)", (4, 3), (4, 3), "4,3:pg")
    module(f"nn.MultiMarginLoss({r})", (4, 5), "4:i5")
    module(f"nn.MultiLabelSoftMarginLoss({r})", (4, 5), "4,5:i2", call="m(x, y * 1.0)")
module("nn.KLDivLoss(reduction='batchmean', log_target=True)", (4, 3), (4, 3))
function("F.cross_entropy(x, y.softmax(1))", (4, 5), (4, 5))
function("F.cross_entropy(x, y.softmax(1), weight=z.abs(), label_smoothing=0.1)", (4, 5), (4, 5), (5,))
function("F.cross_entropy(x, y, weight=z)", (6, 4), "6:i4", "4:p")
function("F.cross_entropy(x, y, weight=z, label_smoothing=0.3, ignore_index=2)", (6, 4), "6:i4", "4:p")
function("F.cross_entropy(x, y)", (5,), ":i5")
function("F.cross_entropy(x, y)", (2, 5, 3, 2), "2,3,2:i5")
function("F.nll_loss(x, y, weight=z, reduction='sum')", (6, 4), "6:i4", "4:p")
function("F.binary_cross_entropy_with_logits(x * 30, y, pos_weight=z)", (4, 3), "4,3:p", "3:p")
function("F.binary_cross_entropy(x, y, weight=z)", "4,3:pg", "4,3:p", "4,3:p")
function("F.cosine_similarity(x, y, dim=1)", (4, 3, 2), (4, 3, 2))
function("F.pairwise_distance(x, y, p=1.0)", (4, 3), (4, 3))

# --- convolution ------------------------------------------------------------------------------------------------------
for args in (
    "2, 4, 3", "2, 4, 3, stride=2, padding=1", "2, 4, 3, dilation=2, padding=2", "4, 4, 3, groups=2",
    "4, 8, 3, groups=4, padding=1", "2, 3, 1", "2, 3, 2, stride=3", "2, 3, 3, padding='same'",
    "2, 3, 4, padding='same', dilation=2", "2, 3, 3, padding='valid', bias=False", "2, 3, 3, padding=2, padding_mode='reflect'",
    "2, 3, 3, padding=1, padding_mode='replicate'", "2, 3, 3, padding=2, padding_mode='circular'",
):  # fmt: skip
    channels = int(args[0])
    module(f"nn.Conv1d({args})", (2, channels, 10))
    module(f"nn.Conv2d({args})", (2, channels, 7, 8))
module("nn.Conv2d(2, 3, (3, 2), stride=(1, 2), padding=(2, 0), dilation=(1, 3))", (2, 2, 6, 9))
module("nn.Conv2d(2, 3, 3)", (2, 5, 5), tag=" unbatched")
module("nn.Conv3d(2, 3, 2, padding=1, stride=2)", (1, 2, 4, 5, 3))
for args in (
    "2, 3, 3", "2, 3, 3, stride=2", "2, 3, 3, stride=2, padding=1, output_padding=1", "4, 6, 3, stride=3, groups=2",
    "2, 3, 2, dilation=2", "2, 3, 2, stride=2, bias=False",
):  # fmt: skip
    module(f"nn.ConvTranspose1d({args})", (2, int(args[0]), 5))
    module(f"nn.ConvTranspose2d({args})", (2, int(args[0]), 4, 3))
module("nn.ConvTranspose2d(2, 3, 3, stride=2)", (1, 2, 4, 4), call="m(x, output_size=(10, 9))", tag=" to a size")
module("nn.ConvTranspose3d(2, 2, 2, stride=2)", (1, 2, 2, 3, 2))
module("nn.Unfold((2, 3), dilation=2, padding=1, stride=2)", (2, 3, 7, 8))
module("nn.Fold((7, 8), (2, 3), dilation=2, padding=1, stride=2)", (2, 18, 12))
module("nn.Fold((4, 5), 2)", (4, 12), tag=" unbatched")

# --- pooling ----------------------------------------------------------------------------------------------------------
for args in ("2", "3, stride=2, padding=1", "2, stride=1, dilation=2", "3, stride=2, ceil_mode=True", "3, stride=3, padding=1, ceil_mode=True"):
    module(f"nn.MaxPool1d({args})", (2, 3, 9))
    module(f"nn.MaxPool2d({args})", (2, 2, 7, 8))
module("nn.MaxPool3d(2)", (1, 2, 4, 4, 4))
module("nn.MaxPool2d(2, return_indices=True)", (1, 2, 4, 6))
module("nn.MaxPool2d(3, 2, 1, return_indices=True)", (2, 5, 5), tag=" unbatched")
function("F.max_pool2d(torch.relu(x), 3, 2)", (1, 2, 7, 7))  # equal maxima: the first wins
for args in ("2", "3, stride=2, padding=1", "3, stride=2, padding=1, count_include_pad=False", "3, stride=2, ceil_mode=True", "3, 3, 1, ceil_mode=True"):
    module(f"nn.AvgPool1d({args})", (2, 3, 8))
    module(f"nn.AvgPool2d({args})", (2, 2, 7, 8))
module("nn.AvgPool2d(2, divisor_override=3)", (1, 2, 4, 4))
module("nn.AvgPool3d(2)", (1, 2, 4, 4, 4))
module("nn.LPPool2d(2, 2)", (1, 2, 4, 4))
for size in ("1", "3", "5", "(3, None)", "(2, 5)"):
    module(f"nn.AdaptiveAvgPool2d({size})", (2, 2, 6, 7))
    module(f"nn.AdaptiveMaxPool2d({size})", (2, 2, 6, 7))
module("nn.AdaptiveAvgPool1d(4)", (2, 2, 10))
module("nn.AdaptiveMaxPool1d(4, return_indices=True)", (2, 2, 10))
module("nn.AdaptiveMaxPool2d((2, 3), return_indices=True)", (1, 2, 5, 7))
function("F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2)", (1, 2, 4, 6))

# --- padding, resizing, shapes ----------------------------------------------------------------------------------------
for name, pads in (("1d", "(2, 1)"), ("2d", "(2, 1, 0, 2)")):
    shape = (2, 3, 5) if name == "1d" else (2, 3, 4, 5)
    for kind in ("ReflectionPad", "ReplicationPad", "CircularPad", "ZeroPad"):
        module(f"nn.{kind}{name}({pads})", shape)
    module(f"nn.ConstantPad{name}({pads}, 3.5)", shape)
function("F.pad(x, (1, -2, -1, 3))", (3, 5))
function("F.pad(x, (1, 2), value=-1.5)", (3, 5))
for mode in ("nearest", "nearest-exact", "bilinear", "bicubic", "area"):
    function(f"F.interpolate(x, size=(5, 7), mode='{mode}')", (1, 2, 3, 4))
    function(f"F.interpolate(x, scale_factor=2, mode='{mode}')", (1, 2, 3, 4))
    function(f"F.interpolate(x, scale_factor=(0.6, 1.7), mode='{mode}')", (1, 2, 5, 4))
for mode in ("bilinear", "bicubic"):
    function(f"F.interpolate(x, size=(5, 7), mode='{mode}', align_corners=True)", (1, 2, 3, 4))
    for more in ("size=(3, 4)", "size=(9, 13)", "scale_factor=0.4", "scale_factor=(1.7, 0.55)", "size=(5, 5), align_corners=True"):
        function(f"F.interpolate(x, mode='{mode}', antialias=True, {more})", (1, 2, 8, 11))
    function(f"F.interpolate(x, scale_factor=1.3, mode='{mode}', recompute_scale_factor=True)", (1, 2, 3, 4))
function("F.interpolate(x, size=7, mode='linear')", (1, 2, 4))
function("F.interpolate(x, scale_factor=2, mode='trilinear')", (1, 1, 2, 3, 2))
module("nn.Upsample(scale_factor=2)", (1, 2, 3, 4))
module("nn.UpsamplingBilinear2d(scale_factor=2)", (1, 2, 3, 4))
module("nn.PixelShuffle(2)", (2, 8, 3, 2))
module("nn.PixelUnshuffle(2)", (2, 2, 4, 6))
module("nn.ChannelShuffle(2)", (2, 4, 2, 2))
module("nn.Flatten()", (2, 3, 4))
module("nn.Unflatten(1, (2, 3))", (2, 6, 2))

# --- recurrent --------------------------------------------------------------------------------------------------------
module("nn.RNNCell(3, 4)", (2, 3))
module("nn.RNNCell(3, 4, nonlinearity='relu')", (2, 3), (2, 4))
module("nn.LSTMCell(3, 4)", (2, 3), call="m(x)")
module("nn.LSTMCell(3, 4, bias=False)", (2, 3), (2, 4), (2, 4), call="m(x, (y, z))")
module("nn.GRUCell(3, 4)", (2, 3), (2, 4))
module("nn.RNN(3, 4)", (5, 2, 3))
module("nn.RNN(3, 4, 2, 'relu', batch_first=True)", (2, 5, 3))
module("nn.GRU(3, 4, 2)", (5, 2, 3), (2, 2, 4))
module("nn.GRU(3, 4, bidirectional=True, bias=False)", (5, 3), tag=" unbatched")
module("nn.LSTM(3, 4)", (5, 2, 3))
module("nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True)", (2, 5, 3))
module("nn.LSTM(3, 4, 2, proj_size=2)", (5, 2, 3), (2, 2, 2), (2, 2, 4), call="m(x, (y, z))")
PACK = "nn.utils.rnn.pack_padded_sequence(x, [3, 5, 2], enforce_sorted=False)"
module("nn.LSTM(3, 4, bidirectional=True)", (5, 3, 3), call=f"nn.utils.rnn.pad_packed_sequence(m({PACK})[0])", tag=" packed")
module("nn.GRU(3, 4)", (5, 3, 3), call=f"m({PACK})[1]", tag=" packed final")

# --- attention --------------------------------------------------------------------------------------------------------
QKV = ((2, 2, 4, 3), (2, 2, 5, 3), (2, 2, 5, 3))
function("F.scaled_dot_product_attention(x, y, z)", *QKV)
function("F.scaled_dot_product_attention(x, y, z, is_causal=True)", *QKV)
function("F.scaled_dot_product_attention(x, y, z, scale=0.3, attn_mask=w)", *QKV, "4,5:b")
function("F.scaled_dot_product_attention(x, y, z, attn_mask=w)", *QKV, (2, 1, 4, 5))
function("F.scaled_dot_product_attention(x, y, z, enable_gqa=True)", (2, 4, 3, 2), (2, 2, 3, 2), (2, 2, 3, 2))
module("nn.MultiheadAttention(4, 2)", (3, 2, 4), call="m(x, x, x)")
module("nn.MultiheadAttention(4, 2)", (3, 2, 4), (5, 2, 4), call="m(x, y, y, average_attn_weights=False)", tag=" cross")
module("nn.MultiheadAttention(4, 2, batch_first=True, bias=False)", (2, 3, 4), "2,3:b", call="m(x, x, x, key_padding_mask=y & False, need_weights=False)[0]")
module("nn.MultiheadAttention(4, 2)", (3, 2, 4), "3,3:b", call="m(x, x, x, attn_mask=y.triu(1))", tag=" mask")
module("nn.MultiheadAttention(4, 2)", (3, 2, 4), (4, 3, 3), call="m(x, x, x, attn_mask=y)", tag=" float mask")
module("nn.MultiheadAttention(4, 2, add_bias_kv=True, add_zero_attn=True)", (3, 2, 4), call="m(x, x, x)")
module("nn.MultiheadAttention(4, 2, kdim=3, vdim=5)", (3, 2, 4), (6, 2, 3), (6, 2, 5))
module("nn.MultiheadAttention(4, 2)", (3, 4), call="m(x, x, x)", tag=" unbatched")
module("nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0)", (3, 2, 4))
module("nn.TransformerEncoderLayer(4, 2, 6, 0.0, 'gelu', batch_first=True, norm_first=True)", (2, 3, 4))
module("nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 6, 0.0), 2, nn.LayerNorm(4))", (3, 2, 4))
module("nn.TransformerDecoderLayer(4, 2, 6, dropout=0.0)", (3, 2, 4), (5, 2, 4))
module("nn.TransformerDecoder(nn.TransformerDecoderLayer(4, 2, 6, 0.0, norm_first=True), 2)", (3, 2, 4), (5, 2, 4))
module("nn.Transformer(4, 2, 1, 1, 6, 0.0)", (3, 2, 4), (5, 2, 4), call="m(x, y, tgt_mask=m.generate_square_subsequent_mask(5).to(x))")

# --- optimizers: settings, five steps ---------------------------------------------------------------------------------
OPTIMIZERS = [
    "SGD(ps, lr=0.1)", "SGD(ps, lr=0.1, momentum=0.9)", "SGD(ps, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1)",
    "SGD(ps, lr=0.1, momentum=0.5, dampening=0.3, maximize=True)", "Adam(ps, lr=0.1)", "Adam(ps, lr=0.1, weight_decay=0.1)",
    "Adam(ps, lr=0.1, amsgrad=True, betas=(0.8, 0.9), eps=1e-3)", "Adam(ps, maximize=True)", "AdamW(ps, lr=0.1)",
    "AdamW(ps, lr=0.1, weight_decay=0.3, amsgrad=True)", "NAdam(ps, lr=0.1, weight_decay=0.1)",
    "NAdam(ps, lr=0.1, weight_decay=0.1, decoupled_weight_decay=True)", "Adamax(ps, lr=0.1, weight_decay=0.1)",
    "RMSprop(ps, lr=0.1)", "RMSprop(ps, lr=0.1, momentum=0.9, centered=True, weight_decay=0.1)",
    "Adagrad(ps, lr=0.1)", "Adagrad(ps, lr=0.1, lr_decay=0.1, weight_decay=0.1, initial_accumulator_value=0.5)",
    "Adadelta(ps)", "Adadelta(ps, lr=0.5, rho=0.8, weight_decay=0.1)",
    "SGD([{'params': ps[:1], 'lr': 0.5}, {'params': ps[1:]}], lr=0.1, momentum=0.9)",
]  # fmt: skip

# --- grids ------------------------------------------------------------------------------------------------------------
for aligned in (False, True):
    function(f"F.affine_grid(x, (2, 3, 4, 5), align_corners={aligned})", (2, 2, 3))
    for mode in ("bilinear", "nearest"):
        for padding in ("zeros", "border", "reflection"):
            more = f"mode='{mode}', padding_mode='{padding}', align_corners={aligned}"
            function(f"F.grid_sample(x, y * 1.2, {more})", (2, 3, 5, 6), (2, 4, 3, 2))
function("F.grid_sample(x, F.affine_grid(y * 0 + torch.eye(3, dtype=y.dtype, device=y.device)[:2], (1, 1, 4, 4)))", (1, 1, 4, 4), (1, 2, 3))

# --- minimisers that call a closure: losses of six steps down a curved valley, and where they end --------------------------
MINIMISERS = [
    "LBFGS([p])", "LBFGS([p], lr=0.5, history_size=3, max_iter=6)", "LBFGS([p], line_search_fn='strong_wolfe')",
    "LBFGS([p], lr=0.3, history_size=3, max_iter=6, line_search_fn='strong_wolfe')",
    "LBFGS([p], lr=2.0, max_iter=30, line_search_fn='strong_wolfe')",
]  # fmt: skip

# --- schedules: the rates of 15 epochs --------------------------------------------------------------------------------
SCHEDULES = [
    "StepLR(opt, 3, 0.5)", "MultiStepLR(opt, [2, 5, 5, 9], 0.5)", "ConstantLR(opt, 0.5, 4)", "LinearLR(opt, 0.25, 1.0, 5)",
    "ExponentialLR(opt, 0.9)", "PolynomialLR(opt, 8, 2.0)", "CosineAnnealingLR(opt, 6, 0.01)",
    "CosineAnnealingWarmRestarts(opt, 3, 2, 0.01)", "LambdaLR(opt, lambda e: 0.95 ** e)",
    "MultiplicativeLR(opt, lambda e: 0.95)", "OneCycleLR(opt, 0.3, total_steps=20)",
    "OneCycleLR(opt, 0.3, epochs=4, steps_per_epoch=5, anneal_strategy='linear', three_phase=True)",
    "CyclicLR(opt, 0.05, 0.3, 3, 4, mode='triangular2', cycle_momentum=False)",
    "SequentialLR(opt, [ConstantLR(opt, 0.1, 2), ExponentialLR(opt, 0.9)], [3])",
    "swa_utils.SWALR(opt, 0.05, 4)", "swa_utils.SWALR(opt, [0.4], 5, 'linear')", "swa_utils.SWALR(opt, 0.05, 0)",
    "ChainedScheduler([ConstantLR(opt, 0.1, 2), ExponentialLR(opt, 0.9)])",
]  # fmt: skip
