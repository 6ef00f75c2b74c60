"""The command line's flags, one type each, and what they mean together."""

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
Version = Annotated[str, typer.Option(help="A version of the model; the newest by default.")]
MaxNewTokens = Annotated[int, typer.Option(help="End a text after this many tokens.")]
IgnoreEos = Annotated[
    bool, typer.Option("--ignore-eos", help="Go on past the end-of-sequence token.")
]
Temperature = Annotated[
    float | None, typer.Option(help="Sample; 0, and without this flag, takes the likeliest token.")
]
TopK = Annotated[int | None, typer.Option(help="Sample from the k likeliest tokens.")]
TopP = Annotated[
    float | None, typer.Option(help="Sample from the tokens that make up this probability.")
]
Seed = Annotated[int | None, typer.Option(min=0, help="Make sampling repeatable.")]
Stop = Annotated[
    list[str] | None,
    typer.Option(help="End a text just before this string. May be given several times."),
]
TokenIds = Annotated[bool, typer.Option("--token-ids", help="Print the output's token ids too.")]


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
