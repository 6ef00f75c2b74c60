"""How a field of :class:`server.config.ServerConfig` is set from outside."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Computed:
    """A default that depends on the options before it, by field name, or on the machine."""

    value: Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class Option:
    """A flag, an environment variable and a key of the TOML file, in one place.

    ``max_queue`` is ``--max-queue``, ``TRIUNE_MAX_QUEUE`` and ``max_queue``.

    Attributes:
        help: one or two sentences, with units.
        name: where the option's name is not the field's.
        minimum, maximum: bounds of a number.
        check: raises ``ValueError`` or ``StartupError`` for a value that cannot work.
        default: the server's default, where it differs from the field's.
        deprecated: former names. They work, with a warning.
        hidden: left out of ``--help`` and the documents.
    """

    help: str
    name: str = ""
    minimum: float | None = None
    maximum: float | None = None
    check: Callable[[Any], object] | None = None
    default: Any = None
    deprecated: tuple[str, ...] = ()
    hidden: bool = False
