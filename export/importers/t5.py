"""T5 (Raffel et al. 2020), T5 v1.1, Flan-T5, mT5 and umT5: text to text.

umT5 (Chung et al. 2023) has a relative bias per layer, the others one per stack.
"""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import torch

from export.checkpoint import Checkpoint
from export.importers.causal import OUTPUT_MATRIX
from export.importers.renaming import Rename, linear
from export.importers.seq2seq import seq2seq_checkpoint, token_table
from export.importers.support import no_experts
from export.importers.t5_encoder import HEADS, import_t5_encoder
from export.importers.t5_heads import REREADING_HEADS, import_t5_rereader
from export.importers.t5_tables import (
    TOKENS,
    UNUSED,
    decoder_stack,
    encoder_stack,
    positions,
    stack_table,
)
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported, lookup
from model.bundle import Task
from model.config import (
    EmbeddingConfig,
    ExpertsConfig,
    HeadConfig,
    HeadKind,
    Kind,
    ModelConfig,
    StackConfig,
)
from model.mixers import required

# By class: whether the input of a tied output matrix is scaled.
ARCHITECTURES = {
    "T5ForConditionalGeneration": True,
    "MT5ForConditionalGeneration": False,
    "UMT5ForConditionalGeneration": True,
}


@dataclass(frozen=True, kw_only=True)
class T5Variant:
    """The differences between T5 and a family with the same names.

    Attributes:
        may_scale: whether the input of a tied output matrix is scaled.
        feed_forward: the checkpoint's name of feed-forwards.
        experts: the experts of a layer, from the configuration, the stack's name and the
            layer's index.
    """

    architecture: str
    may_scale: bool
    feed_forward: str = "DenseReluDense"
    experts: Callable[[Fields, str, int], ExpertsConfig | None] = no_experts


def import_t5(folder: HuggingFaceFolder) -> Checkpoint:
    """The T5 in ``folder``, its encoder, or its class with a head, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    architecture = next(iter(config.texts("architectures")), "T5ForConditionalGeneration")
    if architecture in HEADS:
        return import_t5_encoder(folder)
    if architecture in REREADING_HEADS:
        return import_t5_rereader(folder)
    supported = {**ARCHITECTURES, **dict.fromkeys((*HEADS, *REREADING_HEADS), False)}
    may_scale = lookup(supported, architecture, f"{config.origin}: architectures")
    return import_variant(folder, T5Variant(architecture=architecture, may_scale=may_scale))


def import_variant(folder: HuggingFaceFolder, variant: T5Variant) -> Checkpoint:
    """The model of ``variant`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    check_supported(config, is_causal=(True,))
    tokens = token_table(folder.weights, TOKENS)
    tied = _is_tied(folder, tokens)
    model = _config(config, variant, tied=tied)
    # If the configuration ties the output matrix, the model divides its input by the square root of
    # the hidden size (code of section 3.1.1). Here, the final norm's weight absorbs that.
    scaled = config.flag("scale_decoder_outputs", config.flag("tie_word_embeddings", True))
    scale = model.hidden_size**-0.5 if scaled and variant.may_scale else 1.0
    table = [
        Rename("embedding.tokens.weight", (tokens,)),
        *stack_table("encoder", model.encoder, variant.feed_forward),
        *stack_table("decoder", model.decoder, variant.feed_forward),
        Rename("encoder.final_norm.weight", ("encoder.final_layer_norm.weight",)),
        Rename(
            "decoder.final_norm.weight",
            ("decoder.final_layer_norm.weight",),
            lambda weight: weight * scale,
        ),
    ]
    copies = dict.fromkeys({*TOKENS} - {tokens}, "embedding.tokens.weight")
    if tied:
        copies[OUTPUT_MATRIX] = "embedding.tokens.weight"
    else:
        table += linear("head.output", OUTPUT_MATRIX.removesuffix(".weight"), bias=False)
    tasks = (Task.GENERATE, Task.TRANSLATE)
    return seq2seq_checkpoint(
        folder, model, variant.architecture, table, tasks, ignored=(UNUSED,), copies=copies
    )


def _is_tied(folder: HuggingFaceFolder, tokens: str) -> bool:
    """Whether the output matrix equals the token table; configurations are not reliable."""
    weights = folder.weights
    if OUTPUT_MATRIX not in weights or tokens not in weights:
        return True
    return torch.equal(weights[OUTPUT_MATRIX], weights[tokens])


def _config(config: Fields, variant: T5Variant, *, tied: bool) -> ModelConfig:
    encoder = encoder_stack(config)
    decoder = decoder_stack(config, encoder)
    return ModelConfig(
        kind=Kind.ENCODER_DECODER,
        vocabulary_size=config.positive("vocab_size"),
        hidden_size=config.positive("d_model"),
        position=positions(config),
        embedding=EmbeddingConfig(),
        encoder=_with_experts(encoder, config, "encoder", variant),
        decoder=_with_experts(decoder, config, "decoder", variant),
        head=HeadConfig(kind=HeadKind.LANGUAGE_MODEL, tied=tied),
    )


def _with_experts(stack: StackConfig, config: Fields, side: str, variant: T5Variant) -> StackConfig:
    layers = []
    for index, layer in enumerate(stack.layers):
        experts = variant.experts(config, side, index)
        changed = msgspec.structs.replace(required(layer.feed_forward), experts=experts)
        layers.append(msgspec.structs.replace(layer, feed_forward=changed))
    return msgspec.structs.replace(stack, layers=tuple(layers))
