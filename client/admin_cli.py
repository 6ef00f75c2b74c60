"""The commands of an operator: ``load`` and ``unload``."""

from typing import Annotated

import typer

from client.admin import AdminClient
from client.channel import DEFAULT_ADMIN_TARGET

app = typer.Typer()

Admin = Annotated[
    str,
    typer.Option(
        envvar="TRIUNE_ADMIN", metavar="HOST:PORT", help="The server's admin address: its --admin."
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
    version: Annotated[str, typer.Option(help="The newest in the folder by default.")] = "",
    admin: Admin = DEFAULT_ADMIN_TARGET,
) -> None:
    """Load a bundle of the server's folder, or load it again."""
    with _connect(context, admin) as client:
        loaded = client.load_model(model, version=version)
    print(f"{loaded.name} {loaded.version} is {loaded.state}")


@app.command()
def unload(
    context: typer.Context,
    model: Model,
    version: Annotated[str, typer.Option(help="Every one by default.")] = "",
    admin: Admin = DEFAULT_ADMIN_TARGET,
) -> None:
    """Offer a model to no new call; its memory is free when those it has end."""
    with _connect(context, admin) as client:
        versions = client.unload_model(model, version=version)
    print(f"{model} {', '.join(versions)} is unloaded")
