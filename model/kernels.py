"""The interface between the model and the implementations of attention and experts.

:mod:`model.eager` implements it in plain tensor operations (training, tests, parity);
:mod:`model.fused` emits ONNX Runtime's operators during export. Both take the same tensors and
parameters, so one can be checked against the other.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from model.config import AttentionConfig, ExpertsConfig, FeedForwardConfig
from model.position_config import SignalTarget
from model.recurrent_cells import CellWeights, RecurrentOutput
from model.recurrent_config import CellKind
from model.relative_positions import RelativeValues


class KeyValue(NamedTuple):
    """Keys and values of cached tokens or of a source.

    Each is ``[batch, kv_heads, capacity, head_size]``; only the valid prefix of a row is read.
    """

    key: Tensor
    value: Tensor


class RotaryTables(NamedTuple):
    """Cosines and sines, each ``[max_positions, head_size / 2]``."""

    cos: Tensor
    sin: Tensor


class AttentionSignal(NamedTuple):
    """``vectors [batch or 1, length, hidden]`` to add to the inputs of some projections."""

    vectors: Tensor
    targets: tuple[SignalTarget, ...]


class PositionEncodings(NamedTuple):
    """Position information of one attention; layers with the same configuration share it.

    ``total`` is the number of keys: ``length`` in an encoder, ``max_total_length`` in a decoder.

    Attributes:
        rotary: rotates queries and keys.
        bias: ``[batch or 1, heads, length, total]``, added to the scaled scores.
        distances: ``[batch or 1, length, total]``, key minus query, if the layer needs them.
        relative_values: added to the values.
        signal: added before queries, keys or values are projected; kernels do not read it.
        segments: ``[batch, length]``, each token's segment; kernels do not read it.
        num_global: ``[batch]``, number of each row's global tokens; None: the number in
            :class:`AttentionConfig`.
    """

    rotary: RotaryTables | None = None
    bias: Tensor | None = None
    distances: Tensor | None = None
    relative_values: RelativeValues | None = None
    signal: AttentionSignal | None = None
    segments: Tensor | None = None
    num_global: Tensor | None = None

    def limit_global(self, maximum: int) -> Tensor:
        """The number of each row's global tokens, ``[batch or 1]``, at most ``maximum``."""
        if self.num_global is None:
            return torch.tensor([maximum])
        return self.num_global.clamp(max=maximum)


class AttentionOutput(NamedTuple):
    """``context [batch, length, heads * head_size]``; keys and values after the step."""

    context: Tensor
    present: KeyValue


class ExpertWeights(NamedTuple):
    """``input [experts, width, hidden]`` and ``output [experts, hidden, inner]``, with biases."""

    input: Tensor
    input_bias: Tensor | None
    output: Tensor
    output_bias: Tensor | None


@dataclass(frozen=True)
class Step:
    """The token counts of one decoder step; all int32.

    Attributes:
        num_cached_tokens: ``[batch]``, tokens already in the cache.
        num_new_tokens: ``[batch]``, valid ids of each right-padded row.
        max_total_length: ``[]``, the largest sum of the two.
        source_lengths: ``[batch]``, lengths of the encoded sources, if there are any.
        max_source_length: ``[]``, the largest of them.
    """

    num_cached_tokens: Tensor
    num_new_tokens: Tensor
    max_total_length: Tensor
    source_lengths: Tensor | None = None
    max_source_length: Tensor | None = None

    @classmethod
    def whole(cls, lengths: Tensor, source_lengths: Tensor | None = None) -> "Step":
        """A step over whole right-padded sequences, with nothing cached."""
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
        """``[batch]``: the position of each row's last valid token."""
        return self.num_cached_tokens + self.num_new_tokens - 1

    @cached_property
    def last_source_positions(self) -> Tensor:
        """``[batch]``: the position of each source's last valid token."""
        lengths, _ = self.source()
        return lengths - 1

    def last_inputs(self, count: int, length: int) -> Tensor:
        """``[batch * count]``: flat positions of each row's last ``count`` valid tokens.

        Each row has ``length`` tokens: ``count`` cached ones, then the new ones.
        """
        first = torch.arange(self.num_new_tokens.shape[0], dtype=torch.int32) * length
        last = (first + self.num_new_tokens)[:, None] + torch.arange(count, dtype=torch.int32)
        return last.flatten()

    def source(self) -> tuple[Tensor, Tensor]:
        """``source_lengths`` and ``max_source_length``.

        Raises:
            ValueError: the step has no source.
        """
        if self.source_lengths is None or self.max_source_length is None:
            raise ValueError("cross-attention needs source_lengths and max_source_length")
        return self.source_lengths, self.max_source_length


class ModelKernels(Protocol):
    """The attentions of Vaswani et al. 2017, section 3.2.3, with grouped heads, and experts.

    ``qkv`` is ``[batch, length, (heads + 2 * kv_heads) * head_size]``: queries, keys, values.
    """

    def bidirectional(
        self,
        qkv: Tensor,
        config: AttentionConfig,
        positions: PositionEncodings,
        lengths: Tensor,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Every token attends to the first ``lengths [batch]`` tokens of its row.

        ``sinks [heads]``: scores that join each softmax and have no values.

        Returns:
            ``[batch, length, heads * head_size]``
        """

    def causal(
        self,
        qkv: Tensor,
        config: AttentionConfig,
        positions: PositionEncodings,
        past: KeyValue | None,
        step: Step,
        sinks: Tensor | None = None,
    ) -> AttentionOutput:
        """Every token attends to itself, to the tokens before it, and to cached tokens.

        ``present`` is ``past`` with the new tokens' keys and values written after the cached
        ones; without ``past`` it holds the new tokens alone. ``sinks``: as above.
        """

    def cross(
        self,
        query: Tensor,
        config: AttentionConfig,
        source: KeyValue,
        step: Step,
        bias: Tensor | None = None,
    ) -> AttentionOutput:
        """Every token of ``query [batch, length, heads * head_size]`` attends to its source.

        ``bias [batch, heads, length, max_source_length]`` is added to the scaled scores.
        """

    def experts(
        self,
        x: Tensor,
        scores: Tensor,
        weights: ExpertWeights,
        feed_forward: FeedForwardConfig,
        config: ExpertsConfig,
    ) -> Tensor:
        """Every token of ``x [batch, length, hidden]`` goes through its top-k experts.

        ``scores [batch, length, experts]`` are the router's logits. There is no capacity limit
        here, so a token's result does not depend on other tokens.
        """

    def recurrent(
        self, x: Tensor, lengths: Tensor, weights: CellWeights, kind: CellKind, *, reverse: bool
    ) -> RecurrentOutput:
        """Runs a cell over ``x [batch, length, inputs]``, right-padded to ``lengths [batch]``.

        See :func:`model.recurrent_cells.run_cell`.
        """
