"""Flags that several commands share, and what they mean together."""

from collections.abc import Iterable
from typing import Annotated

import typer

Texts = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TEXT", help="Texts. '-', or none at all, reads the lines of standard input."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
SourceLanguage = Annotated[str, typer.Option(help="Of a multilingual model.")]
TargetLanguage = Annotated[str, typer.Option(help="Of a multilingual model.")]
Version = Annotated[str, typer.Option(help="A version of the model; the newest by default.")]


def read_texts(arguments: list[str] | None, stdin: Iterable[str]) -> list[str]:
    """The texts to send: each '-' stands for the lines of ``stdin`` that are not blank.

    Raises ``typer.BadParameter`` if there is none.
    """
    texts: list[str] = []
    for argument in arguments or ["-"]:
        if argument == "-":
            texts += [line.rstrip("\r\n") for line in stdin if line.strip()]
        else:
            texts.append(argument)
    if not texts:
        raise typer.BadParameter("no text: give it as arguments or on standard input")
    return texts
