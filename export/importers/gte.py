"""GTE (Zhang et al. 2024, mGTE), as ``transformers`` saves it or as Alibaba published it ("new").

BERT with rotary positions and gated feed-forwards. The published folders extend the context by
scaling the rotary base, for which ``transformers`` has no name.
"""

import dataclasses

from export.checkpoint import Checkpoint
from export.errors import SourceError, UnsupportedError
from export.importers.encoders import assemble
from export.importers.head_tables import always, classifier, four_classes, masked
from export.importers.heads import Head, HeadReader
from export.importers.rotary_bert import (
    RotaryBertFamily,
    RotaryBertNames,
    rotary_body,
    second_half_first,
)
from export.importers.support import divide_heads
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported
from model.config import Activation

_LAYER = "encoder.layer.{n}"
FAMILY = RotaryBertFamily(
    base="gte",
    names=RotaryBertNames(
        embedding_norm="embeddings.LayerNorm",
        qkv=(f"{_LAYER}.attention.qkv_proj",),
        attention_output=f"{_LAYER}.attention.o_proj",
        attention_norm=f"{_LAYER}.attn_ln",
        feed_forward_input=(f"{_LAYER}.mlp.up_gate_proj",),
        input_rows=second_half_first,
        feed_forward_output=f"{_LAYER}.mlp.down_proj",
        feed_forward_norm=f"{_LAYER}.mlp_ln",
    ),
    attention_bias=True,
    input_bias=False,
    output_bias=True,
    act="gelu",
    epsilon=1e-12,
    theta=160_000.0,
    num_segments=1,
)
PUBLISHED = dataclasses.replace(FAMILY, base="new")
# The published embedding models also have the token weights of their sparse vectors.
TOKEN_WEIGHTS = ("classifier.weight", "classifier.bias")


def import_gte(folder: HuggingFaceFolder) -> Checkpoint:
    """The model in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    check_supported(
        config,
        layer_norm_type=("layer_norm",),
        logn_attention_scale=(False,),
        pack_qkv=(True,),
        position_embedding_type=("rope",),
    )
    config = _with_scaled_base(config)
    folder = dataclasses.replace(folder, config=config)
    is_published = any(name.startswith("new.") for name in folder.weights)
    body = rotary_body(config, folder.weights, PUBLISHED if is_published else FAMILY)
    body = dataclasses.replace(body, ignored_heads=TOKEN_WEIGHTS)
    heads = {**_heads("Gte", body.base), **_heads("New", body.base)}
    return assemble(folder, body, heads, "GteModel")


def _with_scaled_base(config: Fields) -> Fields:
    """Frequencies ``(factor * base) ** (-2 i / size) / factor ** (2 / size)``, as a linear scaling.

    Su 2023, https://kexue.fm/archives/9706, equation 6, as in Alibaba's code.

    Raises:
        SourceError: the factor is not positive.
        UnsupportedError: it is the paper's mixed scaling.
    """
    scaling = config.fields("rope_scaling")
    if scaling.text("type", scaling.text("rope_type", "")) != "ntk":
        return config
    if scaling.get("mixed_b") is not None:
        raise UnsupportedError(f"{scaling.origin}: mixed_b is not supported")
    factor = scaling.number("factor")
    if factor <= 0:
        raise SourceError(f"{scaling.origin}: factor is {factor}")
    size = divide_heads(
        config.origin, config.positive("hidden_size"), config.positive("num_attention_heads")
    )
    linear = {
        "rope_type": "linear",
        "rope_theta": factor * config.number("rope_theta", 10_000.0),
        "factor": factor ** (2 / size),
    }
    return Fields({**config, "rope_scaling": linear}, config.origin)


def _heads(name: str, base: str) -> dict[str, HeadReader]:
    return four_classes(
        name,
        classifier=classifier(f"{base}.pooler.dense", always(Activation.TANH)),
        masked=_masked,
    )


def _masked(folder: HuggingFaceFolder) -> Head:
    is_native = "lm_head.layer_norm.weight" in folder.weights
    read = masked(
        "lm_head.dense",
        "lm_head.layer_norm" if is_native else "lm_head.norm",
        "lm_head.decoder",
        "lm_head.decoder.bias",
        always(Activation.GELU),
    )
    return read(folder)
