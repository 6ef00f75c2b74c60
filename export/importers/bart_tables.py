"""BART's layers (Lewis et al. 2019) and their weights, as ``transformers`` names them.

Marian, mBART, PEGASUS and M2M-100 use the same names, with other norms and positions: each is a
:class:`BartVariant`. NLLB-MoE uses other names, and has experts.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor

from export.checkpoint import Checkpoint
from export.importers.activations import activation
from export.importers.bart_layers import BART_NAMES, BartLayerNames, layer_table
from export.importers.causal import OUTPUT_MATRIX, architecture_of
from export.importers.renaming import Rename, affine
from export.importers.seq2seq import seq2seq_checkpoint, token_table
from export.importers.support import (
    MAX_LAYERS,
    MAX_TABLE_POSITIONS,
    check_table_size,
    divide_heads,
    no_experts,
)
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported
from model.bundle import Task
from model.config import (
    AttentionConfig,
    EmbeddingConfig,
    ExpertsConfig,
    FeedForwardConfig,
    HeadConfig,
    HeadKind,
    Kind,
    LayerConfig,
    ModelConfig,
    NormConfig,
    NormKind,
    NormOrder,
    StackConfig,
)
from model.position_config import PositionConfig, PositionKind
from model.positions import SINUSOIDS as SINUSOID_FORMULAS

NORM = NormConfig(kind=NormKind.LAYER, epsilon=1e-5)
TOKENS = (
    "model.shared.weight",
    "model.encoder.embed_tokens.weight",
    "model.decoder.embed_tokens.weight",
    OUTPUT_MATRIX,
)
SIDES = ("encoder", "decoder")
# Older versions of transformers saved the version number.
VERSIONS = tuple(f"model.{side}.version" for side in SIDES)
# Some checkpoints have saved sinusoids.
SINUSOIDS = tuple(
    f"model.{side}.embed_positions.{name}" for side in SIDES for name in ("weight", "weights")
)
LOGITS_BIAS = "final_logits_bias"


@dataclass(frozen=True, kw_only=True)
class BartVariant:
    """The differences between BART and a family with the same names.

    Attributes:
        activation: default if config.json names none.
        scales_embedding: default if config.json does not say.
        first_position: position of the first token, given the padding's id.
        num_unused_positions: of a learned table; fairseq reserves its first rows for padding.
        norms_target_tokens: as in :class:`EmbeddingConfig`.
        language: regular expression for language tokens.
        experts: the experts of a layer, from the configuration, the stack's name and the
            layer's index.
    """

    architecture: str
    tasks: tuple[Task, ...]
    order: NormOrder
    positions: PositionKind
    activation: str = "gelu"
    scales_embedding: bool = False
    first_position: Callable[[int], int] = lambda _: 0
    num_unused_positions: int = 2
    embedding_norm: bool = False
    norms_target_tokens: bool = False
    final_norm: bool = False
    logits_bias: bool = True
    language: str | None = None
    names: BartLayerNames = BART_NAMES
    experts: Callable[[Fields, str, int], ExpertsConfig | None] = no_experts


def import_variant(folder: HuggingFaceFolder, variant: BartVariant) -> Checkpoint:
    """The model of ``variant`` in ``folder``, ready for a bundle.

    Padding is suppressed: no target contains it, and M2M-100 gives it no position.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    return import_model(folder, variant, model_config(folder.config, variant))


def import_model(
    folder: HuggingFaceFolder,
    variant: BartVariant,
    model: ModelConfig,
    extra: Sequence[Rename] = (),
    own_name: Callable[[str], str] = str,
) -> Checkpoint:
    """As :func:`import_variant`, with a ``model`` that differs from :func:`model_config`.

    Args:
        extra: the weights that BART does not have.
        own_name: maps BART's name of a weight to that of the checkpoint.
    """
    config = folder.config
    check_supported(config, tie_word_embeddings=(True,), is_causal=(True,))
    architecture = architecture_of(config, variant.architecture)
    names = tuple(map(own_name, TOKENS))
    tokens = token_table(folder.weights, names)
    head = []
    if variant.logits_bias and LOGITS_BIAS in folder.weights:
        head = [Rename("head.output.bias", (LOGITS_BIAS,), lambda bias: bias.flatten())]
    elif variant.logits_bias:  # some versions do not save a bias of zeros
        head = [Rename("head.output.bias", (tokens,), lambda table: table[:, 0] * 0)]
    table = [
        Rename("embedding.tokens.weight", (tokens,)),
        *(entry.renamed(own_name) for entry in stacks_table(model, variant)),
        *extra,
        *head,
    ]
    checkpoint = seq2seq_checkpoint(
        folder,
        model,
        architecture,
        table,
        variant.tasks,
        ignored=tuple(map(own_name, VERSIONS)),
        copies=dict.fromkeys({*names} - {tokens}, "embedding.tokens.weight"),
        computed=_computed(model),
        language=variant.language,
    )
    special = checkpoint.special_tokens
    suppressed = tuple(sorted({*special.suppressed, special.pad}))
    special = msgspec.structs.replace(special, suppressed=suppressed)
    return dataclasses.replace(checkpoint, special_tokens=special)


