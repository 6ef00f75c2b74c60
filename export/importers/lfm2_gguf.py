"""LFM2 in GGUF, as llama.cpp converts it."""

from export.checkpoint import Checkpoint
from export.errors import SourceError
from export.importers.gated_decoder import Names, gated_table
from export.importers.gguf_decoder import GGUF, GgufModel
from export.importers.lfm2 import convolution_table
from export.readers.fields import Fields
from export.readers.gguf import GgufFile
from model.config import ShortConvolutionConfig

_HEADS = "attention.head_count_kv"  # of each layer: 0 for convolutions
_CONVOLUTION = "blk.{n}.shortconv"
NAMES: Names = {**GGUF, "decoder.final_norm": ("token_embd_norm",)}


def import_lfm2_gguf(file: GgufFile) -> Checkpoint:
    """The model in a GGUF file of the architecture ``lfm2``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    source = GgufModel(file)
    fields = source.fields
    heads = fields.integers(_HEADS)
    if len(heads) == 1:
        heads *= fields.positive("block_count")
    source.fields = Fields({**fields, _HEADS: max(heads, default=0)}, fields.origin)
    sizes = source.sizes()
    if len(heads) != sizes.num_layers or not set(heads) <= {0, sizes.num_kv_heads}:
        raise SourceError(
            f"{fields.origin}: {_HEADS} {heads} are not those of {sizes.num_layers} layers"
        )
    attention = sizes.attention(
        input_bias=False, output_bias=False, rotary=source.rotary(sizes), head_norm=sizes.norm
    )
    size = fields.positive("shortconv.l_cache")
    if size < 2:
        raise SourceError(f"{fields.origin}: shortconv.l_cache is {size}")
    convolution = ShortConvolutionConfig(size=size)
    layers = tuple(sizes.layer(attention if count else convolution) for count in heads)
    model = sizes.model(layers, source.max_positions)
    table = gated_table(model, NAMES, mixer=convolution_table(_CONVOLUTION, convolution))
    return source.checkpoint(model, "Lfm2ForCausalLM", table)
