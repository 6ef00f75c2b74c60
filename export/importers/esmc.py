"""ESM Cambrian (ESM Team 2024, https://www.evolutionaryscale.ai/blog/esm-cambrian).

Encoders of protein sequences, as ``transformers`` saves them: EuroBERT's layers with layer norms,
norms of all queries and all keys of a token, and sub-layers that are divided by a constant.
"""

import dataclasses
import math

import msgspec

from export.checkpoint import Checkpoint
from export.importers.activations import activation
from export.importers.encoders import Body, assemble
from export.importers.esm import with_proteins
from export.importers.gated_decoder import DecoderSizes
from export.importers.head_tables import FAIRSEQ_CLASSIFIER
from export.importers.heads import (
    Head,
    HeadReader,
    NamedDense,
    masked_language_model,
    token_classifier,
)
from export.importers.renaming import Rename, affine, linear, per_layer, scaled
from export.importers.rotary import rotary
from export.importers.sentence_transformers import embedder
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported
from model.config import (
    Activation,
    DenseConfig,
    EmbeddingConfig,
    HeadNormScope,
    LayerConfig,
    NormConfig,
    NormKind,
    StackConfig,
)
from model.position_config import PositionConfig, PositionKind

NORM = NormConfig(kind=NormKind.LAYER, epsilon=1e-5)
NORM_WITHOUT_BIAS = msgspec.structs.replace(NORM, bias=False)
# The depth of a model whose sub-layers are not divided.
UNSCALED_LAYERS = 36
_TARGET, _SOURCE = "encoder.layers.{n}", "layers.{n}"


def import_esmc(folder: HuggingFaceFolder) -> Checkpoint:
    """The model in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    check_supported(config, num_key_value_heads=(config.positive("num_attention_heads"),))
    config = Fields({**config, "tie_word_embeddings": False}, config.origin)
    folder = dataclasses.replace(folder, config=config)
    sizes = DecoderSizes.of(config)
    positions = rotary(config, sizes.head_size)
    has_bias = config.flag("attention_bias", False)
    attention = sizes.attention(
        input_bias=has_bias,
        output_bias=has_bias,
        rotary=positions.config,
        head_norm=NORM_WITHOUT_BIAS,
        head_norm_scope=HeadNormScope.ALL_HEADS,
    )
    layer = sizes.layer(
        attention,
        activation=activation(config, "hidden_act", "silu"),
        bias=config.flag("mlp_bias", False),
    )
    layer = msgspec.structs.replace(layer, norm=NORM)
    body = Body(
        base="esmc",
        hidden_size=sizes.hidden_size,
        position=PositionConfig(kind=PositionKind.NONE, max_positions=positions.max_positions),
        embedding=EmbeddingConfig(),
        encoder=StackConfig(layers=(layer,) * sizes.num_layers, final_norm=NORM_WITHOUT_BIAS),
        table=(
            Rename("embedding.tokens.weight", ("embed_tokens.weight",)),
            Rename("encoder.final_norm.weight", ("norm.weight",)),
            *per_layer(_layer_table(layer, sizes.num_layers), sizes.num_layers),
        ),
    )
    return with_proteins(folder, assemble(folder, body, HEADS, "EsmcModel"))


def _layer_table(layer: LayerConfig, num_layers: int) -> list[Rename]:
    attention = layer.attention is not None and layer.attention.input_bias
    feed_forward = layer.feed_forward is not None and layer.feed_forward.bias
    rows = scaled(1 / math.sqrt(num_layers / UNSCALED_LAYERS))
    projections = (f"{_SOURCE}.self_attn.{letter}_proj" for letter in "qkv")
    inner = (f"{_SOURCE}.mlp.gate_proj", f"{_SOURCE}.mlp.up_proj")
    output, down = f"{_SOURCE}.self_attn.o_proj", f"{_SOURCE}.mlp.down_proj"
    return [
        *affine(f"{_TARGET}.mixer_norm", f"{_SOURCE}.input_layernorm"),
        *linear(f"{_TARGET}.mixer.qkv", *projections, bias=attention),
        Rename(f"{_TARGET}.mixer.query_norm.weight", (f"{_SOURCE}.self_attn.q_norm.weight",)),
        Rename(f"{_TARGET}.mixer.key_norm.weight", (f"{_SOURCE}.self_attn.k_norm.weight",)),
        *linear(f"{_TARGET}.mixer.output", output, bias=attention, rows=rows),
        *affine(f"{_TARGET}.feed_forward_norm", f"{_SOURCE}.post_attention_layernorm"),
        *linear(f"{_TARGET}.feed_forward.input", *inner, bias=feed_forward),
        *linear(f"{_TARGET}.feed_forward.output", down, bias=feed_forward, rows=rows),
    ]


def _masked(folder: HuggingFaceFolder) -> Head:
    dense = DenseConfig(
        size=folder.config.positive("hidden_size"), activation=Activation.GELU, norm=NORM
    )
    named = NamedDense(linear="lm_head.dense", norm="lm_head.layer_norm", config=dense)
    return masked_language_model(
        folder, named, decoder="lm_head.decoder", bias="lm_head.decoder.bias"
    )


HEADS: dict[str, HeadReader] = {
    "EsmcModel": embedder,
    "EsmcForSequenceClassification": FAIRSEQ_CLASSIFIER,
    "EsmcForTokenClassification": lambda folder: token_classifier(folder, output="score"),
    "EsmcForMaskedLM": _masked,
}
