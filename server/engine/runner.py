"""Turns rows of sequences into graph inputs, and runs them over the cache."""

from collections.abc import Sequence as Rows
from dataclasses import dataclass

import numpy as np

from model.bundle import Graph as GraphSpec
from server.backend.base import Array, BoundGraph, Graph
from server.engine.cache import SlotCache
from server.engine.sequence import Floats, Sequence


@dataclass(frozen=True, slots=True)
class Capacity:
    """Of one model in one lane. Lengths in tokens."""

    num_slots: int
    max_length: int
    max_source_length: int


class Runner:
    """One model's graphs over one lane's slots.

    Args:
        spec: the manifest's ``decode`` graph.
        decode: the same, loaded.
        encode: the encoder of an encoder-decoder.
        capacity: of the cache.
    """

    def __init__(
        self, spec: GraphSpec, decode: Graph, encode: Graph | None, capacity: Capacity
    ) -> None:
        self.cache = SlotCache(
            spec.states, capacity.num_slots, capacity.max_length, capacity.max_source_length
        )
        self._decode = decode
        self._encode = None if encode is None else encode.bind({})
        self._bound: dict[tuple[int, int], BoundGraph] = {}

    def encode(self, rows: Rows[Sequence], slots: Rows[int]) -> None:
        """Runs the encoder over the sources and stores its memory in ``slots``."""
        if self._encode is None:
            raise ValueError("a decoder has nothing to encode")
        ids, lengths = pad([row.job.source for row in rows])
        memory = self._encode.run({"token_ids": ids, "lengths": lengths})
        for index, (row, slot) in enumerate(zip(rows, slots, strict=True)):
            self.cache.write_cross(slot, memory, index, row.num_source_tokens)

    def decode(
        self,
        rows: Rows[Sequence],
        first_slot: int,
        sizes: Rows[int],
        *,
        all_positions: bool = False,
    ) -> Floats:
        """Reads the next ``sizes[i]`` tokens of each row into its slot.

        Args:
            rows: in neighbouring slots.
            first_slot: the slot of ``rows[0]``.
            sizes: new tokens per row.
            all_positions: logits after every new token, not only after each row's last.

        Returns:
            Logits ``[rows, vocabulary]``, or ``[sum(sizes), vocabulary]`` for all
            positions; valid until the next run.
        """
        cached = [row.num_cached_tokens for row in rows]
        ids, num_new = pad(
            [
                row.tokens[start : start + size]
                for row, start, size in zip(rows, cached, sizes, strict=True)
            ]
        )
        num_cached = np.array(cached, np.int32)
        starts = np.arange(len(rows)) * ids.shape[1]
        positions = starts + num_new - 1
        if all_positions:
            positions = np.concatenate(
                [start + np.arange(size) for start, size in zip(starts, sizes, strict=True)]
            )
        inputs: dict[str, Array] = {
            "token_ids": ids,
            "logit_positions": positions.astype(np.int32),
            "num_cached_tokens": num_cached,
            "num_new_tokens": num_new,
            "max_total_length": np.array((num_cached + num_new).max(), np.int32),
        }
        if self._encode is not None:
            lengths = np.array([row.num_source_tokens for row in rows], np.int32)
            inputs["source_lengths"] = lengths
            inputs["max_source_length"] = np.array(lengths.max(), np.int32)
        key = (first_slot, len(rows))
        if key not in self._bound:
            self._bound[key] = self._decode.bind(self.cache.rows(*key))
        return self._bound[key].run(inputs)["logits"]


def pad(rows: Rows[Rows[int]]) -> tuple[Array, Array]:
    """Right-pads with id 0.

    Returns:
        ``[rows, longest]`` int64 and the lengths ``[rows]`` int32.
    """
    lengths = np.array([len(row) for row in rows], np.int32)
    ids = np.zeros((len(rows), int(lengths.max())), np.int64)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = row
    return ids, lengths
