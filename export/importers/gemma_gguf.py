"""Gemma, Gemma 2 and Gemma 3 in GGUF, as llama.cpp converts them.

The converter adds 1 to the weights of norms. The file does not say which layers have windows, nor
the base of their rotary positions, nor the scale of the scores of the largest models: they are
those of llama.cpp (``src/models/gemma2.cpp`` and ``gemma3.cpp``).
"""

from msgspec import structs

from export.checkpoint import Checkpoint
from export.importers.gated_decoder import TARGET, DecoderSizes, Names, gated_table
from export.importers.gguf_decoder import GGUF, GgufModel
from export.readers.gguf import GgufFile
from model.config import Activation, AttentionConfig, NormOrder
from model.position_config import RotaryConfig

_SOURCE = "blk.{n}"
SANDWICH: Names = {
    **GGUF,
    f"{TARGET}.mixer_norm.before": (f"{_SOURCE}.attn_norm",),
    f"{TARGET}.mixer_norm.after": (f"{_SOURCE}.post_attention_norm",),
    f"{TARGET}.feed_forward_norm.before": (f"{_SOURCE}.ffn_norm",),
    f"{TARGET}.feed_forward_norm.after": (f"{_SOURCE}.post_ffw_norm",),
}
# The numbers of layers of the 27B models, whose scores are not scaled by the head size.
GEMMA2_27B, GEMMA3_27B = 46, 62
GEMMA2_PATTERN, GEMMA3_PATTERN = 2, 6  # the last layer of each group has full attention


def import_gemma_gguf(file: GgufFile) -> Checkpoint:
    """The model in a GGUF file of the architecture ``gemma``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    source = GgufModel(file)
    sizes = source.sizes()
    attention = sizes.attention(input_bias=False, output_bias=False, rotary=source.rotary(sizes))
    layer = sizes.layer(attention, activation=Activation.GELU_TANH)
    layers = (layer,) * sizes.num_layers
    scale = sizes.hidden_size**0.5
    model = sizes.model(layers, source.max_positions, embedding_scale=scale)
    return source.checkpoint(model, "GemmaForCausalLM", gated_table(model, GGUF))


def import_gemma2_gguf(file: GgufFile) -> Checkpoint:
    """The model in a GGUF file of the architecture ``gemma2``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    source = GgufModel(file)
    sizes = source.sizes()
    attention = sizes.attention(
        input_bias=False,
        output_bias=False,
        rotary=source.rotary(sizes),
        scale=_scale(sizes, GEMMA2_27B),
        soft_cap=source.fields.number("attn_logit_softcapping", 50.0),
    )
    near = structs.replace(attention, window=source.fields.positive("attention.sliding_window"))
    soft_cap = source.fields.number("final_logit_softcapping", 30.0)
    return _sandwiched(
        source, sizes, "Gemma2ForCausalLM", near, attention, GEMMA2_PATTERN, soft_cap
    )


def import_gemma3_gguf(file: GgufFile) -> Checkpoint:
    """The model in a GGUF file of the architecture ``gemma3``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    source = GgufModel(file)
    sizes, fields = source.sizes(), source.fields
    far = structs.replace(source.rotary(sizes), base=fields.number("rope.freq_base", 1_000_000.0))
    attention = sizes.attention(
        input_bias=False,
        output_bias=False,
        rotary=far,
        scale=_scale(sizes, GEMMA3_27B),
        head_norm=sizes.norm,
    )
    near = structs.replace(
        attention,
        rotary=RotaryConfig(base=fields.number("rope.freq_base_swa", 10_000.0)),
        window=fields.positive("attention.sliding_window"),
    )
    soft_cap = fields.optional_number("final_logit_softcapping")
    return _sandwiched(
        source, sizes, "Gemma3ForCausalLM", near, attention, GEMMA3_PATTERN, soft_cap
    )


def _scale(sizes: DecoderSizes, largest: int) -> float:
    is_largest = sizes.num_layers == largest
    size = sizes.hidden_size // sizes.num_heads if is_largest else sizes.head_size
    return float(size**-0.5)


def _sandwiched(
    source: GgufModel,
    sizes: DecoderSizes,
    architecture: str,
    near: AttentionConfig,
    far: AttentionConfig,
    pattern: int,
    soft_cap: float | None,
) -> Checkpoint:
    near_layer, far_layer = (
        sizes.layer(x, activation=Activation.GELU_TANH, norm_order=NormOrder.SANDWICH)
        for x in (near, far)
    )
    layers = tuple(
        far_layer if (index + 1) % pattern == 0 else near_layer for index in range(sizes.num_layers)
    )
    scale = sizes.hidden_size**0.5
    model = sizes.model(layers, source.max_positions, embedding_scale=scale, soft_cap=soft_cap)
    return source.checkpoint(model, architecture, gated_table(model, SANDWICH))
