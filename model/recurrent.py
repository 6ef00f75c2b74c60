"""Recurrent encoder-decoders: Sutskever et al. 2014, Bahdanau et al. 2015, Luong et al. 2015."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from model.basics import Linear
from model.config import AttentionConfig, ModelConfig
from model.kernels import KeyValue, ModelKernels, Step
from model.layers import select_tokens
from model.mixer_state import State
from model.readout import READOUTS, Readable
from model.recurrent_cells import CELLS, Cell, CellState, zero_state
from model.recurrent_config import (
    AlignmentConfig,
    AlignmentKind,
    BridgeKind,
    ReadoutKind,
    RecurrentConfig,
)


class EncodedSource(NamedTuple):
    """``vectors [batch, length, size]``; each layer's last state, both directions concatenated."""

    vectors: Tensor
    states: list[CellState]


class BetweenLayers(nn.Identity):
    """What a stacked layer reads of the layer below, where training drops values."""


class RecurrentEncoder(nn.Module):
    """Stacked layers; a bidirectional layer concatenates its two directions."""

    def __init__(self, model: ModelConfig, config: RecurrentConfig, kernels: ModelKernels) -> None:
        super().__init__()
        self.kernels = kernels
        self.layers, self.below = nn.ModuleList(), BetweenLayers()
        size = model.embedding.size or model.hidden_size
        for _ in range(config.num_encoder_layers):
            cells = [Cell(config.cell, size, config.encoder_size)]
            if config.bidirectional:
                cells.append(Cell(config.cell, size, config.encoder_size))
            self.layers.append(nn.ModuleList(cells))
            size = config.num_directions * config.encoder_size
        self.output: nn.Module = nn.Identity()
        if config.source_size is not None:
            self.output = Linear(size, config.source_size, bias=True)

    def forward(self, x: Tensor, lengths: Tensor) -> EncodedSource:
        """``x [batch, length, inputs]``, right-padded to ``lengths [batch]``."""
        states: list[CellState] = []
        for layer, cells in enumerate(self.layers):
            x = self.below(x) if layer else x
            directions: list[Cell] = list(cells)  # type: ignore[call-overload]  # a ModuleList
            runs = [
                self.kernels.recurrent(x, lengths, cell.weights, cell.kind, reverse=bool(index))
                for index, cell in enumerate(directions)
            ]
            x = torch.cat([run.outputs for run in runs], -1)
            both = zip(*(run.state for run in runs), strict=True)
            states.append(tuple(torch.cat(parts, -1) for parts in both))
        return EncodedSource(self.output(x), states)


class FusedAlignment(nn.Module):
    """Dot and general scores: attention of one head over ``h_s`` or ``W h_s`` as keys."""

    def __init__(
        self, alignment: AlignmentConfig, config: RecurrentConfig, kernels: ModelKernels
    ) -> None:
        super().__init__()
        self.kernels = kernels
        size, query_size = config.vector_size, config.decoder_size
        self.key: nn.Module = nn.Identity()
        if alignment.kind == AlignmentKind.GENERAL:
            self.key = Linear(size, query_size, bias=False)
        if query_size != size or size % 8:
            raise ValueError(
                f"{alignment.kind} attention needs a decoder_size, {query_size}, equal to the size "
                f"of the source's vectors, {size}, and a multiple of 8"
            )
        self.config = AttentionConfig(
            num_heads=1,
            num_kv_heads=1,
            head_size=size,
            input_bias=False,
            output_bias=False,
            scale=1.0,
        )

    def forward(self, hidden: Tensor, source: KeyValue, step: Step) -> tuple[Tensor, KeyValue]:
        """The context ``[batch, size]`` of ``hidden [batch, decoder_size]``, and the source."""
        context, source = self.kernels.cross(hidden[:, None], self.config, source, step)
        return context[:, 0], source


class AdditiveAlignment(nn.Module):
    """``v^T tanh(W s + U h_j)`` (Bahdanau et al. 2015, appendix A.1.2)."""

    def __init__(
        self, alignment: AlignmentConfig, config: RecurrentConfig, _kernels: ModelKernels
    ) -> None:
        super().__init__()
        self.query = Linear(config.decoder_size, alignment.size, bias=False)
        self.key = Linear(config.vector_size, alignment.size, bias=False)
        self.score = Linear(alignment.size, 1, bias=False)

    def forward(self, hidden: Tensor, source: KeyValue, step: Step) -> tuple[Tensor, KeyValue]:
        """The context ``[batch, size]`` of ``hidden [batch, decoder_size]``, and the source."""
        lengths, max_length = step.source()
        places = torch.arange(max_length.item())
        key, value = (part.index_select(2, places) for part in source)  # [batch, 1, length, size]
        scores = self.score(torch.tanh(self.query(hidden)[:, None, None] + key))
        scores = scores.transpose(2, 3)  # [batch, 1, 1, length]
        mask = places < lengths[:, None, None, None]
        weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1)
        return (weights @ value)[:, 0, 0], source


ALIGNMENTS: dict[
    AlignmentKind, Callable[[AlignmentConfig, RecurrentConfig, ModelKernels], nn.Module]
] = {
    AlignmentKind.ADDITIVE: AdditiveAlignment,
    AlignmentKind.DOT: FusedAlignment,
    AlignmentKind.GENERAL: FusedAlignment,
}


