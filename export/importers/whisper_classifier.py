"""Whisper's encoder as a classifier of recordings, as ``transformers`` saves it."""

from dataclasses import replace

from msgspec import structs

from export.checkpoint import Checkpoint
from export.importers.audio_heads import audio_classifier, sums_layers
from export.importers.encoders import Body, assemble
from export.importers.whisper_sizes import read_sizes
from export.importers.whisper_tables import (
    audio_spec,
    convolution_table,
    encoder_stack,
    stack_table,
)
from export.readers.hugging_face import HuggingFaceFolder
from model.config import EmbeddingConfig
from model.positions import sinusoids

CLASSIFIER = "WhisperForAudioClassification"


def import_classifier(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``WhisperForAudioClassification`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    sizes = read_sizes(folder)
    encoder = encoder_stack(sizes, folder.config.origin)
    body = Body(
        base="encoder",
        hidden_size=sizes.hidden_size,
        position=sizes.audio.position,
        embedding=EmbeddingConfig(),
        audio=sizes.audio,
        encoder=structs.replace(encoder, sums_layers=sums_layers(folder.config)),
        table=(
            *convolution_table("embedding", ""),
            *stack_table("encoder", "", encoder.layers),
        ),
        computed={
            "embed_positions.weight": sinusoids(sizes.audio.num_tokens, sizes.hidden_size),
        },
    )
    checkpoint = assemble(folder, body, {CLASSIFIER: audio_classifier}, CLASSIFIER)
    return replace(checkpoint, audio=audio_spec(sizes.audio), sample_inputs=())
