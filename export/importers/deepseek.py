"""DeepSeek-V2 and V3 (DeepSeek-AI 2024), and families with their latent attention.

Most layers are mixtures of experts. Layers after the last one, which predict further tokens, are
left out.
"""

from collections.abc import Callable

from export.checkpoint import Checkpoint
from export.errors import SourceError
from export.importers.causal import architecture_of, causal_checkpoint
from export.importers.deepseek_experts import NAMES, layers_of, shared_experts
from export.importers.gated_decoder import CHOICE_BIAS, DecoderSizes, Names, gated_table
from export.importers.latent_attention import latent_attention, latent_sizes, latent_table
from export.importers.support import MAX_EXPERTS
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported
from model.config import AttentionConfig, ExpertsConfig, LayerConfig, RoutingConfig

Layers = Callable[[Fields, DecoderSizes, tuple[AttentionConfig, ...]], tuple[LayerConfig, ...]]

# Defaults of the configurations' classes.
_LATENT: dict[str, object] = {
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
_V2: dict[str, object] = {
    **_LATENT,
    "first_k_dense_replace": 0,
    "moe_intermediate_size": 1407,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "norm_topk_prob": False,
}
_V3: dict[str, object] = {
    **_LATENT,
    "first_k_dense_replace": 3,
    "moe_intermediate_size": 2048,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_experts_per_tok": 8,
    "num_nextn_predict_layers": 1,
    "routed_scaling_factor": 2.5,
    "topk_group": 4,
}
_GLM: dict[str, object] = {
    **_LATENT,
    "moe_intermediate_size": 1536,
    "n_routed_experts": 64,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_experts_per_tok": 4,
    "num_nextn_predict_layers": 1,
    "qk_nope_head_dim": 192,
    "routed_scaling_factor": 1.8,
    "v_head_dim": 256,
}
_WITHOUT_BIAS: Names = {**NAMES, CHOICE_BIAS: ()}


def import_deepseek_v2(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``DeepseekV2ForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = latent_sizes(_with_query_size(folder.config, 1536), **_V2)
    check_supported(config, scoring_func=("softmax",), norm_topk_prob=(False,), moe_layer_freq=(1,))
    experts = _v2_experts(config)
    sizes = DecoderSizes.of(config)

    def layers(
        config: Fields, sizes: DecoderSizes, attentions: tuple[AttentionConfig, ...]
    ) -> tuple[LayerConfig, ...]:
        return layers_of(config, sizes, attentions, experts)

    return _import(folder, "DeepseekV2ForCausalLM", config, sizes, layers, _WITHOUT_BIAS)


def import_deepseek_v3(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``DeepseekV3ForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = latent_sizes(_with_query_size(folder.config, 1536), **_V3)
    check_supported(
        config, scoring_func=("sigmoid",), topk_method=("noaux_tc",), moe_layer_freq=(1,)
    )
    return _import(folder, "DeepseekV3ForCausalLM", config, DecoderSizes.of(config), layers_of)


def import_glm4_moe_lite(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``Glm4MoeLiteForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = latent_sizes(_with_query_size(folder.config, 768), **_GLM)
    sizes = DecoderSizes.of(config, epsilon=1e-5)
    types = config.texts("mlp_layer_types") or ["dense"] + ["sparse"] * (sizes.num_layers - 1)
    num_dense = types.count("dense")
    if types != ["dense"] * num_dense + ["sparse"] * (sizes.num_layers - num_dense):
        raise SourceError(
            f"{config.origin}: mlp_layer_types are not dense, then sparse, for "
            f"{sizes.num_layers} layers"
        )
    config = Fields({**config, "first_k_dense_replace": num_dense}, config.origin)
    return _import(folder, "Glm4MoeLiteForCausalLM", config, sizes, layers_of)


def import_youtu(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``YoutuForCausalLM`` in ``folder``, ready for a bundle: no layer has experts.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = latent_sizes(_with_query_size(folder.config, 1536), **_LATENT)
    check_supported(config, hidden_act=("silu",))

    def layers(
        _config: Fields, sizes: DecoderSizes, attentions: tuple[AttentionConfig, ...]
    ) -> tuple[LayerConfig, ...]:
        return tuple(map(sizes.layer, attentions))

    sizes = DecoderSizes.of(config, tied=True)
    return _import(folder, "YoutuForCausalLM", config, sizes, layers)


def _with_query_size(config: Fields, default: int) -> Fields:
    """``config`` with ``q_lora_rank``: ``null`` means none, unlike an absent field."""
    return config if "q_lora_rank" in config else config.with_defaults(q_lora_rank=default)


def _v2_experts(config: Fields) -> ExpertsConfig:
    """Softmax scores; a group of experts is as good as its best one."""
    method = config.text("topk_method", "greedy")
    check_supported(config, topk_method=("greedy", "group_limited_greedy"))
    has_groups = method == "group_limited_greedy"
    routing = RoutingConfig(
        num_groups=config.positive("n_group", 1) if has_groups else 1,
        active_groups=config.positive("topk_group", 1) if has_groups else 1,
        group_top=1,
        scale=config.number("routed_scaling_factor", 1.0),
    )
    return ExpertsConfig(
        count=config.positive("n_routed_experts", maximum=MAX_EXPERTS),
        active=config.positive("num_experts_per_tok"),
        normalized=False,
        routing=routing,
        shared=shared_experts(config),
    )


def _import(
    folder: HuggingFaceFolder,
    supported: str,
    config: Fields,
    sizes: DecoderSizes,
    layers: Layers,
    names: Names = NAMES,
) -> Checkpoint:
    architecture = architecture_of(config, supported)
    attention, positions = latent_attention(config, sizes)
    model = sizes.model(
        layers(config, sizes, (attention,) * sizes.num_layers), positions.max_positions
    )
    mixer = latent_table(attention, interleaved=config.flag("rope_interleave", True))
    last = sizes.num_layers + config.integer("num_nextn_predict_layers", 0)
    predictors = tuple(f"model.layers.{n}." for n in range(sizes.num_layers, last))
    return causal_checkpoint(
        folder,
        model,
        architecture,
        gated_table(model, names, mixer=mixer),
        ignored=[name for name in folder.weights if name.startswith(predictors)],
    )
