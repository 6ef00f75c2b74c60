"""The one seam between the model and how attention and experts are computed.

:mod:`model.eager` computes it in plain tensor operations (training, tests, parity);
:mod:`model.fused` emits ONNX Runtime's operators during export. Both take the same
tensors and the same parameters, so that one can be checked against the other.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from model.config import AttentionConfig, ExpertsConfig, FeedForwardConfig


class KeyValue(NamedTuple):
    """Keys and values of earlier tokens or of a source: ``[batch, kv_heads, capacity, head_size]``.

    Only a row's valid prefix is ever read.
    """

    key: Tensor
    value: Tensor


class RotaryTables(NamedTuple):
    """``[max_positions, head_size / 2]`` each."""

    cos: Tensor
    sin: Tensor


class AttentionPositions(NamedTuple):
    """What an attention knows of positions, shared by all layers of a stack that know the same.

    ``bias [batch or 1, heads, length, total]`` is added to the scaled scores, where ``total``
    is the number of keys that any row may see: ``length`` in an encoder, ``max_total_length``
    in a decoder, whose rows differ where their caches do.
    """

    rotary: RotaryTables | None = None
    bias: Tensor | None = None


class Attended(NamedTuple):
    """``context [batch, length, heads * head_size]``, and the memory after it."""

    context: Tensor
    memory: KeyValue


class ExpertWeights(NamedTuple):
    """``input [experts, width, hidden]`` and ``output [experts, hidden, inner]``, with biases."""

    input: Tensor
    input_bias: Tensor | None
    output: Tensor
    output_bias: Tensor | None


@dataclass(frozen=True)
class Step:
    """Which tokens one decoder run holds; all int32.

    ``num_cached_tokens [batch]`` are in the cache already, ``num_new_tokens [batch]``
    are the valid ones of each right-padded row of ids, ``max_total_length []`` is the
    largest sum of the two. ``source_lengths [batch]`` and ``max_source_length []`` are
    those of the encoded source, if there is one.
    """

    num_cached_tokens: Tensor
    num_new_tokens: Tensor
    max_total_length: Tensor
    source_lengths: Tensor | None = None
    max_source_length: Tensor | None = None

    @classmethod
    def whole(cls, lengths: Tensor, source_lengths: Tensor | None = None) -> "Step":
        """Whole right-padded sequences, with nothing cached."""
        lengths = lengths.to(torch.int32)
        if source_lengths is not None:
            source_lengths = source_lengths.to(torch.int32)
        return cls(
            num_cached_tokens=torch.zeros_like(lengths),
            num_new_tokens=lengths,
            max_total_length=lengths.amax(),
            source_lengths=source_lengths,
            max_source_length=None if source_lengths is None else source_lengths.amax(),
        )

    @cached_property
    def last_positions(self) -> Tensor:
        """``[batch]``: where each row's last valid token stands."""
        return self.num_cached_tokens + self.num_new_tokens - 1

    @cached_property
    def last_source_positions(self) -> Tensor:
        """``[batch]``: the same of the source."""
        lengths, _ = self.source()
        return lengths - 1

    def source(self) -> tuple[Tensor, Tensor]:
        """``source_lengths`` and ``max_source_length`` of a run that has a source."""
        if self.source_lengths is None or self.max_source_length is None:
            raise ValueError("cross-attention needs source_lengths and max_source_length")
        return self.source_lengths, self.max_source_length


class AttentionKernels(Protocol):
    """Three attentions of Vaswani et al. 2017, section 3.2.3, with grouped heads.

    ``qkv`` is ``[batch, length, (heads + 2 * kv_heads) * head_size]``: queries, keys, values.
    """

    def bidirectional(
        self, qkv: Tensor, config: AttentionConfig, positions: AttentionPositions, lengths: Tensor
    ) -> Tensor:
        """Every token attends to its row's first ``lengths [batch]`` tokens.

        Returns:
            ``[batch, length, heads * head_size]``
        """

    def causal(
        self,
        qkv: Tensor,
        config: AttentionConfig,
        positions: AttentionPositions,
        past: KeyValue | None,
        step: Step,
    ) -> Attended:
        """Every token attends to itself, to those before it, and to the cached ones.

        The memory returned is ``past`` with the new tokens' keys and values written after
        the cached ones; without ``past`` it holds the new tokens alone.
        """

    def cross(
        self, query: Tensor, config: AttentionConfig, memory: KeyValue, step: Step
    ) -> Attended:
        """Every token ``[batch, length, heads * head_size]`` attends to its row's source."""

    def experts(
        self,
        x: Tensor,
        scores: Tensor,
        weights: ExpertWeights,
        feed_forward: FeedForwardConfig,
        config: ExpertsConfig,
    ) -> Tensor:
        """Every token ``[batch, length, hidden]`` passes the experts with its best ``scores``.

        ``scores [batch, length, experts]`` are logits. A token's result is its own: no expert
        is ever full.
        """
