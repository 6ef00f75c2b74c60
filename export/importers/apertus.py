"""Apertus (Swiss AI Initiative 2025): Llama with normalized queries and keys, and xIELU."""

import torch
from torch import Tensor
from torch.nn import functional

from export.checkpoint import Checkpoint
from export.importers.causal import architecture_of, causal_checkpoint
from export.importers.decoder_names import TARGET, Names
from export.importers.gated_decoder import DecoderSizes, gated_table
from export.importers.llama_like import UNGATED
from export.importers.renaming import Rename, numbered, per_layer
from export.importers.rotary import rotary
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported
from model.config import Activation

_LAYER = "model.layers.{n}"
_XIELU = f"{_LAYER}.mlp.act_fn"
NAMES: Names = {
    **UNGATED,
    f"{TARGET}.mixer_norm": (f"{_LAYER}.attention_layernorm",),
    f"{TARGET}.feed_forward_norm": (f"{_LAYER}.feedforward_layernorm",),
}
# Defaults of the configuration's class.
ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}


def _slopes(above: Tensor, below: Tensor, linear: Tensor) -> Tensor:
    """The weights of :class:`model.basics.Xielu`, of which two are kept above a limit."""
    slope = linear.reshape(1)
    return torch.cat([functional.softplus(above), slope + functional.softplus(below), slope])


SLOPES = Rename(
    f"{TARGET}.feed_forward.activation.weight",
    tuple(f"{_XIELU}.{name}" for name in ("alpha_p", "alpha_n", "beta")),
    _slopes,
)


def import_apertus(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``ApertusForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    architecture = architecture_of(config, "ApertusForCausalLM")
    check_supported(config, hidden_act=("xielu",))
    sizes = DecoderSizes.of(config, epsilon=1e-5)
    scaled = config.with_defaults(rope_parameters=ROPE)  # which rope_scaling replaces
    positions = rotary(scaled, sizes.head_size, default_base=12_000_000.0)
    bias = config.flag("attention_bias", False)
    attention = sizes.attention(
        input_bias=bias, output_bias=bias, rotary=positions.config, head_norm=sizes.norm
    )
    layer = sizes.layer(attention, activation=Activation.XIELU, gated=False)
    model = sizes.model((layer,) * sizes.num_layers, positions.max_positions)
    table = [*gated_table(model, NAMES), *per_layer([SLOPES], sizes.num_layers)]
    # transformers starts the exponential at -1e-6 instead of 0.
    ignored = numbered([f"{_XIELU}.eps"], sizes.num_layers)
    return causal_checkpoint(folder, model, architecture, table, ignored=ignored)
