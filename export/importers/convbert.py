"""ConvBERT (Jiang et al. 2020), as ``transformers`` saves it.

ELECTRA with half of the heads, and a span-based dynamic convolution beside them.
"""

from dataclasses import replace

import msgspec
import torch
from torch import Tensor

from export.checkpoint import Checkpoint
from export.errors import SourceError, UnsupportedError
from export.importers.bert_tables import LayerNames, post_norm_layer
from export.importers.electra import body_of
from export.importers.encoders import assemble
from export.importers.head_tables import always, classifier, five_classes, hidden_act, masked
from export.importers.renaming import Rename, linear
from export.importers.support import divide_heads
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from model.config import Activation, AttentionConfig
from model.fused import HEAD_MULTIPLE

_SOURCE, _TARGET = "encoder.layer.{n}.attention.self", "encoder.layers.{n}.mixer.convolution"
_SPAN = f"{_SOURCE}.key_conv_attn_layer"
CONVOLUTION = (
    Rename(
        f"{_TARGET}.depthwise_weight",
        (f"{_SPAN}.depthwise.weight",),  # [hidden, 1, size]
        lambda weight: weight[:, 0].T,
    ),
    Rename(
        f"{_TARGET}.span.weight",
        (f"{_SPAN}.pointwise.weight",),  # [inner, hidden, 1]
        lambda weight: weight[:, :, 0].T,
    ),
    Rename(f"{_TARGET}.span.bias", (f"{_SPAN}.bias",), torch.flatten),
    *linear(f"{_TARGET}.kernel", f"{_SOURCE}.conv_kernel_layer", bias=True),
    *linear(f"{_TARGET}.value", f"{_SOURCE}.conv_out_layer", bias=True),
)
GROUPED = tuple(f"encoder.layers.{{n}}.feed_forward.{name}.weight" for name in ("input", "output"))


def import_convbert(folder: HuggingFaceFolder) -> Checkpoint:
    """The model in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    layer = msgspec.structs.replace(post_norm_layer(config), attention=_attention(config))
    body = body_of(config, "convbert", layer, _layer_table(config))
    body = replace(body, allows_unattended=False)  # the convolution reads all tokens
    return assemble(folder, body, HEADS, "ConvBertModel")


def _attention(config: Fields) -> AttentionConfig:
    hidden_size = config.positive("hidden_size")
    ratio = config.positive("head_ratio", 2)
    num_heads = max(config.positive("num_attention_heads") // ratio, 1)
    head_size = divide_heads(config.origin, hidden_size, 2 * num_heads)
    if head_size % HEAD_MULTIPLE:
        raise UnsupportedError(
            f"{config.origin}: heads of {head_size} dimensions are not supported beside a "
            f"convolution; supported: multiples of {HEAD_MULTIPLE}"
        )
    size = config.positive("conv_kernel_size", 9)
    if size % 2 == 0:
        raise SourceError(f"{config.origin}: conv_kernel_size is {size}, which is even")
    return AttentionConfig(
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_size=head_size,
        input_bias=True,
        output_bias=True,
        convolution_size=size,
    )


def _layer_table(config: Fields) -> list[Rename]:
    table = LayerNames().table()
    if config.positive("num_groups", 1) > 1:
        table = tuple(
            replace(entry, transform=_block_diagonal) if entry.target in GROUPED else entry
            for entry in table
        )
    return [*table, *CONVOLUTION]


def _block_diagonal(weight: Tensor) -> Tensor:
    """``[groups, inputs, outputs]`` to one matrix ``[groups * inputs, groups * outputs]``."""
    whole: Tensor = torch.block_diag(*weight)  # type: ignore[no-untyped-call]
    return whole


HEADS = five_classes(
    "ConvBert",
    classifier=classifier("classifier.dense", hidden_act, "classifier.out_proj"),
    masked=masked(
        "generator_predictions.dense",
        "generator_predictions.LayerNorm",
        "generator_lm_head",
        "generator_lm_head.bias",
        always(Activation.GELU),
    ),
)