class Bridge(nn.Module):
    """Initializes the decoder's states from the encoder's last ones; see :class:`BridgeKind`.

    Raises:
        ValueError: the states to copy differ in number or size.
    """

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.config = config
        size = config.num_directions * config.encoder_size
        names = CELLS[config.cell].state
        if config.bridge == BridgeKind.DENSE:
            self.layers = nn.ModuleList(
                nn.ModuleDict({x: Linear(size, config.decoder_size, bias=True) for x in names})
                for _ in range(config.num_decoder_layers)
            )
        has_layers = config.num_encoder_layers == config.num_decoder_layers
        if config.bridge == BridgeKind.COPY and not (has_layers and size == config.decoder_size):
            raise ValueError(
                "the bridge can copy states only between equally many layers of equal size: "
                f"{config.num_encoder_layers} of {size}, {config.num_decoder_layers} of "
                f"{config.decoder_size}"
            )

    def forward(self, states: list[CellState]) -> list[State]:
        """Each decoder layer's initial state, by name; empty for zeros."""
        names = CELLS[self.config.cell].state
        if self.config.bridge == BridgeKind.ZERO:
            return [{} for _ in range(self.config.num_decoder_layers)]
        if self.config.bridge == BridgeKind.COPY:
            return [dict(zip(names, state, strict=True)) for state in states]
        last = dict(zip(names, states[-1], strict=True))
        return [
            {name: torch.tanh(layer[name](last[name])) for name in names}  # type: ignore[index]
            for layer in self.layers
        ]


class RecurrentDecoder(nn.Module):
    """Stacked layers that read a token and, as configured, the context and the last output.

    States per layer: ``hidden``, and ``cell`` with an LSTM; in the top layer also ``cross_key`` and
    ``cross_value``, the source, and ``fed``, the last output.
    """

    def __init__(self, model: ModelConfig, config: RecurrentConfig, kernels: ModelKernels) -> None:
        super().__init__()
        self.config, self.hidden_size = config, model.hidden_size
        self.order = tuple(range(config.num_decoder_layers))
        alignment, size = config.alignment, config.decoder_size
        self.reads_context = alignment is not None and alignment.from_previous
        inputs = model.embedding.size or model.hidden_size
        inputs += config.context_size if self.reads_context else 0
        inputs += model.hidden_size if config.input_feeding else 0
        self.layers = nn.ModuleList(
            Cell(config.cell, size if index else inputs, size) for index in self.order
        )
        self.bridge, self.below = Bridge(config), BetweenLayers()
        self.alignment: nn.Module | None = None
        if alignment is not None:
            self.alignment = ALIGNMENTS[alignment.kind](alignment, config, kernels)
        size += config.context_size
        self.readout: nn.Module | None = None
        if config.readout:
            if config.readout_kind == ReadoutKind.MAXOUT:
                size += model.embedding.size or model.hidden_size
            outputs = READOUTS[config.readout_kind].num_outputs * model.hidden_size
            self.readout = Linear(size, outputs, bias=True)
        elif size != model.hidden_size:
            raise ValueError(f"without a readout, hidden_size is {size}, not {model.hidden_size}")

    def cross_attention_kv(self, encoded: EncodedSource) -> list[State]:
        """Each layer's initial state, with the source's keys and values."""
        states = self.bridge(encoded.states)
        if self.alignment is not None:
            vectors = encoded.vectors[:, None]  # [batch, 1, length, size]
            key = self.alignment.key(vectors)  # type: ignore[operator]  # a module
            states[-1] |= {"cross_key": key, "cross_value": vectors}
        first: list[State] = states
        return first

    def forward(
        self, x: Tensor, step: Step, states: list[State], logit_positions: Tensor | None = None
    ) -> tuple[Tensor, list[State]]:
        """As :meth:`model.layers.Decoder.forward`."""
        size, top = self.config.decoder_size, states[-1]
        names = CELLS[self.config.cell].state
        cells = [
            tuple(state[name] for name in names)
            if "hidden" in state
            else zero_state(self.config.cell, x, size)
            for state in states
        ]
        source = KeyValue(top["cross_key"], top["cross_value"]) if self.alignment else None
        fed = top.get("fed", x.new_zeros(x.shape[0], self.hidden_size))
        outputs: list[Tensor] = []
        for index in range(x.shape[1]):
            fed, source = self._step(x[:, index], fed, cells, source, step)
            outputs.append(fed)
        present = [dict(zip(names, cell, strict=True)) for cell in cells]
        if source is not None:
            present[-1] |= {"cross_key": source.key, "cross_value": source.value}
        present[-1]["fed"] = fed
        hidden = torch.stack(outputs, 1)
        if logit_positions is not None:
            hidden = select_tokens(hidden, logit_positions)[None]
        return hidden, present

    def _step(
        self, x: Tensor, fed: Tensor, cells: list[CellState], source: KeyValue | None, step: Step
    ) -> tuple[Tensor, KeyValue | None]:
        """Runs one token ``x [batch, inputs]`` per row; returns the output, replaces ``cells``."""
        context: list[Tensor] = []
        inputs = [x]
        if self.reads_context and self.alignment is not None:
            attended, source = self.alignment(cells[-1][0], source, step)
            context.append(attended)
            inputs.append(attended)
        if self.config.input_feeding:
            inputs.append(fed)
        token, before = x, cells[-1][0]
        x = torch.cat(inputs, -1)
        for layer, cell in enumerate(self.layers):
            cells[layer] = cell(self.below(x) if layer else x, cells[layer])
            x = cells[layer][0]
        if self.alignment is not None and not self.reads_context:
            attended, source = self.alignment(x, source, step)
            context.append(attended)
        if self.readout is None:
            return torch.cat([x, *context], -1), source
        inputs_of, activation, _ = READOUTS[self.config.readout_kind]
        parts = inputs_of(Readable(before, x, context, token))
        return activation(self.readout(torch.cat(parts, -1))), source
