"""Switch Transformers (Fedus et al. 2021): T5 with one expert per token in every n-th layer.

An expert of the encoder takes ``expert_capacity`` tokens of a text; only the residual connection
passes the rest on, as in ``transformers``. The decoder's experts have no capacity: generation
computes one token at a time, which always fits.
"""

import dataclasses

from export.checkpoint import Checkpoint
from export.importers.activations import ACTIVATIONS
from export.importers.causal import architecture_of
from export.importers.support import MAX_EXPERTS, MAX_LAYERS
from export.importers.t5 import T5Variant, import_variant
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported, lookup
from model.config import ExpertsConfig
from model.fused import EXPERT_ACTIVATIONS

_LAYERS = {"encoder": "num_layers", "decoder": "num_decoder_layers"}
_ACTIVATIONS = {
    name: kind for name, kind in ACTIVATIONS.items() if (kind, False) in EXPERT_ACTIVATIONS
}


def import_switch_transformers(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``SwitchTransformersForConditionalGeneration`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    check_supported(config, is_gated_act=(False,), router_dtype=("float32",))
    activation = config.text("dense_act_fn", "relu")
    lookup(_ACTIVATIONS, activation, f"{config.origin}: dense_act_fn")
    fields = {**config, "dense_act_fn": activation, "is_gated_act": False}
    folder = dataclasses.replace(folder, config=Fields(fields, config.origin))
    variant = T5Variant(
        architecture=architecture_of(config, "SwitchTransformersForConditionalGeneration"),
        may_scale=True,
        feed_forward="mlp",
        experts=_experts,
    )
    return import_variant(folder, variant)


def _experts(config: Fields, side: str, index: int) -> ExpertsConfig | None:
    count = config.positive("num_layers", maximum=MAX_LAYERS)
    num_layers = config.positive(_LAYERS[side], count, maximum=MAX_LAYERS)
    num_sparse = config.integer(f"num_sparse_{side}_layers", 3)
    step = config.integer(
        f"{side}_sparse_step", num_layers // num_sparse if num_sparse > 0 else num_layers
    )
    if step != 1 and (step < 1 or index % step != 1):
        return None
    return ExpertsConfig(
        count=config.positive("num_experts", 8, maximum=MAX_EXPERTS),
        active=1,
        normalized=False,
        router_bias=config.flag("router_bias", False),
        capacity=config.positive("expert_capacity", 64) if side == "encoder" else None,
    )
