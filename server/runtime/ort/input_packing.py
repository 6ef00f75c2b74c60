"""Several arrays in one piece of memory, so that one copy takes all of them to a device."""

from collections.abc import Mapping
from itertools import accumulate

import numpy as np

from server.runtime.contract import Array

# Bytes. No kernel wants its inputs at rounder addresses than an allocator gives.
ALIGNMENT = 256


class InputPacking:
    """Where each array of these shapes and types stands.

    Args:
        arrays: what is to be packed, by name.
    """

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self._layouts = {name: (array.shape, array.dtype) for name, array in arrays.items()}
        sizes = [-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in arrays.values()]
        starts = list(accumulate(sizes, initial=0))
        self._offsets = dict(zip(arrays, starts, strict=False))
        self.num_words = max(starts[-1] // 8, 1)
        self._words = np.zeros(self.num_words, np.int64)
        data = self._words.view(np.uint8)
        self._views: dict[str, Array] = {}
        for name, array in arrays.items():
            start = self._offsets[name]
            part = data[start : start + array.nbytes]
            self._views[name] = part.view(array.dtype).reshape(array.shape)

    def fits(self, arrays: Mapping[str, Array]) -> bool:
        """Whether these have the shapes and types that it was made for."""
        return self._layouts == {name: (array.shape, array.dtype) for name, array in arrays.items()}

    def offset_of(self, name: str) -> int:
        """In bytes."""
        return self._offsets[name]

    def pack(self, arrays: Mapping[str, Array]) -> Array:
        """All of them as words of 8 bytes; valid until the next call."""
        for name, array in arrays.items():
            self._views[name][...] = array
        return self._words
