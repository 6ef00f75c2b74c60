"""The calls of a command: one for each batch of its texts."""

import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import typer

from client import bulk, flags
from client.errors import TriuneError
from client.render import counted
from client.retry import RetryPolicy
from client.sync import Client

PATIENT = RetryPolicy(attempts=10)
"""For lines of standard input, which may be many: 20 seconds, or as long as the server says."""


class _Result(Protocol):
    @property
    def outputs(self) -> Sequence[object]: ...


Result = TypeVar("Result", bound=_Result)


def results_of(
    context: typer.Context,
    arguments: list[str] | None,
    call: Callable[[Client, list[str]], Result],
    *,
    size: int = bulk.BATCH_SIZE,
    in_flight: int = bulk.IN_FLIGHT,
    keeps_blank: bool = False,
    stdin: Iterable[str] | None = None,
) -> Generator[tuple[list[str], Result], None, None]:
    """Yields each batch of texts and its result, in order.

    Args:
        context: the command's.
        arguments: its TEXT, as in ``flags.read_texts``.
        call: sends one batch.
        size: texts of a batch.
        in_flight: batches that are sent at a time.
        keeps_blank: blank lines are texts too.
        stdin: the lines of standard input, if some were read before.

    Raises:
        TriuneError: a call failed. The message has the number of results before it.
        typer.BadParameter: there is no text.
    """
    lines = sys.stdin if stdin is None else stdin
    batches = flags.read_batches(arguments, lines, size, keeps_blank=keeps_blank)
    retry = None
    if flags.reads_lines(arguments):
        retry = PATIENT
        with context.obj.connect() as client:
            client.list_models()  # fails at once where there is no server
    num_done = 0
    with context.obj.connect(retry) as client:
        results = bulk.in_order(lambda batch: call(client, batch), batches, in_flight=in_flight)
        try:
            for batch, result in results:
                yield batch, result
                num_done += len(result.outputs)
        except TriuneError as error:
            if num_done:
                error.message = f"after {counted(num_done, 'result')}: {error.message}"
            raise


def result_of_files(
    context: typer.Context,
    files: Sequence[typer.FileBinaryRead],
    call: Callable[[Client, list[bytes]], Result],
) -> Iterator[tuple[list[str], Result]]:
    """Yields the names of the files and their result: as :func:`results_of`, in one request."""
    client: Client
    with context.obj.connect() as client:
        yield [file.name for file in files], call(client, [file.read() for file in files])


@dataclass(frozen=True, slots=True)
class _Lines:
    outputs: list[str]


def lines_of(
    context: typer.Context,
    arguments: list[str] | None,
    call: Callable[[Client, list[str]], Iterable[str]],
) -> Iterator[str]:
    """Yields an output for each text, and a blank one for each blank line.

    ``call`` sends a batch of texts, none of them blank, and returns their outputs.
    """

    def lines(client: Client, texts: list[str]) -> _Lines:
        sent = [text for text in texts if text.strip()]
        outputs = iter(call(client, sent) if sent else ())
        return _Lines([next(outputs) if text.strip() else "" for text in texts])

    for _, result in results_of(context, arguments, lines, keeps_blank=True):
        yield from result.outputs
