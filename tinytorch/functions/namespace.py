"""Which functions of these rooms are ``tinytorch.<name>``: one table, read by ``tinytorch`` and by the docs.

Stage: eager.  Read next: any room it names.
"""

from __future__ import annotations

from typing import Any

from tinytorch.functions import (
    assembly,
    complexes,
    creation,
    decompositions,
    einsum,
    indexing,
    linalg,
    misc,
    pointwise,
    random,
    reduction,
    shape,
    typing,
)
from tinytorch.ops import composite

PUBLIC: dict[Any, str] = {
    creation: """
        tensor as_tensor asarray from_numpy zeros ones empty full zeros_like ones_like full_like empty_like arange linspace
        logspace eye tril_indices triu_indices scalar_tensor set_default_device get_default_device""",
    random: """
        manual_seed seed initial_seed get_rng_state set_rng_state rand randn randint randperm rand_like randn_like
        randint_like normal bernoulli multinomial""",
    pointwise: """
        add sub mul div pow neg negative abs absolute sign square reciprocal exp exp2 expm1 log log2 log10 log1p sqrt
        rsqrt sin cos tan asin acos atan atan2 arcsin arccos arctan arctan2 sinh cosh tanh asinh acosh atanh arcsinh
        arccosh arctanh erf sigmoid relu floor ceil trunc fix frac round isnan isinf isfinite nan_to_num logical_not
        logical_and logical_or logical_xor bitwise_not bitwise_and bitwise_or bitwise_xor bitwise_left_shift
        bitwise_right_shift fmod remainder floor_divide maximum minimum fmax fmin copysign eq ne lt le gt ge less
        less_equal greater greater_equal not_equal clamp clip clamp_min clamp_max where masked_fill isclose lerp addcmul
        addcdiv logit hypot logaddexp xlogy positive rsub subtract multiply divide true_divide deg2rad rad2deg
        erfc signbit isposinf isneginf""",
    complexes: "conj real imag complex polar angle",
    reduction: """
        sum nansum mean prod any all count_nonzero var std var_mean std_mean amax amin aminmax argmax argmin max min
        cumsum cumprod cummax cummin logcumsumexp logsumexp sort argsort topk kthvalue median quantile
        nanquantile norm dist cdist nanmean""",
    shape: """
        reshape flatten ravel unflatten unsqueeze squeeze permute transpose swapaxes swapdims t movedim moveaxis
        broadcast_to broadcast_tensors broadcast_shapes diagonal diag diag_embed narrow select unbind split chunk
        tensor_split cat concat concatenate stack hstack vstack tile repeat_interleave flip fliplr flipud roll rot90 tril
        triu meshgrid cartesian_prod view_as_real view_as_complex""",
    assembly: "atleast_1d atleast_2d atleast_3d column_stack diagflat block_diag diff dstack hsplit vsplit trapezoid isin",
    decompositions: "inverse",
    linalg: "matmul mm spmm bmm mv dot outer ger addmm addmv addr baddbmm trace tensordot inner kron cross",
    einsum: "einsum",
    indexing: """
        gather take_along_dim scatter scatter_add scatter_reduce index_select index_add index_copy index_fill index_put
        masked_select masked_scatter take nonzero argwhere unique bincount searchsorted bucketize""",
    typing: "clone equal allclose is_nonzero",
    composite: "softmax log_softmax",
    misc: """
        is_tensor is_floating_point is_complex numel result_type can_cast set_flush_denormal set_num_threads
        get_num_threads use_deterministic_algorithms are_deterministic_algorithms_enabled set_float32_matmul_precision
        get_float32_matmul_precision""",
}

FUNCTIONS: dict[str, Any] = {
    name: getattr(room, name) for room, names in PUBLIC.items() for name in names.split()
}
