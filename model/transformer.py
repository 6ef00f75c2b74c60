"""The whole model: embedding, encoder, decoder and head, as a configuration says."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.basics import Linear, make_norm
from model.config import ModelConfig
from model.eager import EagerKernels
from model.heads import HEADS
from model.kernels import AttentionKernels, Step
from model.layers import Decoder, Encoder
from model.mixers import State
from model.positions import POSITIONS

EAGER = EagerKernels()


class Decoded(NamedTuple):
    """``hidden [batch, length, size]``, and each layer's state after it."""

    hidden: Tensor
    states: list[State]


class Table(nn.Module):
    """``weight [rows, size]``, looked up by row."""

    def __init__(self, rows: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, size))

    def forward(self, ids: Tensor) -> Tensor:
        return functional.embedding(ids, self.weight)


class Placement(nn.Module):
    """Adds positions and segments to tokens; projects them if they are of another size."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        embedding = config.embedding
        size = embedding.size or config.hidden_size
        self.positions = POSITIONS[config.position.kind](config.position, size)
        self.segments = Table(embedding.num_segments, size) if embedding.num_segments else None
        self.norm: nn.Module = nn.Identity()
        if embedding.norm is not None:
            self.norm = make_norm(size, embedding.norm)
        self.projection: nn.Module = nn.Identity()
        if embedding.size is not None:
            self.projection = Linear(size, config.hidden_size, bias=True)

    def forward(self, x: Tensor, positions: Tensor, segment_ids: Tensor | None) -> Tensor:
        """``x [batch, length, size]`` to ``[batch, length, hidden]``."""
        x = self.positions(x, positions)
        if self.segments is not None:
            if segment_ids is None:
                raise ValueError("this model needs segment_ids")
            x = x + self.segments(segment_ids)
        projected: Tensor = self.projection(self.norm(x))
        return projected


class Embedding(Placement):
    """Tokens, scaled, and what places them in an encoder's input, or in any."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        size = config.embedding.size or config.hidden_size
        self.scale = config.embedding.scale
        self.tokens = Table(config.vocabulary_size, size)

    def look_up(self, token_ids: Tensor) -> Tensor:
        """``token_ids [batch, length]`` to ``[batch, length, size]``."""
        x: Tensor = self.tokens(token_ids)
        return x if self.scale == 1.0 else x * self.scale


class Transformer(nn.Module):
    """An encoder, a decoder or both.

    Parameters are uninitialised: load them (``load_state_dict(..., assign=True)``) or see
    :mod:`model.initialise`.
    """

    def __init__(self, config: ModelConfig, kernels: AttentionKernels = EAGER) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(config)
        self.target_placement: Placement | None = None
        if config.embedding.separate_target:
            self.target_placement = Placement(config)
        if config.encoder is not None:
            self.encoder = Encoder(config, config.encoder, kernels)
        if config.decoder is not None:
            self.decoder = Decoder(config, config.decoder, kernels)
        self.head = HEADS[config.head.kind](config)

    def encode(
        self, token_ids: Tensor, lengths: Tensor, segment_ids: Tensor | None = None
    ) -> Tensor:
        """``token_ids [batch, length]``, right-padded to ``lengths [batch]``, to hidden vectors.

        Returns:
            ``[batch, length, size]``
        """
        positions = torch.arange(token_ids.shape[1])
        x = self.embedding(self.embedding.look_up(token_ids), positions, segment_ids)
        hidden: Tensor = self.encoder(x, lengths)
        return hidden

    def pool(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """An encoder's head: ``[batch, size or labels]``, or ``[batch, length, labels]``."""
        pooled: Tensor = self.head(hidden, lengths)
        return pooled

    def remember(self, encoded: Tensor) -> list[State]:
        """The decoder's states before the first token, over a source from :meth:`encode`."""
        return self.decoder.remember(encoded)

    def decode(
        self,
        token_ids: Tensor,
        step: Step,
        states: list[State] | None = None,
        chosen: Tensor | None = None,
    ) -> Decoded:
        """Runs the decoder over ``token_ids [batch, length]``.

        A token's position is ``num_cached_tokens`` plus its index. ``states`` are those that
        the step before returned, those of :meth:`remember`, or None for empty ones. ``chosen``:
        the tokens of ``[batch * length]`` whose hidden vectors, ``[1, chosen, size]``, are wanted.
        """
        if states is None:
            states = [{} for _ in self.decoder.order]
        positions = step.num_cached_tokens[:, None] + torch.arange(token_ids.shape[1])
        place = self.target_placement or self.embedding
        x = place(self.embedding.look_up(token_ids), positions, None)
        return Decoded(*self.decoder(x, step, states, chosen))

    def logits(self, hidden: Tensor) -> Tensor:
        """A language model's head: ``[..., size]`` to ``[..., vocabulary]``."""
        logits: Tensor = self.head(hidden, self.embedding.tokens.weight)
        return logits


def parameter_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter that a model of ``config`` has."""
    with torch.device("meta"):
        model = Transformer(config)
    return {name: tuple(weight.shape) for name, weight in model.state_dict().items()}


def from_weights(
    config: ModelConfig, weights: dict[str, Tensor], kernels: AttentionKernels = EAGER
) -> Transformer:
    """A model for inference that holds ``weights`` themselves, not a copy."""
    model = Transformer(config, kernels)
    model.load_state_dict(weights, assign=True)
    return model.eval().requires_grad_(requires_grad=False)
