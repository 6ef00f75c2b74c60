"""Mellum 2 (JetBrains 2026): Qwen3's mixture of experts, with windows in some layers.

Layers with a window have rotary positions of their own. Some layers may have one feed-forward.
"""

from export.checkpoint import Checkpoint
from export.errors import SourceError
from export.importers.causal import architecture_of, causal_checkpoint
from export.importers.gated_decoder import DecoderSizes, gated_table
from export.importers.layer_types import FULL, SLIDING, layer_types
from export.importers.qwen import NAMES
from export.importers.rotary import rotary
from export.importers.support import MAX_EXPERTS
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported
from model.config import ExpertsConfig

SPARSE = "sparse"
# Defaults of the configuration's class, by layer type.
BASES = {FULL: 500_000.0, SLIDING: 10_000.0}


def import_mellum(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``MellumForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    architecture = architecture_of(config, "MellumForCausalLM")
    check_supported(config, hidden_act=("silu",))
    sizes = DecoderSizes.of(config, head_size=128)
    types = layer_types(config, sizes.num_layers, lambda _index: False)
    positions = {
        type_: rotary(config, sizes.head_size, default_base=BASES[type_], layer_type=type_)
        for type_ in dict.fromkeys(types)
    }
    bias = config.flag("attention_bias", False)
    window = config.optional_integer("sliding_window", absent=1024)
    attentions = {
        type_: sizes.attention(
            input_bias=bias,
            output_bias=bias,
            rotary=rotated.config,
            window=window if type_ == SLIDING else None,
            head_norm=sizes.norm,
        )
        for type_, rotated in positions.items()
    }
    config = config.with_names(num_local_experts="num_experts")
    experts = ExpertsConfig(
        count=config.positive("num_local_experts", 64, maximum=MAX_EXPERTS),
        active=config.positive("num_experts_per_tok", 8),
        normalized=config.flag("norm_topk_prob", True),
    )
    expert_size = config.positive("moe_intermediate_size", 896)
    layers = tuple(
        sizes.layer(attentions[type_], experts=experts, expert_size=expert_size)
        if is_sparse
        else sizes.layer(attentions[type_])
        for type_, is_sparse in zip(types, _are_sparse(config, sizes.num_layers), strict=True)
    )
    model = sizes.model(layers, min(rotated.max_positions for rotated in positions.values()))
    predictors = [name for name in folder.weights if name.startswith("mtp.")]
    table = gated_table(model, NAMES)
    return causal_checkpoint(folder, model, architecture, table, ignored=predictors)


def _are_sparse(config: Fields, num_layers: int) -> list[bool]:
    """Whether each layer is a mixture of experts."""
    kinds = config.texts("mlp_layer_types") or [SPARSE] * num_layers
    if len(kinds) != num_layers:
        raise SourceError(f"{config.origin}: {len(kinds)} mlp_layer_types for {num_layers} layers")
    for kind in kinds:
        named = Fields({"mlp_layer_types": kind}, config.origin)
        check_supported(named, mlp_layer_types=(SPARSE, "dense"))
    return [kind == SPARSE for kind in kinds]
