"""Token ids, images or speech on which exports measure activations."""

import math
from collections.abc import Sequence

from export.activations import Samples
from export.calibration_texts import calibration_texts
from export.checkpoint import Checkpoint
from export.fidelity.subject import Subject
from export.image_sources import ImageReader
from export.speech import CARDS, Source, SpeechReader, encoder_windows
from model.config import Kind
from model.images import Pixels

MAX_ROW_TOKENS = 96
NUM_IMAGES, MIN_IMAGES, IMAGE_SEED = 32, 4, 20211003
NUM_WINDOWS = 6  # windows of speech
NUM_IMAGE_SOURCES = 8  # images of an encoder-decoder
MAX_UNKNOWN_SHARE = 0.1  # share of a row's tokens: text in another alphabet would measure nothing


def calibration_samples(checkpoint: Checkpoint, max_tokens: float = math.inf) -> Samples:
    """:func:`calibration_rows`, images, rows with an image each, or windows of speech."""
    sources = calibration_sources(checkpoint)
    return sources or with_images(checkpoint, calibration_rows(checkpoint, max_tokens), max_tokens)


def calibration_sources(checkpoint: Checkpoint) -> Sequence[Source]:
    """Speech, or images as an encoder-decoder's sources, on which no bundle is measured.

    Empty for other models.
    """
    speech = SpeechReader.of(checkpoint)
    if speech is not None:
        return speech.windows(dict(reversed(CARDS.items())), NUM_WINDOWS)
    images = ImageReader.of(checkpoint, checkpoint.config.position.max_positions)
    if images is not None:
        return images.sources(calibration_texts("en"), NUM_IMAGE_SOURCES, IMAGE_SEED)
    return encoder_windows(checkpoint.audio, reversed(CARDS), NUM_WINDOWS)


def with_images(
    checkpoint: Checkpoint, rows: list[list[int]], max_tokens: float = math.inf
) -> Samples:
    """``rows``, each with an image if an encoder reads images; only images if there are no rows."""
    images = calibration_images(checkpoint, max_tokens)
    if checkpoint.config.kind == Kind.DECODER:
        return rows
    return list(zip(rows, images, strict=False)) if rows and images else rows or images


def calibration_images(checkpoint: Checkpoint, max_tokens: float = math.inf) -> list[Pixels]:
    """At most ``NUM_IMAGES`` images; none if the model reads none."""
    size = 1 if checkpoint.image is None else checkpoint.image.num_tokens
    count = int(min(NUM_IMAGES, max(MIN_IMAGES, max_tokens // size)))
    return checkpoint.images(count, IMAGE_SEED)


def calibration_rows(checkpoint: Checkpoint, max_tokens: float = math.inf) -> list[list[int]]:
    """Rows of at most ``MAX_ROW_TOKENS`` ids, from texts on which no bundle is measured.

    Empty if the model cannot read these texts, or reads images.

    Args:
        max_tokens: limit for all rows together, if there are several.
    """
    subject, unknown = Subject.of(checkpoint), checkpoint.special_tokens.unk
    rows: list[list[int]] = []
    if not checkpoint.config.reads_texts:
        return rows
    num_tokens = 0
    for text in calibration_texts(subject.source_language):
        row = subject.encode(text)[:MAX_ROW_TOKENS]
        num_unknown = sum(id_ == unknown for id_ in row)
        if not row or num_unknown > MAX_UNKNOWN_SHARE * len(row):
            continue
        num_tokens += len(row)
        if rows and num_tokens > max_tokens:
            break
        rows.append(row)
    return rows
