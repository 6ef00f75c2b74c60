"""EuroBERT (Boizard et al. 2025), as ``transformers`` saves it: Llama's layers in an encoder."""

import dataclasses

from export.checkpoint import Checkpoint
from export.importers.activations import activation
from export.importers.encoders import Body, assemble
from export.importers.gated_decoder import DecoderSizes
from export.importers.heads import (
    Head,
    HeadReader,
    NamedDense,
    masked_language_model,
    sequence_classifier,
    token_classifier,
)
from export.importers.renaming import Rename, linear, per_layer
from export.importers.rotary import rotary
from export.importers.sentence_transformers import embedder
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import lookup
from model.config import (
    Activation,
    DenseConfig,
    EmbeddingConfig,
    LayerConfig,
    PoolingKind,
    StackConfig,
)
from model.position_config import PositionConfig, PositionKind

_TARGET, _SOURCE = "encoder.layers.{n}", "layers.{n}"


def import_eurobert(folder: HuggingFaceFolder) -> Checkpoint:
    """The model in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = Fields({"tie_word_embeddings": False, **folder.config}, folder.config.origin)
    folder = dataclasses.replace(folder, config=config)
    sizes = DecoderSizes.of(config, epsilon=1e-5)
    positions = rotary(config, sizes.head_size)
    has_bias = config.flag("attention_bias", False)
    layer = sizes.layer(
        sizes.attention(input_bias=has_bias, output_bias=has_bias, rotary=positions.config),
        activation=activation(config, "hidden_act", "silu"),
        bias=config.flag("mlp_bias", False),
    )
    body = Body(
        base="model",
        hidden_size=sizes.hidden_size,
        position=PositionConfig(kind=PositionKind.NONE, max_positions=positions.max_positions),
        embedding=EmbeddingConfig(),
        encoder=StackConfig(layers=(layer,) * sizes.num_layers, final_norm=sizes.norm),
        table=(
            Rename("embedding.tokens.weight", ("embed_tokens.weight",)),
            Rename("encoder.final_norm.weight", ("norm.weight",)),
            *per_layer(_layer_table(layer), sizes.num_layers),
        ),
    )
    return assemble(folder, body, HEADS, "EuroBertModel")


def _layer_table(layer: LayerConfig) -> list[Rename]:
    attention = layer.attention is not None and layer.attention.input_bias
    feed_forward = layer.feed_forward is not None and layer.feed_forward.bias
    projections = (f"{_SOURCE}.self_attn.{letter}_proj" for letter in "qkv")
    inner = (f"{_SOURCE}.mlp.gate_proj", f"{_SOURCE}.mlp.up_proj")
    return [
        *linear(f"{_TARGET}.mixer.qkv", *projections, bias=attention),
        *linear(f"{_TARGET}.mixer.output", f"{_SOURCE}.self_attn.o_proj", bias=attention),
        *linear(f"{_TARGET}.feed_forward.input", *inner, bias=feed_forward),
        *linear(f"{_TARGET}.feed_forward.output", f"{_SOURCE}.mlp.down_proj", bias=feed_forward),
        Rename(f"{_TARGET}.mixer_norm.weight", (f"{_SOURCE}.input_layernorm.weight",)),
        Rename(
            f"{_TARGET}.feed_forward_norm.weight", (f"{_SOURCE}.post_attention_layernorm.weight",)
        ),
    ]


# "late": of the tokens' logits, which are linear in the pooled vectors.
POOLINGS = {"bos": PoolingKind.CLS, "mean": PoolingKind.MEAN, "late": PoolingKind.MEAN}


def _sequence_classifier(folder: HuggingFaceFolder) -> Head:
    config = folder.config
    # The first folders have another name for the field.
    name = config.text("classifier_pooling", config.text("clf_pooling", "late"))
    dense = DenseConfig(size=config.positive("hidden_size"), activation=Activation.GELU)
    return sequence_classifier(
        folder,
        NamedDense(linear="dense", config=dense),
        pooling=lookup(POOLINGS, name, f"{config.origin}: classifier_pooling"),
        pools_last=name == "late",
    )


def _masked(folder: HuggingFaceFolder) -> Head:
    bias = "lm_head.bias" if folder.config.flag("mlp_bias", False) else None
    return masked_language_model(folder, decoder="lm_head", bias=bias)


HEADS: dict[str, HeadReader] = {
    "EuroBertModel": embedder,
    "EuroBertForSequenceClassification": _sequence_classifier,
    "EuroBertForTokenClassification": token_classifier,
    "EuroBertForMaskedLM": _masked,
}
