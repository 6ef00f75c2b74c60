"""Gemma, Gemma 2 and Gemma 3 (Gemma Team 2024 and 2025), the text models.

Their norms multiply by ``1 + w``; embeddings are scaled by the square root of the hidden size.
VaultGemma (Google 2025) is Gemma 2 without the norms after sub-layers.
"""

import msgspec

from export.checkpoint import Checkpoint
from export.importers.activations import activation
from export.importers.causal import architecture_of, causal_checkpoint
from export.importers.gated_decoder import HUGGING_FACE, TARGET, DecoderSizes, Names, gated_table
from export.importers.layer_types import FULL, SLIDING, layer_types
from export.importers.renaming import add_one
from export.importers.rotary import rotary
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported
from model.config import Activation, AttentionConfig, ModelConfig, NormOrder
from model.position_config import RotaryConfig

_SOURCE = "model.layers.{n}"
SANDWICH: Names = {
    **HUGGING_FACE,
    f"{TARGET}.mixer_norm.before": (f"{_SOURCE}.input_layernorm",),
    f"{TARGET}.mixer_norm.after": (f"{_SOURCE}.post_attention_layernorm",),
    f"{TARGET}.feed_forward_norm.before": (f"{_SOURCE}.pre_feedforward_layernorm",),
    f"{TARGET}.feed_forward_norm.after": (f"{_SOURCE}.post_feedforward_layernorm",),
}

PRE: Names = {
    **HUGGING_FACE,
    f"{TARGET}.feed_forward_norm": (f"{_SOURCE}.pre_feedforward_layernorm",),
}


def import_gemma(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``GemmaForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    architecture = architecture_of(config, "GemmaForCausalLM")
    check_supported(config, use_bidirectional_attention=(False,))
    shape = DecoderSizes.of(config, tied=True, head_size=256)
    positions = rotary(config, shape.head_size)
    # In older configurations, "gelu" means the tanh approximation.
    kinds = {"gelu": Activation.GELU_TANH}
    name = config.text("hidden_act", "gelu_pytorch_tanh")
    layer = shape.layer(
        _attention(config, shape, rotary=positions.config),
        activation=kinds.get(name) or activation(config, "hidden_act", name),
    )
    model = shape.model(
        (layer,) * shape.num_layers,
        positions.max_positions,
        embedding_scale=shape.hidden_size**0.5,
    )
    table = gated_table(model, norm=add_one)
    return causal_checkpoint(folder, model, architecture, table)


def import_gemma2(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``Gemma2ForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    return _import_gemma2(folder, "Gemma2ForCausalLM", SANDWICH, NormOrder.SANDWICH)


def import_vaultgemma(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``VaultGemmaForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    return _import_gemma2(folder, "VaultGemmaForCausalLM", PRE, NormOrder.PRE)


def _import_gemma2(
    folder: HuggingFaceFolder, supported: str, names: Names, norm_order: NormOrder
) -> Checkpoint:
    config = folder.config
    architecture = architecture_of(config, supported)
    check_supported(config, use_bidirectional_attention=(False,))
    shape = DecoderSizes.of(config, tied=True, head_size=256)
    positions = rotary(config, shape.head_size)
    attention = _scaled_attention(config, shape, rotary=positions.config)
    attention = msgspec.structs.replace(
        attention, soft_cap=config.optional_number("attn_logit_softcapping", absent=50.0)
    )
    model = _model(
        config,
        shape,
        layer_types(config, shape.num_layers, lambda index: index % 2 == 0),
        {FULL: attention, SLIDING: _windowed(config, attention)},
        positions.max_positions,
        config.optional_number("final_logit_softcapping", absent=30.0),
        norm_order,
    )
    table = gated_table(model, names, norm=add_one)
    return causal_checkpoint(folder, model, architecture, table)


def import_gemma3(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``Gemma3ForCausalLM`` or EmbeddingGemma in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    architecture = architecture_of(config, "Gemma3ForCausalLM")
    check_supported(config, attn_logit_softcapping=(None,))
    shape = DecoderSizes.of(config, tied=True, head_size=256)
    far = rotary(config, shape.head_size, default_base=1_000_000.0, layer_type=FULL)
    near = RotaryConfig(base=config.number("rope_local_base_freq", 10_000.0))
    if SLIDING in config.fields("rope_parameters"):
        unscaled = Fields({**config, "rope_scaling": None}, config.origin)
        near = rotary(unscaled, shape.head_size, layer_type=SLIDING).config
    attention = msgspec.structs.replace(
        _scaled_attention(config, shape, rotary=far.config), head_norm=shape.norm
    )
    pattern = config.positive("sliding_window_pattern", 6)
    window = config.positive("sliding_window", 4096)
    # EmbeddingGemma (Gemma Team 2025): the window is on both sides of a token.
    is_bidirectional = config.flag("use_bidirectional_attention", False)
    if is_bidirectional:
        window = window // 2 + 1
    model = _model(
        config,
        shape,
        layer_types(config, shape.num_layers, lambda index: (index + 1) % pattern != 0),
        {
            FULL: attention,
            SLIDING: msgspec.structs.replace(attention, rotary=near, window=window),
        },
        far.max_positions,
        config.optional_number("final_logit_softcapping"),
    )
    table = gated_table(model, SANDWICH, norm=add_one)
    return causal_checkpoint(folder, model, architecture, table, is_causal=not is_bidirectional)


def _attention(config: Fields, shape: DecoderSizes, *, rotary: RotaryConfig) -> AttentionConfig:
    bias = config.flag("attention_bias", False)
    return shape.attention(input_bias=bias, output_bias=bias, rotary=rotary)


def _scaled_attention(
    config: Fields, shape: DecoderSizes, *, rotary: RotaryConfig
) -> AttentionConfig:
    scale = config.positive("query_pre_attn_scalar", 256) ** -0.5
    return msgspec.structs.replace(_attention(config, shape, rotary=rotary), scale=scale)


def _windowed(config: Fields, attention: AttentionConfig) -> AttentionConfig:
    return msgspec.structs.replace(attention, window=config.positive("sliding_window", 4096))


def _model(
    config: Fields,
    shape: DecoderSizes,
    types: tuple[str, ...],
    attentions: dict[str, AttentionConfig],
    max_positions: int,
    soft_cap: float | None,
    norm_order: NormOrder = NormOrder.SANDWICH,
) -> ModelConfig:
    layers = {
        type_: shape.layer(
            attention,
            activation=activation(config, "hidden_activation", "gelu_pytorch_tanh"),
            norm_order=norm_order,
        )
        for type_, attention in attentions.items()
    }
    return shape.model(
        tuple(layers[type_] for type_ in types),
        max_positions,
        embedding_scale=shape.hidden_size**0.5,
        soft_cap=soft_cap,
    )
