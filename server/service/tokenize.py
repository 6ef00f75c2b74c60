"""Tokenize: splits texts as a model does."""

import time
from dataclasses import dataclass

from server.service import validation
from server.service.caller import Caller
from server.service.context import ServiceContext
from server.service.requests import ModelRequest
from server.service.usage import Timing, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeRequest(ModelRequest):
    """``without_special_tokens``: leave out those that the model's calls add."""

    inputs: tuple[str, ...] = ()
    without_special_tokens: bool = False


@dataclass(frozen=True, slots=True)
class Tokenization:
    """One text: token ids, and their spellings in the vocabulary."""

    token_ids: tuple[int, ...]
    tokens: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TokenizeResult:
    """The outputs in the order of the inputs."""

    model: str
    outputs: tuple[Tokenization, ...]
    usage: Usage
    timing: Timing


async def tokenize(
    request: TokenizeRequest, context: ServiceContext, caller: Caller
) -> TokenizeResult:
    """Tokenizes each text.

    Raises:
        ServeError: an input is empty or too long, or the model is unknown.
    """
    started = time.monotonic()
    model = context.registry.get(request.model, request.version)
    validation.check_texts(request.inputs, context.config.max_input_bytes)
    rows = await context.tokenized(
        request.inputs,
        lambda: model.tokenizer.encode(
            request.inputs, special_tokens=not request.without_special_tokens
        ),
        caller,
    )
    seconds = time.monotonic() - started
    return TokenizeResult(
        model=model.manifest.name,
        outputs=tuple(Tokenization(row, tuple(model.tokenizer.tokens(row))) for row in rows),
        usage=Usage(input_tokens=sum(len(row) for row in rows)),
        timing=Timing(tokenize_seconds=seconds, total_seconds=seconds),
    )
