"""NLLB-200 with experts (NLLB Team 2022, section 5): every n-th layer is a mixture of experts.

A token goes through its two best experts, with weights that sum to 1. In ``transformers``, an
expert with an evaluation capacity of 1 or more takes all tokens: no token is dropped, and its
result does not depend on other tokens.
"""

import dataclasses

from export.checkpoint import Checkpoint
from export.errors import SourceError, UnsupportedError
from export.importers.bart_layers import BartLayerNames
from export.importers.bart_tables import BartVariant, import_variant
from export.importers.m2m100 import VARIANT as M2M100
from export.importers.support import MAX_EXPERTS
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported
from model.config import ExpertsConfig, StackConfig

NUM_ACTIVE = 2
CAPACITY = "moe_eval_capacity_token_fraction"


def _experts(config: Fields, side: str, index: int) -> ExpertsConfig | None:
    step = config.integer(f"{side}_sparse_step", 4)
    if not step or (index + 1) % step:
        return None
    count = config.positive("num_experts", 128, maximum=MAX_EXPERTS)
    if count < NUM_ACTIVE:
        raise SourceError(f"{config.origin}: num_experts is {count}, less than {NUM_ACTIVE}")
    return ExpertsConfig(
        count=count,
        active=NUM_ACTIVE,
        normalized=True,
        router_bias=config.flag("router_bias", False),
    )


VARIANT: BartVariant = dataclasses.replace(
    M2M100,
    architecture="NllbMoeForConditionalGeneration",
    names=BartLayerNames(
        cross_attention="cross_attention",
        cross_attention_norm="cross_attention_layer_norm",
        feed_forward="ffn.",
        feed_forward_norm="ff_layer_norm",
    ),
    experts=_experts,
)


def import_nllb_moe(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``NllbMoeForConditionalGeneration`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    check_supported(config, second_expert_policy=("all",), router_dtype=("float32",))
    if config.number(CAPACITY, 1.0) < 1:
        raise UnsupportedError(
            f"{config.origin}: {CAPACITY} {config.number(CAPACITY)} is not supported; supported: "
            "1.0. With less, a token's experts depend on the other tokens of its batch"
        )
    checkpoint = import_variant(folder, VARIANT)
    # Training masked a fraction of the experts' outputs; inference keeps all of them, scaled.
    kept = 1 - config.number("moe_token_dropout", 0.2)
    for name in _expert_outputs(checkpoint):
        checkpoint.weights[name] = checkpoint.weights[name] * kept
    return checkpoint


def _expert_outputs(checkpoint: Checkpoint) -> list[str]:
    """Names of the output weights and biases of all experts."""
    config = checkpoint.config
    stacks: dict[str, StackConfig | None] = {"encoder": config.encoder, "decoder": config.decoder}
    return [
        f"{side}.layers.{index}.feed_forward.output.{kind}"
        for side, stack in stacks.items()
        for index, layer in enumerate(stack.layers if stack else ())
        if layer.feed_forward is not None and layer.feed_forward.experts is not None
        for kind in ("weight", "bias")
    ]
