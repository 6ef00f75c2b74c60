"""The attention type of each layer: full or sliding window."""

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
        is_sliding: from the layer's number; for configurations without ``layer_types``.

    Raises:
        SourceError: the number of types is not the number of layers.
        UnsupportedError: another type.
    """
    types = config.texts("layer_types")
    if not types:
        return tuple(SLIDING if is_sliding(index) else FULL for index in range(num_layers))
    if len(types) != num_layers:
        raise SourceError(f"{config.origin}: {len(types)} layer_types for {num_layers} layers")
    for type_ in types:
        check_supported(Fields({"layer_types": type_}, config.origin), layer_types=(FULL, SLIDING))
    return tuple(types)


def windows(config: Fields, num_layers: int, *, alternates: bool = False) -> tuple[int | None, ...]:
    """Each layer's window in Qwen's configurations.

    Without ``layer_types``, all but the first ``max_window_layers`` have one; if ``alternates``,
    every second of these first layers instead (Qwen2-MoE).
    """
    window = None
    if config.flag("use_sliding_window", False):
        window = config.optional_integer("sliding_window", absent=4096)
    first = config.integer("max_window_layers", 28)

    def is_sliding(index: int) -> bool:
        return index < first and index % 2 == 0 if alternates else index >= first

    types = layer_types(config, num_layers, is_sliding)
    return tuple(window if type_ == SLIDING else None for type_ in types)
