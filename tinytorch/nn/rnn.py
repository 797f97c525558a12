"""Recurrent networks: RNN, LSTM, GRU, and the cells they step.

Stage: eager.  In: a sequence (L, N, I), or (N, L, I) with ``batch_first``, or (L, I).  Out: the hidden states of the last
layer at every step, and the final states of all layers.  The input's part of the gates is one product for the whole
sequence; only the hidden part is computed step by step.  Mirrors ``torch.nn``.  Read next: ``attention``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tinytorch import ops
from tinytorch.dtypes import DType
from tinytorch.nn import functional as F
from tinytorch.nn import init
from tinytorch.nn.module import Module
from tinytorch.nn.parameter import Parameter, empty
from tinytorch.nn.utils.rnn import PackedSequence, pack, unpack
from tinytorch.tensor import Tensor

State = tuple[Tensor, ...]


# --- one step: the gates' input part, the state and the recurrent weights give the new state --------------------------
def _rnn_step(act: Callable[[Tensor], Tensor]) -> Callable[..., State]:
    def step(from_input: Tensor, state: State, w_hh: Tensor, b_hh: Tensor | None) -> State:
        return (act(from_input + F.linear(state[0], w_hh, b_hh)),)

    return step


def _lstm_step(
    from_input: Tensor, state: State, w_hh: Tensor, b_hh: Tensor | None, w_hr: Tensor | None = None
) -> State:
    """Gates in, forget, cell, out (Hochreiter and Schmidhuber, 1997); ``w_hr`` projects the hidden state."""
    hidden, cell = state
    i, f, g, o = (from_input + F.linear(hidden, w_hh, b_hh)).chunk(4, -1)
    cell = ops.sigmoid(f) * cell + ops.sigmoid(i) * ops.tanh(g)
    hidden = ops.sigmoid(o) * ops.tanh(cell)
    return (hidden if w_hr is None else F.linear(hidden, w_hr)), cell


def _gru_step(from_input: Tensor, state: State, w_hh: Tensor, b_hh: Tensor | None) -> State:
    """Gates reset, update, new (Cho et al., 2014)."""
    hidden = state[0]
    xr, xz, xn = from_input.chunk(3, -1)
    hr, hz, hn = F.linear(hidden, w_hh, b_hh).chunk(3, -1)
    new = ops.tanh(xn + ops.sigmoid(xr + hr) * hn)
    z = ops.sigmoid(xz + hz)
    return (new + z * (hidden - new),)


_STEPS: dict[str, tuple[int, Callable[..., State]]] = {
    "RNN_TANH": (1, _rnn_step(ops.tanh)), "RNN_RELU": (1, _rnn_step(ops.relu)), "LSTM": (4, _lstm_step),
    "GRU": (3, _gru_step),
}  # fmt: skip


# --- cells ------------------------------------------------------------------------------------------------------------
class _Cell(Module):
    mode = ""
    bias_ih: Parameter | None
    bias_hh: Parameter | None

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: DType | None = None
    ) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        gates = _STEPS[self._mode()][0] * hidden_size
        self.weight_ih = Parameter(empty((gates, input_size), device, dtype))
        self.weight_hh = Parameter(empty((gates, hidden_size), device, dtype))
        self.register_parameter("bias_ih", Parameter(empty((gates,), device, dtype)) if bias else None)
        self.register_parameter("bias_hh", Parameter(empty((gates,), device, dtype)) if bias else None)
        self.reset_parameters()

    def _mode(self) -> str:
        return self.mode

    def reset_parameters(self) -> None:
        bound = 1 / math.sqrt(self.hidden_size) if self.hidden_size > 0 else 0
        for p in self.parameters():
            init.uniform_(p, -bound, bound)

    def _step(self, input: Tensor, state: State) -> State:
        step = _STEPS[self._mode()][1]
        return step(F.linear(input, self.weight_ih, self.bias_ih), state, self.weight_hh, self.bias_hh)

    def _zeros(self, input: Tensor) -> Tensor:
        return input.new_zeros(*input.shape[:-1], self.hidden_size)

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}" + ("" if self.bias else ", bias=False")


class RNNCell(_Cell):
    """h' = act(W_ih x + b_ih + W_hh h + b_hh)."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: Any = None,
        dtype: DType | None = None,
    ) -> None:
        self.__dict__["nonlinearity"] = nonlinearity
        super().__init__(input_size, hidden_size, bias, device, dtype)

    def _mode(self) -> str:
        if self.nonlinearity not in ("tanh", "relu"):
            raise RuntimeError(f"Unknown nonlinearity: {self.nonlinearity}")
        return f"RNN_{self.nonlinearity.upper()}"

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        return self._step(input, (self._zeros(input) if hx is None else hx,))[0]

    def extra_repr(self) -> str:
        return super().extra_repr() + (f", nonlinearity={self.nonlinearity}" if self.nonlinearity != "tanh" else "")


