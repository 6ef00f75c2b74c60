"""The command ``chat``."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from client import types
from client.errors import TriuneError
from client.option_flags import takes_options
from client.sync import Client

with contextlib.suppress(ImportError):
    import readline  # noqa: F401  (input() edits lines with it)

app = typer.Typer()
_OF_WHOLE_ANSWERS = (
    *("num_hypotheses", "alternatives", "token_ids", "echo"),
    *("logprobs", "prompt_logprobs", "attention"),
)


@app.command()
@takes_options(without=_OF_WHOLE_ANSWERS)
def chat(
    context: typer.Context,
    model: Annotated[str, typer.Option()] = "smollm2",
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    *,
    options: types.GenerationOptions,
) -> None:
    """Talk with a model that has a chat template, a line at a time.

    The model sees the whole conversation, without its oldest messages if it is too long. Ctrl-C
    ends an answer, Ctrl-D the conversation.
    """
    messages = [] if system is None else [types.Message("system", system)]
    client: Client
    with context.obj.connect() as client:
        if not client.get_model(model, version=options.get("version", "")).has_chat_template:
            raise typer.BadParameter(f"{model!r} has no chat template", param_hint="--model")
        for line in _lines():
            messages.append(types.Message("user", line))
            try:
                answer = _answer(client, model, messages, options)
            except TriuneError as error:
                print(f"error: {error}", file=sys.stderr)
                messages.pop()
            else:
                messages.append(types.Message("assistant", answer))


def _lines() -> Iterator[str]:
    """The lines that are entered, without blank ones."""
    prompt = "> " if sys.stdin.isatty() else ""
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            line = input(prompt)
            if line.strip():
                yield line


def _answer(
    client: Client, model: str, messages: list[types.Message], options: types.GenerationOptions
) -> str:
    """Prints the answer as it is generated, and returns it: a part, if it is interrupted."""
    answer = ""
    pieces = client.generate_stream(model, messages=messages, drop_oldest_messages=True, **options)
    with contextlib.suppress(KeyboardInterrupt), contextlib.closing(pieces):
        for piece in pieces:
            print(piece.text, end="", flush=True)
            answer += piece.text
    print()
    return answer