def _computed(model: ModelConfig) -> dict[str, Tensor]:
    """The position tables that the model computes, by the names of saved ones."""
    formula = SINUSOID_FORMULAS.get(model.position.kind)
    if formula is None:
        return {}
    first = model.position.first
    num_rows = first + model.position.max_positions
    check_table_size(num_rows, model.hidden_size)
    table = formula(num_rows, model.hidden_size)
    table[:first] = torch.nan
    return dict.fromkeys(SINUSOIDS, table)


def model_config(config: Fields, variant: BartVariant) -> ModelConfig:
    """The model of ``variant`` that ``config`` describes."""
    hidden_size = config.positive("d_model", 1024)
    is_scaled = config.flag("scale_embedding", variant.scales_embedding)
    final_norm = NORM if variant.final_norm else None
    encoder = _layer(config, variant, "encoder", hidden_size)
    decoder = _layer(config, variant, "decoder", hidden_size, cross=True)
    return ModelConfig(
        kind=Kind.ENCODER_DECODER,
        vocabulary_size=config.positive("vocab_size"),
        hidden_size=hidden_size,
        position=PositionConfig(
            kind=variant.positions,
            max_positions=config.positive(
                "max_position_embeddings", 1024, maximum=MAX_TABLE_POSITIONS
            ),
            first=variant.first_position(config.integer("pad_token_id", 1)),
        ),
        embedding=EmbeddingConfig(
            scale=hidden_size**0.5 if is_scaled else 1.0,
            norm=NORM if variant.embedding_norm else None,
            separate_target=variant.positions == PositionKind.LEARNED,
            norms_target_tokens=variant.norms_target_tokens,
        ),
        encoder=StackConfig(layers=encoder, final_norm=final_norm),
        decoder=StackConfig(layers=decoder, final_norm=final_norm),
        head=HeadConfig(kind=HeadKind.LANGUAGE_MODEL, tied=True, bias=variant.logits_bias),
    )


def _layer(
    config: Fields, variant: BartVariant, side: str, hidden_size: int, *, cross: bool = False
) -> tuple[LayerConfig, ...]:
    """The layers of the stack ``side``.

    Raises:
        SourceError: inconsistent sizes.
    """
    num_heads = config.positive(f"{side}_attention_heads", 16)
    attention = AttentionConfig(
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_size=divide_heads(config.origin, hidden_size, num_heads),
        input_bias=True,
        output_bias=True,
    )
    feed_forward = FeedForwardConfig(
        inner_size=config.positive(f"{side}_ffn_dim", 4096),
        activation=activation(config, "activation_function", variant.activation),
        gated=False,
        bias=True,
    )
    layer = LayerConfig(
        attention=attention,
        cross_attention=attention if cross else None,
        feed_forward=feed_forward,
        norm=NORM,
        norm_order=variant.order,
    )
    layers = []
    for index in range(config.positive(f"{side}_layers", 12, maximum=MAX_LAYERS)):
        experts = variant.experts(config, side, index)
        changed = msgspec.structs.replace(feed_forward, experts=experts)
        layers.append(msgspec.structs.replace(layer, feed_forward=changed))
    return tuple(layers)


def stacks_table(model: ModelConfig, variant: BartVariant) -> list[Rename]:
    """Every weight except those of the token table and the head."""
    table: list[Rename] = []
    for side, stack, embedding in (
        ("encoder", model.encoder, "embedding"),
        ("decoder", model.decoder, "target_embedding"),
    ):
        if stack is None:
            continue
        for index, layer in enumerate(stack.layers):
            table += [entry.at(index) for entry in layer_table(side, layer, variant.names)]
        if model.position.kind == PositionKind.LEARNED:
            source = f"model.{side}.embed_positions.weight"
            table.append(
                Rename(
                    f"{embedding}.positions.weight",
                    (source,),
                    lambda table: table[variant.num_unused_positions :],
                )
            )
        if model.embedding.norm is not None:
            table += affine(f"{embedding}.norm", f"model.{side}.layernorm_embedding")
        if stack.final_norm is not None:
            table += affine(f"{side}.final_norm", f"model.{side}.layer_norm")
    return table
