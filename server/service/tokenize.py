"""Tokenize: token ids of texts."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from server.bounds import INPUT_BYTES, MAX_REPLY_VALUES, MAX_TEXTS, ruled
from server.service import validation
from server.service.caller import Caller
from server.service.context import ServiceContext
from server.service.requests import ModelRequest
from server.service.usage import Timing, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeRequest(ModelRequest):
    """``without_special_tokens``: leave out the special tokens that the model's calls add."""

    inputs: tuple[str, ...] = ruled(INPUT_BYTES, (), max_items=MAX_TEXTS)
    without_special_tokens: bool = False


@dataclass(frozen=True, slots=True)
class Tokenization:
    """The token ids of one text, and the tokens as spelled in the vocabulary."""

    token_ids: tuple[int, ...]
    tokens: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TokenizeResult:
    """The outputs in the order of the inputs."""

    model: str
    outputs: tuple[Tokenization, ...]
    usage: Usage
    timing: Timing

    @property
    def num_values(self) -> int:
        """Numbers and short texts in the reply."""
        return 2 * self.usage.input_tokens + len(self.outputs)


async def tokenize(
    request: TokenizeRequest, context: ServiceContext, caller: Caller
) -> TokenizeResult:
    """Tokenizes each text.

    Raises:
        ServeError: an input is empty or too long, or the model is unknown.
    """
    started = time.monotonic()
    model = context.model_of(request)
    validation.check_texts(request.inputs, context.config.max_input_bytes)
    num_tokens = 0

    def tokenize_some(texts: Sequence[str]) -> list[Tokenization]:
        nonlocal num_tokens
        rows = model.tokenizer.encode(texts, special_tokens=not request.without_special_tokens)
        num_tokens += sum(map(len, rows))
        validation.check_reply("inputs", num_tokens, MAX_REPLY_VALUES, "tokens")
        return [Tokenization(row, tuple(model.tokenizer.tokens(row))) for row in rows]

    outputs = await context.tokenize(request.inputs, tokenize_some, caller)
    seconds = time.monotonic() - started
    return TokenizeResult(
        model=model.manifest.name,
        outputs=tuple(outputs),
        usage=Usage(input_tokens=num_tokens),
        timing=Timing(tokenize_seconds=seconds, total_seconds=seconds),
    )
