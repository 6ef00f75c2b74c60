"""Hunyuan (Tencent 2025): Llama with norms of queries and keys after rotation.

It may be a mixture of experts with a shared one. ``alpha`` stretches the base of its rotary
positions for texts of any length (bloc97 2023, "NTK-aware scaled RoPE").
"""

from msgspec import structs

from export.checkpoint import Checkpoint
from export.errors import SourceError
from export.importers.causal import architecture_of, causal_checkpoint
from export.importers.gated_decoder import (
    ROUTER,
    SHARED_DOWN,
    SHARED_GATES,
    TARGET,
    DecoderSizes,
    Names,
    gated_table,
)
from export.importers.qwen import NAMES as EXPERTS
from export.importers.rotary import Rotary, rope_parameters, rotary
from export.importers.support import MAX_EXPERTS, MAX_LAYERS
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported
from model.config import ExpertsConfig, SharedExpertConfig

_ATTENTION, _SHARED = "model.layers.{n}.self_attn", "model.layers.{n}.mlp.shared_mlp"
NAMES: Names = {
    **EXPERTS,
    f"{TARGET}.mixer.query_norm": (f"{_ATTENTION}.query_layernorm",),
    f"{TARGET}.mixer.key_norm": (f"{_ATTENTION}.key_layernorm",),
    ROUTER: ("model.layers.{n}.mlp.gate.wg",),
    SHARED_GATES: (f"{_SHARED}.gate_proj", f"{_SHARED}.up_proj"),
    SHARED_DOWN: (f"{_SHARED}.down_proj",),
}


def import_hunyuan(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``HunYuanDenseV1ForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    experts = (None,) * folder.config.positive("num_hidden_layers", maximum=MAX_LAYERS)
    return _import(folder, "HunYuanDenseV1ForCausalLM", experts)


def import_hunyuan_moe(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``HunYuanMoEV1ForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    counts, actives = (_of_layers(config, name) for name in ("num_experts", "moe_topk"))
    shared = SharedExpertConfig(inner_size=config.positive("intermediate_size"))
    experts = tuple(
        ExpertsConfig(count=count, active=active, normalized=True, shared=shared)
        for count, active in zip(counts, actives, strict=True)
    )
    return _import(folder, "HunYuanMoEV1ForCausalLM", experts)


def _of_layers(config: Fields, name: str) -> tuple[int, ...]:
    """The field ``name`` of each layer: a number, or a list of numbers.

    Raises:
        SourceError: the list has another length, or a number is out of range.
    """
    num_layers = config.positive("num_hidden_layers", maximum=MAX_LAYERS)
    numbers = config.integers(name) or (1,)
    if not isinstance(config.get(name), list):
        numbers *= num_layers
    if len(numbers) != num_layers or not all(1 <= number <= MAX_EXPERTS for number in numbers):
        raise SourceError(f"{config.origin}: {name} is {config[name]} for {num_layers} layers")
    return numbers


def _import(
    folder: HuggingFaceFolder, supported: str, experts: tuple[ExpertsConfig | None, ...]
) -> Checkpoint:
    config = folder.config
    architecture = architecture_of(config, supported)
    check_supported(config, hidden_act=("silu",), use_qk_norm=(True,), use_cla=(False,))
    sizes = DecoderSizes.of(config, epsilon=1e-5)
    positions = _rotary(config, sizes.head_size)
    bias = config.flag("attention_bias", False)
    attention = sizes.attention(
        input_bias=bias,
        output_bias=bias,
        rotary=positions.config,
        head_norm=sizes.norm,
        norm_rotated=True,
    )
    layers = tuple(sizes.layer(attention, experts=mixture) for mixture in experts)
    model = sizes.model(layers, positions.max_positions)
    return causal_checkpoint(folder, model, architecture, gated_table(model, NAMES))


def _rotary(config: Fields, head_size: int) -> Rotary:
    positions = rotary(config, head_size)
    parameters = rope_parameters(config)
    kind = parameters.text("rope_type", parameters.text("type", "default"))
    alpha = parameters.optional_number("alpha") if kind == "dynamic" else None
    if not alpha:
        return positions
    if alpha < 0 or head_size <= 2:
        raise SourceError(f"{parameters.origin}: alpha is {alpha} for heads of {head_size}")
    base = positions.config.base * alpha ** (head_size / (head_size - 2))
    return Rotary(structs.replace(positions.config, base=base), positions.max_positions)
