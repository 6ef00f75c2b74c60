"""Values drawn from bytes: the same bytes, the same values, whoever made them."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Draw:
    """Reads ``data`` from the front; where it ends, zeros follow."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._offset = 0

    def take(self, count: int) -> bytes:
        """The next ``count`` bytes; fewer at the end."""
        piece = self._data[self._offset : self._offset + count]
        self._offset += len(piece)
        return piece

    def rest(self) -> bytes:
        return self.take(len(self._data))

    def byte(self) -> int:
        return int.from_bytes(self.take(1))

    def below(self, count: int) -> int:
        """From 0 to ``count`` - 1; two bytes decide."""
        return int.from_bytes(self.take(2), "little") % count

    def flag(self) -> bool:
        return bool(self.byte() & 1)

    def choice(self, values: Sequence[T]) -> T:
        return values[self.below(len(values))]

    def text(self, max_bytes: int = 64) -> str:
        """Up to ``max_bytes`` bytes as UTF-8; what is none becomes U+FFFD."""
        return self.take(self.below(max_bytes + 1)).decode(errors="replace")

    def rest_as_text(self) -> str:
        return self.rest().decode(errors="replace")

    def rest_as_texts(self, count: int) -> list[str]:
        """``count`` texts, divided by NUL as long as there are enough."""
        parts = self.rest().split(b"\0", count - 1)
        parts += [b""] * (count - len(parts))
        return [part.decode(errors="replace") for part in parts]
