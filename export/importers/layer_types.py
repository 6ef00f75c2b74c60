"""Layers that differ: which of them see only a window."""

from collections.abc import Callable

from export.errors import SourceError
from export.readers.fields import Fields
from export.supported import check_supported

FULL, SLIDING = "full_attention", "sliding_attention"


def layer_types(
    config: Fields, num_layers: int, is_sliding: Callable[[int], bool]
) -> tuple[str, ...]:
    """:data:`FULL` or :data:`SLIDING` for each layer.

    Args:
        is_sliding: of the layer's number, for configurations that do not say.

    Raises:
        SourceError, UnsupportedError: there are not as many, or of other types.
    """
    types = config.texts("layer_types")
    if not types:
        return tuple(SLIDING if is_sliding(index) else FULL for index in range(num_layers))
    if len(types) != num_layers:
        raise SourceError(f"{config.origin}: {len(types)} layer_types for {num_layers} layers")
    for type_ in types:
        check_supported(Fields({"layer_types": type_}, config.origin), layer_types=(FULL, SLIDING))
    return tuple(types)


def windows(config: Fields, num_layers: int) -> tuple[int | None, ...]:
    """Each layer's window, as Qwen has them: from ``max_window_layers`` on, if at all."""
    window = None
    if config.flag("use_sliding_window", False) and config.get("sliding_window") is not None:
        window = config.positive("sliding_window")
    first = config.integer("max_window_layers", 28)
    types = layer_types(config, num_layers, lambda index: window is not None and index >= first)
    return tuple(window if type_ == SLIDING else None for type_ in types)
