"""Makes text from clients and files safe to show: one line, printable, of bounded length."""

# A gRPC status is sent as metadata: its message percent-encoded, and twice more in the details, in
# base64. Clients reject calls whose metadata exceed 8 KiB.
MAX_MESSAGE_BYTES = 768
MAX_FIELD_BYTES = 128
_MAX_QUOTED = 80  # characters
_CUT = "…"


def printable(text: str) -> str:
    r"""Escapes every character that is not printable: ``\n``, ``\x1b``, lone surrogates.

    The result can be encoded as UTF-8.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def shortened(text: str, max_bytes: int) -> str:
    """Makes ``text`` printable and cuts it to ``max_bytes`` of UTF-8, with a final ellipsis."""
    data = printable(text[:max_bytes]).encode()
    if len(data) <= max_bytes and len(text) <= max_bytes:
        return data.decode()
    return data[: max_bytes - len(_CUT.encode())].decode(errors="ignore") + _CUT


def counted(count: int, noun: str) -> str:
    """``count`` with a noun that takes an s: ``1 slot``, ``2 slots``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def quoted(text: str) -> str:
    """``repr`` of the first 80 characters of ``text``."""
    return repr(text if len(text) <= _MAX_QUOTED else text[:_MAX_QUOTED] + _CUT)
