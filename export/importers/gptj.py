"""GPT-J (Wang and Komatsuzaki 2021) and CodeGen (Nijkamp et al. 2022).

Attention and feed-forward read the same norm; rotary positions rotate neighbouring dimensions. The
output matrix has a bias. CodeGen packs queries, values and keys, in this order, in four blocks.
"""

import torch
from torch import Tensor

from export.checkpoint import Checkpoint
from export.errors import SourceError
from export.importers.activations import activation
from export.importers.causal import architecture_of, causal_checkpoint
from export.importers.gated_decoder import TARGET, DecoderSizes, Names, gated_table
from export.importers.gpt2 import FIELDS, MASKS
from export.importers.norms import layer_norm
from export.importers.renaming import Transform, kind_rows, numbered, select_rows
from export.importers.rotary import rotary_dimensions_first, rotary_rows
from export.readers.hugging_face import HuggingFaceFolder
from model.config import AttentionConfig, Branches, ModelConfig
from model.position_config import RotaryConfig

_SOURCE = "transformer.h.{n}"
GPT_J: Names = {
    "embedding.tokens": ("transformer.wte",),
    "decoder.final_norm": ("transformer.ln_f",),
    "head.output": ("lm_head",),
    f"{TARGET}.mixer_norm": (f"{_SOURCE}.ln_1",),
    f"{TARGET}.mixer.qkv": tuple(f"{_SOURCE}.attn.{name}_proj" for name in "qkv"),
    f"{TARGET}.mixer.output": (f"{_SOURCE}.attn.out_proj",),
    f"{TARGET}.feed_forward_norm": (f"{_SOURCE}.ln_1",),
    f"{TARGET}.feed_forward.input": (f"{_SOURCE}.mlp.fc_in",),
    f"{TARGET}.feed_forward.output": (f"{_SOURCE}.mlp.fc_out",),
}
CODEGEN: Names = {**GPT_J, f"{TARGET}.mixer.qkv": (f"{_SOURCE}.attn.qkv_proj",)}
CODEGEN_BLOCKS = 4  # one per processor on which it was trained
BUFFERS = tuple(f"transformer.{mask}" for mask in (*MASKS, "h.{n}.attn.causal_mask"))


def import_gptj(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``GPTJForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    architecture = architecture_of(folder.config, "GPTJForCausalLM")
    model, attention = _model(folder)
    rows = rotary_rows(attention, interleaved=True)
    return _checkpoint(folder, model, architecture, GPT_J, rows)


def import_codegen(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``CodeGenForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    architecture = architecture_of(folder.config, "CodeGenForCausalLM")
    model, attention = _model(folder)
    if attention.num_heads % CODEGEN_BLOCKS:
        raise SourceError(
            f"{folder.config.origin}: n_head {attention.num_heads} is not a multiple of "
            f"{CODEGEN_BLOCKS}"
        )
    rows = select_rows(_codegen_rows(attention))
    return _checkpoint(folder, model, architecture, CODEGEN, rows)


def _codegen_rows(attention: AttentionConfig) -> Tensor:
    """Row indices that sort CodeGen's blocks into queries, keys and values."""
    size = attention.head_size
    packed = torch.arange(3 * attention.num_heads * size).view(CODEGEN_BLOCKS, 3, -1, size)
    query, value, key = packed.unbind(1)
    order = rotary_dimensions_first(size, attention.rotary, interleaved=True)
    return kind_rows(query, key, value, order)


def _model(folder: HuggingFaceFolder) -> tuple[ModelConfig, AttentionConfig]:
    config = folder.config.with_names(**FIELDS)
    inner_size = 4 * config.positive("hidden_size")
    sizes = DecoderSizes.of(
        config, inner_size=inner_size, norm=layer_norm(config, "layer_norm_epsilon")
    )
    size = config.positive("rotary_dim", 64)
    if size > sizes.head_size or size % 2:
        raise SourceError(f"{config.origin}: rotary_dim {size} does not fit {sizes.head_size}")
    rotary = RotaryConfig(size=None if size == sizes.head_size else size)
    attention = sizes.attention(input_bias=False, output_bias=False, rotary=rotary)
    layer = sizes.layer(
        attention,
        activation=activation(config, "activation_function", "gelu_new"),
        gated=False,
        bias=True,
        branches=Branches.PARALLEL,
    )
    max_positions = config.positive("max_position_embeddings", 2048)
    return sizes.model((layer,) * sizes.num_layers, max_positions, head_bias=True), attention


def _checkpoint(
    folder: HuggingFaceFolder, model: ModelConfig, architecture: str, names: Names, qkv: Transform
) -> Checkpoint:
    table = gated_table(model, names, qkv=qkv)
    ignored = numbered(BUFFERS, model.num_layers)
    return causal_checkpoint(folder, model, architecture, table, ignored=ignored)
