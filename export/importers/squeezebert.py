"""SqueezeBERT (Iandola et al. 2020): BERT whose linear maps are split into groups.

A group of outputs reads only its group of inputs. Here, the maps are whole matrices with zeros
between the groups.
"""

from dataclasses import replace

import torch
from msgspec import structs
from torch import Tensor

from export.checkpoint import Checkpoint
from export.importers.bert_tables import BertVariant, LayerNames, bert_body
from export.importers.encoders import assemble
from export.importers.head_tables import always, bert_masked, classifier, five_classes
from export.importers.heads import HeadReader
from export.importers.renaming import Rename
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported
from model.config import Activation, LayerConfig

_LAYER = "encoder.layers.{n}"
SQUEEZEBERT = BertVariant(
    base="transformer",
    names=LayerNames(
        query=f"{_LAYER}.attention.query",
        key=f"{_LAYER}.attention.key",
        value=f"{_LAYER}.attention.value",
        attention_output=f"{_LAYER}.post_attention.conv1d",
        attention_norm=f"{_LAYER}.post_attention.layernorm",
        feed_forward_input=f"{_LAYER}.intermediate.conv1d",
        feed_forward_output=f"{_LAYER}.output.conv1d",
        feed_forward_norm=f"{_LAYER}.output.layernorm",
    ),
)


def import_squeezebert(folder: HuggingFaceFolder) -> Checkpoint:
    """The model in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    hidden_size = config.positive("hidden_size")
    check_supported(config, embedding_size=(hidden_size,))
    body = bert_body(config, SQUEEZEBERT)
    inner_size = config.positive("intermediate_size")

    def ungrouped(entry: Rename) -> Rename:
        is_last = entry.target.endswith("feed_forward.output.weight")
        size = inner_size if is_last else hidden_size
        return replace(
            entry,
            transform=lambda *weights: entry.transform(*(_whole(x, size) for x in weights)),
        )

    body = replace(
        body,
        encoder=structs.replace(
            body.encoder, layers=tuple(map(_with_own_norm, body.encoder.layers))
        ),
        table=tuple(map(ungrouped, body.table)),
    )
    return assemble(folder, body, HEADS, "SqueezeBertModel")


def _with_own_norm(layer: LayerConfig) -> LayerConfig:
    """transformers uses the configuration's epsilon only in the embeddings and the heads."""
    return structs.replace(layer, norm=structs.replace(layer.norm, epsilon=1e-12))


def _whole(weight: Tensor, inputs: int) -> Tensor:
    """A map ``[outputs, inputs / groups, 1]`` as ``[outputs, inputs]``; biases unchanged."""
    if weight.ndim != 3:
        return weight
    groups = weight[:, :, 0].chunk(inputs // weight.shape[1])
    whole: Tensor = torch.block_diag(*groups)  # type: ignore[no-untyped-call]
    return whole


HEADS: dict[str, HeadReader] = five_classes(
    "SqueezeBert",
    classifier=classifier("transformer.pooler.dense", always(Activation.TANH)),
    masked=bert_masked(),
)
