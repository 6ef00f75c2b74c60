"""The simpler simple recurrent unit (SSRU), a mixer for decoders."""

import torch
from torch import Tensor, nn

from model.basics import Linear
from model.config import LayerConfig
from model.kernels import ModelKernels, PositionEncodings, Step
from model.mixer_state import MixerOutput, State


class SimplerSimpleRecurrentUnit(nn.Module):
    """SSRU (Kim et al. 2019, section 3.2). State: ``recurrent [batch, hidden]``.

    ``f_t = sigmoid(W_f x_t + b_f)``; ``c_t = f_t * c_{t-1} + (1 - f_t) * W x_t``; the
    output is ``relu(c_t)``.
    """

    def __init__(self, hidden_size: int, _layer: LayerConfig, _kernels: ModelKernels) -> None:
        super().__init__()
        self.forget = Linear(hidden_size, hidden_size, bias=True)
        self.candidate = Linear(hidden_size, hidden_size, bias=False)

    def forward(
        self, x: Tensor, _step: Step, state: State, _positions: PositionEncodings
    ) -> MixerOutput:
        forget = torch.sigmoid(self.forget(x))
        update = (1 - forget) * self.candidate(x)
        cell = state["recurrent"] if state else torch.zeros_like(x[:, 0])  # [batch, hidden]
        cells = []
        for t in range(x.shape[1]):
            cell = forget[:, t] * cell + update[:, t]
            cells.append(cell)
        return MixerOutput(torch.stack(cells, 1).relu(), {"recurrent": cell})
