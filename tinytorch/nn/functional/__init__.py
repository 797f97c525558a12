"""``tinytorch.nn.functional``: layers as functions.

Stage: eager.  In: tensors and weights.  Out: tensors.  Every function here is a composite: plain Python over op rows.
Captured graphs show one as a single node; ahead-of-time tracing opens it.  Read next: ``activations``.
"""

from __future__ import annotations

from inspect import isfunction

from tinytorch.nn.functional.activations import (
    celu,
    elu,
    elu_,
    gelu,
    glu,
    gumbel_softmax,
    hardshrink,
    hardsigmoid,
    hardswish,
    hardtanh,
    leaky_relu,
    leaky_relu_,
    log_softmax,
    logsigmoid,
    mish,
    normalize,
    prelu,
    relu,
    relu6,
    relu_,
    rrelu,
    selu,
    sigmoid,
    silu,
    softmax,
    softmin,
    softplus,
    softshrink,
    softsign,
    tanh,
    tanhshrink,
    threshold,
)
from tinytorch.nn.functional.attention import multi_head_attention_forward, scaled_dot_product_attention
from tinytorch.nn.functional.conv import (
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
    fold,
    unfold,
)
from tinytorch.nn.functional.ctc import ctc_loss
from tinytorch.nn.functional.drop import (
    alpha_dropout,
    dropout,
    dropout1d,
    dropout2d,
    dropout3d,
    feature_alpha_dropout,
)
from tinytorch.nn.functional.grid import affine_grid, grid_sample
from tinytorch.nn.functional.lookup import bilinear, embedding, embedding_bag, linear
from tinytorch.nn.functional.losses import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    cosine_embedding_loss,
    cosine_similarity,
    cross_entropy,
    gaussian_nll_loss,
    hinge_embedding_loss,
    huber_loss,
    kl_div,
    l1_loss,
    margin_ranking_loss,
    mse_loss,
    multi_margin_loss,
    multilabel_soft_margin_loss,
    nll_loss,
    one_hot,
    pairwise_distance,
    poisson_nll_loss,
    smooth_l1_loss,
    soft_margin_loss,
    triplet_margin_loss,
    triplet_margin_with_distance_loss,
)
from tinytorch.nn.functional.norms import (
    batch_norm,
    group_norm,
    instance_norm,
    layer_norm,
    local_response_norm,
    rms_norm,
)
from tinytorch.nn.functional.pads import pad
from tinytorch.nn.functional.pooling import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
    adaptive_max_pool1d,
    adaptive_max_pool2d,
    adaptive_max_pool3d,
    avg_pool1d,
    avg_pool2d,
    avg_pool3d,
    lp_pool1d,
    lp_pool2d,
    max_pool1d,
    max_pool2d,
    max_pool3d,
    max_unpool1d,
    max_unpool2d,
    max_unpool3d,
)
from tinytorch.nn.functional.resize import channel_shuffle, interpolate, pixel_shuffle, pixel_unshuffle

# The public name of a function is the one users call it by, in printed graphs too.
__all__ = sorted(name for name, fn in globals().items() if isfunction(fn) and fn is not isfunction)
for _name in __all__:
    globals()[_name].__module__ = __name__
