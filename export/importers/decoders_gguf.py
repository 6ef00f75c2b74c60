"""Other decoders in GGUF, as llama.cpp converts them: queries and keys keep their order.

The converter packs queries, keys and values one after another, whatever their original order.
"""

import math

from msgspec import structs

from export.checkpoint import Checkpoint
from export.importers.gated_decoder import TARGET, Names, gated_table
from export.importers.gguf_decoder import GGUF, PACKED, UNGATED, GgufModel
from export.importers.renaming import scaled
from export.importers.rotary import rotary_dimensions_first, rotary_rows
from export.readers.gguf import GgufFile
from export.supported import check_supported
from model.config import Activation, Branches, HeadNormScope, NormOrder
from model.position_config import PositionKind, RotaryConfig

_SOURCE = "blk.{n}"
ONE_NORM = {f"{TARGET}.feed_forward_norm": (f"{_SOURCE}.attn_norm",)}
TWO_NORMS = {**ONE_NORM, f"{TARGET}.mixer_norm": (f"{_SOURCE}.attn_norm_2",)}
RES_POST: Names = {
    **GGUF,
    f"{TARGET}.mixer_norm": (f"{_SOURCE}.post_attention_norm",),
    f"{TARGET}.feed_forward_norm": (f"{_SOURCE}.post_ffw_norm",),
}
SHORT, LONG = "rope_factors_short.weight", "rope_factors_long.weight"


def import_gpt2_gguf(file: GgufFile) -> Checkpoint:
    """The model in a GGUF file of the architecture ``gpt2``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    source = GgufModel(file)
    sizes = source.sizes()
    attention = sizes.attention(input_bias=True, output_bias=True)
    layer = sizes.layer(attention, activation=Activation.GELU_TANH, gated=False, bias=True)
    layers = (layer,) * sizes.num_layers
    model = sizes.model(layers, source.max_positions, positions=PositionKind.LEARNED)
    return source.checkpoint(model, "GPT2LMHeadModel", gated_table(model, PACKED))


def import_gptneox_gguf(file: GgufFile) -> Checkpoint:
    """The model in a GGUF file of the architecture ``gptneox``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    source = GgufModel(file)
    sizes = source.sizes(partial=True)
    attention = sizes.attention(input_bias=True, output_bias=True, rotary=source.rotary(sizes))
    is_parallel = source.fields.flag("use_parallel_residual", True)
    layer = sizes.layer(
        attention,
        activation=Activation.GELU,
        gated=False,
        bias=True,
        branches=Branches.PARALLEL if is_parallel else Branches.SEQUENTIAL,
    )
    model = sizes.model((layer,) * sizes.num_layers, source.max_positions)
    table = gated_table(model, PACKED, qkv=rotary_rows(attention))
    return source.checkpoint(model, "GPTNeoXForCausalLM", table)


def import_falcon_gguf(file: GgufFile) -> Checkpoint:
    """The model in a GGUF file of the architecture ``falcon``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    source = GgufModel(file)
    sizes = source.sizes()
    attention = sizes.attention(
        input_bias=source.has("attn_qkv.bias"),
        output_bias=source.has("attn_output.bias"),
        rotary=source.rotary(sizes),
    )
    layer = sizes.layer(
        attention,
        activation=Activation.GELU,
        gated=False,
        bias=source.has("ffn_up.bias"),
        branches=Branches.PARALLEL,
    )
    model = sizes.model((layer,) * sizes.num_layers, source.max_positions)
    norms = TWO_NORMS if source.has("attn_norm_2.weight") else ONE_NORM
    table = gated_table(model, {**PACKED, **norms})
    return source.checkpoint(model, "FalconForCausalLM", table)


def import_phi2_gguf(file: GgufFile) -> Checkpoint:
    """The model in a GGUF file of the architecture ``phi2``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    source = GgufModel(file)
    sizes = source.sizes(partial=True)
    attention = sizes.attention(input_bias=True, output_bias=True, rotary=source.rotary(sizes))
    layer = sizes.layer(
        attention,
        activation=Activation.GELU_TANH,
        gated=False,
        bias=True,
        branches=Branches.PARALLEL,
    )
    layers = (layer,) * sizes.num_layers
    model = sizes.model(layers, source.max_positions, head_bias=True)
    table = gated_table(model, {**UNGATED, **ONE_NORM}, qkv=rotary_rows(attention))
    return source.checkpoint(model, "PhiForCausalLM", table)


