"""Arguments and flags that several commands share, and how they read their texts."""

from collections.abc import Iterable
from typing import Annotated

import typer

Texts = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TEXT", help="Texts. '-' or no text at all reads standard input, a text a line."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
SourceLanguage = Annotated[str, typer.Option(help="Source language of a multilingual model.")]
TargetLanguage = Annotated[str, typer.Option(help="Target language of a multilingual model.")]
Version = Annotated[str, typer.Option(help="Model version; the newest by default.")]


def read_texts(arguments: list[str] | None, stdin: Iterable[str]) -> list[str]:
    """The texts to send: each '-' is replaced by the non-blank lines of ``stdin``.

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
