"""Mixtures of experts as in DeepSeek-V3 (DeepSeek-AI 2024, section 2.1.2), for other families.

The router's scores are sigmoids. A bias and groups decide which experts run. Shared experts are one
feed-forward. The first layers have no experts.
"""

from collections.abc import Sequence

from export.errors import SourceError
from export.importers.gated_decoder import (
    CHOICE_BIAS,
    SHARED_DOWN,
    SHARED_GATES,
    DecoderSizes,
    Names,
)
from export.importers.qwen import NAMES as EXPERTS
from export.importers.support import MAX_EXPERTS
from export.readers.fields import Fields
from export.supported import check_supported
from model.config import (
    AttentionConfig,
    ExpertsConfig,
    LayerConfig,
    RoutingConfig,
    SharedExpertConfig,
)

_MIXTURE = "model.layers.{n}.mlp"
NAMES: Names = {
    **EXPERTS,
    CHOICE_BIAS: (f"{_MIXTURE}.gate.e_score_correction_bias",),
    SHARED_GATES: tuple(f"{_MIXTURE}.shared_experts.{name}_proj" for name in ("gate", "up")),
    SHARED_DOWN: (f"{_MIXTURE}.shared_experts.down_proj",),
}


def shared_experts(config: Fields) -> SharedExpertConfig:
    """The shared experts as one feed-forward."""
    size = config.positive("n_shared_experts") * config.positive("moe_intermediate_size")
    return SharedExpertConfig(inner_size=size)


def layers_of(
    config: Fields,
    sizes: DecoderSizes,
    attentions: Sequence[AttentionConfig],
    experts: ExpertsConfig | None = None,
) -> tuple[LayerConfig, ...]:
    """A layer for each of ``attentions``; ``config`` has every field of the mixture.

    Args:
        experts: default: those of DeepSeek-V3.

    Raises:
        SourceError: inconsistent sizes.
        UnsupportedError: another activation.
    """
    check_supported(config, hidden_act=("silu",))
    expert_size = config.positive("moe_intermediate_size")
    num_dense = config.integer("first_k_dense_replace")
    experts = experts or ExpertsConfig(
        count=config.positive("n_routed_experts", maximum=MAX_EXPERTS),
        active=config.positive("num_experts_per_tok"),
        normalized=config.flag("norm_topk_prob"),
        routing=RoutingConfig(
            has_sigmoid=True,
            num_groups=config.positive("n_group", 1),
            active_groups=config.positive("topk_group", 1),
            scale=config.number("routed_scaling_factor", 1.0),
        ),
        shared=shared_experts(config),
    )
    _check_groups(config, experts, experts.routing or RoutingConfig())
    return tuple(
        sizes.layer(attention)
        if index < num_dense
        else sizes.layer(attention, experts=experts, expert_size=expert_size)
        for index, attention in enumerate(attentions)
    )


def _check_groups(config: Fields, experts: ExpertsConfig, routing: RoutingConfig) -> None:
    """Rejects groups of different sizes or of too few experts, and fewer than are active."""
    groups, active = routing.num_groups, routing.active_groups
    size, rest = divmod(experts.count, groups)
    is_small = groups > 1 and size < routing.group_top
    if rest or active > groups or experts.active > active * size or is_small:
        raise SourceError(
            f"{config.origin}: {experts.active} of {experts.count} experts cannot be chosen from "
            f"{active} of {groups} groups"
        )
