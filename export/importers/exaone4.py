"""EXAONE 4 (LG AI Research 2025): normalised heads, and norms of the outputs of sub-layers.

With windows, layers of full attention have no positions.
"""

from export.checkpoint import Checkpoint
from export.importers.causal import architecture_of, causal_checkpoint
from export.importers.gated_decoder import DecoderSizes, gated_table
from export.importers.layer_types import SLIDING, layer_types
from export.importers.olmo import RES_POST
from export.importers.rotary import rotary
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported
from model.config import LayerConfig, NormOrder


def import_exaone4(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``Exaone4ForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    architecture = architecture_of(config, "Exaone4ForCausalLM")
    check_supported(config, hidden_act=("silu",))
    sizes = DecoderSizes.of(config, epsilon=1e-5)
    positions = rotary(config, sizes.head_size)
    window = config.optional_integer("sliding_window", absent=4096)

    def layer(type_: str) -> LayerConfig:
        is_sliding = type_ == SLIDING and window is not None
        attention = sizes.attention(
            input_bias=False,
            output_bias=False,
            rotary=positions.config if is_sliding or window is None else None,
            window=window if is_sliding else None,
            head_norm=sizes.norm,
        )
        return sizes.layer(attention, norm_order=NormOrder.RES_POST)

    def is_sliding(index: int) -> bool:
        pattern = config.positive("sliding_window_pattern", 4)
        return window is not None and (index + 1) % pattern != 0

    types = layer_types(config, sizes.num_layers, is_sliding)
    model = sizes.model(tuple(map(layer, types)), positions.max_positions)
    return causal_checkpoint(folder, model, architecture, gated_table(model, RES_POST))
