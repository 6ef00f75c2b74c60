"""Computes the attention weights of prompts and sources, with separate graphs."""

from collections.abc import Iterator

import numpy as np

from model.bundle import AttentionKind
from server.constraint import Floats
from server.engine.cache.slot_tensors import SlotTensors
from server.engine.decoding.options import AttentionSelection
from server.engine.encoder_attention import EncoderAttention
from server.engine.requests.sequence import DecodingSequence
from server.engine.run_inputs import ChunkLimits, RunInputs, encoder_inputs
from server.engine.watchdog import Progress
from server.runtime.contract import Graph


class AttentionRunner:
    """Runs a model's graphs with attention weights. For one thread.

    Args:
        attend: the decoder's loaded ``attend`` graph; None if the bundle has none.
        encoder: runs the encoder's ``attend_encode`` graph; None if the bundle has none.
        cache: the tensors of the slots.
        inputs: builds the inputs of each run.
        limits: how many tokens one run of the decoder may process.
        progress: receives each run that begins, for the watchdog.
        has_adapters: see :class:`RunInputs`.
    """

    def __init__(
        self,
        attend: Graph | None,
        encoder: EncoderAttention | None,
        cache: SlotTensors,
        inputs: RunInputs,
        limits: ChunkLimits,
        progress: Progress,
        *,
        has_adapters: bool = False,
    ) -> None:
        self._has_adapters = has_adapters
        self._attend, self._encoder = attend, encoder
        self._cache, self._inputs, self._limits = cache, inputs, limits
        self._progress = progress

    def of_source(self, sequence: DecodingSequence, selection: AttentionSelection) -> Floats:
        """Returns the encoder's attention weights ``[source, layers, heads, source]``."""
        if self._encoder is None:
            raise ValueError("this model has no graph with its encoder's attention weights")
        self._progress.begin(sequence.num_source_tokens)
        inputs = encoder_inputs([sequence.job], has_adapters=self._has_adapters)
        weights, _ = self._encoder.run(inputs, selection)
        return weights

    def of_prompt(
        self, sequence: DecodingSequence, slot: int, size: int, selection: AttentionSelection
    ) -> Iterator[Floats]:
        """Runs the decoder over the next ``size`` tokens of a sequence.

        Yields:
            The attention weights of each selected token: ``[layers, heads, source]``, or
            ``[1, 1, source]`` for the mean. The source of self-attention is the whole prompt;
            tokens after the attending one have weight 0.
        """
        if self._attend is None:
            raise ValueError("this model has no graph with attention weights")
        self._cache.before_change()
        bound = self._attend.bind(self._cache.rows(slot, 1), {selection.kind})
        is_cross = selection.kind == AttentionKind.CROSS
        width = sequence.num_source_tokens if is_cross else len(sequence.job.prompt)
        for chunk in self._limits.split_scored(sequence, size):
            self._progress.begin(chunk.size)
            outputs = bound.run(self._inputs.of([chunk]))
            attention = outputs[selection.kind][0]  # [layers, heads, n, capacity]
            selected = attention[np.ix_(selection.layers, selection.heads)]
            if selection.average:
                selected = selected.mean((0, 1), keepdims=True)
            for index in range(max(selection.from_token - chunk.start, 0), chunk.size):
                weights = np.zeros((*selected.shape[:2], width), np.float32)
                num_seen = width if is_cross else chunk.start + index + 1
                weights[..., :num_seen] = selected[:, :, index, :num_seen]
                yield weights
