"""The Attend call: returns an encoder's attention weights over texts or pairs of texts."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from model.config import Kind
from server.bounds import INPUT_BYTES, MAX_TEXTS, ruled, sized
from server.engine.requests.update import EncoderOutput
from server.errors import InternalError, InvalidArgumentError
from server.service import validation
from server.service.attention import (
    AttentionPlan,
    check_encoder_attention,
    matrices_of,
    plan_attention,
)
from server.service.caller import Caller
from server.service.context import ServiceContext
from server.service.encoder_call import EncoderCall
from server.service.encoder_options import LengthOptions, length_limit
from server.service.generation_options import AttentionOptions
from server.service.generation_request import AttentionMatrix
from server.service.input_types import InputType, reader_of
from server.service.requests import ModelRequest
from server.service.text_pairs import TextPair, tokenize_inputs_or_pairs
from server.service.truncation import Truncation, truncation_of, usage_of
from server.service.usage import Timing, Usage
from server.text.windows import LongInput, TokenizedText


@dataclass(frozen=True, slots=True, kw_only=True)
class AttendRequest(ModelRequest):
    """Has either ``inputs`` or ``pairs``. ``attention`` of ``None`` means all layers and heads."""

    inputs: tuple[str, ...] = ruled(INPUT_BYTES, (), max_items=MAX_TEXTS)
    pairs: tuple[TextPair, ...] = sized((), max_items=MAX_TEXTS)
    attention: AttentionOptions | None = None
    length: LengthOptions = field(default_factory=LengthOptions)


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """A token, and its ``start`` and ``end`` in characters of a text.

    ``text`` is the index of that text in a pair, else 0. All three are 0 for a special token.
    """

    token: str
    start: int
    end: int
    text: int


@dataclass(frozen=True, slots=True)
class AttendedText:
    """One input's tokens, special tokens included, and the weights between them."""

    tokens: tuple[TokenSpan, ...]
    matrices: tuple[AttentionMatrix, ...]
    usage: Usage
    truncation: Truncation


@dataclass(frozen=True, slots=True)
class AttendResult:
    """The result of Attend, with outputs in the order of the inputs or pairs."""

    model: str
    outputs: tuple[AttendedText, ...]
    usage: Usage
    timing: Timing

    @property
    def num_values(self) -> int:
        """Number of numbers and short texts in the reply."""
        return sum(
            4 + 4 * len(output.tokens) + sum(2 + each.weights.size // 4 for each in output.matrices)
            for output in self.outputs
        )


async def attend(request: AttendRequest, context: ServiceContext, caller: Caller) -> AttendResult:
    """Returns the attention weights of each text, or each pair.

    A multi-vector (late-interaction) model encodes the texts as documents.

    Raises:
        ServeError: an input or option is invalid, the model is unknown, is no encoder or returns
            no attention, the reply would be too large, or the queue is full.
    """
    call = EncoderCall(context.model_of(request), context, caller)
    model = call.model
    validation.check_text_source(model)
    if model.manifest.kind != Kind.ENCODER:
        raise InvalidArgumentError(
            "model", f"{model.manifest.name!r} is no encoder: its other calls return attention"
        )
    validation.check_takes_texts(model, "pairs" if request.pairs else "inputs")
    plan = plan_attention(request.attention or AttentionOptions(), model)
    reader = reader_of(model, InputType.DOCUMENT)
    limit = length_limit(request.length, model, LongInput.ERROR, windows=False, reader=reader)
    tokenized = await tokenize_inputs_or_pairs(
        request.inputs, request.pairs, call, limit, with_offsets=True, reader=reader
    )
    check_encoder_attention(plan, [text.num_tokens for text in tokenized])
    outputs = await call.run(await call.jobs(tokenized, attention=plan.selection))

    def result() -> AttendResult:
        usage, timing = call.finish()
        return AttendResult(
            model=model.manifest.name,
            outputs=tuple(
                AttendedText(
                    tokens=_tokens(text, model.tokenizer.tokens(text.windows[0].token_ids)),
                    matrices=_matrices(plan, output),
                    usage=usage_of(text),
                    truncation=truncation_of(text),
                )
                for text, (output,) in zip(tokenized, outputs, strict=True)
            ),
            usage=usage,
            timing=timing,
        )

    return await call.build(4 * sum(text.num_tokens for text in tokenized), result)


def _tokens(text: TokenizedText, tokens: Sequence[str]) -> tuple[TokenSpan, ...]:
    """The tokens of a text that fits one window."""
    window = text.windows[0]
    spans = [TokenSpan(token, 0, 0, 0) for token in tokens]
    own = text.offsets[window.first_token :][: window.num_text_tokens]
    parts = (text.first_start, text.first_offsets, 0), (window.text_start, own, int(text.is_pair))
    for begin, offsets, number in parts:
        for index, (start, end) in enumerate(offsets, begin):
            spans[index] = TokenSpan(tokens[index], start, end, number)
    return tuple(spans)


def _matrices(plan: AttentionPlan, output: EncoderOutput) -> tuple[AttentionMatrix, ...]:
    if output.attention is None:
        raise InternalError("the model returned no attention weights")
    return matrices_of(plan.selection, output.attention)
