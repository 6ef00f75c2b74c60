"""Tokens that are parts of UTF-8 characters."""

from codecs import getincrementaldecoder
from collections.abc import Sequence

REPLACEMENT = "\ufffd"  # the result of decoding incomplete UTF-8
MAX_CHARACTER_BYTES = 4  # in UTF-8
_Decoder = getincrementaldecoder("utf-8")


def continues_character(text: bytes) -> bool:
    """Whether ``text`` begins inside a UTF-8 character."""
    return text[:1] > b"\x7f" and text[0] < 0xC0


def is_text(text: bytes) -> bool:
    """Whether ``text`` is UTF-8, up to its last character, without replacement characters."""
    try:
        return REPLACEMENT not in _Decoder().decode(text)
    except UnicodeDecodeError:
        return False


def num_incomplete_tokens(spelled: Sequence[bytes]) -> int:
    """The number of last tokens that hold an incomplete character, which more may complete.

    ``spelled``: the bytes of each token.
    """
    decoder = _Decoder("replace")
    decoder.decode(b"".join(spelled))
    num_bytes = len(decoder.getstate()[0])
    count = 0
    while num_bytes > 0 or (0 < count < len(spelled) and continues_character(spelled[-count])):
        count += 1
        num_bytes -= len(spelled[-count])
    return count
