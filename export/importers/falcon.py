"""Falcon (Almazrouei et al. 2023): multi-query or grouped-query attention, parallel branches.

Queries, keys and values are packed group by group. Falcon-RW (Penedo et al. 2023) has ALiBi,
rounded to bfloat16 and, unlike BLOOM's, scaled with the scores.
"""

from export.checkpoint import Checkpoint
from export.errors import UnsupportedError
from export.importers.activations import activation
from export.importers.causal import architecture_of, causal_checkpoint
from export.importers.gated_decoder import TARGET, DecoderSizes, Names, gated_table
from export.importers.norms import layer_norm
from export.importers.renaming import rows_by_kind, select_rows
from export.importers.rotary import rotary
from export.importers.support import MAX_TABLE_POSITIONS
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported
from model.config import Branches
from model.position_config import RelativeBiasConfig, RelativeBiasKind

_SOURCE = "transformer.h.{n}"
NAMES: Names = {
    "embedding.tokens": ("transformer.word_embeddings",),
    "decoder.final_norm": ("transformer.ln_f",),
    "head.output": ("lm_head",),
    f"{TARGET}.mixer.qkv": (f"{_SOURCE}.self_attention.query_key_value",),
    f"{TARGET}.mixer.output": (f"{_SOURCE}.self_attention.dense",),
    f"{TARGET}.feed_forward.input": (f"{_SOURCE}.mlp.dense_h_to_4h",),
    f"{TARGET}.feed_forward.output": (f"{_SOURCE}.mlp.dense_4h_to_h",),
}
# The norms before attention and before the feed-forward.
ONE_NORM = ("input_layernorm", "input_layernorm")
SEQUENTIAL_NORMS = ("input_layernorm", "post_attention_layernorm")
TWO_NORMS = ("ln_attn", "ln_mlp")


def import_falcon(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``FalconForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config.with_defaults(max_position_embeddings=2048)
    architecture = architecture_of(config, "FalconForCausalLM")
    check_supported(config, apply_residual_connection_post_layernorm=(False,))
    num_heads = config.positive("num_attention_heads")
    num_kv_heads = _num_kv_heads(config, num_heads)
    config = Fields({**config, "num_key_value_heads": num_kv_heads}, config.origin)
    hidden_size = config.positive("hidden_size")
    inner_size = config.positive("ffn_hidden_size", 4 * hidden_size)
    norm = layer_norm(config, "layer_norm_epsilon")
    sizes = DecoderSizes.of(config, tied=True, inner_size=inner_size, norm=norm)
    alibi = _alibi(config, sizes.head_size)
    positions = rotary(config, sizes.head_size) if alibi is None else None
    bias = config.flag("bias", False)
    attention_norm, feed_forward_norm = norms = _norms(config)
    layer = sizes.layer(
        sizes.attention(
            input_bias=bias,
            output_bias=bias,
            rotary=None if positions is None else positions.config,
            bias=alibi,
        ),
        activation=activation(config, "activation", "gelu"),
        gated=False,
        bias=bias,
        branches=Branches.SEQUENTIAL if norms == SEQUENTIAL_NORMS else Branches.PARALLEL,
    )
    longest = positions.max_positions if positions else config.positive("max_position_embeddings")
    model = sizes.model((layer,) * sizes.num_layers, longest)
    names = {
        **NAMES,
        f"{TARGET}.mixer_norm": (f"{_SOURCE}.{attention_norm}",),
        f"{TARGET}.feed_forward_norm": (f"{_SOURCE}.{feed_forward_norm}",),
    }
    rows = rows_by_kind(num_heads, sizes.head_size, num_groups=num_kv_heads)
    table = gated_table(model, names, qkv=select_rows(rows))
    return causal_checkpoint(folder, model, architecture, table)


def _alibi(config: Fields, head_size: int) -> RelativeBiasConfig | None:
    """ALiBi, if the model has it instead of rotary positions."""
    if not config.flag("alibi", False):
        return None
    return RelativeBiasConfig(
        kind=RelativeBiasKind.LINEAR_BF16,
        max_distance=config.positive("max_position_embeddings", maximum=MAX_TABLE_POSITIONS),
        scale=head_size**-0.5,
    )


def _num_kv_heads(config: Fields, num_heads: int) -> int:
    if config.flag("new_decoder_architecture", False):
        return config.positive("num_kv_heads", num_heads)
    return 1 if config.flag("multi_query", True) else num_heads


def _norms(config: Fields) -> tuple[str, str]:
    """The names of a layer's norms.

    Raises:
        UnsupportedError: the fields have a combination of values that no Falcon has.
    """
    number = config.optional_integer("num_ln_in_parallel_attn")
    is_new = config.flag("new_decoder_architecture", False)
    if not config.flag("parallel_attn", True):
        check_supported(config, new_decoder_architecture=(False,))
        return SEQUENTIAL_NORMS
    if number not in ((None, 1, 2) if is_new else (None, 1)):
        raise UnsupportedError(
            f"{config.origin}: num_ln_in_parallel_attn {number} is not supported; supported: 1, "
            "and 2 with new_decoder_architecture"
        )
    return TWO_NORMS if is_new and number != 1 else ONE_NORM
