"""Collects the options that the annotations of :class:`server.config.ServerConfig` declare."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec

from server.config import ServerConfig
from server.option import Option

ENVIRONMENT_PREFIX = "TRIUNE_"
NONE = "none"
"""The value that switches an option off, in every source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One option.

    Attributes:
        name: the key in the TOML file.
        path: the field in ``ServerConfig``: ``("tls", "key")`` is ``config.tls.key``.
        kind: the field's type without ``None``.
        default: a value, a :class:`server.option.Computed`, or ``dataclasses.MISSING``.
        group: the dataclass of ``path[0]`` if it is nested.
    """

    name: str
    path: tuple[str, ...]
    kind: Any
    is_optional: bool
    default: Any
    group: type[Any] | None
    option: Option

    @property
    def flag(self) -> str:
        return flag_name(self.name)

    @property
    def is_list(self) -> bool:
        return get_origin(self.kind) is tuple

    def convert(self, raw: object) -> Any:
        """Converts a value from a file, a variable or a flag to the option's type.

        Raises:
            ValueError: the value has the wrong type or is out of bounds.
        """
        if self.is_optional and raw in ("", NONE):
            return None
        if self.is_list:
            texts = [raw] if isinstance(raw, str) else raw
            if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
                raise ValueError("expected a list of texts")
            parts = (part.strip() for text in texts for part in text.split(","))
            return tuple(part for part in parts if part)
        if self.kind is Path:
            if not isinstance(raw, str) or not raw:
                raise ValueError("expected a path")
            return Path(raw)
        if issubclass(self.kind, StrEnum) and raw not in tuple(self.kind):
            raise ValueError(f"expected one of {', '.join(self.kind)}")
        try:
            value = msgspec.convert(raw, self.kind, strict=not isinstance(raw, str))
        except msgspec.ValidationError as error:
            raise ValueError(f"expected {_NOUNS[self.kind]}") from error
        self._check_bounds(value)
        return value

    def _check_bounds(self, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return
        if not math.isfinite(value):
            raise ValueError("not a finite number")
        minimum, maximum = self.option.minimum, self.option.maximum
        if minimum is not None and value < minimum:
            raise ValueError(f"the minimum is {minimum}")
        if maximum is not None and value > maximum:
            raise ValueError(f"the maximum is {maximum}")


_NOUNS = {int: "an integer", float: "a number", bool: "true or false", str: "a text"}


def flag_name(name: str) -> str:
    """Converts ``max_queue`` to ``--max-queue``."""
    return f"--{name.replace('_', '-')}"


def variable_name(name: str) -> str:
    """Converts ``max_queue`` to ``TRIUNE_MAX_QUEUE``."""
    return f"{ENVIRONMENT_PREFIX}{name.upper()}"


def _settings(schema: type[Any], prefix: tuple[str, ...] = ()) -> list[Setting]:
    hints = get_type_hints(schema, include_extras=True)
    found: list[Setting] = []
    for field in dataclasses.fields(schema):
        hint = hints[field.name]
        path = (*prefix, field.name)
        if get_origin(hint) is not Annotated:
            for member in get_args(hint):
                if dataclasses.is_dataclass(member):
                    found += _settings(member, path)  # type: ignore[arg-type]
            continue
        kind, option = get_args(hint)
        members = [member for member in get_args(kind) if member is not NoneType]
        # Without its required options, a nested dataclass is None.
        is_optional = NoneType in get_args(kind) or (
            bool(prefix) and field.default is dataclasses.MISSING
        )
        found.append(
            Setting(
                name=option.name or field.name,
                path=path,
                kind=members[0] if NoneType in get_args(kind) else kind,
                is_optional=is_optional,
                default=field.default if option.default is None else option.default,
                group=schema if prefix else None,
                option=option,
            )
        )
    return found


SETTINGS: Mapping[str, Setting] = {setting.name: setting for setting in _settings(ServerConfig)}
"""Every option by name, in the order of ``ServerConfig``."""

DEPRECATED: Mapping[str, Setting] = {
    name: setting for setting in SETTINGS.values() for name in setting.option.deprecated
}
"""Options by their former names."""
