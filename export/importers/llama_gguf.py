"""Llama, Qwen2, Qwen3 and Granite in GGUF, as llama.cpp converts them."""

from collections.abc import Mapping

from torch import Tensor

from export.checkpoint import Checkpoint
from export.errors import SourceError
from export.importers.gated_decoder import DecoderSizes, gated_table
from export.importers.gguf_decoder import GGUF, GgufModel, Unpermuted
from export.importers.renaming import scaled
from export.readers.gguf import GgufFile
from model.config import LayerConfig


def import_llama_gguf(file: GgufFile) -> Checkpoint:
    """The model in a GGUF file of the architecture ``llama``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    source = GgufModel(file)
    sizes = source.sizes()
    bias = source.has("attn_q.bias")
    attention = sizes.attention(input_bias=bias, output_bias=bias, rotary=source.rotary(sizes))
    layer = sizes.layer(attention, bias=source.has("ffn_gate.bias"))
    weights = Unpermuted(file.weights, sizes)
    return _checkpoint(source, sizes, layer, "LlamaForCausalLM", weights)


def import_qwen2_gguf(file: GgufFile) -> Checkpoint:
    """The model in a GGUF file of the architecture ``qwen2``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    source = GgufModel(file)
    sizes = source.sizes()
    attention = sizes.attention(input_bias=True, output_bias=False, rotary=source.rotary(sizes))
    return _checkpoint(source, sizes, sizes.layer(attention), "Qwen2ForCausalLM", file.weights)


def import_qwen3_gguf(file: GgufFile) -> Checkpoint:
    """The model in a GGUF file of the architecture ``qwen3``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    source = GgufModel(file)
    sizes = source.sizes()
    attention = sizes.attention(
        input_bias=False, output_bias=False, rotary=source.rotary(sizes), head_norm=sizes.norm
    )
    return _checkpoint(source, sizes, sizes.layer(attention), "Qwen3ForCausalLM", file.weights)


def import_granite_gguf(file: GgufFile) -> Checkpoint:
    """The model in a GGUF file of the architecture ``granite``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    source = GgufModel(file)
    sizes, fields = source.sizes(), source.fields
    attention = sizes.attention(
        input_bias=source.has("attn_q.bias"),
        output_bias=source.has("attn_output.bias"),
        rotary=source.rotary(sizes),
        scale=fields.optional_number("attention.scale"),
    )
    layer = sizes.layer(attention, bias=source.has("ffn_gate.bias"))
    model = sizes.model(
        (layer,) * sizes.num_layers,
        source.max_positions,
        embedding_scale=fields.number("embedding_scale", 1.0),
    )
    divisor = fields.number("logit_scale", 1.0)
    if divisor == 0:
        raise SourceError(f"{fields.origin}: logit_scale is 0")
    table = gated_table(
        model,
        GGUF,
        output=scaled(fields.number("residual_scale", 1.0)),
        final_norm=scaled(1 / divisor),
    )
    weights = Unpermuted(file.weights, sizes)
    return source.checkpoint(model, "GraniteForCausalLM", table, weights)


def _checkpoint(
    source: GgufModel,
    sizes: DecoderSizes,
    layer: LayerConfig,
    architecture: str,
    weights: Mapping[str, Tensor],
) -> Checkpoint:
    model = sizes.model((layer,) * sizes.num_layers, source.max_positions)
    return source.checkpoint(model, architecture, gated_table(model, GGUF), weights)
