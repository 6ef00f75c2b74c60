"""Qwen2 and Qwen3 (Qwen Team 2024 and 2025), as ``transformers`` saves them.

Llama, with sliding windows in some layers. Qwen2 has biases on queries, keys and values. Qwen3
normalises the queries and keys of each head. Both may be mixtures of experts; that of Qwen2 has a
shared one.
"""

from typing import Any

from export.checkpoint import Checkpoint
from export.importers.causal import architecture_of, causal_checkpoint
from export.importers.gated_decoder import (
    DOWN,
    GATES,
    HUGGING_FACE,
    ROUTER,
    SHARED_DOWN,
    SHARED_GATE,
    SHARED_GATES,
    DecoderSizes,
    Names,
    gated_table,
)
from export.importers.layer_types import windows
from export.importers.rotary import rotary
from export.importers.support import MAX_EXPERTS
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported
from model.config import ExpertsConfig, SharedExpertConfig

_EXPERT, _SHARED = "model.layers.{n}.mlp.experts.{e}", "model.layers.{n}.mlp.shared_expert"
NAMES: Names = {
    **HUGGING_FACE,
    ROUTER: ("model.layers.{n}.mlp.gate",),
    GATES: (f"{_EXPERT}.gate_proj", f"{_EXPERT}.up_proj"),
    DOWN: (f"{_EXPERT}.down_proj",),
    SHARED_GATES: (f"{_SHARED}.gate_proj", f"{_SHARED}.up_proj"),
    SHARED_DOWN: (f"{_SHARED}.down_proj",),
    SHARED_GATE: (f"{_SHARED}_gate",),
}


def import_qwen2(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``Qwen2ForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    architecture = architecture_of(folder.config, "Qwen2ForCausalLM")
    shape = DecoderSizes.of(folder.config)
    return _import(folder, architecture, shape, input_bias=True, output_bias=False)


def import_qwen2_moe(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``Qwen2MoeForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    architecture = architecture_of(config, "Qwen2MoeForCausalLM")
    shape = DecoderSizes.of(config)
    shared_size = config.positive("shared_expert_intermediate_size", 5632)
    experts = ExpertsConfig(
        count=config.positive("num_experts", 60, maximum=MAX_EXPERTS),
        active=config.positive("num_experts_per_tok", 4),
        normalized=config.flag("norm_topk_prob", False),
        shared=SharedExpertConfig(inner_size=shared_size, has_gate=True),
    )
    return _import(
        folder,
        architecture,
        shape,
        _of_layers(config, experts, shape.num_layers),
        config.positive("moe_intermediate_size", 1408),
        input_bias=config.flag("qkv_bias", True),
        output_bias=False,
    )


def import_qwen3(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``Qwen3ForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    architecture = architecture_of(folder.config, "Qwen3ForCausalLM")
    shape = DecoderSizes.of(folder.config, head_size=128)
    bias = folder.config.flag("attention_bias", False)
    return _import(
        folder, architecture, shape, input_bias=bias, output_bias=bias, head_norm=shape.norm
    )


def import_qwen3_moe(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``Qwen3MoeForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    architecture = architecture_of(config, "Qwen3MoeForCausalLM")
    shape = DecoderSizes.of(config)
    experts = ExpertsConfig(
        count=config.positive(
            "num_experts", config.positive("num_local_experts", 128), maximum=MAX_EXPERTS
        ),
        active=config.positive("num_experts_per_tok", 8),
        normalized=config.flag("norm_topk_prob", False),
    )
    bias = config.flag("attention_bias", False)
    return _import(
        folder,
        architecture,
        shape,
        _of_layers(config, experts, shape.num_layers),
        config.positive("moe_intermediate_size", 768),
        input_bias=bias,
        output_bias=bias,
        head_norm=shape.norm,
    )


def _of_layers(
    config: Fields, experts: ExpertsConfig, num_layers: int
) -> tuple[ExpertsConfig | None, ...]:
    """The experts of each layer; None for layers with one feed-forward."""
    step = config.positive("decoder_sparse_step", 1)
    plain = config.integers("mlp_only_layers")
    return tuple(
        experts if index not in plain and (index + 1) % step == 0 else None
        for index in range(num_layers)
    )


def _import(
    folder: HuggingFaceFolder,
    architecture: str,
    shape: DecoderSizes,
    experts: tuple[ExpertsConfig | None, ...] | None = None,
    expert_size: int | None = None,
    **attention: Any,
) -> Checkpoint:
    config = folder.config
    check_supported(config, hidden_act=("silu",))
    positions = rotary(config, shape.head_size)
    experts = experts or (None,) * shape.num_layers
    sizes = windows(config, shape.num_layers, alternates=architecture.startswith("Qwen2Moe"))
    layers = tuple(
        shape.layer(
            shape.attention(rotary=positions.config, window=window, **attention),
            experts=mixture,
            expert_size=None if mixture is None else expert_size,
        )
        for window, mixture in zip(sizes, experts, strict=True)
    )
    model = shape.model(layers, positions.max_positions)
    return causal_checkpoint(folder, model, architecture, gated_table(model, NAMES))
