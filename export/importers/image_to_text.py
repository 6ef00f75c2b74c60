"""Joins an image encoder and a text decoder to a model that writes texts about images."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from msgspec import structs

from export.checkpoint import Checkpoint
from export.importers import vit_tables
from export.importers.encoders import Body
from export.importers.renaming import Rename, prefixed
from export.importers.seq2seq import seq2seq_checkpoint
from export.importers.text_decoders import TextDecoder
from export.readers.hugging_face import HuggingFaceFolder
from export.readers.image_processor import ImageProcessor
from model.bundle import Task
from model.config import Kind, ModelConfig
from model.position_config import PositionKind


def image_to_text(
    folder: HuggingFaceFolder,
    architecture: str,
    encoder: Body,
    decoder: TextDecoder,
    processor: ImageProcessor,
    table: Sequence[Rename],
    *,
    prefixes: tuple[str, str],
) -> Checkpoint:
    """The model of both parts, ready for a bundle.

    Args:
        folder: the checkpoint's folder, with a configuration that has the special tokens.
        table: all weights, from :func:`encoder_table` and the decoder.
        prefixes: what the names of the encoder's and of the decoder's weights begin with.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    if encoder.patches is None:
        raise ValueError("an encoder of images has patches")
    model = ModelConfig(
        kind=Kind.ENCODER_DECODER,
        vocabulary_size=decoder.vocabulary_size,
        hidden_size=decoder.hidden_size,
        position=decoder.position,
        embedding=decoder.embedding,
        encoder=encoder.encoder,
        decoder=decoder.stack,
        patches=encoder.patches,
        head=decoder.head,
    )
    of_encoder, of_decoder = prefixes
    checkpoint = seq2seq_checkpoint(
        folder,
        model,
        architecture,
        table,
        (Task.GENERATE,),
        ignored=[
            *(of_encoder + name for name in encoder.ignored),
            *(of_decoder + name for name in decoder.ignored),
        ],
        copies={of_decoder + name: target for name, target in decoder.copies.items()},
    )
    image, special = vit_tables.preprocessing(encoder.patches, processor), checkpoint.special_tokens
    if decoder.position.kind != PositionKind.LEARNED:  # padding has no position
        suppressed = tuple(sorted({*special.suppressed, special.pad}))
        special = structs.replace(special, suppressed=suppressed)
    return replace(checkpoint, image=image, special_tokens=special, sample_inputs=())


def encoder_table(table: Iterable[Rename], prefix: str) -> list[Rename]:
    """An encoder's ``table`` with the names that its embedding has beside that of tokens."""
    return [
        replace(entry, target=entry.target.replace("embedding.", "images.", 1))
        for entry in prefixed(table, prefix)
    ]
