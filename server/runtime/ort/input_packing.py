"""Packs several arrays into one buffer, so that a single copy transfers them to a device."""

from collections.abc import Callable, Collection, Mapping
from itertools import accumulate

import numpy as np

from server.runtime.memory import Array

# In bytes. CUDA's allocator aligns to 256 bytes, so no kernel needs more for its inputs.
ALIGNMENT = 256


def zero_words(count: int) -> Array:
    """Allocates ``[count]`` int64 zeros."""
    return np.zeros(count, np.int64)


class InputPacking:
    """Offsets in a host buffer for arrays of fixed shapes and types.

    Args:
        arrays: sample arrays, by name.
        allocate: makes a buffer of the given number of int64 words.
    """

    def __init__(
        self, arrays: Mapping[str, Array], allocate: Callable[[int], Array] = zero_words
    ) -> None:
        self._layouts = {name: (array.shape, array.dtype) for name, array in arrays.items()}
        sizes = [-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in arrays.values()]
        starts = list(accumulate(sizes, initial=0))
        self._offsets = dict(zip(arrays, starts, strict=False))
        self.num_words = max(starts[-1] // 8, 1)
        self._words = allocate(self.num_words)
        data = self._words.view(np.uint8)
        self._views: dict[str, Array] = {}
        for name, array in arrays.items():
            start = self._offsets[name]
            part = data[start : start + array.nbytes]
            self._views[name] = part.view(array.dtype).reshape(array.shape)

    def fits(self, arrays: Mapping[str, Array]) -> bool:
        """Whether these arrays have the names, shapes and types of the sample arrays."""
        return self._layouts == {name: (array.shape, array.dtype) for name, array in arrays.items()}

    @property
    def names(self) -> Collection[str]:
        """The arrays' names."""
        return self._views.keys()

    def offset_of(self, name: str) -> int:
        """Returns the offset of an array in the buffer, in bytes."""
        return self._offsets[name]

    def pack(self, arrays: Mapping[str, Array]) -> Array:
        """Returns the buffer with these arrays, as 8-byte words; valid until the next call."""
        for name, array in arrays.items():
            self._views[name][...] = array
        return self._words
