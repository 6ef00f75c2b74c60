"""dots.llm1 (rednote-hilab 2025): Qwen3 with DeepSeek-V3's mixture of experts."""

from export.checkpoint import Checkpoint
from export.importers.causal import architecture_of, causal_checkpoint
from export.importers.deepseek_experts import NAMES, layers_of
from export.importers.gated_decoder import DecoderSizes, gated_table
from export.importers.layer_types import windows
from export.importers.rotary import rotary
from export.readers.hugging_face import HuggingFaceFolder

# Defaults of the configuration's class.
DEFAULTS: dict[str, object] = {
    "first_k_dense_replace": 0,
    "max_window_layers": 62,
    "moe_intermediate_size": 1408,
    "norm_topk_prob": False,
}


def import_dots1(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``Dots1ForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config.with_defaults(**DEFAULTS, use_sliding_window=True)
    architecture = architecture_of(config, "Dots1ForCausalLM")
    sizes = DecoderSizes.of(config)
    positions = rotary(config, sizes.head_size)
    bias = config.flag("attention_bias", False)
    attentions = [
        sizes.attention(
            input_bias=bias,
            output_bias=bias,
            rotary=positions.config,
            window=window,
            head_norm=sizes.norm,
        )
        for window in windows(config, sizes.num_layers)
    ]
    model = sizes.model(layers_of(config, sizes, attentions), positions.max_positions)
    return causal_checkpoint(folder, model, architecture, gated_table(model, NAMES))
