"""DeBERTa v2 and v3 (He et al. 2020 and 2021), as ``transformers`` saves them.

BERT with disentangled attention. The keys and queries of relative positions are products of one
table and each layer's matrices: constants, which are computed here.
"""

from collections.abc import Iterable

import msgspec
from torch import Tensor
from torch.nn import functional

from export.checkpoint import Checkpoint
from export.errors import SourceError, UnsupportedError
from export.importers.activations import activation
from export.importers.bert_tables import (
    EMBEDDING_NORM,
    POSITIONS,
    SEGMENTS,
    TOKENS,
    UNUSED,
    LayerNames,
    layer_norm,
    num_layers,
    post_norm_layer,
)
from export.importers.encoders import Body, assemble
from export.importers.head_tables import bert_masked, classifier, five_classes, masked
from export.importers.heads import Head
from export.importers.renaming import Rename, Transform, per_layer
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported, lookup
from model.config import Activation, EmbeddingConfig, LayerConfig, StackConfig
from model.mixers import required
from model.position_config import (
    DisentangledConfig,
    DisentangledTerm,
    DistanceKind,
    PositionConfig,
    PositionKind,
)

_SELF = "encoder.layer.{n}.attention.self"
NAMES = LayerNames(
    query=f"{_SELF}.query_proj", key=f"{_SELF}.key_proj", value=f"{_SELF}.value_proj"
)
TERMS = {
    "c2p": DisentangledTerm.CONTENT_TO_POSITION,
    "p2c": DisentangledTerm.POSITION_TO_CONTENT,
}
# The matrix that projects the table for a term: the content's matrix, or one for positions.
SHARED = {"c2p": f"{_SELF}.key_proj", "p2c": f"{_SELF}.query_proj"}
OWN = {"c2p": f"{_SELF}.pos_key_proj", "p2c": f"{_SELF}.pos_query_proj"}
DISTANCES = "encoder.rel_embeddings.weight"
DISTANCE_NORM = ("encoder.LayerNorm.weight", "encoder.LayerNorm.bias")


