"""SmolLM3 (Hugging Face 2025): Llama without positions in every fourth layer (NoPE)."""

from export.checkpoint import Checkpoint
from export.errors import SourceError, UnsupportedError
from export.importers.causal import architecture_of, causal_checkpoint
from export.importers.gated_decoder import DecoderSizes, gated_table
from export.importers.layer_types import SLIDING, layer_types
from export.importers.rotary import rotary
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported


def import_smollm3(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``SmolLM3ForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    architecture = architecture_of(config, "SmolLM3ForCausalLM")
    check_supported(config, hidden_act=("silu",))
    shape = DecoderSizes.of(config, tied=True)
    positions = rotary(config, shape.head_size, default_base=2_000_000.0)
    uses_rotary = _uses_rotary(config, shape.num_layers)
    window = None
    if config.flag("use_sliding_window", False):
        window = config.optional_integer("sliding_window")
    types = layer_types(
        config, shape.num_layers, lambda index: window is not None and not uses_rotary[index]
    )
    if SLIDING in types and window is None:
        raise UnsupportedError(
            f"{config.origin}: layer_types with {SLIDING} is not supported without "
            "use_sliding_window and sliding_window"
        )
    bias = config.flag("attention_bias", False)
    layers = tuple(
        shape.layer(
            shape.attention(
                input_bias=bias,
                output_bias=bias,
                rotary=positions.config if is_rotary else None,
                window=window if type_ == SLIDING else None,
            ),
            bias=config.flag("mlp_bias", False),
        )
        for is_rotary, type_ in zip(uses_rotary, types, strict=True)
    )
    model = shape.model(layers, positions.max_positions)
    return causal_checkpoint(folder, model, architecture, gated_table(model))


def _uses_rotary(config: Fields, num_layers: int) -> list[bool]:
    """Whether each layer has rotary positions: 1 in ``no_rope_layers`` means that it does."""
    uses_rotary = [bool(value) for value in config.integers("no_rope_layers")]
    if not uses_rotary:
        interval = config.positive("no_rope_layer_interval", 4)
        uses_rotary = [(index + 1) % interval != 0 for index in range(num_layers)]
    if len(uses_rotary) != num_layers:
        raise SourceError(
            f"{config.origin}: {len(uses_rotary)} no_rope_layers, {num_layers} layers"
        )
    return uses_rotary
