"""Arguments and flags that several commands share."""

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Annotated

import typer

from client import bulk
from client.render import counted

Texts = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TEXT", help="Texts. '-' or no text reads standard input, one text per line."
    ),
]
Images = Annotated[
    list[typer.FileBinaryRead] | None,
    typer.Option("--image", help="A file with an image; may be repeated."),
]
Recordings = Annotated[
    list[typer.FileBinaryRead] | None,
    typer.Option("--audio", help="A file with a recording; may be repeated."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
JsonOfBatches = Annotated[
    bool, typer.Option("--json", help=f"Print a JSON object for every {bulk.BATCH_SIZE} texts.")
]
SourceLanguage = Annotated[str, typer.Option(help="Source language of a multilingual model.")]
TargetLanguage = Annotated[str, typer.Option(help="Target language of a multilingual model.")]
Version = Annotated[str, typer.Option(help="Model version; the newest by default.")]


_NO_TEXT = "no text: give it as arguments or on standard input"


def read_texts(arguments: list[str] | None, stdin: Iterable[str]) -> list[str]:
    """The texts to send: each '-' is replaced by the non-blank lines of ``stdin``.

    Raises ``typer.BadParameter`` if there is none.
    """
    texts = list(_texts(arguments, stdin, keeps_blank=False))
    if not texts:
        raise typer.BadParameter(_NO_TEXT)
    return texts


def reads_lines(arguments: list[str] | None) -> bool:
    """Whether texts are lines of standard input."""
    return not arguments or "-" in arguments


def only_line(arguments: list[str] | None, stdin: Iterator[str]) -> tuple[list[str], Iterator[str]]:
    """The only text, if ``stdin`` has a single one that is not blank; and what ``stdin`` has.

    The text is missing if there are several, or if ``arguments`` has texts too.
    """
    first = list(islice(filter(str.strip, stdin), 2))
    is_alone = len(first) == 1 and (arguments or ["-"]) == ["-"]
    only = [line.rstrip("\r\n") for line in first] if is_alone else []
    return only, chain(first, stdin)


def read_batches(
    arguments: list[str] | None, stdin: Iterable[str], size: int, *, keeps_blank: bool = False
) -> Iterator[list[str]]:
    """As :func:`read_texts`, in lists of ``size``, whose lines are read when they are needed.

    ``keeps_blank``: blank lines are texts too.
    """
    batches = bulk.batches(_texts(arguments, stdin, keeps_blank=keeps_blank), size)
    first = next(batches, None)
    if first is None:
        raise typer.BadParameter(_NO_TEXT)
    return chain([first], batches)


def _texts(
    arguments: list[str] | None, stdin: Iterable[str], *, keeps_blank: bool
) -> Iterator[str]:
    for argument in arguments or ["-"]:
        if argument == "-":
            yield from (line.rstrip("\r\n") for line in stdin if keeps_blank or line.strip())
        else:
            yield argument


def read_texts_or_images(
    arguments: list[str] | None, images: list[typer.FileBinaryRead] | None, stdin: Iterable[str]
) -> tuple[list[str], list[str] | list[bytes]]:
    """Returns the inputs' display names, and the inputs: texts, or the contents of image files."""
    if not images or arguments:
        texts = read_texts(arguments, stdin)
        return texts, texts
    return [file.name for file in images], [file.read() for file in images]


def read_seconds(
    texts: list[str],
    pairs: list[str] | None,
    images: list[typer.FileBinaryRead] | None,
) -> list[tuple[str, str | bytes]]:
    """Pairs each text with its second text or its image; empty if neither is given.

    Raises ``typer.BadParameter`` if their number differs from the number of texts.
    """
    name = "--image" if images else "--pair"
    seconds: list[str | bytes] = [file.read() for file in images or ()] or [*(pairs or ())]
    if seconds and len(seconds) != len(texts):
        times, given = counted(len(seconds), "time"), counted(len(texts), "text")
        raise typer.BadParameter(f"{name} is given {times} for {given}")
    return list(zip(texts, seconds, strict=True)) if seconds else []
