"""The Tokenize call turns texts into token ids; Detokenize turns token ids into texts."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from server.bounds import (
    INPUT_BYTES,
    MAX_MESSAGES,
    MAX_REPLY_VALUES,
    MAX_TEXTS,
    MAX_TOKEN_IDS,
    ruled,
    sized,
)
from server.errors import ContextLengthError, InvalidArgumentError
from server.models.registry import Model
from server.service import validation
from server.service.caller import Caller
from server.service.chat_prompt import chat_prompt
from server.service.context import ServiceContext
from server.service.requests import ModelRequest
from server.service.tool_calls import check_tools
from server.service.usage import Timing, Usage
from server.text.chat import NO_OPTIONS, ChatOptions, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeRequest(ModelRequest):
    """A request of Tokenize. ``without_special_tokens`` leaves out special tokens.

    ``with_offsets`` also returns the positions of the tokens in the texts. Both are for ``inputs``;
    ``messages`` are one text, the prompt that the model gets with the options ``chat``.
    """

    inputs: tuple[str, ...] = ruled(INPUT_BYTES, (), max_items=MAX_TEXTS)
    messages: tuple[Message, ...] = sized((), max_items=MAX_MESSAGES)
    chat: ChatOptions = NO_OPTIONS
    without_special_tokens: bool = False
    with_offsets: bool = False


@dataclass(frozen=True, slots=True)
class Tokenization:
    """The token ids of one text, and the tokens as spelled in the vocabulary.

    ``offsets`` are the start and end of each token in the text, in characters, without leading
    spaces; ``None`` for special tokens. They are empty unless requested.
    """

    token_ids: tuple[int, ...]
    tokens: tuple[str, ...]
    offsets: tuple[tuple[int, int] | None, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenizeResult:
    """The result of Tokenize, with outputs in the order of the inputs."""

    model: str
    outputs: tuple[Tokenization, ...]
    usage: Usage
    timing: Timing

    @property
    def num_values(self) -> int:
        """Number of numbers and short texts in the reply."""
        return 2 * self.usage.input_tokens + len(self.outputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class DetokenizeRequest(ModelRequest):
    """A request of Detokenize, with the token ids of each text."""

    token_inputs: tuple[tuple[int, ...], ...] = sized(
        (), max_items=MAX_TEXTS, max_total=MAX_TOKEN_IDS
    )


@dataclass(frozen=True, slots=True)
class DetokenizeResult:
    """The texts, without special tokens, in the order of the inputs."""

    model: str
    texts: tuple[str, ...]


async def tokenize(
    request: TokenizeRequest, context: ServiceContext, caller: Caller
) -> TokenizeResult:
    """Tokenizes each text, or the prompt of the messages.

    Raises:
        ServeError: an input is empty or too long, the model is unknown, or see
            :func:`server.service.chat_prompt.chat_prompt`.
    """
    started = time.monotonic()
    model = context.model_of(request)
    field = "messages" if request.messages else "inputs"
    validation.check_takes_texts(model, field, has_images=True)
    if request.messages:
        (output,) = await _tokenized_chat(request, model, context, caller)
        return _result(model, [output], len(output.token_ids), started)
    validation.check_texts(request.inputs, context.config.max_input_bytes)
    num_tokens = 0
    special_tokens = not request.without_special_tokens

    def tokenize_some(texts: Sequence[str]) -> list[Tokenization]:
        nonlocal num_tokens
        rows = model.tokenizer.encode(texts, special_tokens=special_tokens)
        num_tokens += sum(map(len, rows))
        validation.check_reply("inputs", num_tokens, MAX_REPLY_VALUES, "tokens")
        offsets: list[list[tuple[int, int] | None]] = [[] for _ in rows]
        if request.with_offsets:
            offsets = [
                model.tokenizer.offsets(text, special_tokens=special_tokens) for text in texts
            ]
        return [
            Tokenization(row, tuple(model.tokenizer.tokens(row)), tuple(spans))
            for row, spans in zip(rows, offsets, strict=True)
        ]

    outputs = await context.tokenize(request.inputs, tokenize_some, caller)
    return _result(model, outputs, num_tokens, started)


async def _tokenized_chat(
    request: TokenizeRequest, model: Model, context: ServiceContext, caller: Caller
) -> list[Tokenization]:
    """Tokenizes the only prompt."""
    check_tools(request.chat)
    with ExitStack() as memory:
        rows, _ = await chat_prompt(
            *(request.messages, request.chat), model, context, caller, memory
        )
    num_tokens = sum(map(len, rows))
    validation.check_reply("messages", num_tokens, MAX_REPLY_VALUES, "tokens")

    def spell() -> list[Tokenization]:
        return [Tokenization(row, tuple(model.tokenizer.tokens(row))) for row in rows]

    return await context.build(num_tokens, spell, caller)


def _result(
    model: Model, outputs: Sequence[Tokenization], num_tokens: int, started: float
) -> TokenizeResult:
    seconds = time.monotonic() - started
    return TokenizeResult(
        model=model.manifest.name,
        outputs=tuple(outputs),
        usage=Usage(input_tokens=num_tokens),
        timing=Timing(tokenize_seconds=seconds, total_seconds=seconds),
    )


async def detokenize(
    request: DetokenizeRequest, context: ServiceContext, caller: Caller
) -> DetokenizeResult:
    """Turns token ids into texts.

    Raises:
        ServeError: an input is empty, too long or has an unknown id, or the model is unknown.
    """
    model = context.model_of(request)
    rows = request.token_inputs
    validation.check_takes_texts(model, "token_inputs", has_images=True)
    if not rows:
        raise InvalidArgumentError("token_inputs", "must not be empty")
    try:
        validation.check_lengths("token_inputs", rows, context.config.max_input_bytes)
    except ContextLengthError as error:  # no model reads them
        raise InvalidArgumentError(error.field, error.description) from None

    def decode() -> tuple[str, ...]:
        validation.check_token_inputs(rows, model.manifest.dimensions.vocabulary_size)
        return tuple(model.tokenizer.decode(row) for row in rows)

    texts = await context.in_thread(decode, caller, sum(map(len, rows)))
    return DetokenizeResult(model=model.manifest.name, texts=texts)
