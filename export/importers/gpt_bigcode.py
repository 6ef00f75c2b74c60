"""SantaCoder and StarCoder (Li et al. 2023): GPT-2 with one key and value for all heads."""

from export.checkpoint import Checkpoint
from export.importers.activations import activation
from export.importers.causal import architecture_of, causal_checkpoint
from export.importers.gated_decoder import TARGET, DecoderSizes, Names, gated_table
from export.importers.gpt2 import FIELDS, MASKS
from export.importers.norms import layer_norm
from export.importers.renaming import numbered, rows_by_kind, select_rows
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported
from model.position_config import PositionKind

_SOURCE = "transformer.h.{n}"
NAMES: Names = {
    "embedding.tokens": ("transformer.wte",),
    "embedding.positions": ("transformer.wpe",),
    "decoder.final_norm": ("transformer.ln_f",),
    "head.output": ("lm_head",),
    f"{TARGET}.mixer_norm": (f"{_SOURCE}.ln_1",),
    f"{TARGET}.mixer.qkv": (f"{_SOURCE}.attn.c_attn",),
    f"{TARGET}.mixer.output": (f"{_SOURCE}.attn.c_proj",),
    f"{TARGET}.feed_forward_norm": (f"{_SOURCE}.ln_2",),
    f"{TARGET}.feed_forward.input": (f"{_SOURCE}.mlp.c_fc",),
    f"{TARGET}.feed_forward.output": (f"{_SOURCE}.mlp.c_proj",),
}


def import_gpt_bigcode(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``GPTBigCodeForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config.with_names(**FIELDS)
    architecture = architecture_of(config, "GPTBigCodeForCausalLM")
    check_supported(config, add_cross_attention=(False,))
    num_heads = config.positive("num_attention_heads", 12)
    num_kv_heads = 1 if config.flag("multi_query", True) else num_heads
    config = config.with_defaults(num_key_value_heads=num_kv_heads)
    inner_size = 4 * config.positive("hidden_size")
    norm = layer_norm(config, "layer_norm_epsilon")
    sizes = DecoderSizes.of(config, tied=True, inner_size=inner_size, norm=norm)
    scale = None if config.flag("scale_attn_weights", True) else 1.0
    layer = sizes.layer(
        sizes.attention(input_bias=True, output_bias=True, scale=scale),
        activation=activation(config, "activation_function", "gelu_pytorch_tanh"),
        gated=False,
        bias=True,
    )
    max_positions = config.positive("max_position_embeddings", 1024)
    layers = (layer,) * sizes.num_layers
    model = sizes.model(layers, max_positions, positions=PositionKind.LEARNED)
    rows = rows_by_kind(num_heads, sizes.head_size, num_groups=num_kv_heads)
    table = gated_table(model, NAMES, qkv=select_rows(rows))
    ignored = [f"transformer.{mask}" for mask in numbered(MASKS, sizes.num_layers)]
    return causal_checkpoint(folder, model, architecture, table, ignored=ignored)
