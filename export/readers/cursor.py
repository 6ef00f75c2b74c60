"""Reads a binary file sequentially, never beyond its end."""

import struct
from collections.abc import Sequence

from export.errors import SourceError


class Cursor:
    """A read position in ``data``, little-endian.

    Counts and lengths in the file are checked against the remaining bytes before memory of that
    size is allocated. ``origin`` names the file in messages.
    """

    def __init__(self, data: memoryview, origin: str) -> None:
        self._data = data
        self.origin = origin
        self.offset = 0

    @property
    def num_bytes_left(self) -> int:
        return len(self._data) - self.offset

    def bytes(self, count: int, what: str) -> memoryview:
        """The next ``count`` bytes, not copied.

        Raises:
            SourceError: the file ends before; the message names ``what``.
        """
        if count > self.num_bytes_left:
            raise SourceError(
                f"{self.origin}: {what} at byte {self.offset} needs {count} bytes, "
                f"{self.num_bytes_left} are left; the file is truncated or damaged"
            )
        view = self._data[self.offset : self.offset + count]
        self.offset += count
        return view

    def numbers(self, code: str, count: int, what: str) -> Sequence[int | float | bool]:
        """``count`` numbers of one ``struct`` type ``code``."""
        view = self.bytes(struct.calcsize(f"<{code}") * count, what)
        return struct.unpack(f"<{count}{code}", view)

    def unsigned(self, code: str, what: str) -> int:
        """One unsigned integer."""
        return int(self.numbers(code, 1, what)[0])

    def text(self, count: int, what: str) -> str:
        """``count`` bytes of UTF-8.

        Raises:
            SourceError: they are not UTF-8.
        """
        try:
            return str(self.bytes(count, what), "utf-8")
        except UnicodeDecodeError as error:
            raise SourceError(f"{self.origin}: {what} is not UTF-8: {error}") from error

    def check_count(self, count: int, min_size: int, what: str) -> int:
        """``count``, if that many items of at least ``min_size`` bytes fit into the rest.

        Raises:
            SourceError: they do not fit.
        """
        if count * min_size > self.num_bytes_left:
            raise SourceError(
                f"{self.origin}: {count} {what} cannot fit in the {self.num_bytes_left} bytes "
                "that are left; the file is truncated or damaged"
            )
        return count
