"""An encoder in two ways: as one padded batch in ONNX Runtime, row by row in the eager module."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from export.decoding import lengths_of, padded
from export.graph_modules import ponder_outputs
from export.runtime import Array, Floats, Session
from export.span_places import RowPlaces, eager_inputs, graph_inputs
from export.speech import SpeechWindow
from model.adaptive import record_ponder
from model.config import HeadKind, ModelConfig
from model.graph_spec import (
    ATTENDED_LENGTHS,
    NUM_SAMPLES,
    PIXELS,
    REMAINDERS,
    SAMPLES,
    SPARSE_WEIGHTS,
    UPDATES,
)
from model.images import Pixels
from model.layers import full_lengths
from model.transformer import Transformer
from model.waveform import Waveforms


@dataclass(frozen=True)
class EncoderInputs:
    """Rows of token ids, and their segment ids if the model has segments; images; both; speech.

    ``attended``: in a model with unattended tokens, number of each row's tokens that are attended
    to; None: all. ``places``: of words and labels, in a model that scores spans.
    """

    rows: list[list[int]]
    segments: list[list[int]] | None
    images: Sequence[Pixels] = ()
    attended: list[int] | None = None
    speech: Sequence[SpeechWindow] = ()
    places: list[RowPlaces] | None = None

    @classmethod
    def of(
        cls, config: ModelConfig, rows: list[list[int]], images: Sequence[Pixels] = ()
    ) -> "EncoderInputs":
        """``rows``, each divided into equal parts, one per segment of the model.

        ``images``: one per row, if the model reads both. In a model with unattended tokens, the
        second half of every other row is not attended to.
        """
        num_segments = config.num_segments
        segments = [[i * num_segments // len(row) for i in range(len(row))] for row in rows]
        attended = None
        if config.encoder is not None and config.encoder.has_unattended:
            attended = [
                len(row) if index % 2 else (len(row) + 1) // 2 for index, row in enumerate(rows)
            ]
        places = None
        if config.head.kind == HeadKind.SPAN_CLASSIFICATION:
            places = [RowPlaces.of_length(len(row)) for row in rows]
        return cls(rows, segments if num_segments else None, images, attended, places=places)

    def __len__(self) -> int:
        return len(self.rows) or len(self.images) or len(self.speech)

    def part(self, start: int, stop: int) -> "EncoderInputs":
        """The inputs from ``start`` to before ``stop``."""
        chosen = slice(start, stop)
        segments = None if self.segments is None else self.segments[chosen]
        attended = None if self.attended is None else self.attended[chosen]
        places = None if self.places is None else self.places[chosen]
        images, speech = self.images[chosen], self.speech[chosen]
        return EncoderInputs(self.rows[chosen], segments, images, attended, speech, places)

    def attended_lengths(self) -> NDArray[np.int32]:
        """Number of tokens that are attended to, ``[rows]``."""
        if self.attended is None:
            return lengths_of(self.rows)
        return np.array(self.attended, np.int32)


def encode_eagerly(model: Transformer, inputs: EncoderInputs) -> list[list[Floats]]:
    """Each row's outputs without padding, in the order of the graph's outputs.

    A masked language model returns the logits of every token. Adaptive computation time adds the
    numbers of updates and the remainders.
    """
    results = []
    for index in range(len(inputs)):
        part = inputs.part(index, index + 1)
        with record_ponder(model) as ponders:
            hidden = _hidden(model, part)
        if model.config.head.kind == HeadKind.LANGUAGE_MODEL:
            outputs = [model.logits(hidden)]
        elif part.places is not None:
            outputs = [model.score_spans(hidden, eager_inputs(part.places))]
        else:
            outputs = model.head_outputs(hidden, full_lengths(hidden))
        outputs += ponder_outputs(ponders)
        results.append([output[0].numpy() for output in outputs])
    return results


def _hidden(model: Transformer, inputs: EncoderInputs) -> torch.Tensor:
    """Hidden vectors of rows of equal length."""
    if inputs.speech:
        samples = torch.from_numpy(np.stack([window.samples for window in inputs.speech]))
        return model.encode_waveforms(Waveforms.whole(samples)).hidden
    pixels = torch.from_numpy(np.stack(inputs.images)) if inputs.images else None
    if pixels is not None and not inputs.rows:
        return model.encode_images(pixels)
    ids, lengths = torch.tensor(inputs.rows), torch.from_numpy(lengths_of(inputs.rows))
    segments = None if inputs.segments is None else torch.tensor(inputs.segments)
    if pixels is not None:
        return model.encode_pairs(ids, lengths, pixels, segments)
    return model.encode(ids, lengths, segments, torch.from_numpy(inputs.attended_lengths()))


def encode_in_graph(session: Session, inputs: EncoderInputs) -> list[list[Floats]]:
    """Each row's outputs of the graph, without those of padding."""
    if inputs.speech:
        return _encode_speech(session, inputs.speech)
    if not inputs.rows:
        results = session.run(pixels=np.stack(inputs.images)).values()
        return [[result[row] for result in results] for row in range(len(inputs))]
    feed: dict[str, Array] = {
        "token_ids": padded(inputs.rows),
        "lengths": lengths_of(inputs.rows),
    }
    if inputs.segments is not None:
        feed["segment_ids"] = padded(inputs.segments)
    if inputs.images:
        feed[PIXELS] = np.stack(inputs.images)
    if inputs.places is not None:
        feed |= graph_inputs(inputs.places)
    names = {spec.name for spec in session.graph.inputs}
    if ATTENDED_LENGTHS in names:
        feed[ATTENDED_LENGTHS] = inputs.attended_lengths()
    num_rows, longest = feed["token_ids"].shape
    fills_masks = "logit_positions" in names
    if fills_masks:  # for every token, padding included
        feed["logit_positions"] = np.arange(num_rows * longest)
    named = session.run(**feed)
    outputs = list(named.values())
    if inputs.places is not None:
        return [
            [outputs[0][row, : len(places.words), :, : len(places.labels)]]
            for row, places in enumerate(inputs.places)
        ]
    if fills_masks:
        outputs[0] = outputs[0].reshape(num_rows, longest, -1)
    has_length = [
        output.ndim > 2 or name in (SPARSE_WEIGHTS, UPDATES, REMAINDERS)
        for name, output in zip(named, outputs, strict=True)
    ]
    return [
        [
            output[row, : len(ids)] if is_long else output[row]
            for output, is_long in zip(outputs, has_length, strict=True)
        ]
        for row, ids in enumerate(inputs.rows)
    ]


def _encode_speech(session: Session, windows: Sequence[SpeechWindow]) -> list[list[Floats]]:
    """Each window's output, without the frames of padding if it is one of frames."""
    lengths = np.array([len(window.samples) for window in windows], np.int32)
    specs = {spec.name: spec for spec in session.graph.inputs}
    size = specs[SAMPLES].shape[1]
    longest = size if isinstance(size, int) else int(lengths.max())
    samples = np.zeros((len(windows), longest), np.int16)
    for row, window in zip(samples, windows, strict=True):
        row[: len(window.samples)] = window.samples
    feed: dict[str, Array] = {SAMPLES: samples}
    if NUM_SAMPLES in specs:
        feed[NUM_SAMPLES] = lengths
    (output,) = session.run(**feed).values()
    has_frames = output.ndim > 2
    return [
        [row[: len(window)] if has_frames else row]
        for row, window in zip(output, windows, strict=True)
    ]
