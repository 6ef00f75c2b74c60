"""Mixtral (Jiang et al. 2024), as ``transformers`` saves it: Mistral with a mixture of experts."""

from export.checkpoint import Checkpoint
from export.importers.causal import architecture_of, causal_checkpoint
from export.importers.gated_decoder import (
    DOWN,
    GATES,
    HUGGING_FACE,
    ROUTER,
    DecoderSizes,
    Names,
    gated_table,
)
from export.importers.rotary import rotary
from export.importers.support import MAX_EXPERTS
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported
from model.config import ExpertsConfig

_EXPERT = "model.layers.{n}.block_sparse_moe.experts.{e}"
NAMES: Names = {
    **HUGGING_FACE,
    ROUTER: ("model.layers.{n}.block_sparse_moe.gate",),
    GATES: (f"{_EXPERT}.w1", f"{_EXPERT}.w3"),
    DOWN: (f"{_EXPERT}.w2",),
}


def import_mixtral(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``MixtralForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    architecture = architecture_of(config, "MixtralForCausalLM")
    check_supported(config, hidden_act=("silu",))
    shape = DecoderSizes.of(config, epsilon=1e-5)
    positions = rotary(config, shape.head_size, default_base=1_000_000.0)
    attention = shape.attention(
        input_bias=False,
        output_bias=False,
        rotary=positions.config,
        window=config.optional_integer("sliding_window"),
    )
    experts = ExpertsConfig(
        count=config.positive("num_local_experts", 8, maximum=MAX_EXPERTS),
        active=config.positive("num_experts_per_tok", 2),
        normalized=True,
    )
    layer = shape.layer(attention, experts=experts)
    model = shape.model((layer,) * shape.num_layers, positions.max_positions)
    return causal_checkpoint(folder, model, architecture, gated_table(model, NAMES))
