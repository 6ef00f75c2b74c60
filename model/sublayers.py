"""Stacks of single sub-layers in any order (Press et al. 2020). Imports no torch."""

from msgspec import structs

from model.config import LayerConfig


def in_order(order: str, layer: LayerConfig) -> tuple[LayerConfig, ...]:
    """A layer for each letter of ``order``: ``s`` for attention, ``f`` for a feed-forward.

    ``"sf" * n`` is a Transformer of ``n`` layers, ``"s" * k + "sf" * (n - k) + "f" * k`` a Sandwich
    Transformer (Press et al. 2020, section 4). In a decoder with a source, cross-attention follows
    self-attention in the same layer.

    Args:
        order: of the sub-layers, from the input to the output.
        layer: has both; each letter keeps one.

    Raises:
        ValueError: another letter, or ``s`` or ``f`` is missing.
    """
    if set(order) != {"s", "f"}:
        raise ValueError(f"sublayers {order!r} must be letters s and f, each at least once")
    kept = {
        "s": structs.replace(layer, feed_forward=None),
        "f": structs.replace(layer, mixer=None, attention=None, cross_attention=None),
    }
    return tuple(kept[letter] for letter in order)
