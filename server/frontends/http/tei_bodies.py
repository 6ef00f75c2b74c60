"""Request bodies of text-embeddings-inference's API."""

from dataclasses import dataclass
from typing import Literal, cast

import msgspec

from model.bundle import EmbeddingKind
from server.bounds import MAX_TEXTS, MAX_TOKEN_IDS, Size
from server.errors import InvalidArgumentError
from server.frontends.http.openai.prompts import Texts as TextsOrIds
from server.service.encoder_options import LengthOptions, LongInput
from server.service.input_types import InputType
from server.service.text_pairs import TextPair

Texts = str | list[str]
Direction = Literal["Left", "Right", "left", "right"]


class LengthBody(msgspec.Struct, kw_only=True):
    """How texts over the model's length limit are handled; by default they are an error."""

    truncate: bool | None = None
    truncation_direction: Direction = "Right"


class EmbedAllBody(LengthBody, kw_only=True):
    """Texts to embed, or token ids. TEI has no field ``input_type``."""

    inputs: TextsOrIds
    prompt_name: str | None = None
    input_type: InputType | None = None


class EmbedBody(EmbedAllBody, kw_only=True):
    """Texts to embed, and the properties of their vectors."""

    normalize: bool = True
    dimensions: int | None = None


class EmbedSparseBody(EmbedAllBody, kw_only=True):
    """Texts to map to sparse vectors. TEI has no field ``max_active_dims``."""

    max_active_dims: int | None = None


class PredictBody(LengthBody, kw_only=True):
    """A text, a pair of texts, or a batch of texts and pairs, each a list of one or two."""

    inputs: str | list[str | list[str]]
    raw_scores: bool = False


class RerankBody(LengthBody, kw_only=True):
    """A query and the texts to rank. TEI has no fields ``vectors`` and ``weights``."""

    query: str
    texts: list[str]
    raw_scores: bool = False
    return_text: bool = False
    vectors: list[EmbeddingKind] | None = None
    weights: list[float] | None = None


class SimilarityInputs(msgspec.Struct, kw_only=True):
    """A text and the sentences to compare it with."""

    source_sentence: str
    sentences: list[str]


class SimilarityParameters(LengthBody, kw_only=True):
    """Options of ``/similarity``."""

    prompt_name: str | None = None


class SimilarityBody(msgspec.Struct, kw_only=True):
    """A text, the sentences to compare it with, and options."""

    inputs: SimilarityInputs
    parameters: SimilarityParameters | None = None


class TokenizeBody(msgspec.Struct, kw_only=True):
    """Texts to tokenize, each after the prompt of that name."""

    inputs: Texts
    add_special_tokens: bool = True
    prompt_name: str | None = None


class DecodeBody(msgspec.Struct, kw_only=True):
    """Token ids of one text, or of several."""

    ids: list[int | list[int]]
    skip_special_tokens: bool = True


@dataclass(frozen=True, slots=True)
class PredictInputs:
    """Texts or pairs; the other is empty. With ``is_batch``, the answer is a list of lists."""

    texts: tuple[str, ...] = ()
    pairs: tuple[TextPair, ...] = ()
    is_batch: bool = False


def texts_of(inputs: Texts) -> tuple[str, ...]:
    """The texts as a tuple; a single text becomes a batch of one."""
    return (inputs,) if isinstance(inputs, str) else tuple(inputs)


def length_of(body: LengthBody) -> LengthOptions:
    """Converts the truncation fields to the service's length options."""
    if not body.truncate:
        return LengthOptions(long_input=LongInput.ERROR)
    is_left = body.truncation_direction.lower() == "left"
    return LengthOptions(
        long_input=LongInput.TRUNCATE_LEFT if is_left else LongInput.TRUNCATE_RIGHT
    )


def predict_inputs(inputs: str | list[str | list[str]]) -> PredictInputs:
    """The texts or pairs of a request.

    Raises:
        InvalidArgumentError: ``inputs`` is empty, mixes texts and pairs, or has an item that is
            neither.
    """
    if isinstance(inputs, str):
        return PredictInputs(texts=(inputs,))
    if not inputs:
        raise InvalidArgumentError("inputs", "must not be empty")
    Size(MAX_TEXTS).check_count("inputs", inputs)
    if all(isinstance(item, str) for item in inputs):
        return _of_rows([[item for item in inputs if isinstance(item, str)]], is_batch=False)
    rows = []
    for index, item in enumerate(inputs):
        if isinstance(item, str):
            raise InvalidArgumentError(f"inputs[{index}]", "expected array, got str")
        rows.append(item)
    return _of_rows(rows, is_batch=True)


def _of_rows(rows: list[list[str]], *, is_batch: bool) -> PredictInputs:
    sizes = {len(row) for row in rows}
    if not sizes <= {1, 2}:
        raise InvalidArgumentError("inputs", "each item is one text or a pair of texts")
    if len(sizes) > 1:
        raise InvalidArgumentError("inputs", "texts and pairs cannot be mixed in one request")
    if sizes == {1}:
        return PredictInputs(texts=tuple(row[0] for row in rows), is_batch=is_batch)
    return PredictInputs(pairs=tuple(TextPair(*row) for row in rows), is_batch=is_batch)


def ids_of(ids: list[int | list[int]]) -> tuple[tuple[int, ...], ...]:
    """The token ids of each text; a flat list is one text.

    Raises:
        InvalidArgumentError: there are too many, or ids and lists of ids are mixed.
    """
    Size(MAX_TEXTS if ids and isinstance(ids[0], list) else MAX_TOKEN_IDS).check_count("ids", ids)
    kinds = set(map(type, ids))
    if len(kinds) > 1:
        raise InvalidArgumentError("ids", "ids and lists of ids cannot be mixed")
    if kinds != {list}:
        return (tuple(cast("list[int]", ids)),)
    rows = cast("list[list[int]]", ids)
    Size(max_total=MAX_TOKEN_IDS).check_total("ids", [len(row) for row in rows])
    return tuple(map(tuple, rows))
