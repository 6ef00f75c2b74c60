"""Subcommands that import their program when they run, or when a shell completes their options."""

import copy
import importlib
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from triune.commands import CLIENT, Program

_CONNECTION = "connection_"
"""Prefix of the client's common options, which commands may use for other things."""


class LazyCommand(TyperCommand):
    """Stands for the command ``name`` of a program until it is needed."""

    def __init__(self, name: str, program: Program, short_help: str) -> None:
        super().__init__(name, short_help=short_help, rich_markup_mode=None)
        self._program = program

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """The context of the real command, whose module is imported here."""
        assert self.name is not None
        try:
            command = load_command(self._program, self.name)
        except ImportError as error:
            if extra.get("resilient_parsing"):  # the shell completes: no options are known
                return super().make_context(info_name, [], parent, **extra)
            typer.echo(f"error: {_reason(self.name, self._program, error)}", err=True)
            raise typer.Exit(1) from error
        return command.make_context(info_name, args, parent, **extra)


def load_command(program: Program, name: str) -> Any:
    """Imports a program; returns its command, or the program itself if it has one command.

    Raises:
        ImportError: the program, or a package that it needs, is not installed.
    """
    command: Any = typer.main.get_command(importlib.import_module(program.module).app)
    if program is CLIENT:
        command = _with_connection(command, command.commands[name])
    command.invoke = _reports(program, command.invoke)
    return command


def _with_connection(group: TyperGroup, command: Any) -> Any:
    """The client's ``command`` with the options of ``group``, which say how to connect."""

    def run(**values: Any) -> Any:
        connection = {
            name.removeprefix(_CONNECTION): values.pop(name)
            for name in tuple(values)
            if name.startswith(_CONNECTION)
        }
        assert group.callback is not None
        group.callback(**connection)
        return command.callback(**values)

    taken = {flag for parameter in command.params for flag in parameter.opts}
    # A command with an admin address talks to no other.
    common = [
        option for option in group.params if option.name != "target" or "--admin" not in taken
    ]
    merged = copy.copy(command)
    merged.params = [*command.params, *(_renamed(option, taken) for option in common)]
    merged.callback = run
    return merged


def _renamed(parameter: Any, taken: set[str]) -> Any:
    """``parameter`` without the flags that the command uses itself: ``--target``, of fill-mask."""
    renamed = copy.copy(parameter)
    renamed.name = f"{_CONNECTION}{parameter.name}"
    renamed.opts = [flag for flag in parameter.opts if flag not in taken]
    return renamed


def _reports(program: Program, invoke: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """``invoke``, with one line on standard error for expected errors, and exit status 1."""
    expected = tuple(_named(name) for name in program.errors)

    def run(context: Any) -> Any:
        try:
            return invoke(context)
        except (typer.Exit, BrokenPipeError):
            raise  # typer ends in silence if nobody reads the output any more
        except expected as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(1) from error

    return run


def _named(name: str) -> type[Exception]:
    module, _, attribute = name.partition(":")
    found: type[Exception] = getattr(importlib.import_module(module), attribute)
    return found


def _reason(name: str, program: Program, error: ImportError) -> str:
    package = program.module.partition(".")[0]
    if error.name in (package, program.module):
        return f"this installation has no `triune {name}`"
    if program.extra:
        return f"`triune {name}` needs the package {error.name}: pip install '.[{program.extra}]'"
    return f"`triune {name}` needs the package {error.name}: {error}"
