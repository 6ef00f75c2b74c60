"""ModernBERT (Warner et al. 2024), as ``transformers`` saves it.

Pre-norm layers with rotary positions and without biases. Every third layer has full attention, the
others a bidirectional window.
"""

import msgspec

from export.checkpoint import Checkpoint
from export.errors import SourceError
from export.importers.activations import activation
from export.importers.encoders import Body, assemble
from export.importers.heads import (
    Head,
    HeadReader,
    NamedDense,
    masked_language_model,
    question_answerer,
    sequence_classifier,
    token_classifier,
)
from export.importers.renaming import Rename, affine, linear, per_layer
from export.importers.sentence_transformers import embedder
from export.importers.support import MAX_LAYERS, divide_heads
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported, lookup
from model.config import (
    AttentionConfig,
    DenseConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    LayerConfig,
    NormConfig,
    NormKind,
    NormOrder,
    PoolingKind,
    StackConfig,
)
from model.position_config import PositionConfig, PositionKind, RotaryConfig

FULL, SLIDING = "full_attention", "sliding_attention"
# In older files: the field of the rotary base, and its default.
BASES = {FULL: ("global_rope_theta", 160_000.0), SLIDING: ("local_rope_theta", 10_000.0)}

NORMS = {"embedding.norm": "embeddings.norm", "encoder.final_norm": "final_norm"}
_TARGET = "encoder.layers.{n}"
MATRICES = {
    f"{_TARGET}.mixer.qkv": "layers.{n}.attn.Wqkv",
    f"{_TARGET}.mixer.output": "layers.{n}.attn.Wo",
    f"{_TARGET}.feed_forward.input": "layers.{n}.mlp.Wi",
    f"{_TARGET}.feed_forward.output": "layers.{n}.mlp.Wo",
}
LAYER_NORMS = {
    f"{_TARGET}.mixer_norm": "layers.{n}.attn_norm",
    f"{_TARGET}.feed_forward_norm": "layers.{n}.mlp_norm",
}


def import_modernbert(folder: HuggingFaceFolder) -> Checkpoint:
    """The model in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    norm = _norm(config)
    body = Body(
        base="model",
        hidden_size=config.positive("hidden_size"),
        position=PositionConfig(
            kind=PositionKind.NONE, max_positions=config.positive("max_position_embeddings", 8192)
        ),
        embedding=EmbeddingConfig(norm=norm),
        encoder=StackConfig(layers=_layers(config), final_norm=norm),
        table=_table(config),
    )
    return assemble(folder, body, HEADS, "ModernBertModel")


def _norm(config: Fields) -> NormConfig:
    return NormConfig(
        kind=NormKind.LAYER,
        epsilon=config.number("norm_eps", 1e-5),
        bias=config.flag("norm_bias", False),
    )


def _layers(config: Fields) -> tuple[LayerConfig, ...]:
    kinds = _kinds(config)
    attentions = {kind: _attention(config, kind) for kind in BASES}
    layers = [
        LayerConfig(
            attention=lookup(attentions, kind, f"{config.origin}: layer_types"),
            feed_forward=FeedForwardConfig(
                inner_size=config.positive("intermediate_size"),
                activation=activation(config, "hidden_activation", "gelu"),
                gated=True,
                bias=config.flag("mlp_bias", False),
            ),
            norm=_norm(config),
            norm_order=NormOrder.PRE,
        )
        for kind in kinds
    ]
    # The embeddings are already normalized.
    no_norm = NormConfig(kind=NormKind.NONE, epsilon=0.0)
    return (msgspec.structs.replace(layers[0], mixer_norm=no_norm), *layers[1:])


def _kinds(config: Fields) -> list[str]:
    """The attention type of each layer.

    Raises:
        SourceError: the number of types is not the number of layers.
    """
    number = config.positive("num_hidden_layers", maximum=MAX_LAYERS)
    period = config.positive("global_attn_every_n_layers", 3)
    default = [SLIDING if index % period else FULL for index in range(number)]
    kinds = config.texts("layer_types") or default
    if len(kinds) != number:
        raise SourceError(f"{config.origin}: {len(kinds)} layer_types for {number} layers")
    return kinds


def _attention(config: Fields, kind: str) -> AttentionConfig:
    hidden_size = config.positive("hidden_size")
    num_heads = config.positive("num_attention_heads")
    bias = config.flag("attention_bias", False)
    rotary = config.fields("rope_parameters").fields(kind)
    check_supported(rotary, rope_type=("default",))
    check_supported(config, rope_scaling=())
    name, default = BASES[kind]
    base = rotary.number("rope_theta", config.number(name, default))
    # Half of the window is on each side of a token.
    half = config.integer("local_attention", 128) // 2
    check_supported(config, sliding_window=(half,))
    window = half + 1
    return AttentionConfig(
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_size=divide_heads(config.origin, hidden_size, num_heads),
        input_bias=bias,
        output_bias=bias,
        rotary=RotaryConfig(base=base),
        window=window if kind == SLIDING else None,
    )


def _table(config: Fields) -> tuple[Rename, ...]:
    biases = {
        "mixer": config.flag("attention_bias", False),
        "feed_forward": config.flag("mlp_bias", False),
    }
    layer = [
        entry
        for target, source in MATRICES.items()
        for entry in linear(target, source, bias=biases[target.split(".")[-2]])
    ]
    norms = [entry for names in NORMS.items() for entry in affine(*names)]
    layer += [entry for names in LAYER_NORMS.items() for entry in affine(*names)]
    layers = per_layer(layer, config.positive("num_hidden_layers", maximum=MAX_LAYERS))
    first_norm = f"{_TARGET}.mixer_norm.".replace("{n}", "0")
    with_bias = config.flag("norm_bias", False)
    return (
        Rename("embedding.tokens.weight", ("embeddings.tok_embeddings.weight",)),
        *(
            entry
            for entry in (*norms, *layers)
            if not entry.target.startswith(first_norm)
            and (with_bias or not entry.target.endswith("norm.bias"))
        ),
    )


POOLINGS = {"cls": PoolingKind.CLS, "mean": PoolingKind.MEAN}


def _dense(folder: HuggingFaceFolder) -> NamedDense:
    """The dense layer before the output of every class."""
    config = folder.config
    dense = DenseConfig(
        size=config.positive("hidden_size"),
        activation=activation(config, "classifier_activation", "gelu"),
        bias=config.flag("classifier_bias", False),
        norm=_norm(config),
    )
    return NamedDense(linear="head.dense", norm="head.norm", config=dense)


def _sequence_classifier(folder: HuggingFaceFolder) -> Head:
    config = folder.config
    name = config.text("classifier_pooling", "cls")
    pooling = lookup(POOLINGS, name, f"{config.origin}: classifier_pooling")
    return sequence_classifier(folder, _dense(folder), pooling=pooling)


def _masked(folder: HuggingFaceFolder) -> Head:
    bias = "decoder.bias" if folder.config.flag("decoder_bias", True) else None
    return masked_language_model(folder, _dense(folder), decoder="decoder", bias=bias)


HEADS: dict[str, HeadReader] = {
    "ModernBertModel": embedder,
    "ModernBertForSequenceClassification": _sequence_classifier,
    "ModernBertForTokenClassification": lambda folder: token_classifier(folder, _dense(folder)),
    "ModernBertForQuestionAnswering": lambda folder: question_answerer(
        folder, _dense(folder), output="classifier"
    ),
    "ModernBertForMaskedLM": _masked,
}
