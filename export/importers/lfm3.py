"""LFM3 (Liquid AI 2026): LFM2 with windows in some layers, gated heads and more norms."""

from msgspec import structs

from export.checkpoint import Checkpoint
from export.errors import SourceError
from export.importers.causal import architecture_of, causal_checkpoint
from export.importers.gated_decoder import TARGET, DecoderSizes, Names, gated_table
from export.importers.layer_types import FULL, SLIDING
from export.importers.lfm2 import (
    CONVOLUTION,
    checked_types,
    convolution_of,
    convolution_table,
)
from export.importers.lfm2 import NAMES as LFM2
from export.importers.norms import rms_norm
from export.importers.rotary import Rotary, rotary
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from model.config import AttentionConfig, NormOrder, ShortConvolutionConfig

_SOURCE = "model.layers.{n}"
_ATTENTION = f"{_SOURCE}.self_attn"
PRE: Names = {
    **LFM2,
    f"{TARGET}.mixer.query_norm": (f"{_ATTENTION}.q_norm",),
    f"{TARGET}.mixer.key_norm": (f"{_ATTENTION}.k_norm",),
    f"{TARGET}.mixer.output": (f"{_ATTENTION}.o_proj",),
    f"{TARGET}.mixer.gate": (f"{_ATTENTION}.gate_proj",),
}
SANDWICH: Names = {
    **PRE,
    f"{TARGET}.mixer_norm.before": (f"{_SOURCE}.operator_norm",),
    f"{TARGET}.mixer_norm.after": (f"{_SOURCE}.post_operator_norm",),
    f"{TARGET}.feed_forward_norm.before": (f"{_SOURCE}.ffn_norm",),
    f"{TARGET}.feed_forward_norm.after": (f"{_SOURCE}.post_ffn_norm",),
}
# Defaults of the configuration's class.
ROPE: dict[str, dict[str, object]] = {
    SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
    FULL: {
        "rope_type": "proportional",
        "rope_theta": 1_000_000.0,
        "partial_rotary_factor": 0.5,
    },
}


def import_lfm3(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``Lfm3ForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config.with_defaults(num_key_value_heads=4, head_dim=128, rope_parameters=ROPE)
    architecture = architecture_of(config, "Lfm3ForCausalLM")
    norm = rms_norm(config.number("norm_eps", 1e-5))
    sizes = DecoderSizes.of(config, tied=True, norm=norm)
    if not config.texts("layer_types"):
        config = config.with_defaults(layer_types=[_type(n) for n in range(sizes.num_layers)])
    types = checked_types(config, sizes.num_layers, (FULL, SLIDING, CONVOLUTION))
    positions = {type_: _rotary(config, sizes.head_size, type_) for type_ in (FULL, SLIDING)}
    bias = config.flag("attention_bias", False)
    attention = sizes.attention(
        input_bias=bias,
        output_bias=bias,
        rotary=positions[FULL].config,
        head_norm=norm,
        has_gate=config.flag("use_attention_gate", True),
    )
    window = config.optional_integer("sliding_window", absent=256)
    near = structs.replace(attention, rotary=positions[SLIDING].config, window=window)
    convolution = convolution_of(config, 7)
    mixers: dict[str, AttentionConfig | ShortConvolutionConfig]
    mixers = {FULL: attention, SLIDING: near, CONVOLUTION: convolution}
    is_sandwich = config.flag("use_sandwich_norm", True)
    order = NormOrder.SANDWICH if is_sandwich else NormOrder.PRE
    layers = {type_: sizes.layer(mixer, norm_order=order) for type_, mixer in mixers.items()}
    longest = min(rotary.max_positions for rotary in positions.values())
    model = sizes.model(tuple(layers[type_] for type_ in types), longest)
    table = gated_table(
        model,
        SANDWICH if is_sandwich else PRE,
        mixer=convolution_table(f"{_SOURCE}.conv", convolution),
    )
    return causal_checkpoint(folder, model, architecture, table)


def _type(index: int) -> str:
    """The type of a layer, if the configuration does not say."""
    if index % 4 == 2:
        return FULL
    return SLIDING if index % 4 == 0 and index > 0 else CONVOLUTION


def _rotary(config: Fields, head_size: int, type_: str) -> Rotary:
    """The positions of a type of layers.

    If proportional, only the first pairs are rotated, with the frequencies of whole heads.
    """
    parameters = config.fields("rope_parameters").fields(type_)
    if parameters.text("rope_type", "default") != "proportional":
        return rotary(config, head_size, layer_type=type_)
    size = 2 * int(parameters.number("partial_rotary_factor", 1.0) * head_size // 2)
    if not 0 < size <= head_size:
        raise SourceError(f"{config.origin}: cannot rotate {size} of {head_size} dimensions")
    own = {**parameters, "rope_type": "default", "partial_rotary_factor": None}
    plain = rotary(Fields({**config, "rope_parameters": own}, config.origin), head_size)
    base = plain.config.base ** (size / head_size)
    changed = structs.replace(plain.config, size=size, base=base)
    return Rotary(changed, plain.max_positions)
