"""GLM-4.5 (GLM-4.5 Team 2025): Llama with DeepSeek-V3's mixture of experts.

A part of each head is rotated. The larger model normalizes the queries and keys of each head.
"""

from export.checkpoint import Checkpoint
from export.importers.causal import architecture_of, causal_checkpoint
from export.importers.deepseek_experts import NAMES, layers_of
from export.importers.gated_decoder import DecoderSizes, gated_table
from export.importers.renaming import select_rows
from export.importers.rotary import rotary, rotary_dimensions_first, rotary_rows
from export.readers.hugging_face import HuggingFaceFolder

# Defaults of the configuration's class.
DEFAULTS: dict[str, object] = {
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_experts_per_tok": 8,
}


def import_glm4_moe(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``Glm4MoeForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config.with_defaults(**DEFAULTS)
    architecture = architecture_of(config, "Glm4MoeForCausalLM")
    sizes = DecoderSizes.of(config, epsilon=1e-5)
    positions = rotary(config, sizes.head_size, default_fraction=0.5)
    attention = sizes.attention(
        input_bias=config.flag("attention_bias", False),
        output_bias=False,
        rotary=positions.config,
        head_norm=sizes.norm if config.flag("use_qk_norm", False) else None,
    )
    layers = layers_of(config, sizes, (attention,) * sizes.num_layers)
    model = sizes.model(layers, positions.max_positions)
    last = sizes.num_layers + config.integer("num_nextn_predict_layers", 1)
    predictors = tuple(f"model.layers.{n}." for n in range(sizes.num_layers, last))
    return causal_checkpoint(
        folder,
        model,
        architecture,
        gated_table(
            model,
            NAMES,
            qkv=rotary_rows(attention),
            head_norm=select_rows(rotary_dimensions_first(sizes.head_size, positions.config)),
        ),
        ignored=[name for name in folder.weights if name.startswith(predictors)],
    )
