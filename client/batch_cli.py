"""The command ``batch``."""

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from client import batch_file
from client.bulk import in_order
from client.http_calls import DEFAULT_URL, HttpCalls
from client.text_batches import PATIENT

app = typer.Typer()


@app.command()
def batch(
    context: typer.Context,
    requests: Annotated[
        typer.FileText,
        typer.Argument(
            metavar="FILE",
            encoding="utf-8",
            help="A request in each line: {custom_id, method, url, body}; '-' is standard input.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False,
            help="File of results; by default they are printed. Requests whose results it has are "
            "left out, so that a batch continues where it stopped.",
        ),
    ] = None,
    url: Annotated[
        str, typer.Option(envvar="TRIUNE_URL", help="Address of the server's HTTP routes.")
    ] = DEFAULT_URL,
    in_flight: Annotated[int, typer.Option(min=1, max=1024, help="Requests at a time.")] = 64,
) -> None:
    """Send a file of requests to the HTTP routes, as OpenAI's batches have them.

    Results are in the order of the requests. Those that a busy server refuses are sent again. The
    exit status is 1 if one of them failed.
    """
    server = context.obj
    calls = HttpCalls(
        url, timeout_seconds=server.timeout_seconds, retry=PATIENT, security=server.security
    )
    calls.connect()
    done = batch_file.finished_ids(out) if out is not None and out.exists() else set()
    lines = _lines(requests, done)
    num_answered = num_failed = 0
    with nullcontext(sys.stdout) if out is None else out.open("a", encoding="utf-8") as file:
        for _, result in in_order(
            lambda line: batch_file.result(line, calls), lines, in_flight=in_flight
        ):
            file.write(json.dumps(result, ensure_ascii=False) + "\n")
            file.flush()
            is_answered = result["error"] is None and result["response"]["status_code"] < 400
            num_answered, num_failed = num_answered + is_answered, num_failed + (not is_answered)
    print(
        f"{num_answered:,} answered, {num_failed:,} failed, {len(done):,} left out",
        file=sys.stderr,
    )
    if num_failed:
        raise typer.Exit(1)


def _lines(requests: Iterable[str], done: set[str]) -> Iterator[batch_file.Line]:
    """The requests whose results are not in ``done``."""
    for number, text in enumerate(requests, 1):
        if text.strip():
            line = batch_file.parse(text, number)
            if line.id not in done:
                yield line
