"""The commands of the admin service: ``load`` and ``unload``."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import grpc
import typer

from client.admin import AdminClient
from client.channel import DEFAULT_ADMIN_TARGET
from client.errors import TriuneError

app = typer.Typer()

Admin = Annotated[
    str,
    typer.Option(
        envvar="TRIUNE_ADMIN",
        metavar="HOST:PORT",
        help="The server's admin address (option --admin).",
    ),
]
Model = Annotated[str, typer.Argument(metavar="NAME")]


@contextmanager
def _connected(context: typer.Context, target: str) -> Iterator[AdminClient]:
    """A client of the admin address ``target``; says so if that is another port of the server."""
    client: AdminClient = context.obj.connect_admin(target)
    with client:
        try:
            yield client
        except TriuneError as error:
            if error.code is not grpc.StatusCode.UNIMPLEMENTED:
                raise
            reason = f"{target} is not the server's admin address (its option --admin)"
            raise TriuneError(error.code, reason) from error


@app.command()
def load(
    context: typer.Context,
    model: Model,
    version: Annotated[str, typer.Option(help="Version to load; by default the newest.")] = "",
    admin: Admin = DEFAULT_ADMIN_TARGET,
) -> None:
    """Load or reload a bundle from the server's folder."""
    with _connected(context, admin) as client:
        loaded = client.load_model(model, version=version)
    print(f"{loaded.name} {loaded.version} is {loaded.state}")


@app.command()
def unload(
    context: typer.Context,
    model: Model,
    version: Annotated[str, typer.Option(help="Version to unload; by default all.")] = "",
    admin: Admin = DEFAULT_ADMIN_TARGET,
) -> None:
    """Stop serving a model; its memory is freed when its running calls end."""
    with _connected(context, admin) as client:
        versions = client.unload_model(model, version=version)
    print(f"{model} {', '.join(versions)} is unloaded")
