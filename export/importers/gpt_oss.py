"""gpt-oss (OpenAI 2025): a mixture of experts, with windows in every second layer.

Each head has a sink, a score without a value. Gates and values of experts are clamped. In the
published checkpoints, the experts' matrices are in MXFP4.
"""

from dataclasses import replace

from torch import Tensor

from export.checkpoint import Checkpoint
from export.errors import SourceError
from export.importers.causal import architecture_of, causal_checkpoint
from export.importers.decoder_names import HUGGING_FACE, ROUTER, TARGET, Names
from export.importers.gated_decoder import DecoderSizes, gated_table
from export.importers.layer_types import FULL, SLIDING, layer_types
from export.importers.renaming import Rename, Transform, chained, linear, same
from export.importers.rotary import Rotary, rotary
from export.importers.support import MAX_EXPERTS
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.readers.mxfp4 import Mxfp4Weights
from model.config import ClampedGateConfig, ExpertsConfig

_MIXTURE = "model.layers.{n}.mlp"
NAMES: Names = {**HUGGING_FACE, ROUTER: (f"{_MIXTURE}.router",)}
# Defaults of the configuration's class.
YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "original_max_position_embeddings": 4096,
    "truncate": False,
}


def _transposed(weight: Tensor) -> Tensor:
    """``[experts, inputs, outputs]`` to ``[experts, outputs, inputs]``."""
    return weight.transpose(1, 2)


def experts_table(gates: Transform = same) -> list[Rename]:
    """The weights of a mixture; ``gates`` interleaves the rows of gates and values."""
    entries = {
        "input.weight": ("gate_up_proj", chained(_transposed, gates)),
        "input.bias": ("gate_up_proj_bias", gates),
        "output.weight": ("down_proj", _transposed),
        "output.bias": ("down_proj_bias", same),
    }
    return [
        *linear(ROUTER, *NAMES[ROUTER], bias=True),
        *(
            Rename(f"{TARGET}.feed_forward.{name}", (f"{_MIXTURE}.experts.{source}",), transform)
            for name, (source, transform) in entries.items()
        ),
    ]


def import_gpt_oss(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``GptOssForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    architecture = architecture_of(config, "GptOssForCausalLM")
    sizes = DecoderSizes.of(config, epsilon=1e-5, head_size=64)
    positions = positions_of(config, sizes.head_size)
    bias = config.flag("attention_bias", True)
    window = config.optional_integer("sliding_window", absent=128)
    attentions = {
        type_: sizes.attention(
            input_bias=bias,
            output_bias=bias,
            rotary=positions.config,
            window=size,
            has_sinks=True,
        )
        for type_, size in ((FULL, None), (SLIDING, window))
    }
    types = layer_types(config, sizes.num_layers, lambda index: index % 2 == 0)
    experts = experts_of(config)
    layers = tuple(sizes.layer(attentions[type_], bias=True, experts=experts) for type_ in types)
    model = sizes.model(layers, positions.max_positions)
    return causal_checkpoint(
        replace(folder, weights=Mxfp4Weights(folder.weights)),
        model,
        architecture,
        gated_table(model, NAMES, experts=experts_table()),
    )


def positions_of(config: Fields, head_size: int) -> Rotary:
    """The rotary positions; YaRN's if the configuration names none."""
    scaled = config.with_defaults(rope_parameters=YARN)  # which rope_scaling replaces
    return rotary(scaled, head_size, default_base=150_000.0)


def experts_of(config: Fields) -> ExpertsConfig:
    """The mixture of each layer. Raises ``SourceError`` if its limit is not positive."""
    limit = config.number("swiglu_limit", 7.0)
    if limit <= 0:
        raise SourceError(f"{config.origin}: swiglu_limit is {limit}")
    return ExpertsConfig(
        count=config.positive("num_local_experts", 128, maximum=MAX_EXPERTS),
        active=config.positive("num_experts_per_tok", 4),
        normalized=True,
        router_bias=True,
        clamped_gate=ClampedGateConfig(slope=config.number("swiglu_alpha", 1.702), limit=limit),
    )
