"""Nemotron and Minitron (NVIDIA 2024): squared ReLU, layer norms that multiply by ``1 + w``."""

from export.checkpoint import Checkpoint
from export.importers.activations import activation
from export.importers.causal import architecture_of, causal_checkpoint
from export.importers.gated_decoder import HUGGING_FACE, TARGET, DecoderSizes, Names, gated_table
from export.importers.norms import layer_norm
from export.importers.renaming import add_one
from export.importers.rotary import rotary, rotary_rows
from export.readers.hugging_face import HuggingFaceFolder

NAMES: Names = {
    **HUGGING_FACE,
    f"{TARGET}.feed_forward.input": ("model.layers.{n}.mlp.up_proj",),
}


def import_nemotron(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``NemotronForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    architecture = architecture_of(config, "NemotronForCausalLM")
    sizes = DecoderSizes.of(config, norm=layer_norm(config, "norm_eps"))
    positions = rotary(config, sizes.head_size, default_fraction=0.5)
    bias = config.flag("attention_bias", False)
    attention = sizes.attention(input_bias=bias, output_bias=bias, rotary=positions.config)
    layer = sizes.layer(
        attention,
        activation=activation(config, "hidden_act", "relu2"),
        gated=False,
        bias=config.flag("mlp_bias", False),
    )
    model = sizes.model((layer,) * sizes.num_layers, positions.max_positions)
    table = gated_table(model, NAMES, norm=add_one, qkv=rotary_rows(attention))
    return causal_checkpoint(folder, model, architecture, table)
