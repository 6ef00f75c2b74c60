"""The command line: ``python -m client [--target HOST:PORT] COMMAND ...``."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from client import (
    admin_cli,
    attention_cli,
    batch_cli,
    bulk,
    chat_cli,
    compare_cli,
    encoder_cli,
    flags,
    health,
    render,
    transcription_cli,
    types,
)
from client.admin import AdminClient
from client.channel import DEFAULT_TARGET, Security
from client.errors import TriuneError
from client.option_flags import takes_options
from client.prompts import Prompt, prompts_of
from client.retry import RetryPolicy
from client.sync import Client
from client.text_batches import lines_of, results_of

_HEALTH_TIMEOUT_SECONDS = 5.0

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Talk to a Triune server.",
)


@dataclass(frozen=True, slots=True)
class _Server:
    target: str
    timeout_seconds: float | None
    security: Security

    def connect(self, retry: RetryPolicy | None = None) -> Client:
        return Client(
            self.target,
            timeout_seconds=self.timeout_seconds,
            retry=retry,
            security=self.security,
        )

    def connect_admin(self, target: str) -> AdminClient:
        return AdminClient(target, timeout_seconds=self.timeout_seconds, security=self.security)


for commands in (
    encoder_cli,
    transcription_cli,
    batch_cli,
    chat_cli,
    attention_cli,
    compare_cli,
    admin_cli,
):
    app.add_typer(commands.app)  # without a name, so its commands are on the top level


def main() -> None:
    """Runs a command. An error prints one line on standard error; exit code 1, or 2 for usage."""
    try:
        app()
    except (TriuneError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


@app.callback()
def connect(
    context: typer.Context,
    target: Annotated[
        str,
        typer.Option(
            "--target",
            "--server",
            envvar="TRIUNE_TARGET",
            metavar="HOST:PORT",
            help="Address of the server.",
        ),
    ] = DEFAULT_TARGET,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Timeout of each request.")
    ] = None,
    tls: Annotated[bool, typer.Option("--tls", help="Use TLS with the system's CAs.")] = False,
    tls_ca: Annotated[
        Path | None,
        typer.Option(
            envvar="TRIUNE_TLS_CA", exists=True, help="Use TLS with the CAs in this file."
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(exists=True, help="Client certificate; needs --tls-key.")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(exists=True, help="Private key of --tls-cert.")
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(envvar="TRIUNE_TOKEN_FILE", exists=True, help="File with the bearer token."),
    ] = None,
) -> None:
    """Talk to a Triune server."""
    if (tls_cert is None) != (tls_key is None):
        given, missing = (
            ("--tls-cert", "--tls-key") if tls_key is None else ("--tls-key", "--tls-cert")
        )
        raise typer.BadParameter(f"{given} also needs {missing}")
    token = None if token_file is None else _read_token(token_file)
    security = Security(
        tls=tls, ca_file=tls_ca, certificate_file=tls_cert, key_file=tls_key, token=token
    )
    context.obj = _Server(target, timeout, security)


def _read_token(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except UnicodeDecodeError as error:
        raise ValueError(f"--token-file {file}: is not ASCII text") from error


@app.command()
@takes_options()
def generate(
    context: typer.Context,
    text: flags.Texts = None,
    model: Annotated[str, typer.Option()] = "smollm2",
    system: Annotated[
        str | None, typer.Option(help="System message, for a model with a chat template.")
    ] = None,
    image: flags.Images = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue TEXT verbatim, without the chat template.")
    ] = False,
    json: flags.JsonOfBatches = False,
    *,
    options: types.GenerationOptions,
) -> None:
    """Continue texts with a decoder, or describe images.

    A model with a chat template answers each TEXT as a user message, in a request of its own, with
    the images before the text. With --raw, or without a chat template, one request continues all
    TEXTs, or describes all images.
    """
    images, stdin = [file.read() for file in image or ()], iter(sys.stdin)
    texts = text or []
    if images and text:
        texts = flags.read_texts(text, stdin)
    elif not images and flags.reads_lines(text):
        texts, stdin = flags.only_line(text, stdin)
    with _server(context).connect() as client:
        is_chat = (
            not raw
            and client.get_model(model, version=options.get("version", "")).has_chat_template
        )
        if texts or images:
            prompts = prompts_of(texts, images, system, is_chat=is_chat)
            _generate(client, model, prompts, options, json=json)
            return

    def answer(client: Client, texts: list[str]) -> types.TextResult:
        (prompt,) = prompts_of(texts, (), system, is_chat=is_chat)
        return client.generate(model, prompt.inputs, messages=prompt.messages, **options)

    size, in_flight = (1, 64) if is_chat else (bulk.BATCH_SIZE, bulk.IN_FLIGHT)
    answers = results_of(context, text, answer, size=size, in_flight=in_flight, stdin=stdin)
    results = (result for _, result in answers)
    if json:
        for group in bulk.batches(results, bulk.BATCH_SIZE // size):
            render.write_texts_json(group, options)
        return
    for output in (output for result in results for output in result.outputs):
        print(render.text_of(output))


def _generate(
    client: Client,
    model: str,
    prompts: Sequence[Prompt],
    options: types.GenerationOptions,
    *,
    json: bool,
) -> None:
    if json:
        results = [
            client.generate(
                model, prompt.inputs, messages=prompt.messages, images=prompt.images, **options
            )
            for prompt in prompts
        ]
        render.write_texts_json(results, options)
        return
    for prompt in prompts:
        pieces = client.generate_stream(
            model, prompt.inputs, messages=prompt.messages, images=prompt.images, **options
        )
        render.write_pieces(
            pieces, sys.stdout, hypotheses_per_input=options.get("num_hypotheses") or 1
        )


@app.command()
@takes_options()
def translate(
    context: typer.Context,
    text: flags.Texts = None,
    model: Annotated[str, typer.Option()] = "en-pt",
    json: flags.JsonOfBatches = False,
    source_language: flags.SourceLanguage = "",
    target_language: flags.TargetLanguage = "",
    *,
    options: types.TranslationOptions,
) -> None:
    """Translate texts with an encoder-decoder."""
    languages = {"source_language": source_language, "target_language": target_language}
    if json:
        for _, result in results_of(
            context,
            text,
            lambda client, texts: client.translate(model, texts, **languages, **options),
        ):
            render.write_texts_json([result], options)
    elif flags.reads_lines(text):
        for line in lines_of(
            context,
            text,
            lambda client, texts: map(
                render.text_of, client.translate(model, texts, **languages, **options).outputs
            ),
        ):
            print(line)
    else:
        with _server(context).connect() as client:
            pieces = client.translate_stream(model, text or (), **languages, **options)
            render.write_pieces(
                pieces, sys.stdout, hypotheses_per_input=options.get("num_hypotheses") or 1
            )


@app.command()
@takes_options()
def score(
    context: typer.Context,
    before: Annotated[str, typer.Argument(metavar="CONTEXT", help="The prompt or source.")],
    target: Annotated[
        list[str], typer.Argument(metavar="TARGET", help="Texts to score after CONTEXT.")
    ],
    model: Annotated[str, typer.Option()] = "smollm2",
    json: flags.Json = False,
    *,
    options: types.ScoreOptions,
) -> None:
    """Score how likely texts are after a prompt, or as translations of a source."""
    options["logprobs"] = json
    with _server(context).connect() as client:
        result = client.score(model, [(before, text) for text in target], **options)
    if json:
        render.write_outputs_json(result)
    else:
        render.write_scores(result, target)


@app.command()
def tokenize(
    context: typer.Context,
    text: flags.Texts = None,
    model: Annotated[str, typer.Option()] = "smollm2",
    version: flags.Version = "",
    without_special_tokens: Annotated[
        bool,
        typer.Option(
            "--without-special-tokens", help="Leave out special tokens that the model adds."
        ),
    ] = False,
    json: flags.JsonOfBatches = False,
) -> None:
    """Tokenize texts as a model does."""
    for _, result in results_of(
        context,
        text,
        lambda client, texts: client.tokenize(
            model, texts, without_special_tokens=without_special_tokens, version=version
        ),
    ):
        if json:
            render.write_outputs_json(result)
        else:
            render.write_tokenizations(result)


@app.command()
def models(
    context: typer.Context,
    model: Annotated[str | None, typer.Option(help="List only this model.")] = None,
    version: flags.Version = "",
    json: flags.Json = False,
) -> None:
    """List the server's models."""
    if version and model is None:
        raise typer.BadParameter("--version needs --model")
    with _server(context).connect() as client:
        if model is None:
            rows = client.list_models()
        else:
            rows = (client.get_model(model, version=version),)
    if json:
        render.write_models_json(rows)
    else:
        render.write_models(rows)


@app.command(name="health")
def check_health(
    context: typer.Context,
    service: Annotated[
        str, typer.Option(help="gRPC service to check; the whole server by default.")
    ] = "",
) -> None:
    """Print the server's health status; the exit code is 0 only for SERVING."""
    server = _server(context)
    timeout_seconds = server.timeout_seconds or _HEALTH_TIMEOUT_SECONDS
    status = health.status(server.target, service, timeout_seconds, server.security)
    print(status)
    if status != "SERVING":
        raise typer.Exit(1)


def _server(context: typer.Context) -> _Server:
    server: _Server = context.obj
    return server
