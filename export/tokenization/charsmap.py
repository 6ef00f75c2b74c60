"""Validates SentencePiece's compiled normalization rules: a Darts-clone trie, then strings.

Layout (``normalizer.cc``, ``DecodePrecompiledCharsMap``; ``darts.h``, ``DoubleArrayUnit``),
little-endian: u32 bytes of the trie; its units, u32 each; strings that each end with NUL.
"""

import numpy as np
from numpy.typing import NDArray

BLOCK = 256  # units per block; a transition on a byte stays within one block


def find_error(charsmap: bytes) -> str:
    """An error message if parsing ``charsmap`` could read beyond it; empty if it is valid."""
    size = int.from_bytes(charsmap[:4], "little")
    if size == 0 or size % (4 * BLOCK) or 4 + size > len(charsmap):
        return f"a trie of {size} bytes"
    units = np.frombuffer(charsmap[4 : 4 + size], "<u4").astype(np.int64)
    strings = np.frombuffer(charsmap[4 + size :], np.uint8)
    if not len(strings) or strings[-1] != 0:
        return "strings without an end"
    try:
        bytes(strings).decode()
    except UnicodeDecodeError as error:
        return f"strings that are not UTF-8: {error}"
    return _find_unit_error(units, strings)


def _find_unit_error(units: NDArray[np.int64], strings: NDArray[np.uint8]) -> str:
    # A unit is a value (bit 31), or has the offset of its children and a flag for a value.
    children = np.arange(len(units)) ^ ((units >> 10) << ((units & 0x200) >> 6))
    is_node = units >> 31 == 0
    if (children[is_node] >= len(units)).any():
        return "a unit that points beyond the trie"
    values = units[children[is_node & (units >> 8 & 1 == 1)]] & 0x7FFFFFFF
    if (values >= len(strings)).any():
        return "a unit that points beyond the strings"
    if (strings[values[values > 0] - 1] != 0).any():
        return "a unit that points into a string"
    return ""
