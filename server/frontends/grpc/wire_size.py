"""Counts the fields of a serialized message before it is parsed.

Parsing holds the interpreter lock: 16 MiB of empty texts take 260 ms. A scan that skips the
contents of texts stops at the first field over the limit.
"""

from functools import cache
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from server.bounds import MAX_TEXTS, MAX_TOKEN_IDS

# A message with fewer bytes takes at most a few milliseconds to parse.
MIN_SCANNED_BYTES = 1 << 18
# Each text may be in a message of three fields, such as a question with its context.
MAX_FIELDS = 4 * MAX_TEXTS

# Types on the wire.
_VARINT, _FIXED64, _BYTES, _GROUP_START, _GROUP_END, _FIXED32 = range(6)
_FIXED_SIZES = {_FIXED64: 8, _FIXED32: 4, _GROUP_START: 0, _GROUP_END: 0}
_GROUP_LEVELS = {_GROUP_START: 1, _GROUP_END: -1}
_MAX_VARINT_BYTES = 10


def has_too_many_fields(data: bytes, descriptor: Any) -> bool:
    """Whether a message has more than :data:`MAX_FIELDS` fields or too many packed numbers.

    Takes time in proportion to its length, whatever it holds.

    Args:
        data: the serialized message.
        descriptor: the descriptor of its type.

    Raises:
        DecodeError: the message is malformed. Other errors are left to the parser.
    """
    if len(data) < MIN_SCANNED_BYTES:
        return False
    try:
        return _exceeds(data, descriptor)
    except IndexError:
        raise DecodeError("the message is cut short") from None


def _exceeds(data: bytes, descriptor: Any) -> bool:
    num_fields = num_numbers = 0
    # Disjoint within each level of nesting: no byte is read twice as the same type.
    ranges = [(0, len(data), _nested(descriptor))]
    while ranges:
        at, end, nested = ranges.pop()
        num_groups = 0  # open ones, which no message here has: their fields are unknown
        while at < end:
            num_fields += 1
            if num_fields > MAX_FIELDS:
                return True
            tag = data[at]
            at += 1
            if tag >= 0x80:
                tag, at = _varint(data, at - 1)
            kind = tag & 7
            if kind == _BYTES:
                size, at = _varint(data, at)
                if size > end - at:
                    raise DecodeError("a field is longer than its message")
                inner = None if num_groups else nested.get(tag >> 3)
                if inner is _NUMBERS:
                    num_numbers += _num_varints(data, at, size)
                    if num_numbers > MAX_TOKEN_IDS:
                        return True
                elif inner is not None:
                    ranges.append((at, at + size, _nested(inner)))
                at += size
            elif kind == _VARINT:
                _, at = _varint(data, at)
            elif kind in _FIXED_SIZES:
                at += _FIXED_SIZES[kind]
                num_groups += _GROUP_LEVELS.get(kind, 0)
            else:
                raise DecodeError("a field has no type")
    return False


def _num_varints(data: bytes, at: int, size: int) -> int:
    """Number of varints in ``size`` bytes; a lower bound, uncounted, if that is over the limit."""
    if size // _MAX_VARINT_BYTES > MAX_TOKEN_IDS:
        return size // _MAX_VARINT_BYTES
    return int(np.count_nonzero(np.frombuffer(data, np.uint8, size, at) < 0x80))


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Returns the number that starts at index ``at``, and the index after it.

    Raises:
        DecodeError: it does not end in time. A longer one would take quadratic time.
    """
    value = data[at]
    at += 1
    if value < 0x80:
        return value, at
    value &= 0x7F
    for shift in range(7, 7 * _MAX_VARINT_BYTES, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise DecodeError("a number is too long")


_NUMBERS = object()


@cache
def _nested(descriptor: Any) -> dict[int, Any]:
    """Maps field numbers to the types of nested messages, or to ``_NUMBERS`` for packed numbers."""
    found: dict[int, Any] = {}
    for field in descriptor.fields:
        if field.message_type is not None:
            found[field.number] = field.message_type
        elif field.is_repeated and field.type not in (field.TYPE_STRING, field.TYPE_BYTES):
            found[field.number] = _NUMBERS
    return found
