"""``tinytorch.nn``: layers, losses and the Module that holds them.

Stage: eager.  In: tensors.  Out: tensors.  Mirrors ``torch.nn``.  Read next: ``parameter``, ``module``, ``linear``.
"""

from tinytorch.nn import functional, init, utils
from tinytorch.nn.activation import (
    CELU,
    ELU,
    GELU,
    GLU,
    SELU,
    Hardshrink,
    Hardsigmoid,
    Hardswish,
    Hardtanh,
    LeakyReLU,
    LogSigmoid,
    LogSoftmax,
    Mish,
    PReLU,
    ReLU,
    ReLU6,
    RReLU,
    Sigmoid,
    SiLU,
    Softmax,
    Softmax2d,
    Softmin,
    Softplus,
    Softshrink,
    Softsign,
    Tanh,
    Tanhshrink,
    Threshold,
)
from tinytorch.nn.containers import ModuleDict, ModuleList, ParameterDict, ParameterList, Sequential
from tinytorch.nn.dropout import AlphaDropout, Dropout, Dropout1d, Dropout2d, Dropout3d, FeatureAlphaDropout
from tinytorch.nn.linear import Bilinear, Identity, LazyLinear, Linear
from tinytorch.nn.loss import (
    BCELoss,
    BCEWithLogitsLoss,
    CosineEmbeddingLoss,
    CosineSimilarity,
    CrossEntropyLoss,
    GaussianNLLLoss,
    HingeEmbeddingLoss,
    HuberLoss,
    KLDivLoss,
    L1Loss,
    MarginRankingLoss,
    MSELoss,
    MultiLabelSoftMarginLoss,
    MultiMarginLoss,
    NLLLoss,
    PairwiseDistance,
    PoissonNLLLoss,
    SmoothL1Loss,
    SoftMarginLoss,
    TripletMarginLoss,
    TripletMarginWithDistanceLoss,
)
from tinytorch.nn.module import Module
from tinytorch.nn.normalization import GroupNorm, LayerNorm, LocalResponseNorm, RMSNorm
from tinytorch.nn.parameter import Buffer, Parameter, UninitializedParameter
from tinytorch.nn.sparse import Embedding, EmbeddingBag

__all__ = sorted(name for name, kind in globals().items() if isinstance(kind, type)) + ["functional", "init", "utils"]
