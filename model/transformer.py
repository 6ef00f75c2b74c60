"""The whole model, built from its configuration: embedding, encoder, decoder and head."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.adaptive import AdaptiveDecoder, AdaptiveEncoder
from model.basics import Linear, make_norm
from model.config import ModelConfig
from model.eager import EagerKernels
from model.heads import HEADS
from model.kernels import ModelKernels, Step
from model.layers import Decoder, Encoder
from model.mixers import State
from model.position_config import PositionKind, PositionPlacement
from model.positions import POSITIONS
from model.recurrent import RecurrentDecoder, RecurrentEncoder

EAGER = EagerKernels()


class DecoderOutput(NamedTuple):
    """``hidden [batch, length, size]``, and each layer's state after the step."""

    hidden: Tensor
    states: list[State]


class EmbeddingTable(nn.Module):
    """``weight [rows, size]``; returns the rows of the given ids."""

    def __init__(self, num_rows: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_rows, size))

    def forward(self, ids: Tensor) -> Tensor:
        return functional.embedding(ids, self.weight)


class InputEmbedding(nn.Module):
    """Adds positions and segments to token embeddings, then normalises and projects them.

    The projection exists if the embeddings are not of the hidden size (Lan et al. 2019), and the
    layers are not recurrent; and if positions are appended instead of added.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        embedding = config.embedding
        size = embedding.size or config.hidden_size
        position_size = config.position.size or size
        self.positions = POSITIONS[config.position.kind](config.position, position_size)
        is_concatenated = config.position.placement == PositionPlacement.CONCATENATED
        if is_concatenated:  # segments and the norm have the width of both
            size += position_size
        if is_concatenated and config.position.kind == PositionKind.NONE:
            raise ValueError("there are no positions to concatenate")
        self.segments: nn.Module | None = None
        if embedding.num_segments:
            self.segments = EmbeddingTable(embedding.num_segments, size)
        self.norm: nn.Module = nn.Identity()
        if embedding.norm is not None:
            self.norm = make_norm(size, embedding.norm)
        self.projection: nn.Module = nn.Identity()
        if is_concatenated or (embedding.size is not None and config.recurrent is None):
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


class TokenEmbedding(InputEmbedding):
    """The input embedding of the first stack, with the token table that both stacks share."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        size = config.embedding.size or config.hidden_size
        self.scale = config.embedding.scale
        self.tokens = EmbeddingTable(config.vocabulary_size, size)

    def look_up(self, token_ids: Tensor) -> Tensor:
        """Scaled rows of the token table: ``[batch, length]`` to ``[batch, length, size]``."""
        x: Tensor = self.tokens(token_ids)
        return x if self.scale == 1.0 else x * self.scale


class Transformer(nn.Module):
    """An encoder, a decoder or both; of recurrent layers if the configuration says so.

    Parameters are uninitialised: load them (``load_state_dict(..., assign=True)``) or see
    :mod:`model.initialise`.
    """

    def __init__(self, config: ModelConfig, kernels: ModelKernels = EAGER) -> None:
        super().__init__()
        self.config = config
        self.embedding = TokenEmbedding(config)
        self.target_embedding: InputEmbedding | None = None
        if config.embedding.separate_target:
            self.target_embedding = InputEmbedding(config)
        self.encoder: Encoder | RecurrentEncoder
        self.decoder: Decoder | RecurrentDecoder
        if config.recurrent is not None:
            self.encoder = RecurrentEncoder(config, config.recurrent, kernels)
            self.decoder = RecurrentDecoder(config, config.recurrent, kernels)
        if config.encoder is not None:
            encoder = Encoder if config.encoder.halting is None else AdaptiveEncoder
            self.encoder = encoder(config, config.encoder, kernels)
        if config.decoder is not None:
            decoder = Decoder if config.decoder.halting is None else AdaptiveDecoder
            self.decoder = decoder(config, config.decoder, kernels)
        self.head = HEADS[config.head.kind](config)

    def encode(
        self, token_ids: Tensor, lengths: Tensor, segment_ids: Tensor | None = None
    ) -> Tensor:
        """``token_ids [batch, length]``, right-padded to ``lengths [batch]``, to hidden vectors.

        Returns:
            ``[batch, length, size]``
        """
        hidden: Tensor = self._run_encoder(token_ids, lengths, segment_ids)
        return hidden

    def encode_source(self, token_ids: Tensor, lengths: Tensor) -> list[State]:
        """The decoder's states before the first token, of a source as for :meth:`encode`."""
        return self.decoder.cross_attention_kv(self._run_encoder(token_ids, lengths))

    def _run_encoder(
        self, token_ids: Tensor, lengths: Tensor, segment_ids: Tensor | None = None
    ) -> Any:
        x, stack = self._embed(token_ids, segment_ids), self.config.encoder
        if stack is None or stack.global_before is None:
            return self.encoder(x, lengths)
        is_before = (token_ids == stack.global_before).cumsum(1) == 0
        return self.encoder(x, lengths, is_before.sum(1))

    def _embed(self, token_ids: Tensor, segment_ids: Tensor | None = None) -> Tensor:
        positions = torch.arange(token_ids.shape[1])
        x: Tensor = self.embedding(self.embedding.look_up(token_ids), positions, segment_ids)
        return x

    def pool(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """An encoder's head: ``[batch, size or labels]``, or ``[batch, length, labels]``."""
        pooled: Tensor = self.head(hidden, lengths)
        return pooled

    def decode(
        self,
        token_ids: Tensor,
        step: Step,
        states: list[State] | None = None,
        logit_positions: Tensor | None = None,
    ) -> DecoderOutput:
        """Runs the decoder over ``token_ids [batch, length]``.

        A token's position is ``num_cached_tokens`` plus its index.

        Args:
            states: those that the previous step returned; for the first step, those of
                :meth:`encode_source`, or None without a source. The last layers without a state
                may be left out.
            logit_positions: ``[n]``, each ``row * length + index``. If given, the hidden vectors
                are those of these tokens, ``[1, n, size]``.
        """
        states = states or []
        states = states + [{} for _ in self.decoder.order[len(states) :]]
        positions = step.num_cached_tokens[:, None] + torch.arange(token_ids.shape[1])
        embed = self.target_embedding or self.embedding
        x = embed(self.embedding.look_up(token_ids), positions, None)
        return DecoderOutput(*self.decoder(x, step, states, logit_positions))

    def logits(self, hidden: Tensor) -> Tensor:
        """A language model's head: ``[..., size]`` to ``[..., vocabulary]``."""
        logits: Tensor = self.head(hidden, self.embedding.tokens.weight)
        return logits


def parameter_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter of a model with this configuration."""
    with torch.device("meta"):
        model = Transformer(config)
    return {name: tuple(weight.shape) for name, weight in model.state_dict().items()}


def from_weights(
    config: ModelConfig, weights: dict[str, Tensor], kernels: ModelKernels = EAGER
) -> Transformer:
    """A model for inference. It holds ``weights`` themselves, not a copy."""
    model = Transformer(config, kernels)
    model.load_state_dict(weights, assign=True)
    return model.eval().requires_grad_(requires_grad=False)
