"""Generators: seed and offset of the counter-based stream.

Stage: eager.  In: how many numbers are wanted.  Out: a state for the random rows.  Mirrors ``torch.Generator``.
A draw of n elements moves the offset by ceil(n / 4): each Philox counter gives four words.  Read next: ``ops.random``.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from tinytorch.device import Device, cpu
from tinytorch.tensor import Tensor


class Generator:
    """A place in a stream of random words."""

    def __init__(self, device: str | Device = "cpu") -> None:
        self.device = Device(device)
        self.seed_value = 0
        self.offset = 0

    def manual_seed(self, seed: int) -> Generator:
        self.seed_value = int(seed) & 0xFFFF_FFFF_FFFF_FFFF
        self.offset = 0
        return self

    def seed(self) -> int:
        """Start anew with a seed from the system's entropy."""
        self.manual_seed(int.from_bytes(os.urandom(8), "little") >> 1)
        return self.seed_value

    def initial_seed(self) -> int:
        return self.seed_value

    def state_array(self) -> Any:
        return np.array([self.seed_value, self.offset], np.uint64).view(np.int64)

    def draw(self, numel: Any, device: Device = cpu) -> tuple[Tensor, Any]:
        """(state, shift) for one draw of ``numel`` elements; moves the offset past it.  A state is two numbers, which stay
        in the host's memory on every device: kernels take them as arguments."""
        from tinytorch import dispatch

        interpreter = dispatch.current.interpreter
        if interpreter is not None:
            return interpreter.draw(self, numel, device)
        state = self.state_array()
        self.offset += (int(numel) + 3) // 4
        return Tensor._wrap(state, device), 0

    def get_state(self) -> Tensor:
        return Tensor._wrap(self.state_array(), cpu)

    def set_state(self, state: Tensor) -> Generator:
        seed, offset = state._data.view(np.uint64)
        self.seed_value, self.offset = int(seed), int(offset)
        return self


default_generator = Generator()
