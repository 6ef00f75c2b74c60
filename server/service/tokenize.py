"""Tokenize: token ids of texts. Detokenize: texts of token ids."""

import time
from dataclasses import dataclass

from server.errors import InvalidArgumentError
from server.service import validation
from server.service.caller import Caller
from server.service.context import MAX_INLINE_CHARACTERS, ServiceContext
from server.service.requests import ModelRequest
from server.service.threads import check_deadline
from server.service.usage import Timing, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeRequest(ModelRequest):
    """``without_special_tokens``: leave out the special tokens that the model's calls add.

    ``with_offsets``: also return where the tokens are in the texts.
    """

    inputs: tuple[str, ...] = ()
    without_special_tokens: bool = False
    with_offsets: bool = False


@dataclass(frozen=True, slots=True)
class Tokenization:
    """The token ids of one text, and the tokens as spelled in the vocabulary.

    ``offsets``: start and end of each token in the text, in characters, without leading spaces;
    ``None`` for special tokens. Only if the request asks for them.
    """

    token_ids: tuple[int, ...]
    tokens: tuple[str, ...]
    offsets: tuple[tuple[int, int] | None, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenizeResult:
    """The outputs in the order of the inputs."""

    model: str
    outputs: tuple[Tokenization, ...]
    usage: Usage
    timing: Timing


@dataclass(frozen=True, slots=True, kw_only=True)
class DetokenizeRequest(ModelRequest):
    """Token ids of texts."""

    token_inputs: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class DetokenizeResult:
    """The texts, without special tokens, in the order of the inputs."""

    model: str
    texts: tuple[str, ...]


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
    special_tokens = not request.without_special_tokens
    rows = await context.run_tokenizer(
        request.inputs,
        lambda: model.tokenizer.encode(request.inputs, special_tokens=special_tokens),
        caller,
    )
    offsets: list[list[tuple[int, int] | None]] = [[] for _ in rows]
    if request.with_offsets:
        offsets = await context.run_tokenizer(
            request.inputs,
            lambda: [
                model.tokenizer.offsets(text, special_tokens=special_tokens)
                for text in request.inputs
            ],
            caller,
        )
    seconds = time.monotonic() - started
    return TokenizeResult(
        model=model.manifest.name,
        outputs=tuple(
            Tokenization(row, tuple(model.tokenizer.tokens(row)), tuple(spans))
            for row, spans in zip(rows, offsets, strict=True)
        ),
        usage=Usage(input_tokens=sum(len(row) for row in rows)),
        timing=Timing(tokenize_seconds=seconds, total_seconds=seconds),
    )


async def detokenize(
    request: DetokenizeRequest, context: ServiceContext, caller: Caller
) -> DetokenizeResult:
    """Turns token ids into texts.

    Raises:
        ServeError: an input is empty, too long or has an unknown id, or the model is unknown.
    """
    model = context.registry.get(request.model, request.version)
    rows = request.token_inputs
    if not rows:
        raise InvalidArgumentError("token_inputs", "must not be empty")
    validation.check_lengths("token_inputs", rows, context.config.max_input_bytes)

    def decode() -> tuple[str, ...]:
        validation.check_token_inputs(rows, model.manifest.dimensions.vocabulary_size)
        return tuple(model.tokenizer.decode(row) for row in rows)

    if sum(map(len, rows)) > MAX_INLINE_CHARACTERS:
        texts = await context.in_thread(decode, caller)
    else:
        check_deadline(caller.deadline)
        texts = decode()
    return DetokenizeResult(model=model.manifest.name, texts=texts)
