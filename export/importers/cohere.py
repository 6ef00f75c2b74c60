"""Command R (Cohere 2024) and Command R7B, Aya Expanse (Cohere 2024 and 2025).

Attention and feed-forward read the same layer norm, which has no bias; rotary positions rotate
neighbouring dimensions. The last norm absorbs the scale of the logits. Cohere 2 has windows, and no
positions in layers with full attention.
"""

from export.checkpoint import Checkpoint
from export.importers.activations import activation
from export.importers.causal import architecture_of, causal_checkpoint
from export.importers.gated_decoder import HUGGING_FACE, TARGET, DecoderSizes, Names, gated_table
from export.importers.layer_types import FULL, SLIDING, layer_types
from export.importers.norms import layer_norm
from export.importers.renaming import scaled
from export.importers.rotary import Rotary, rotary, rotary_dimensions_first, rotary_rows
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from model.config import AttentionConfig, Branches, HeadNormScope, LayerConfig

ONE_NORM: Names = {
    **HUGGING_FACE,
    f"{TARGET}.feed_forward_norm": ("model.layers.{n}.input_layernorm",),
}


def import_cohere(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``CohereForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    architecture = architecture_of(config, "CohereForCausalLM")
    sizes = _sizes(config)
    positions = rotary(config, sizes.head_size, default_base=500_000.0)
    bias = config.flag("attention_bias", False)
    attention = sizes.attention(
        input_bias=bias,
        output_bias=bias,
        rotary=positions.config,
        head_norm=sizes.norm if config.flag("use_qk_norm", False) else None,
        head_norm_scope=HeadNormScope.EACH_HEAD,
    )
    layers = (_layer(config, sizes, attention),) * sizes.num_layers
    return _checkpoint(folder, architecture, sizes, layers, positions)


def import_cohere2(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``Cohere2ForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    architecture = architecture_of(config, "Cohere2ForCausalLM")
    sizes = _sizes(config)
    positions = rotary(config, sizes.head_size)
    bias = config.flag("attention_bias", False)
    attentions = {
        FULL: sizes.attention(input_bias=bias, output_bias=bias),
        SLIDING: sizes.attention(
            input_bias=bias,
            output_bias=bias,
            rotary=positions.config,
            window=config.positive("sliding_window", 4096),
        ),
    }
    pattern = config.positive("sliding_window_pattern", 4)
    types = layer_types(config, sizes.num_layers, lambda index: (index + 1) % pattern != 0)
    layers = tuple(_layer(config, sizes, attentions[type_]) for type_ in types)
    return _checkpoint(folder, architecture, sizes, layers, positions)


def _sizes(config: Fields) -> DecoderSizes:
    return DecoderSizes.of(config, tied=True, norm=layer_norm(config, bias=False))


def _layer(config: Fields, sizes: DecoderSizes, attention: AttentionConfig) -> LayerConfig:
    kind = activation(config, "hidden_act", "silu")
    return sizes.layer(attention, activation=kind, branches=Branches.PARALLEL)


def _checkpoint(
    folder: HuggingFaceFolder,
    architecture: str,
    sizes: DecoderSizes,
    layers: tuple[LayerConfig, ...],
    positions: Rotary,
) -> Checkpoint:
    model = sizes.model(layers, positions.max_positions)
    # In layers without positions, the order of dimensions does not matter.
    rotated = sizes.attention(input_bias=False, output_bias=False, rotary=positions.config)
    order = rotary_dimensions_first(sizes.head_size, positions.config, interleaved=True)
    table = gated_table(
        model,
        ONE_NORM,
        qkv=rotary_rows(rotated, interleaved=True),
        head_norm=lambda weight: weight[:, order],
        final_norm=scaled(folder.config.number("logit_scale", 0.0625)),
    )
    return causal_checkpoint(folder, model, architecture, table)
