"""The commands of the admin service: ``load`` and ``unload``."""

from typing import Annotated

import typer

from client.admin import AdminClient
from client.channel import DEFAULT_ADMIN_TARGET

app = typer.Typer()

Admin = Annotated[
    str,
    typer.Option(
        envvar="TRIUNE_ADMIN", metavar="HOST:PORT", help="The server's admin address (its --admin)."
    ),
]
Model = Annotated[str, typer.Argument(metavar="NAME")]


def _connect(context: typer.Context, target: str) -> AdminClient:
    client: AdminClient = context.obj.connect_admin(target)
    return client


@app.command()
def load(
    context: typer.Context,
    model: Model,
    version: Annotated[str, typer.Option(help="Version to load; by default the newest.")] = "",
    admin: Admin = DEFAULT_ADMIN_TARGET,
) -> None:
    """Load or reload a bundle from the server's folder."""
    with _connect(context, admin) as client:
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
    with _connect(context, admin) as client:
        versions = client.unload_model(model, version=version)
    print(f"{model} {', '.join(versions)} is unloaded")
