"""Tokenizes requests of texts, or of pairs of texts that an encoder reads together."""

from collections.abc import Sequence
from dataclasses import dataclass

from server.bounds import INPUT_BYTES, ruled
from server.errors import InvalidArgumentError
from server.service import validation
from server.service.encoder_call import EncoderCall
from server.text.late_interaction import LateInteraction
from server.text.windows import LengthLimit, TokenizedText


@dataclass(frozen=True, slots=True)
class TextPair:
    """Two texts that are read together, such as a premise and a hypothesis."""

    text: str = ruled(INPUT_BYTES)
    text_pair: str = ruled(INPUT_BYTES)


async def tokenize_inputs_or_pairs(
    inputs: Sequence[str],
    pairs: Sequence[TextPair],
    call: EncoderCall,
    limit: LengthLimit,
    *,
    with_offsets: bool = False,
    has_images: bool = False,
    reader: LateInteraction | None = None,
) -> list[TokenizedText]:
    """Tokenizes a request's ``inputs`` or ``pairs``; see :meth:`EncoderCall.tokenize`.

    Raises:
        ServeError: both or neither are given, a text is empty or too long, or there are pairs for a
            multi-vector (late-interaction) model, which has a ``reader``.
    """
    max_bytes = call.context.config.max_input_bytes
    if not pairs:
        validation.check_texts(inputs, max_bytes)
        return await call.tokenize(
            inputs, limit, with_offsets=with_offsets, has_images=has_images, reader=reader
        )
    if inputs:
        raise InvalidArgumentError("pairs", "exactly one of inputs and pairs is required")
    if reader is not None:
        raise InvalidArgumentError("pairs", "the model reads no pairs of texts")
    first = [pair.text for pair in pairs]
    second = [pair.text_pair for pair in pairs]
    validation.check_texts(first, max_bytes, "pairs", ".text")
    validation.check_texts(second, max_bytes, "pairs", ".text_pair")
    return await call.tokenize(
        first, limit, pairs=second, with_offsets=with_offsets, path="pairs[{}]"
    )