class GRUCell(_Cell):
    mode = "GRU"

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        return self._step(input, (self._zeros(input) if hx is None else hx,))[0]


class LSTMCell(_Cell):
    mode = "LSTM"

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> State:
        state = (self._zeros(input), self._zeros(input)) if hx is None else tuple(hx)
        return self._step(input, state)


# --- sequences --------------------------------------------------------------------------------------------------------
class RNNBase(Module):
    """Layers of one kind of cell, in one or both directions."""

    mode = ""

    def __init__(
        self,
        mode: str,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        if hidden_size <= 0:
            raise ValueError("hidden_size must be greater than zero")
        if num_layers <= 0:
            raise ValueError("num_layers must be greater than zero")
        if not 0 <= dropout <= 1:
            raise ValueError("dropout should be a number in range [0, 1] representing the probability of an element being zeroed")
        if proj_size and mode != "LSTM":
            raise ValueError("proj_size argument is only supported for LSTM, not RNN or GRU")
        self.mode, self.input_size, self.hidden_size, self.num_layers = mode, input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout = bias, batch_first, float(dropout)
        self.bidirectional, self.proj_size = bidirectional, proj_size
        directions = 2 if bidirectional else 1
        gates = _STEPS[mode][0] * hidden_size
        out = proj_size or hidden_size
        for suffix, layer in self._suffixes():
            width = input_size if layer == 0 else out * directions
            self._add("weight_ih" + suffix, (gates, width), device, dtype)
            self._add("weight_hh" + suffix, (gates, out), device, dtype)
            if bias:
                self._add("bias_ih" + suffix, (gates,), device, dtype)
                self._add("bias_hh" + suffix, (gates,), device, dtype)
            if proj_size:
                self._add("weight_hr" + suffix, (proj_size, hidden_size), device, dtype)
        self.reset_parameters()

    def _suffixes(self) -> list[tuple[str, int]]:
        """(end of the parameters' names, layer) for every layer and direction."""
        ends = ("", "_reverse") if self.bidirectional else ("",)
        return [(f"_l{layer}{end}", layer) for layer in range(self.num_layers) for end in ends]

    def _add(self, name: str, shape: tuple[int, ...], device: Any, dtype: DType | None) -> None:
        self.register_parameter(name, Parameter(empty(shape, device, dtype)))

    def reset_parameters(self) -> None:
        bound = 1 / math.sqrt(self.hidden_size)
        for p in self.parameters():
            init.uniform_(p, -bound, bound)

    def flatten_parameters(self) -> None:
        """Nothing: the parameters need no common memory here."""

    @property
    def all_weights(self) -> list[list[Parameter]]:
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
        return [
            [self._parameters[n + s] for n in names if n + s in self._parameters]  # type: ignore[misc]
            for s, _ in self._suffixes()
        ]

    # --- forward -------------------------------------------------------------------------------------------------
    def forward(self, input: Any, hx: Any = None) -> Any:
        if isinstance(input, PackedSequence):
            return self._forward_packed(input, hx)
        if input.dim() not in (2, 3):
            raise ValueError(f"{type(self).__name__}: Expected input to be 2D or 3D, got {input.dim()}D instead")
        batched = input.dim() == 3
        x = input.unsqueeze(1) if not batched else input.transpose(0, 1) if self.batch_first else input
        if x.shape[-1] != self.input_size:
            raise RuntimeError(
                f"input.size(-1) must be equal to input_size. Expected {self.input_size}, got {x.shape[-1]}"
            )
        state = self._initial(x, hx, batched)
        out, final = self._run(x, state, None)
        if not batched:
            return out.squeeze(1), self._give(tuple(s.squeeze(1) for s in final))
        return (out.transpose(0, 1) if self.batch_first else out), self._give(final)

    def _give(self, final: State) -> Any:
        return final if self.mode == "LSTM" else final[0]

    def _initial(self, x: Tensor, hx: Any, batched: bool) -> State:
        """The states of all layers, (layers, N, size) each; zeros if none are given."""
        rows = len(self._suffixes())
        sizes = (self.proj_size or self.hidden_size, self.hidden_size)[: 2 if self.mode == "LSTM" else 1]
        if hx is None:
            return tuple(x.new_zeros(rows, x.shape[1], size) for size in sizes)
        given = tuple(hx) if self.mode == "LSTM" else (hx,)
        state = given if batched else tuple(s.unsqueeze(1) for s in given)
        for s, size in zip(state, sizes, strict=True):
            want = (rows, x.shape[1], size)
            if tuple(s.shape) != want:
                raise RuntimeError(f"Expected hidden size {want}, got {list(s.shape)}")
        return state

    def _run(self, x: Tensor, state: State, mask: Tensor | None) -> tuple[Tensor, State]:
        """All layers over (L, N, I); ``mask`` (L, N, 1) is False where a sequence has ended."""
        directions = 2 if self.bidirectional else 1
        finals: list[State] = []
        for layer in range(self.num_layers):
            outs = []
            for d in range(directions):
                k = layer * directions + d
                out, final = self._direction(x, tuple(s[k] for s in state), self._suffixes()[k][0], d == 1, mask)
                outs.append(out)
                finals.append(final)
            x = outs[0] if directions == 1 else ops.cat(*outs, dim=2)
            if self.dropout and layer < self.num_layers - 1:
                x = F.dropout(x, self.dropout, self.training)
        return x, tuple(_stack([f[i] for f in finals]) for i in range(len(state)))

    def _direction(
        self, x: Tensor, state: State, suffix: str, reverse: bool, mask: Tensor | None
    ) -> tuple[Tensor, State]:
        get = self._parameters.get
        from_input = F.linear(x, get("weight_ih" + suffix), get("bias_ih" + suffix))  # type: ignore[arg-type]
        weights = [get("weight_hh" + suffix), get("bias_hh" + suffix)]
        if self.proj_size:
            weights.append(get("weight_hr" + suffix))
        step = _STEPS[self.mode][1]
        length = x.shape[0]
        outs: list[Any] = [None] * length
        for t in range(length - 1, -1, -1) if reverse else range(length):
            new = step(from_input[t], state, *weights)
            if mask is not None:
                new = tuple(ops.where(mask[t], n, old) for n, old in zip(new, state, strict=True))
            state = new
            outs[t] = state[0] if mask is None else ops.where(mask[t], state[0], 0.0)
        return _stack(outs), state

    def _forward_packed(self, packed: PackedSequence, hx: Any) -> tuple[PackedSequence, Any]:
        x, mask = unpack(packed)
        state = self._initial(x, None, True)
        if hx is not None:
            given = tuple(hx) if self.mode == "LSTM" else (hx,)
            order = packed.sorted_indices
            state = given if order is None else tuple(s.index_select(1, order) for s in given)
        out, final = self._run(x, state, mask)
        if packed.unsorted_indices is not None:
            final = tuple(s.index_select(1, packed.unsorted_indices) for s in final)
        return pack(out, packed), self._give(final)

    def extra_repr(self) -> str:
        text = f"{self.input_size}, {self.hidden_size}"
        if self.proj_size:
            text += f", proj_size={self.proj_size}"
        if self.num_layers != 1:
            text += f", num_layers={self.num_layers}"
        if not self.bias:
            text += f", bias={self.bias}"
        if self.batch_first:
            text += f", batch_first={self.batch_first}"
        if self.dropout:
            text += f", dropout={self.dropout}"
        return text + (f", bidirectional={self.bidirectional}" if self.bidirectional else "")


def _stack(tensors: list[Tensor]) -> Tensor:
    return ops.cat(*(t.unsqueeze(0) for t in tensors), dim=0)  # type: ignore[no-any-return]


class RNN(RNNBase):
    """Elman's network with tanh or relu."""

    def __init__(self, *args: Any, nonlinearity: str = "tanh", **kwargs: Any) -> None:
        if len(args) > 3:
            nonlinearity, args = args[3], args[:3] + args[4:]
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"Unknown nonlinearity '{nonlinearity}'. Select from 'tanh' or 'relu'.")
        self.__dict__["nonlinearity"] = nonlinearity
        super().__init__(f"RNN_{nonlinearity.upper()}", *args, **kwargs)


class LSTM(RNNBase):
    """Long short-term memory; the state is (h, c)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__("LSTM", *args, **kwargs)


class GRU(RNNBase):
    """Gated recurrent units."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__("GRU", *args, **kwargs)
