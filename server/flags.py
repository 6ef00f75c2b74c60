"""The server's command line, generated from :mod:`server.options`."""

import inspect
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from server.option import Computed
from server.options import DEPRECATED, SETTINGS, Setting, flag_name
from server.printable import quoted
from server.settings import (
    CONFIG_FILE,
    CONFIG_VARIABLE,
    Configuration,
    ConfigurationError,
    Source,
    configure,
    from_environment,
    from_file,
    from_flags,
)

log = logging.getLogger(__name__)

_METAVARS = {int: "INTEGER", float: "NUMBER", Path: "PATH"}
# Click must not stop at unknown flags: they are reported together with all other errors.
CONTEXT_SETTINGS = {"ignore_unknown_options": True, "allow_extra_args": True}


def takes_server_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds a flag for every option to a typer command, which receives the given ones as ``flags``.

    The values are unconverted; :func:`server.settings.configure` converts them.
    """

    def run(*, context: typer.Context, **values: Any) -> None:
        own = {name: values.pop(name) for name in own_names}
        given = {name: value for name, value in values.items() if value not in (None, [])}
        command(flags=given | _unknown_arguments(context.args), **own)

    parameters = inspect.signature(command, eval_str=True).parameters.values()
    own = [one for one in parameters if one.name != "flags"]
    own_names = [one.name for one in own]
    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    run.__signature__ = inspect.Signature([context, *own, *_parameters()])  # type: ignore[attr-defined]
    run.__doc__ = command.__doc__
    run.__name__ = command.__name__
    return run


def read_configuration(
    file: Path | None, flags: Mapping[str, object], environment: Mapping[str, str] = os.environ
) -> Configuration:
    """Reads the configuration from all sources. Without ``file``, reads ``triune.toml`` if present.

    Raises:
        ConfigurationError: an option is invalid; the error lists every problem.
    """
    if file is None and environment.get(CONFIG_VARIABLE):
        file = Path(environment[CONFIG_VARIABLE])
    if file is None and Path(CONFIG_FILE).exists():
        file = Path(CONFIG_FILE)
    sources: list[Source] = []
    problems: tuple[str, ...] = ()
    if file is not None:
        log.info("options from %s", file)
        try:
            sources.append(from_file(file))
        except ConfigurationError as error:
            problems = error.problems
    try:
        found = configure([*sources, from_environment(environment), from_flags(flags)])
    except ConfigurationError as error:
        raise ConfigurationError((*problems, *error.problems)) from None
    if problems:
        raise ConfigurationError(problems)
    return found


def _parameters() -> Iterator[inspect.Parameter]:
    for name, setting in SETTINGS.items():
        yield _parameter(name, setting, is_hidden=setting.option.hidden)
    for name, setting in DEPRECATED.items():
        yield _parameter(name, setting, is_hidden=True)


def _parameter(name: str, setting: Setting, *, is_hidden: bool) -> inspect.Parameter:
    flag = flag_name(name)
    kind: Any = str | None
    if setting.kind is bool:
        flag, kind = f"{flag}/--no-{flag.removeprefix('--')}", bool | None
    elif setting.is_list:
        kind = list[str] | None
    option = typer.Option(
        flag,
        metavar=None if setting.kind is bool else _metavar(setting),
        help=setting.option.help + _default_note(setting),
        hidden=is_hidden,
    )
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option]
    )


def _metavar(setting: Setting) -> str:
    if isinstance(setting.kind, type) and issubclass(setting.kind, StrEnum):
        return "|".join(setting.kind)
    return _METAVARS.get(setting.kind, "TEXT")


def _default_note(setting: Setting) -> str:
    return f" [default: {text}]" if (text := default_text(setting)) else ""


def default_text(setting: Setting) -> str:
    """The default for help and documents; empty if the help text describes it or there is none."""
    if isinstance(setting.default, Computed) or not isinstance(
        setting.default, str | int | float | Path | tuple
    ):
        return ""
    if isinstance(setting.default, bool):
        return "on" if setting.default else "off"
    if isinstance(setting.default, tuple):
        return ",".join(setting.default)
    return str(setting.default)


def _unknown_arguments(arguments: Sequence[str]) -> dict[str, object]:
    """The unknown flags as they were written; before the first one, other arguments in quotes.

    None of them is the name of an option: ``--tls_cert FILE`` must not set ``tls_cert``.
    """
    found: dict[str, object] = {}
    for argument in arguments:
        if argument.startswith("-"):
            found[argument.partition("=")[0]] = ""
        elif not found:
            found[quoted(argument)] = ""
    return found