def import_phi3_gguf(file: GgufFile) -> Checkpoint:
    """The model in a GGUF file of the architecture ``phi3``, ready for a bundle.

    LongRoPE limits positions to the original context, as in :mod:`export.importers.phi3`.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    source = GgufModel(file)
    sizes, fields = source.sizes(partial=True), source.fields
    rotary, max_positions = source.rotary(sizes), source.max_positions
    if SHORT in file.weights:
        original = fields.positive("rope.scaling.original_context_length", max_positions)
        rotary = RotaryConfig(
            base=rotary.base,
            size=rotary.size,
            scaling=source.listed(SHORT, rotary.size or sizes.head_size),
            magnitude=fields.number("rope.scaling.attn_factor", _long_factor(source, original)),
        )
        max_positions = min(original, max_positions)
    attention = sizes.attention(
        input_bias=False,
        output_bias=False,
        rotary=rotary,
        window=fields.optional_integer("attention.sliding_window") or None,
    )
    model = sizes.model((sizes.layer(attention),) * sizes.num_layers, max_positions)
    table = gated_table(model, PACKED, qkv=rotary_rows(attention))
    return source.checkpoint(model, "Phi3ForCausalLM", table, ignored=(SHORT, LONG))


def _long_factor(source: GgufModel, original: int) -> float:
    """The magnitude of LongRoPE for long contexts (Ding et al. 2024, section 3.2)."""
    factor = source.max_positions / original
    return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0


def import_starcoder2_gguf(file: GgufFile) -> Checkpoint:
    """The model in a GGUF file of the architecture ``starcoder2``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    source = GgufModel(file)
    sizes = source.sizes()
    attention = sizes.attention(
        input_bias=source.has("attn_q.bias"),
        output_bias=source.has("attn_output.bias"),
        rotary=source.rotary(sizes),
        window=source.fields.optional_integer("attention.sliding_window"),
    )
    bias = source.has("ffn_up.bias")
    layer = sizes.layer(attention, activation=Activation.GELU_TANH, gated=False, bias=bias)
    model = sizes.model((layer,) * sizes.num_layers, source.max_positions)
    return source.checkpoint(model, "Starcoder2ForCausalLM", gated_table(model, UNGATED))


def import_stablelm_gguf(file: GgufFile) -> Checkpoint:
    """The model in a GGUF file of the architecture ``stablelm``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    source = GgufModel(file)
    sizes = source.sizes(partial=True)
    norm = structs.replace(sizes.norm, bias=False)
    attention = sizes.attention(
        input_bias=source.has("attn_q.bias"),
        output_bias=False,
        rotary=source.rotary(sizes),
        head_norm=norm if source.has("attn_q_norm.weight") else None,
        head_norm_scope=HeadNormScope.EACH_HEAD,
    )
    is_parallel = not source.has("ffn_norm.weight")
    layer = sizes.layer(
        attention, branches=Branches.PARALLEL if is_parallel else Branches.SEQUENTIAL
    )
    model = sizes.model((layer,) * sizes.num_layers, source.max_positions)
    names = {**GGUF, **(ONE_NORM if is_parallel else {})}
    order = rotary_dimensions_first(sizes.head_size, attention.rotary)
    table = gated_table(
        model, names, qkv=rotary_rows(attention), head_norm=lambda weight: weight[:, order]
    )
    return source.checkpoint(model, "StableLmForCausalLM", table)


def import_olmo2_gguf(file: GgufFile) -> Checkpoint:
    """The model in a GGUF file of the architecture ``olmo2``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    source = GgufModel(file)
    sizes = source.sizes()
    check_supported(source.fields, **{"attention.sliding_window": (None,)})
    attention = sizes.attention(
        input_bias=False,
        output_bias=False,
        rotary=source.rotary(sizes),
        head_norm=sizes.norm,
        head_norm_scope=HeadNormScope.ALL_HEADS,
    )
    layer = sizes.layer(attention, norm_order=NormOrder.RES_POST)
    model = sizes.model((layer,) * sizes.num_layers, source.max_positions)
    return source.checkpoint(model, "Olmo2ForCausalLM", gated_table(model, RES_POST))


def import_command_r_gguf(file: GgufFile) -> Checkpoint:
    """The model in a GGUF file of the architecture ``command-r``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    source = GgufModel(file)
    sizes = source.sizes()
    attention = sizes.attention(
        input_bias=source.has("attn_q.bias"),
        output_bias=source.has("attn_output.bias"),
        rotary=source.rotary(sizes),
        head_norm=sizes.norm if source.has("attn_q_norm.weight") else None,
        head_norm_scope=HeadNormScope.EACH_HEAD,
    )
    layer = sizes.layer(attention, branches=Branches.PARALLEL)
    model = sizes.model((layer,) * sizes.num_layers, source.max_positions)
    order = rotary_dimensions_first(sizes.head_size, attention.rotary, interleaved=True)
    table = gated_table(
        model,
        {**GGUF, **ONE_NORM},
        qkv=rotary_rows(attention, interleaved=True),
        head_norm=lambda weight: weight[:, order],
        final_norm=scaled(source.fields.number("logit_scale", 1.0)),
    )
    return source.checkpoint(model, "CohereForCausalLM", table)
