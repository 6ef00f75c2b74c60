"""``python -m server``, also ``triune serve``: the command line."""

import logging
import os
from pathlib import Path
from typing import Annotated, Any

import typer
import uvloop

from server.config import ServerConfig
from server.errors import StartupError
from server.flags import CONTEXT_SETTINGS, read_configuration, takes_server_options
from server.installation import check_installation
from server.log_format import log_to_stderr
from server.settings import ConfigurationError

log = logging.getLogger("server")

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

_USAGE_ERROR = 2


@app.command(name="serve", context_settings=CONTEXT_SETTINGS)
@takes_server_options
def main(
    *,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="TOML file of options. Default: triune.toml if it exists."
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Print the options in force and their origins, then exit."),
    ] = False,
    flags: dict[str, Any],
) -> None:
    """Serves bundles over gRPC and HTTP until SIGTERM.

    Every option is also an environment variable, TRIUNE_MAX_QUEUE for --max-queue, and a key of the
    TOML file, max_queue. Flags come before the environment, the environment before the file.
    """
    log_to_stderr()
    try:
        configuration = read_configuration(config, flags)
    except ConfigurationError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(_USAGE_ERROR) from error
    for warning in configuration.warnings:
        log.warning("%s", warning)
    if check:
        typer.echo(configuration.report())
        return
    raise typer.Exit(run(configuration.config))


def run(config: ServerConfig) -> int:
    """Serves until SIGTERM; returns the exit status."""
    # The server runs the tokenizer in threads of its own.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        check_installation(",".join(config.devices))
        # Imported after check_installation, whose message is clearer than an ImportError.
        from server.app import serve  # noqa: PLC0415

        return uvloop.run(serve(config))
    except StartupError as error:
        log.error("%s", error)
        return 1


if __name__ == "__main__":
    app()
