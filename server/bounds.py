"""Bounds of numeric options: declared with the option, checked by :func:`check_bounds`."""

import math
from dataclasses import dataclass, field, fields
from typing import Any

from server.errors import InvalidArgumentError

_KEY = "bounds"


@dataclass(frozen=True, slots=True)
class Bounds:
    """Inclusive bounds. ``is_open``: the lower one itself is excluded."""

    low: float
    high: float
    is_open: bool = False

    def check(self, name: str, value: float) -> None:
        """Raises ``InvalidArgumentError`` for a value outside, NaN included."""
        if math.isnan(value) or not self.low <= value <= self.high:
            raise InvalidArgumentError(name, f"{value} is not in {self.low} … {self.high}")
        if self.is_open and value == self.low:
            raise InvalidArgumentError(name, f"{value} is not in ({self.low:g}, {self.high}]")


def bounded(default: Any, low: float, high: float, *, is_open: bool = False) -> Any:
    """A dataclass field that :func:`check_bounds` checks. ``None`` as a value means not set."""
    return field(default=default, metadata={_KEY: Bounds(low, high, is_open)})


def check_bounds(options: Any) -> None:
    """Checks every bounded field of a dataclass.

    Raises:
        InvalidArgumentError: names the first field whose value is outside.
    """
    for option in fields(options):
        bounds: Bounds | None = option.metadata.get(_KEY)
        value = getattr(options, option.name)
        if bounds is not None and value is not None:
            bounds.check(option.name, value)
