"""The weights of BART's layers, as ``transformers`` names them."""

from dataclasses import dataclass

from export.importers.renaming import Rename, affine, linear, stacked_experts
from model.config import ExpertsConfig, LayerConfig
from model.mixers import required


@dataclass(frozen=True, kw_only=True)
class BartLayerNames:
    """A checkpoint's names for the parts of a layer."""

    cross_attention: str = "encoder_attn"
    cross_attention_norm: str = "encoder_attn_layer_norm"
    feed_forward: str = ""  # before fc1 and fc2
    feed_forward_norm: str = "final_layer_norm"


BART_NAMES = BartLayerNames()


def layer_table(side: str, layer: LayerConfig, names: BartLayerNames) -> list[Rename]:
    """The weights of a layer of the stack ``side``, "encoder" or "decoder"."""
    target, source = f"{side}.layers.{{n}}", f"model.{side}.layers.{{n}}"
    attention, cross = f"{source}.self_attn", f"{source}.{names.cross_attention}"
    query, key, value = (f"{attention}.{letter}_proj" for letter in "qkv")
    table = [
        *linear(f"{target}.mixer.qkv", query, key, value, bias=True),
        *linear(f"{target}.mixer.output", f"{attention}.out_proj", bias=True),
        *affine(f"{target}.mixer_norm", f"{source}.self_attn_layer_norm"),
        *_feed_forward_table(
            f"{target}.feed_forward",
            f"{source}.{names.feed_forward}",
            required(layer.feed_forward).experts,
        ),
        *affine(f"{target}.feed_forward_norm", f"{source}.{names.feed_forward_norm}"),
    ]
    if layer.cross_attention is not None:
        name = f"{target}.cross_attention"
        table += [
            *linear(f"{name}.query", f"{cross}.q_proj", bias=True),
            *linear(f"{name}.key_value", f"{cross}.k_proj", f"{cross}.v_proj", bias=True),
            *linear(f"{name}.output", f"{cross}.out_proj", bias=True),
            *affine(f"{name}_norm", f"{source}.{names.cross_attention_norm}"),
        ]
    return table


def _feed_forward_table(target: str, source: str, experts: ExpertsConfig | None) -> list[Rename]:
    parts = {"input": "fc1", "output": "fc2"}
    if experts is None:
        return [
            entry
            for part, name in parts.items()
            for entry in linear(f"{target}.{part}", f"{source}{name}", bias=True)
        ]
    table = linear(f"{target}.router", f"{source}router.classifier", bias=experts.router_bias)
    for part, name in parts.items():
        each = [f"{source}experts.expert_{index}.{name}" for index in range(experts.count)]
        table += [
            Rename(
                f"{target}.{part}.{kind}",
                tuple(f"{expert}.{kind}" for expert in each),
                stacked_experts(1),
            )
            for kind in ("weight", "bias")
        ]
    return table
