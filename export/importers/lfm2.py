"""LFM2 (Liquid AI 2025): gated short convolutions, and attention in some layers.

Attention normalises the queries and keys of each head. The feed-forward of the larger model is a
mixture of experts, except in the first layers.
"""

from collections.abc import Callable

from torch import Tensor

from export.checkpoint import Checkpoint
from export.errors import SourceError
from export.importers.causal import architecture_of, causal_checkpoint
from export.importers.gated_decoder import (
    CHOICE_BIAS,
    DOWN,
    GATES,
    HUGGING_FACE,
    ROUTER,
    TARGET,
    DecoderSizes,
    Names,
    gated_table,
)
from export.importers.layer_types import FULL
from export.importers.norms import rms_norm
from export.importers.renaming import Rename, linear
from export.importers.rotary import rotary
from export.importers.support import MAX_EXPERTS
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported
from model.config import (
    ExpertsConfig,
    LayerConfig,
    RoutingConfig,
    ShortConvolutionConfig,
)

CONVOLUTION = "conv"
_SOURCE = "model.layers.{n}"
_FEED_FORWARD, _ATTENTION = f"{_SOURCE}.feed_forward", f"{_SOURCE}.self_attn"
_EXPERT = f"{_FEED_FORWARD}.experts.{{e}}"
NAMES: Names = {
    **HUGGING_FACE,
    "decoder.final_norm": ("model.embedding_norm",),
    f"{TARGET}.mixer_norm": (f"{_SOURCE}.operator_norm",),
    f"{TARGET}.mixer.query_norm": (f"{_ATTENTION}.q_layernorm",),
    f"{TARGET}.mixer.key_norm": (f"{_ATTENTION}.k_layernorm",),
    f"{TARGET}.mixer.output": (f"{_ATTENTION}.out_proj",),
    f"{TARGET}.feed_forward_norm": (f"{_SOURCE}.ffn_norm",),
    f"{TARGET}.feed_forward.input": (f"{_FEED_FORWARD}.w1", f"{_FEED_FORWARD}.w3"),
    f"{TARGET}.feed_forward.output": (f"{_FEED_FORWARD}.w2",),
    ROUTER: (f"{_FEED_FORWARD}.gate",),
    GATES: (f"{_EXPERT}.w1", f"{_EXPERT}.w3"),
    DOWN: (f"{_EXPERT}.w2",),
    CHOICE_BIAS: (f"{_FEED_FORWARD}.expert_bias",),
}


def convolution_table(name: str, convolution: ShortConvolutionConfig) -> list[Rename]:
    """The weights of a layer's ``convolution``, whose modules' names begin with ``name``."""
    bias, target = convolution.bias, f"{TARGET}.mixer"
    return [
        *linear(f"{target}.input", f"{name}.in_proj", bias=bias),
        Rename(f"{target}.depthwise_weight", (f"{name}.conv.weight",), _by_token),
        *([Rename(f"{target}.depthwise_bias", (f"{name}.conv.bias",))] if bias else []),
        *linear(f"{target}.output", f"{name}.out_proj", bias=bias),
    ]


def convolution_of(config: Fields, default_size: int) -> ShortConvolutionConfig:
    """The convolution of all layers that have one."""
    size = config.positive("conv_L_cache", default_size)
    if size < 2:
        raise SourceError(f"{config.origin}: conv_L_cache is {size}, a kernel without a past")
    return ShortConvolutionConfig(size=size, bias=config.flag("conv_bias", False))


def checked_types(config: Fields, num_layers: int, supported: tuple[str, ...]) -> list[str]:
    """The field ``layer_types``."""
    types = config.texts("layer_types")
    if len(types) != num_layers:
        raise SourceError(f"{config.origin}: {len(types)} layer_types for {num_layers} layers")
    for type_ in types:
        check_supported(Fields({"layer_types": type_}, config.origin), layer_types=supported)
    return types


def _by_token(kernel: Tensor) -> Tensor:
    """``[channels, 1, tokens]``, or without the 1 in GGUF, to ``[tokens, channels]``."""
    return kernel.squeeze(1).T


def import_lfm2(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``Lfm2ForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    sizes = _sizes(config, _inner_size(config))
    if not config.texts("layer_types"):
        attends = config.integers("full_attn_idxs") or range(sizes.num_layers)
        types = [FULL if n in attends else CONVOLUTION for n in range(sizes.num_layers)]
        config = config.with_defaults(layer_types=types)
    return _import(folder, config, "Lfm2ForCausalLM", sizes, lambda _index: None)


def import_lfm2_moe(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``Lfm2MoeForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    experts = ExpertsConfig(
        count=config.positive("num_experts", 32, maximum=MAX_EXPERTS),
        active=config.positive("num_experts_per_tok", 4),
        normalized=config.flag("norm_topk_prob", True),
        routing=RoutingConfig(has_sigmoid=True, scale=config.number("routed_scaling_factor", 1.0)),
    )
    num_dense = config.integer("num_dense_layers", 2)
    sizes = _sizes(config, config.positive("intermediate_size", 7168))

    def experts_of(index: int) -> ExpertsConfig | None:
        return None if index < num_dense else experts

    return _import(folder, config, "Lfm2MoeForCausalLM", sizes, experts_of)


def _sizes(config: Fields, inner_size: int) -> DecoderSizes:
    own = config.with_defaults(num_key_value_heads=8)
    return DecoderSizes.of(
        Fields({**own, "intermediate_size": inner_size}, config.origin),
        tied=config.flag("tie_embedding", True),
        norm=rms_norm(config.number("norm_eps", 1e-5)),
    )


def _inner_size(config: Fields) -> int:
    """The size of the feed-forward, of which the configuration has 3 / 2 and more by default."""
    size = config.positive("block_ff_dim", config.integer("intermediate_size", 12_288))
    if not config.flag("block_auto_adjust_ff_dim", True):
        return size
    size = int(2 * size / 3)
    factor = config.optional_number("block_ffn_dim_multiplier", absent=1.0)
    if factor is None:
        return size
    multiple = config.positive("block_multiple_of", 256)
    return multiple * -(-int(factor * size) // multiple)


def _import(
    folder: HuggingFaceFolder,
    config: Fields,
    supported: str,
    sizes: DecoderSizes,
    experts_of: Callable[[int], ExpertsConfig | None],
) -> Checkpoint:
    architecture = architecture_of(config, supported)
    positions = rotary(config, sizes.head_size, default_base=1_000_000.0)
    attention = sizes.attention(
        input_bias=False, output_bias=False, rotary=positions.config, head_norm=sizes.norm
    )
    convolution = convolution_of(config, 3)
    types = checked_types(config, sizes.num_layers, (FULL, CONVOLUTION))

    expert_size = config.positive("moe_intermediate_size", 1792)

    def layer(index: int) -> LayerConfig:
        experts = experts_of(index)
        return sizes.layer(
            attention if types[index] == FULL else convolution,
            experts=experts,
            expert_size=None if experts is None else expert_size,
        )

    layers = tuple(map(layer, range(sizes.num_layers)))
    model = sizes.model(layers, positions.max_positions)
    names = NAMES if config.flag("use_expert_bias", True) else {**NAMES, CHOICE_BIAS: ()}
    table = gated_table(model, names, mixer=convolution_table(f"{_SOURCE}.conv", convolution))
    return causal_checkpoint(folder, model, architecture, table)
