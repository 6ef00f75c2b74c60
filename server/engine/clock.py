"""The clock of a lane's parts, so that tests can replace it."""

from collections.abc import Callable

Clock = Callable[[], float]
"""Returns the current time in seconds."""
