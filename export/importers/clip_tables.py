"""Shared by the importers of CLIP and SigLIP: their layers, and the towers of a whole model."""

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from export.errors import SourceError
from export.importers import vit_tables
from export.importers.activations import activation
from export.importers.bert_tables import LayerNames, num_layers, two_maps
from export.importers.heads import Head
from export.importers.renaming import Rename, per_layer
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import lookup
from model.config import Activation, LayerConfig

NAMES = LayerNames(
    query="encoder.layers.{n}.self_attn.q_proj",
    key="encoder.layers.{n}.self_attn.k_proj",
    value="encoder.layers.{n}.self_attn.v_proj",
    attention_output="encoder.layers.{n}.self_attn.out_proj",
    attention_norm="encoder.layers.{n}.layer_norm1",
    feed_forward_input="encoder.layers.{n}.mlp.fc1",
    feed_forward_output="encoder.layers.{n}.mlp.fc2",
    feed_forward_norm="encoder.layers.{n}.layer_norm2",
)
# x * sigmoid(1.702 x) (Hendrycks and Gimpel 2016) is silu(1.702 x) / 1.702: the linear maps before
# and after it absorb the factors.
QUICK_GELU, SLOPE = "quick_gelu", 1.702
FACTORS = {
    "encoder.layers.{n}.feed_forward.input.weight": SLOPE,
    "encoder.layers.{n}.feed_forward.input.bias": SLOPE,
    "encoder.layers.{n}.feed_forward.output.weight": 1 / SLOPE,
}
# The towers of a whole model: configuration fields, and prefixes of the weights' names.
CONFIGS = {"image": "vision_config", "text": "text_config"}
WEIGHTS = {"image": ("vision_model.", "visual_projection."), "text": ("text_model.", "text_proj")}


def layers(config: Fields, default_activation: str, epsilon: float) -> tuple[LayerConfig, ...]:
    """The layers; arguments are the family's defaults."""
    is_quick = config.text("hidden_act", default_activation) == QUICK_GELU
    kind = Activation.SILU if is_quick else activation(config, "hidden_act", default_activation)
    feed_forward = two_maps(config, kind)
    layer = vit_tables.pre_norm_layer(config, feed_forward, epsilon=epsilon)
    return (layer,) * num_layers(config)


def layer_table(config: Fields, default_activation: str) -> list[Rename]:
    """The weights of :func:`layers`."""
    is_quick = config.text("hidden_act", default_activation) == QUICK_GELU
    factors = FACTORS if is_quick else {}
    entries = [_scaled(entry, factors.get(entry.target)) for entry in NAMES.table()]
    return per_layer(entries, num_layers(config))


def _scaled(entry: Rename, factor: float | None) -> Rename:
    if factor is None:
        return entry

    def transform(*weights: Tensor) -> Tensor:
        return entry.transform(*weights) * factor

    return replace(entry, transform=transform)


def chosen_tower(folder: HuggingFaceFolder, supported: tuple[str, ...]) -> str:
    """The tower of a whole model that is to be exported.

    Raises:
        SourceError: no tower was selected.
        UnsupportedError: the selected tower is not in ``supported``.
    """
    if folder.tower is None:
        choices = " or ".join(f"--tower {name}" for name in supported)
        raise SourceError(f"{folder.path}: a model of images and texts: choose {choices}")
    return lookup(dict(zip(supported, supported, strict=True)), folder.tower, "--tower")


def tower_of(folder: HuggingFaceFolder, tower: str, architecture: str) -> HuggingFaceFolder:
    """The tower of a whole model as if its configuration were that of ``folder``.

    In old files, a second configuration with the suffix ``_dict`` takes precedence.
    """
    whole, name = folder.config, CONFIGS[tower]
    names = ("id2label", "num_labels", "problem_type", "projection_dim")
    values: Mapping[str, object] = {
        **(whole.fields(f"{name}_dict") or whole.fields(name)),
        **{name: whole[name] for name in names if name in whole},
        "architectures": [architecture],
    }
    return replace(folder, config=Fields(values, f"{whole.origin}: {name}"))


def without_others(
    head: Head, folder: HuggingFaceFolder, tower: str, unused: str = "logit_"
) -> Head:
    """``head``, for a folder that also has weights of the other tower.

    Args:
        unused: prefix of the names of further weights that the model does not need.
    """
    others = (*(x for name, x in WEIGHTS.items() if name != tower), (unused,), ("logit_",))
    starts = tuple(start for names in others for start in names)
    ignored = (name for name in folder.weights if name.startswith(starts))
    return replace(head, ignored=(*head.ignored, *ignored))
