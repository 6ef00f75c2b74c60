"""Counts the values of a JSON body before it is decoded.

Decoding holds the interpreter, in whichever thread it runs: 16 MiB of empty lists take a second and
360 MB. A scan that skips the contents of strings lets others run.
"""

import numpy as np

from server.bounds import MAX_TOKEN_IDS

# A body with fewer bytes takes a millisecond or two to decode.
MIN_SCANNED_BYTES = 1 << 16
# Maximum values of a body: elements of lists, members of objects, and the lists and objects.
MAX_VALUES = 1 << 17
# The same where a body may have token ids.
MAX_ID_VALUES = MAX_TOKEN_IDS + MAX_VALUES

_PIECE_BYTES = 1 << 18
_QUOTE = ord('"')
_COUNTED = np.zeros(256, np.bool_)
_COUNTED[list(b",[{")] = True


def has_too_many_values(data: bytes, max_values: int) -> bool:
    """Whether a JSON text has more than ``max_values`` values, up to its first syntax error.

    Bodies under :data:`MIN_SCANNED_BYTES` are not scanned.
    """
    if len(data) < MIN_SCANNED_BYTES:
        return False
    num_values = at = 0
    is_inside = False  # a string
    while at < len(data) and num_values <= max_values:
        piece = data[at : at + _PIECE_BYTES]
        if _ends_in_escape(piece) and at + len(piece) < len(data):
            piece = piece[:-1]
        at += len(piece)
        if b"\\" in piece:
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        if not piece:
            continue
        characters = np.frombuffer(piece, np.uint8)
        # Whether a string is open after each character.
        inside = np.logical_xor.accumulate(characters == _QUOTE) ^ is_inside
        is_inside = bool(inside[-1])
        num_values += int(np.count_nonzero(_COUNTED[characters] & ~inside))
    return num_values > max_values


def _ends_in_escape(piece: bytes) -> bool:
    """Whether the last backslash escapes what follows ``piece``."""
    return (len(piece) - len(piece.rstrip(b"\\"))) % 2 == 1
