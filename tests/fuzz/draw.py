"""Draws structured values from bytes, deterministically."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Draw:
    """Consumes ``data`` from the front; reads zeros past its end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._offset = 0

    def take(self, count: int) -> bytes:
        """The next ``count`` bytes; fewer at the end."""
        data = self._data[self._offset : self._offset + count]
        self._offset += len(data)
        return data

    def rest(self) -> bytes:
        return self.take(len(self._data))

    def byte(self) -> int:
        return int.from_bytes(self.take(1))

    def below(self, count: int) -> int:
        """An integer in [0, ``count``), from two bytes."""
        return int.from_bytes(self.take(2), "little") % count

    def flag(self) -> bool:
        return bool(self.byte() & 1)

    def choice(self, values: Sequence[T]) -> T:
        return values[self.below(len(values))]

    def text(self, max_bytes: int = 64) -> str:
        """Up to ``max_bytes`` bytes as UTF-8; invalid bytes become U+FFFD."""
        return self.take(self.below(max_bytes + 1)).decode(errors="replace")

    def rest_as_text(self) -> str:
        return self.rest().decode(errors="replace")

    def rest_as_texts(self, count: int) -> list[str]:
        """``count`` NUL-separated texts; missing ones are empty."""
        texts = self.rest().split(b"\0", count - 1)
        texts += [b""] * (count - len(texts))
        return [text.decode(errors="replace") for text in texts]
