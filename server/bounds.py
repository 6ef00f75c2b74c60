"""Bounds of numeric options: declared beside the dataclass field, checked in one place."""

import math
from dataclasses import dataclass, field, fields
from typing import Any

from server.errors import InvalidArgumentError

_KEY = "bounds"


@dataclass(frozen=True, slots=True)
class Bounds:
    """Inclusive bounds. ``excludes_low``: ``low`` itself is out of bounds."""

    low: float
    high: float
    excludes_low: bool = False

    def check(self, name: str, value: float) -> None:
        """Raises ``InvalidArgumentError`` if ``value`` is out of bounds or NaN."""
        if math.isnan(value) or not self.low <= value <= self.high:
            raise InvalidArgumentError(name, f"{value} is not in {self.low} … {self.high}")
        if self.excludes_low and value == self.low:
            raise InvalidArgumentError(name, f"{value} is not in ({self.low:g}, {self.high}]")


def bounded(default: Any, low: float, high: float, *, excludes_low: bool = False) -> Any:
    """A dataclass field that :func:`check_bounds` checks. A value of ``None`` is not checked."""
    return field(default=default, metadata={_KEY: Bounds(low, high, excludes_low)})


def check_bounds(options: Any) -> None:
    """Checks every bounded field of a dataclass.

    Raises:
        InvalidArgumentError: names the first field that is out of bounds.
    """
    for option in fields(options):
        bounds: Bounds | None = option.metadata.get(_KEY)
        value = getattr(options, option.name)
        if bounds is not None and value is not None:
            bounds.check(option.name, value)
