"""Builds the configuration from a TOML file, the environment and flags; flags have precedence.

All errors of all sources are reported together. The options are those of :mod:`server.options`.
"""

import dataclasses
import difflib
import itertools
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from server.addresses import check_origins, conflict
from server.byte_sizes import parse_bytes
from server.config import ServerConfig
from server.errors import StartupError
from server.option import Computed
from server.options import (
    DEPRECATED,
    ENVIRONMENT_PREFIX,
    NONE,
    SETTINGS,
    Setting,
    flag_name,
    variable_name,
)
from server.printable import printable
from server.runtime.devices import parse_devices
from server.runtime.process_memory import container_bytes

CONFIG_FILE = "triune.toml"
CONFIG_VARIABLE = "TRIUNE_CONFIG"
DEFAULT = "default"
# Variables that are no options: those of the client, the build and the training, and those that
# Kubernetes sets for services named "triune" or "triune-…".
_OTHER_VARIABLES = {
    *(CONFIG_VARIABLE, "TRIUNE_TARGET", "TRIUNE_TLS_CA", "TRIUNE_TOKEN_FILE"),
    *("TRIUNE_WITHOUT_KERNELS", "TRIUNE_DEBIAN_LISTS"),
}
_KUBERNETES = re.compile(r"TRIUNE(_\w+)?_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_\w+)?)")


class ConfigurationError(StartupError):
    """Invalid configuration. Each of ``problems`` is one line that names the source."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__(
            "invalid configuration:\n" + "\n".join(f"  {line}" for line in self.problems)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The options of one source.

    Attributes:
        values: unconverted values by option name.
        label: converts an option's name to how messages call it.
        folder: base of relative paths; ``None`` means the working directory.
    """

    values: Mapping[str, object]
    label: Callable[[str], str]
    folder: Path | None = None


@dataclass(frozen=True, slots=True)
class Origin:
    """The effective value of an option, and the source that set it."""

    value: Any
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """The effective configuration, and each option's value with its origin."""

    config: ServerConfig
    origins: Mapping[str, Origin]
    warnings: tuple[str, ...]

    def report(self) -> str:
        """The options as a TOML file; a comment names the origin of each value.

        Hidden options are left out, unless a source sets them.
        """
        lines = []
        for name, origin in self.origins.items():
            if SETTINGS[name].option.hidden and origin.source == DEFAULT:
                continue
            text = "none" if origin.value is None else origin.value
            line = f"{name} = {_toml(text)}"
            lines.append(f"{line:<46} # {origin.source}")
        return "\n".join(lines)


