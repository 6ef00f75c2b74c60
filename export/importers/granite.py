"""Granite (IBM 2024 and 2025): Llama with multipliers; also mixtures of experts and Granite 4.

A mixture may have a shared expert. Weights absorb the multipliers of residual branches and logits.
For Granite 4, only models without recurrent layers and experts are supported.
"""

from typing import Any

from export.checkpoint import Checkpoint
from export.errors import SourceError
from export.importers.activations import activation
from export.importers.causal import architecture_of, causal_checkpoint
from export.importers.gated_decoder import (
    DOWN,
    GATES,
    HUGGING_FACE,
    ROUTER,
    SHARED_DOWN,
    SHARED_GATES,
    TARGET,
    DecoderSizes,
    Names,
    gated_table,
)
from export.importers.renaming import scaled
from export.importers.rotary import Rotary, rotary
from export.importers.support import MAX_EXPERTS
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported
from model.config import ExpertsConfig, SharedExpertConfig

_EXPERTS, _SHARED = "model.layers.{n}.block_sparse_moe", "model.layers.{n}.shared_mlp"
EXPERTS: Names = {
    **HUGGING_FACE,
    ROUTER: (f"{_EXPERTS}.router.layer",),
    GATES: (f"{_EXPERTS}.input_linear",),
    DOWN: (f"{_EXPERTS}.output_linear",),
    SHARED_GATES: (f"{_SHARED}.input_linear",),
    SHARED_DOWN: (f"{_SHARED}.output_linear",),
}
SHARED: Names = {
    **HUGGING_FACE,
    f"{TARGET}.feed_forward.input": (f"{_SHARED}.input_linear",),
    f"{TARGET}.feed_forward.output": (f"{_SHARED}.output_linear",),
}


def import_granite(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``GraniteForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    bias = folder.config.flag("mlp_bias", False)
    return _import(folder, "GraniteForCausalLM", HUGGING_FACE, bias=bias)


def import_granitemoe(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``GraniteMoeForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    return _import(folder, "GraniteMoeForCausalLM", EXPERTS, experts=_experts(folder.config))


def import_granitemoeshared(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``GraniteMoeSharedForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    size = folder.config.integer("shared_intermediate_size", 1024)
    experts = _experts(folder.config, SharedExpertConfig(inner_size=size) if size else None)
    return _import(folder, "GraniteMoeSharedForCausalLM", EXPERTS, experts=experts)


def import_granitemoehybrid(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``GraniteMoeHybridForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    check_supported(
        config,
        num_local_experts=(0,),
        position_embedding_type=("rope", "nope"),
        normalization_function=("rmsnorm",),
    )
    for type_ in config.texts("layer_types") or ["mamba"]:
        named = Fields({"layer_types": type_}, config.origin)
        check_supported(named, layer_types=("attention", "full_attention"))
    return _import(
        folder,
        "GraniteMoeHybridForCausalLM",
        SHARED,
        expert_size=config.positive("shared_intermediate_size", 1024),
    )


def _experts(config: Fields, shared: SharedExpertConfig | None = None) -> ExpertsConfig:
    return ExpertsConfig(
        count=config.positive("num_local_experts", 8, maximum=MAX_EXPERTS),
        active=config.positive("num_experts_per_tok", 2),
        normalized=True,
        shared=shared,
    )


def _import(
    folder: HuggingFaceFolder, supported: str, names: Names, **feed_forward: Any
) -> Checkpoint:
    config = folder.config
    architecture = architecture_of(config, supported)
    sizes = DecoderSizes.of(config)
    positions = _positions(config, sizes)
    rotated = None if positions is None else positions.config
    longest = positions.max_positions if positions else config.positive("max_position_embeddings")
    bias = config.flag("attention_bias", False)
    attention = sizes.attention(
        input_bias=bias,
        output_bias=bias,
        rotary=rotated,
        scale=config.number("attention_multiplier", 1.0),
    )
    layer = sizes.layer(
        attention, activation=activation(config, "hidden_act", "silu"), **feed_forward
    )
    model = sizes.model(
        (layer,) * sizes.num_layers,
        longest,
        embedding_scale=config.number("embedding_multiplier", 1.0),
    )
    divisor = config.number("logits_scaling", 1.0)
    if divisor == 0:
        raise SourceError(f"{config.origin}: logits_scaling is 0")
    table = gated_table(
        model,
        names,
        output=scaled(config.number("residual_multiplier", 1.0)),
        final_norm=scaled(1 / divisor),
    )
    return causal_checkpoint(folder, model, architecture, table)


def _positions(config: Fields, sizes: DecoderSizes) -> Rotary | None:
    """The rotary positions; Granite 4 may have none."""
    is_hybrid = config.get("model_type") == "granitemoehybrid"
    if is_hybrid and config.text("position_embedding_type", "nope") != "rope":
        return None
    return rotary(config, sizes.head_size)
