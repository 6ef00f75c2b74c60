"""OLMo, OLMo 2, OLMo 3 and OLMoE (Groeneveld et al. 2024; Team OLMo 2024; Muennighoff et al. 2024).

OLMo's norms have no weights. OLMo 2 and 3 normalize the outputs of sub-layers, and queries and keys
over all heads; OLMo 3 has windows in most layers. OLMoE is a mixture of experts, and so is FlexOlmo
(Shi et al. 2025), with OLMo 2's norms.
"""

from typing import Any

from export.checkpoint import Checkpoint
from export.errors import UnsupportedError
from export.importers.causal import architecture_of, causal_checkpoint
from export.importers.gated_decoder import HUGGING_FACE, TARGET, DecoderSizes, Names, gated_table
from export.importers.layer_types import FULL, SLIDING, layer_types
from export.importers.norms import layer_norm
from export.importers.qwen import NAMES as EXPERTS
from export.importers.rotary import rotary
from export.importers.support import MAX_EXPERTS, clip_of
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported
from model.config import ExpertsConfig, HeadNormScope, NormOrder

_SOURCE = "model.layers.{n}"
WITHOUT_WEIGHTS: Names = {
    **HUGGING_FACE,
    "decoder.final_norm": (),
    f"{TARGET}.mixer_norm": (),
    f"{TARGET}.feed_forward_norm": (),
}
RES_POST: Names = {
    **HUGGING_FACE,
    f"{TARGET}.mixer_norm": (f"{_SOURCE}.post_attention_layernorm",),
    f"{TARGET}.feed_forward_norm": (f"{_SOURCE}.post_feedforward_layernorm",),
}
PATTERN = 4  # every fourth layer of OLMo 3 has full attention


def import_olmo(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``OlmoForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    architecture = architecture_of(config, "OlmoForCausalLM")
    check_supported(config, hidden_act=("silu",))
    norm = layer_norm(Fields({}, config.origin), bias=False)
    sizes = DecoderSizes.of(config, norm=norm)
    positions = rotary(config, sizes.head_size)
    attention = sizes.attention(**_attention(config), rotary=positions.config)
    model = sizes.model((sizes.layer(attention),) * sizes.num_layers, positions.max_positions)
    return causal_checkpoint(folder, model, architecture, gated_table(model, WITHOUT_WEIGHTS))


def import_olmo2(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``Olmo2ForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    architecture = architecture_of(config, "Olmo2ForCausalLM")
    check_supported(config, hidden_act=("silu",))
    sizes = DecoderSizes.of(config, epsilon=1e-5)
    positions = rotary(config, sizes.head_size)
    attention = sizes.attention(**_normed(config, sizes), rotary=positions.config)
    layer = sizes.layer(attention, norm_order=NormOrder.RES_POST)
    model = sizes.model((layer,) * sizes.num_layers, positions.max_positions)
    return causal_checkpoint(folder, model, architecture, gated_table(model, RES_POST))


def import_olmo3(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``Olmo3ForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    architecture = architecture_of(config, "Olmo3ForCausalLM")
    check_supported(config, hidden_act=("silu",))
    sizes = DecoderSizes.of(config, epsilon=1e-5)
    parameters = config.fields("rope_parameters")
    if parameters and not {FULL, SLIDING} & parameters.keys():
        raise UnsupportedError(
            f"{parameters.origin} without {FULL} or {SLIDING} is not supported: transformers "
            "ignores it"
        )
    far = rotary(config, sizes.head_size, default_base=500_000.0, layer_type=FULL)
    # The scaling applies only to full attention.
    unscaled = Fields({**config, "rope_scaling": None}, config.origin)
    near = rotary(unscaled, sizes.head_size, default_base=500_000.0, layer_type=SLIDING)
    window = config.positive("sliding_window", 4096)
    attentions = {
        FULL: sizes.attention(**_normed(config, sizes), rotary=far.config),
        SLIDING: sizes.attention(**_normed(config, sizes), rotary=near.config, window=window),
    }
    types = layer_types(config, sizes.num_layers, lambda index: (index + 1) % PATTERN != 0)
    layers = tuple(sizes.layer(attentions[type_], norm_order=NormOrder.RES_POST) for type_ in types)
    model = sizes.model(layers, min(far.max_positions, near.max_positions))
    return causal_checkpoint(folder, model, architecture, gated_table(model, RES_POST))


def import_olmoe(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``OlmoeForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    architecture = architecture_of(config, "OlmoeForCausalLM")
    check_supported(config, hidden_act=("silu",))
    sizes = DecoderSizes.of(config, epsilon=1e-5)
    positions = rotary(config, sizes.head_size)
    experts = _experts(config, count=64, active=8)
    attention = sizes.attention(**_normed(config, sizes), rotary=positions.config)
    layer = sizes.layer(attention, experts=experts)
    model = sizes.model((layer,) * sizes.num_layers, positions.max_positions)
    return causal_checkpoint(folder, model, architecture, gated_table(model, EXPERTS))


def import_flex_olmo(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``FlexOlmoForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    architecture = architecture_of(config, "FlexOlmoForCausalLM")
    check_supported(config, hidden_act=("silu",))
    sizes = DecoderSizes.of(config)
    positions = rotary(config, sizes.head_size, default_base=500_000.0)
    attention = sizes.attention(**_normed(config, sizes), rotary=positions.config)
    experts = _experts(config, count=7, active=5)
    layer = sizes.layer(attention, norm_order=NormOrder.RES_POST, experts=experts)
    model = sizes.model((layer,) * sizes.num_layers, positions.max_positions)
    return causal_checkpoint(
        folder, model, architecture, gated_table(model, {**EXPERTS, **RES_POST})
    )


def _experts(config: Fields, *, count: int, active: int) -> ExpertsConfig:
    """The mixture of each layer; ``count`` and ``active`` are defaults."""
    return ExpertsConfig(
        count=config.positive("num_experts", count, maximum=MAX_EXPERTS),
        active=config.positive("num_experts_per_tok", active),
        normalized=config.flag("norm_topk_prob", False),
    )


def _attention(config: Fields) -> dict[str, Any]:
    bias = config.flag("attention_bias", False)
    return {"input_bias": bias, "output_bias": bias, "clip": clip_of(config)}


def _normed(config: Fields, sizes: DecoderSizes) -> dict[str, Any]:
    scope = HeadNormScope.ALL_HEADS
    return {**_attention(config), "head_norm": sizes.norm, "head_norm_scope": scope}
