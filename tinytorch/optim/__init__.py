"""``tinytorch.optim``: optimizers and learning rate schedules.

Stage: eager.  Mirrors ``torch.optim``.  Read next: ``optimizer``, ``sgd``, ``adam``.
"""

from tinytorch.optim import lr_scheduler, swa_utils
from tinytorch.optim.adam import Adam, Adamax, AdamW, NAdam
from tinytorch.optim.adaptive import Adadelta, Adagrad, RMSprop
from tinytorch.optim.lbfgs import LBFGS
from tinytorch.optim.optimizer import Optimizer
from tinytorch.optim.sgd import SGD

__all__ = [
    "LBFGS", "SGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "Optimizer", "RMSprop", "lr_scheduler",
    "swa_utils",
]  # fmt: skip
