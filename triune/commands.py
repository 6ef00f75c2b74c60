"""The subcommands of ``triune``: names, help and where their code is."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program that also runs as ``python -m``.

    Attributes:
        module: has ``app``, a typer application. It is imported when a command runs.
        extra: the optional dependencies that it needs, ``pip install '.[EXTRA]'``.
        errors: classes of expected errors, ``module:NAME``; they print one line.
    """

    module: str
    extra: str = ""
    errors: tuple[str, ...] = ()


SERVER = Program(module="server.__main__")
EXPORT = Program(module="export.__main__", extra="export")
TRAIN = Program(module="train.__main__", extra="train")
CLIENT = Program(
    module="client.cli",
    errors=("client.errors:TriuneError", "builtins:OSError", "builtins:ValueError"),
)
LOADTEST = Program(
    module="loadtest.cli",
    errors=(
        *("client.errors:TriuneError", "loadtest.run:UnsuitableModelError"),
        *("builtins:OSError", "builtins:ValueError"),
    ),
)

COMMANDS: dict[str, tuple[Program, str]] = {
    "serve": (SERVER, "Serve bundles."),
    "export": (EXPORT, "Export a trained checkpoint to a bundle."),
    "train": (TRAIN, "Train a model."),
    "generate": (CLIENT, "Continue texts with a decoder."),
    "chat": (CLIENT, "Talk with a model."),
    "translate": (CLIENT, "Translate texts with an encoder-decoder."),
    "embed": (CLIENT, "Embed texts."),
    "classify": (CLIENT, "Classify texts."),
    "tag": (CLIENT, "Find entities in texts."),
    "fill-mask": (CLIENT, "Fill in masked words."),
    "answer": (CLIENT, "Answer questions from a passage."),
    "correct": (CLIENT, "Correct the grammar of texts."),
    "rerank": (CLIENT, "Sort passages by relevance to a query."),
    "transcribe": (CLIENT, "Transcribe a recording."),
    "batch": (CLIENT, "Send a file of requests, as OpenAI's batches have them."),
    "score": (CLIENT, "Score how likely texts are after a prompt."),
    "attention": (CLIENT, "Draw the attention weights of a generated text as a heat map."),
    "compare": (CLIENT, "Run texts through several models or decodings, in one table."),
    "tokenize": (CLIENT, "Tokenize texts as a model does."),
    "models": (CLIENT, "List the server's models."),
    "health": (CLIENT, "Print the server's health status."),
    "load": (CLIENT, "Load or reload a bundle."),
    "unload": (CLIENT, "Stop serving a model."),
    "loadtest": (LOADTEST, "Put load on a server and measure it."),
}
"""Help texts are repeated here, so that ``triune --help`` imports none of the programs."""
