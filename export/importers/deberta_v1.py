"""DeBERTa, the first version (He et al. 2020), as ``transformers`` saves it.

It packs queries, keys and values head by head, and keys have no bias.
"""

import torch
from torch import Tensor

from export.checkpoint import Checkpoint
from export.importers.bert_tables import layer_norm
from export.importers.deberta import (
    DISTANCES,
    TERMS,
    deberta_body,
    distances_of,
    masked_head,
    pooler_act,
    projected,
    terms_of,
)
from export.importers.encoders import assemble
from export.importers.head_tables import classifier, five_classes
from export.importers.renaming import Rename, affine, linear, rows_by_kind, select_rows
from export.importers.support import divide_heads
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder

_TARGET = "encoder.layers.{n}"
_LAYER = "encoder.layer.{n}"
_SELF = f"{_LAYER}.attention.self"
# The weights that project the table for each term; only one of them has a bias.
PROJECTIONS = {
    "c2p": (f"{_SELF}.pos_proj.weight",),
    "p2c": (f"{_SELF}.pos_q_proj.weight", f"{_SELF}.pos_q_proj.bias"),
}


def import_deberta_v1(folder: HuggingFaceFolder) -> Checkpoint:
    """The model in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    body = deberta_body(folder.config, _layer_table(folder.config))
    return assemble(folder, body, HEADS, "DebertaModel")


def _layer_table(config: Fields) -> list[Rename]:
    num_heads = config.positive("num_attention_heads")
    head_size = divide_heads(config.origin, config.positive("hidden_size"), num_heads)
    rows = select_rows(rows_by_kind(num_heads, head_size))
    table = [
        *linear(f"{_TARGET}.mixer.qkv", f"{_SELF}.in_proj", bias=False, rows=rows),
        Rename(f"{_TARGET}.mixer.qkv.bias", (f"{_SELF}.q_bias", f"{_SELF}.v_bias"), _with_key_bias),
        *linear(f"{_TARGET}.mixer.output", f"{_LAYER}.attention.output.dense", bias=True),
        *affine(f"{_TARGET}.mixer_norm", f"{_LAYER}.attention.output.LayerNorm"),
        *linear(f"{_TARGET}.feed_forward.input", f"{_LAYER}.intermediate.dense", bias=True),
        *linear(f"{_TARGET}.feed_forward.output", f"{_LAYER}.output.dense", bias=True),
        *affine(f"{_TARGET}.feed_forward_norm", f"{_LAYER}.output.LayerNorm"),
    ]
    distances = distances_of(config)
    if distances is None:
        return table
    transform = projected(2 * distances.span, layer_norm(config).epsilon)
    return table + [
        Rename(
            f"{_TARGET}.mixer.content_bias.{TERMS[name]}",
            (DISTANCES, *PROJECTIONS[name]),
            transform,
        )
        for name in terms_of(config)
    ]


def _with_key_bias(query: Tensor, value: Tensor) -> Tensor:
    return torch.cat([query, torch.zeros_like(query), value])


HEADS = five_classes(
    "Deberta", classifier=classifier("pooler.dense", pooler_act), masked=masked_head
)
