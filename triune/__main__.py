"""``triune``: one command for all programs. ``python -m triune`` is the same."""

import importlib.metadata
from typing import Annotated, Any

import typer

from triune.commands import COMMANDS
from triune.lazy import LazyCommand

_NAME = "triune"

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False, name=_NAME
)


def _print_version(is_given: bool) -> None:
    if is_given:
        typer.echo(f"{_NAME} {importlib.metadata.version(_NAME)}")
        raise typer.Exit


@app.callback()
def describe(
    _: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """One inference server for encoders, decoders and encoder-decoders."""


def command() -> Any:
    """The click group with every subcommand."""
    group: Any = typer.main.get_command(app)
    for name, (program, short_help) in COMMANDS.items():
        group.add_command(LazyCommand(name, program, short_help))
    return group


def main() -> None:
    """The console script."""
    command()(prog_name=_NAME)


if __name__ == "__main__":
    main()