def import_deberta(folder: HuggingFaceFolder) -> Checkpoint:
    """The model in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    table = (*NAMES.table(), *_distance_tables(folder.config))
    return assemble(folder, deberta_body(folder.config, table), HEADS, "DebertaV2Model")


def deberta_body(config: Fields, layer_table: Iterable[Rename]) -> Body:
    """The body of a DeBERTa whose layers have the weights of ``layer_table``.

    Raises:
        SourceError, UnsupportedError: see :mod:`export.errors`.
    """
    hidden_size = config.positive("hidden_size")
    check_supported(
        config,
        conv_kernel_size=(0,),
        embedding_size=(hidden_size,),
        attention_head_size=(hidden_size // config.positive("num_attention_heads"),),
        norm_rel_ebd=("none", "layer_norm"),
        talking_head=(False,),
    )
    layers = (_layer(config),) * num_layers(config)
    num_segments = config.integer("type_vocab_size", 0)
    is_added = config.flag("position_biased_input", True)
    return Body(
        base="deberta",
        hidden_size=hidden_size,
        position=PositionConfig(
            kind=PositionKind.LEARNED if is_added else PositionKind.NONE,
            max_positions=config.positive("max_position_embeddings", 512),
        ),
        embedding=EmbeddingConfig(norm=layer_norm(config), num_segments=num_segments),
        encoder=StackConfig(layers=layers),
        table=(
            *(TOKENS, *EMBEDDING_NORM),
            *((POSITIONS,) if is_added else ()),
            *((SEGMENTS,) if num_segments else ()),
            *per_layer(layer_table, len(layers)),
        ),
        ignored=(*UNUSED, *POSITIONS.sources, DISTANCES, *DISTANCE_NORM),
        allows_unattended=False,
    )


def terms_of(config: Fields) -> list[str]:
    """The names in ``pos_att_type``, a list or a text separated by ``|``."""
    value = config.get("pos_att_type")
    names = value.lower().split("|") if isinstance(value, str) else config.texts("pos_att_type")
    return [name.strip() for name in names if name.strip()]


def _layer(config: Fields) -> LayerConfig:
    layer = post_norm_layer(config)
    attention, terms = required(layer.attention), terms_of(config)
    # He et al. 2020, equation 4: the scale depends on the number of terms.
    scale = (attention.head_size * (1 + len(terms))) ** -0.5
    attention = msgspec.structs.replace(attention, scale=scale, disentangled=distances_of(config))
    return msgspec.structs.replace(layer, attention=attention)


def distances_of(config: Fields) -> DisentangledConfig | None:
    """The relative positions of all layers, if there are any.

    Raises:
        UnsupportedError: an unknown term, or too few or too many buckets.
    """
    terms = tuple(
        lookup(TERMS, name, f"{config.origin}: pos_att_type") for name in terms_of(config)
    )
    if not config.flag("relative_attention", False) or not terms:
        return None
    num_buckets, furthest = _whole(config, "position_buckets"), _furthest(config)
    if num_buckets < 1:
        return DisentangledConfig(
            kind=DistanceKind.CLIPPED, span=furthest, max_distance=furthest, terms=terms
        )
    if not 4 <= num_buckets < 2 * (furthest - 1):
        raise UnsupportedError(
            f"{config.origin}: position_buckets {num_buckets} for distances up to {furthest}"
        )
    return DisentangledConfig(
        kind=DistanceKind.LOGARITHMIC, span=num_buckets, max_distance=furthest, terms=terms
    )


def _furthest(config: Fields) -> int:
    given = _whole(config, "max_relative_positions")
    return given if given >= 1 else config.positive("max_position_embeddings", 512)


def _whole(config: Fields, name: str) -> int:
    """An integer field; -1 means None."""
    value = config.get(name)
    return -1 if value in (None, -1) else config.integer(name)


def _distance_tables(config: Fields) -> list[Rename]:
    """A layer's projections of the table of relative positions."""
    distances = distances_of(config)
    if distances is None:
        return []
    matrices = SHARED if config.flag("share_att_key", False) else OWN
    norms = DISTANCE_NORM if config.text("norm_rel_ebd", "none") == "layer_norm" else ()
    transform = projected(2 * distances.span, layer_norm(config).epsilon)
    return [
        Rename(
            f"encoder.layers.{{n}}.mixer.content_bias.{TERMS[name]}",
            (DISTANCES, f"{matrices[name]}.weight", f"{matrices[name]}.bias", *norms),
            transform,
        )
        for name in terms_of(config)
    ]


def projected(num_rows: int, epsilon: float) -> Transform:
    """A transform: keys or queries of ``num_rows`` distances from a table and a layer's matrix."""

    def project(
        table: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        norm_weight: Tensor | None = None,
        norm_bias: Tensor | None = None,
    ) -> Tensor:
        if len(table) < num_rows:
            raise SourceError(f"{DISTANCES}: {len(table)} rows, not {num_rows}")
        rows = table[:num_rows]
        if norm_weight is not None:
            rows = functional.layer_norm(rows, rows.shape[1:], norm_weight, norm_bias, epsilon)
        return functional.linear(rows, weight, bias)

    return project


def masked_head(folder: HuggingFaceFolder) -> Head:
    """Older files use BERT's names, newer ones DeBERTa's."""
    if folder.config.flag("legacy", True):
        return bert_masked()(folder)
    start = "lm_predictions.lm_head"
    check_supported(folder.config, tie_word_embeddings=(True,))
    read = masked(f"{start}.dense", f"{start}.LayerNorm", f"{start}.decoder", f"{start}.bias")
    return read(folder)


def pooler_act(config: Fields) -> Activation:
    """The activation of the classifier's dense layer."""
    check_supported(config, pooler_hidden_size=(config.positive("hidden_size"),))
    return activation(config, "pooler_hidden_act", "gelu")


HEADS = five_classes(
    "DebertaV2", classifier=classifier("pooler.dense", pooler_act), masked=masked_head
)
