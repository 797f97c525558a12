"""``tinytorch.distributions``: the few that model code samples from.

Stage: eager.  Mirrors ``torch.distributions``.  Read next: ``distribution``, ``families``.
"""

from tinytorch.distributions.distribution import Distribution
from tinytorch.distributions.families import (
    Bernoulli,
    Categorical,
    Independent,
    Normal,
    Uniform,
    kl_divergence,
)

__all__ = ["Bernoulli", "Categorical", "Distribution", "Independent", "Normal", "Uniform", "kl_divergence"]