def from_file(path: Path) -> Source:
    """The options of a TOML file.

    Raises:
        ConfigurationError: the file cannot be read, is not TOML, or has an option twice.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError([f"{path}: {error}"]) from error
    # Keys may be written as flags are: max-queue.
    renamed: dict[str, object] = {}
    for key, value in values.items():
        name = key.replace("-", "_")
        if name in renamed:
            raise ConfigurationError([f"{path}: {key}: the option is given twice"])
        renamed[name] = value
    return Source(values=renamed, label=lambda name: f"{path}: {name}", folder=path.parent)


def from_environment(environment: Mapping[str, str]) -> Source:
    """The variables ``TRIUNE_…`` that are not empty."""
    values = {
        name.removeprefix(ENVIRONMENT_PREFIX).lower(): value
        for name, value in environment.items()
        if name.startswith(ENVIRONMENT_PREFIX) and value
        if name not in _OTHER_VARIABLES and not _KUBERNETES.fullmatch(name)
    }
    return Source(values=values, label=variable_name)


def from_flags(values: Mapping[str, object]) -> Source:
    """The flags that were given. A key that is no identifier is an argument as it was written."""

    def label(name: str) -> str:
        return flag_name(name) if name.isidentifier() else name

    return Source(values=values, label=label)


def configure(sources: Iterable[Source]) -> Configuration:
    """Combines ``sources``; later ones have precedence.

    Raises:
        ConfigurationError: lists all unknown options and invalid values.
    """
    building = _Building()
    for source in sources:
        for name, raw in source.values.items():
            building.add(source, name, raw)
    return building.finish()


@dataclass(slots=True)
class _Building:
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    given: dict[str, Origin] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)

    def add(self, source: Source, name: str, raw: object) -> None:
        label = source.label(name)
        setting = SETTINGS.get(name) or DEPRECATED.get(name)
        if setting is None:
            close = difflib.get_close_matches(name, SETTINGS, n=1)
            hint = f"; did you mean {source.label(close[0])}?" if close else ""
            self.problems.append(f"{printable(label)}: unknown option{hint}")
            return
        if name in DEPRECATED:
            new = source.label(setting.name)
            self.warnings.append(f"{label} is deprecated: use {new}")
            if setting.name in source.values:
                return
        try:
            value = _convert(setting, raw)
        except ValueError as error:
            self.problems.append(f"{printable(label)} is {raw!r}: {error}")
            return
        if isinstance(value, Path) and source.folder is not None:
            value = source.folder / value
        self.given[setting.name] = Origin(value, label)

    def finish(self) -> Configuration:
        origins = {name: self._in_force(setting) for name, setting in SETTINGS.items()}
        groups: dict[str, list[Setting]] = {}
        for setting in SETTINGS.values():
            if setting.group is not None:
                groups.setdefault(setting.path[0], []).append(setting)
        self.fields |= {name: self._group(members, origins) for name, members in groups.items()}
        self._check_addresses(origins)
        if self.problems:
            raise ConfigurationError(self.problems)
        for name, needed in _NEEDS.items():
            if origins[name].value and origins[needed].value is None:
                source = origins[name].source
                self.warnings.append(f"{source} has no effect without {flag_name(needed)}")
        return Configuration(
            config=ServerConfig(**self.fields), origins=origins, warnings=tuple(self.warnings)
        )

    def _in_force(self, setting: Setting) -> Origin:
        """The given value of an option if it is valid, else the default."""
        check = _CHECKS.get(setting.name) or setting.option.check
        origin = self.given.get(setting.name)
        if origin is None:
            origin = Origin(self._default(setting), DEFAULT)
        if check is not None and origin.value is not None:
            try:
                check(origin.value)
            except (ValueError, StartupError) as error:
                self.problems.append(f"{self._described(setting, origin)}: {error}")
                origin = Origin(self._default(setting), DEFAULT)
        if setting.group is None:
            self.fields[setting.path[0]] = origin.value
        return origin

    def _check_addresses(self, origins: Mapping[str, Origin]) -> None:
        given = [name for name in _ADDRESSES if origins[name].value]
        for name, other in itertools.combinations(given, 2):
            if conflict(origins[name].value, origins[other].value):
                described = self._described(SETTINGS[other], origins[other])
                self.problems.append(f"{described}: {flag_name(name)} has this address too")

    def _default(self, setting: Setting) -> Any:
        if isinstance(setting.default, Computed):
            return setting.default.value(self.fields)
        if setting.name in _PARSERS and isinstance(setting.default, str):
            try:
                return _convert(setting, setting.default)
            except ValueError:  # a percentage of an unknown size
                return None
        return None if setting.default is dataclasses.MISSING else setting.default

    def _group(self, members: list[Setting], origins: Mapping[str, Origin]) -> Any:
        """A nested dataclass; None if none of its options is given."""
        values = {setting.path[1]: origins[setting.name].value for setting in members}
        if all(value is None for value in values.values()):
            return None
        missing = [
            setting.flag
            for setting in members
            if setting.default is dataclasses.MISSING and values[setting.path[1]] is None
        ]
        if missing:
            given = next(origins[one.name].source for one in members if one.name in self.given)
            self.problems.append(f"{given} also needs {' and '.join(missing)}")
            return None
        group = members[0].group
        assert group is not None
        return group(**values)

    @staticmethod
    def _described(setting: Setting, origin: Origin) -> str:
        where = setting.flag if origin.source == DEFAULT else origin.source
        by_default = " by default" if origin.source == DEFAULT else ""
        return f"{where} is {_toml(origin.value)}{by_default}"


def _check_devices(names: tuple[str, ...]) -> None:
    parse_devices(",".join(names))


# Checks of options that are lists.
_CHECKS: Mapping[str, Callable[[Any], object]] = {
    "device": _check_devices,
    "http_cors": check_origins,
}
# Addresses that the server listens on, each of its own.
_ADDRESSES = ("listen", "metrics", "admin", "http")
# Options that have no effect without another one.
_NEEDS = {
    "admin_tokens": "admin",
    "client_burst_tokens": "client_tokens_per_second",
    "http_cors": "http",
    "tei_model": "http",
}
# Parsers of options that have a special format.
_PARSERS: Mapping[str, Callable[[str], Any]] = {
    "memory_budget": lambda text: parse_bytes(text, container_bytes())
}


def _convert(setting: Setting, raw: object) -> Any:
    """Converts a value. Raises ``ValueError`` if its type, format or range is wrong."""
    parser = _PARSERS.get(setting.name)
    if parser is not None and raw != NONE:
        return parser(str(raw))
    return setting.convert(raw)


def _toml(value: Any) -> str:
    if isinstance(value, bool | int | float):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(_toml(part) for part in value)}]"
    return json.dumps(str(value), ensure_ascii=False)
