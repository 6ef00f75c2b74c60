"""Hunyuan (Tencent 2025), dense: Llama with norms of queries and keys after rotation.

``alpha`` stretches the base of its rotary positions for texts of any length (bloc97 2023,
"NTK-aware scaled RoPE").
"""

from msgspec import structs

from export.checkpoint import Checkpoint
from export.errors import SourceError
from export.importers.causal import architecture_of, causal_checkpoint
from export.importers.gated_decoder import HUGGING_FACE, TARGET, DecoderSizes, Names, gated_table
from export.importers.rotary import Rotary, rotary
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported

_SOURCE = "model.layers.{n}.self_attn"
NAMES: Names = {
    **HUGGING_FACE,
    f"{TARGET}.mixer.query_norm": (f"{_SOURCE}.query_layernorm",),
    f"{TARGET}.mixer.key_norm": (f"{_SOURCE}.key_layernorm",),
}


def import_hunyuan(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``HunYuanDenseV1ForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    architecture = architecture_of(config, "HunYuanDenseV1ForCausalLM")
    check_supported(config, hidden_act=("silu",), use_qk_norm=(True,), use_cla=(False,))
    sizes = DecoderSizes.of(config, epsilon=1e-5)
    positions = _rotary(config, sizes.head_size)
    bias = config.flag("attention_bias", False)
    attention = sizes.attention(
        input_bias=bias,
        output_bias=bias,
        rotary=positions.config,
        head_norm=sizes.norm,
        norm_rotated=True,
    )
    model = sizes.model((sizes.layer(attention),) * sizes.num_layers, positions.max_positions)
    return causal_checkpoint(folder, model, architecture, gated_table(model, NAMES))


def _rotary(config: Fields, head_size: int) -> Rotary:
    positions = rotary(config, head_size)
    parameters = config.fields("rope_scaling") or config.fields("rope_parameters")
    kind = parameters.text("rope_type", parameters.text("type", "default"))
    alpha = parameters.optional_number("alpha") if kind == "dynamic" else None
    if not alpha:
        return positions
    if alpha < 0 or head_size <= 2:
        raise SourceError(f"{parameters.origin}: alpha is {alpha} for heads of {head_size}")
    base = positions.config.base * alpha ** (head_size / (head_size - 2))
    return Rotary(structs.replace(positions.config, base=base), positions.max_positions)
