"""Stacks of single sub-layers in any order (Press et al. 2020). Imports no torch."""

from msgspec import structs

from model.config import LayerConfig


def in_order(order: str, layer: LayerConfig) -> tuple[LayerConfig, ...]:
    """A layer for each letter of ``order``: ``s`` for attention, ``f`` for a feed-forward.

    ``"sf" * n`` is a Transformer of ``n`` layers, ``"s" * k + "sf" * (n - k) + "f" * k`` a Sandwich
    Transformer (Press et al. 2020, section 4). In a decoder with a source, ``c`` is
    cross-attention: ``"sc" * k + "scf" * (n - k) + "f" * k``. Without ``c``, it follows
    self-attention in the same layer.

    Args:
        order: the sub-layers, from the input to the output.
        layer: has all sub-layers; each letter keeps one of them.

    Raises:
        ValueError: another letter, or ``s`` or ``f`` is missing.
    """
    letters = {"s", "f"} if layer.cross_attention is None else {"s", "c", "f"}
    if not {"s", "f"} <= set(order) <= letters:
        more = "" if layer.cross_attention is None else "; c may be among them"
        raise ValueError(f"sublayers {order!r} must be letters s and f, each at least once{more}")
    alone = structs.replace(layer, mixer=None, attention=None, cross_attention=None)
    attends = structs.replace(layer, feed_forward=None)
    kept = {
        "s": structs.replace(attends, cross_attention=None) if "c" in order else attends,
        "c": structs.replace(attends, mixer=None, attention=None),
        "f": alone,
    }
    return tuple(kept[letter] for letter in order)
