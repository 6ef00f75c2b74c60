"""An encoder's head twice: as one padded batch in ONNX Runtime, row by row in the eager module."""

from dataclasses import dataclass

import numpy as np
import torch

from export.decoding import lengths_of, padded
from export.runtime import Array, Floats, Session
from model.config import HeadKind, ModelConfig
from model.transformer import Transformer


@dataclass(frozen=True)
class EncoderWork:
    """Rows of token ids; ``segments`` are theirs, if the model has segments."""

    rows: list[list[int]]
    segments: list[list[int]] | None

    @classmethod
    def of(cls, config: ModelConfig, rows: list[list[int]]) -> "EncoderWork":
        """``rows``, each in as many equal pieces as there are segments."""
        num_segments = config.embedding.num_segments
        segments = [[i * num_segments // len(row) for i in range(len(row))] for row in rows]
        return cls(rows, segments if num_segments else None)


def encode_eagerly(model: Transformer, work: EncoderWork) -> list[list[Floats]]:
    """Each row's outputs, in the order of the graph's: no padding takes part.

    A model that fills masks is asked for every token.
    """
    results = []
    for index, row in enumerate(work.rows):
        ids, lengths = torch.tensor([row]), torch.tensor([len(row)], dtype=torch.int32)
        segments = None if work.segments is None else torch.tensor([work.segments[index]])
        hidden = model.encode(ids, lengths, segments)
        kind = model.config.head.kind
        if kind == HeadKind.LANGUAGE_MODEL:
            outputs = [model.logits(hidden)]
        elif kind == HeadKind.EMBEDDING:
            outputs = [model.pool(hidden, lengths), hidden]
        else:
            outputs = [model.pool(hidden, lengths)]
        results.append([output[0].numpy() for output in outputs])
    return results


def encode_in_graph(session: Session, work: EncoderWork) -> list[list[Floats]]:
    """The same of the graph, without what it gives for padding."""
    inputs: dict[str, Array] = {"token_ids": padded(work.rows), "lengths": lengths_of(work.rows)}
    if work.segments is not None:
        inputs["segment_ids"] = padded(work.segments)
    num_rows, longest = inputs["token_ids"].shape
    fills_masks = any(spec.name == "logit_positions" for spec in session.graph.inputs)
    if fills_masks:  # every token, padding too
        inputs["logit_positions"] = np.arange(num_rows * longest)
    outputs = list(session.run(**inputs).values())
    if fills_masks:
        outputs = [output.reshape(num_rows, longest, -1) for output in outputs]
    return [
        [output[row, : len(ids)] if output.ndim > 2 else output[row] for output in outputs]
        for row, ids in enumerate(work.rows)
    ]
