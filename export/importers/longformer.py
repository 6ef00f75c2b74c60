"""Longformer (Beltagy et al. 2020), as ``transformers`` saves it: RoBERTa with a window.

In ``transformers``, the caller chooses global tokens. Here the first token of each text is
global, as in its classifier. Its question answering makes all tokens of the question global: that
class is not supported.
"""

import msgspec

from export.checkpoint import Checkpoint
from export.errors import SourceError, UnsupportedError
from export.importers.bert_tables import (
    UNUSED,
    LayerNames,
    embeddings,
    learned_positions,
    normed_embedding,
    num_layers,
    post_norm_layer,
)
from export.importers.encoders import Body, assemble
from export.importers.head_tables import FAIRSEQ_CLASSIFIER, FAIRSEQ_MASKED, five_classes
from export.importers.renaming import linear, per_layer
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from model.config import LayerConfig, StackConfig
from model.mixers import required

NUM_GLOBAL_TOKENS = 1
PAD = 1
_TARGET = "encoder.layers.{n}.mixer.global_tokens"
_SELF = "encoder.layer.{n}.attention.self"
GLOBAL_TOKENS = (
    *linear(f"{_TARGET}.query", f"{_SELF}.query_global", bias=True),
    *linear(f"{_TARGET}.key_value", f"{_SELF}.key_global", f"{_SELF}.value_global", bias=True),
)


def import_longformer(folder: HuggingFaceFolder) -> Checkpoint:
    """The model in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    first = config.integer("pad_token_id", PAD) + 1
    layers = _layers(config)
    body = Body(
        base="longformer",
        hidden_size=config.positive("hidden_size"),
        position=learned_positions(config, first=first),
        embedding=normed_embedding(config),
        encoder=StackConfig(layers=layers),
        table=(
            *embeddings(config, first_position=first),
            *per_layer((*LayerNames().table(), *GLOBAL_TOKENS), len(layers)),
        ),
        ignored=UNUSED,
    )
    return assemble(folder, body, HEADS, "LongformerModel")


def _layers(config: Fields) -> tuple[LayerConfig, ...]:
    """Each layer has its own window, half of it on each side of a token."""
    layer, number = post_norm_layer(config), num_layers(config)
    sizes = config.integers("attention_window") or (512,)
    if len(sizes) == 1:
        sizes *= number
    if len(sizes) != number:
        raise SourceError(f"{config.origin}: {len(sizes)} attention_window for {number} layers")
    if any(size % 2 or size == 0 for size in sizes):
        raise UnsupportedError(f"{config.origin}: attention_window {sizes} is not even")
    attention = msgspec.structs.replace(
        required(layer.attention), num_global_tokens=NUM_GLOBAL_TOKENS
    )
    return tuple(
        msgspec.structs.replace(
            layer, attention=msgspec.structs.replace(attention, window=size // 2 + 1)
        )
        for size in sizes
    )


HEADS = {
    name: reader
    for name, reader in five_classes(
        "Longformer", classifier=FAIRSEQ_CLASSIFIER, masked=FAIRSEQ_MASKED
    ).items()
    if name != "LongformerForQuestionAnswering"
}
