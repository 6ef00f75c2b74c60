"""Typed access to a checkpoint's configuration: JSON, YAML or GGUF metadata."""

import math
from collections.abc import Iterator, Mapping
from typing import TypeVar

from export.errors import SourceError

_T = TypeVar("_T")

# Far above any dimension or count of a real model.
MAX_INTEGER = 2**31 - 1


class Fields(Mapping[str, object]):
    """Named values of unknown types. ``origin`` names their file in messages.

    Each method raises :class:`SourceError` for a value of another type and, without a
    ``default``, for an absent one. ``None`` counts as absent.
    """

    def __init__(self, values: Mapping[str, object], origin: str) -> None:
        self._values = values
        self.origin = origin

    def __getitem__(self, name: str) -> object:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def integer(self, name: str, default: int | None = None, *, maximum: int = MAX_INTEGER) -> int:
        """A count, size or id from 0 to ``maximum``."""
        value = self._read(name, int, default)
        if not 0 <= value <= maximum:
            raise SourceError(f"{self.origin}: {name} is {value}, not in 0 to {maximum}")
        return value

    def positive(self, name: str, default: int | None = None, *, maximum: int = MAX_INTEGER) -> int:
        """A size that cannot be 0."""
        value = self.integer(name, default, maximum=maximum)
        if value == 0:
            raise SourceError(f"{self.origin}: {name} is 0")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self._values.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return self._float(name, value)
        return self._float(name, self._read(name, float, default))

    def text(self, name: str, default: str | None = None) -> str:
        return self._read(name, str, default)

    def flag(self, name: str, default: bool | None = None) -> bool:
        return self._read(name, bool, default)

    def fields(self, name: str) -> "Fields":
        """A nested object; empty if absent."""
        return Fields(self._read(name, dict, {}), f"{self.origin}: {name}")

    def with_defaults(self, **defaults: object) -> "Fields":
        """These fields, with ``defaults`` for absent ones."""
        absent = {name: value for name, value in defaults.items() if self.get(name) is None}
        return Fields({**self, **absent}, self.origin)

    def with_names(self, **names: str) -> "Fields":
        """These fields; an absent one has the value of the field that ``names`` maps it to."""
        others = {name: self.get(other) for name, other in names.items() if self.get(name) is None}
        return Fields({**self, **others}, self.origin)

    def optional_integer(self, name: str, *, absent: int | None = None) -> int | None:
        """``absent`` is the default of a missing field, unlike that of ``null``."""
        return None if self.get(name, absent) is None else self.integer(name, absent)

    def integers(self, name: str) -> tuple[int, ...]:
        """One integer or a list of integers; empty if absent."""
        value = self.get(name)
        values = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(item) is int and 0 <= item <= MAX_INTEGER for item in values):
            raise SourceError(f"{self.origin}: {name} is not an id or a list of ids")
        return tuple(values)

    def numbers(self, name: str) -> tuple[float, ...]:
        """A list of numbers; empty if absent."""
        values = self._read(name, list, [])
        if not all(isinstance(x, int | float) and not isinstance(x, bool) for x in values):
            raise SourceError(f"{self.origin}: {name} is not a list of numbers")
        return tuple(self._float(name, value) for value in values)

    def optional_number(self, name: str, *, absent: float | None = None) -> float | None:
        """``absent`` is the default of a missing field, unlike that of ``null``."""
        return None if self.get(name, absent) is None else self.number(name, absent)

    def texts(self, name: str) -> list[str]:
        """A list of strings; empty if absent."""
        values = self._read(name, list, [])
        if not all(isinstance(value, str) for value in values):
            raise SourceError(f"{self.origin}: {name} is not a list of strings")
        return values

    def _float(self, name: str, value: float) -> float:
        """Rejects infinity and NaN, which Python's JSON parser accepts."""
        try:
            number = float(value)
        except OverflowError as error:
            raise SourceError(f"{self.origin}: {name} is too large a number") from error
        if not math.isfinite(number):
            raise SourceError(f"{self.origin}: {name} is {number}, not a finite number")
        return number

    def _read(self, name: str, kind: type[_T], default: _T | None) -> _T:
        value = self._values.get(name)
        if value is None:
            value = default
        if value is None:
            raise SourceError(f"{self.origin}: {name} is missing")
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
            raise SourceError(
                f"{self.origin}: {name} is of type {type(value).__name__}, not {kind.__name__}"
            )
        return value
