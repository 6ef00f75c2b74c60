"""ERNIE 4.5 (Baidu 2025) as a mixture of experts, with shared ones.

A bias chooses experts, but does not weigh them. Rotary positions rotate neighbouring dimensions.
"""

from export.checkpoint import Checkpoint
from export.importers.causal import architecture_of, causal_checkpoint
from export.importers.deepseek_experts import NAMES as ROUTED
from export.importers.gated_decoder import CHOICE_BIAS, DecoderSizes, Names, gated_table
from export.importers.rotary import rotary, rotary_rows
from export.importers.support import MAX_EXPERTS
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported
from model.config import ExpertsConfig, RoutingConfig, SharedExpertConfig

NAMES: Names = {
    **ROUTED,
    CHOICE_BIAS: ("model.layers.{n}.mlp.moe_statics.e_score_correction_bias",),
}


def import_ernie4_5_moe(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``Ernie4_5_MoeForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    architecture = architecture_of(config, "Ernie4_5_MoeForCausalLM")
    check_supported(config, hidden_act=("silu",), use_bias=(False,), moe_norm_min=(1e-12,))
    sizes = DecoderSizes.of(config, epsilon=1e-5, tied=True)
    positions = rotary(config, sizes.head_size, default_base=500_000.0)
    attention = sizes.attention(input_bias=False, output_bias=False, rotary=positions.config)
    expert_size = config.positive("moe_intermediate_size", 1536)
    num_shared = config.integer("moe_num_shared_experts", 2)
    experts = ExpertsConfig(
        count=config.positive("moe_num_experts", 64, maximum=MAX_EXPERTS),
        active=config.positive("moe_k", 6),
        normalized=True,
        routing=RoutingConfig(),
        shared=SharedExpertConfig(inner_size=num_shared * expert_size) if num_shared else None,
    )
    mixture = sizes.layer(attention, experts=experts, expert_size=expert_size)
    dense = sizes.layer(attention)
    layers = tuple(
        mixture if _has_experts(config, index, sizes.num_layers) else dense
        for index in range(sizes.num_layers)
    )
    model = sizes.model(layers, positions.max_positions)
    table = gated_table(model, NAMES, qkv=rotary_rows(attention, interleaved=True))
    predictors = [name for name in folder.weights if ".mtp_" in name]  # of several tokens
    return causal_checkpoint(folder, model, architecture, table, ignored=predictors)


def _has_experts(config: Fields, index: int, num_layers: int) -> bool:
    """Whether the layer ``index`` is a mixture of experts; the last may be -1."""
    interval = config.positive("moe_layer_interval", 1)
    first = config.integer("moe_layer_start_index", 1)
    is_open = config.get("moe_layer_end_index", -1) == -1
    last = num_layers - 1 if is_open else config.integer("moe_layer_end_index")
    return first <= index <= last and (index + 1) % interval == 0
