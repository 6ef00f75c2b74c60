"""Declares how users set a field of :class:`server.config.ServerConfig`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Computed:
    """A default that depends on the machine or on the values of earlier options, by field name."""

    value: Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class Option:
    """Declares a flag, an environment variable and a key of the TOML file together.

    ``max_queue`` is ``--max-queue``, ``TRIUNE_MAX_QUEUE`` and ``max_queue``.

    Attributes:
        help: one or two sentences, with units.
        name: the option's name, if it differs from the field's.
        minimum, maximum: inclusive bounds of a number.
        check: raises ``ValueError`` or ``StartupError`` for an invalid value.
        default: the server's default, if it differs from the field's.
        deprecated: former names, which still work, with a warning.
        hidden: whether ``--help`` and the documents leave the option out.
    """

    help: str
    name: str = ""
    minimum: float | None = None
    maximum: float | None = None
    check: Callable[[Any], object] | None = None
    default: Any = None
    deprecated: tuple[str, ...] = ()
    hidden: bool = False
