"""Embed: maps texts to vectors."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from model import bundle
from model.bundle import Task
from server.bounds import (
    INPUT_BYTES,
    MAX_ACTIVE_DIMS,
    MAX_IMAGE_BYTES,
    MAX_IMAGES,
    MAX_NAME_BYTES,
    MAX_PREFIX_BYTES,
    MAX_REPLY_NUMBERS,
    MAX_TEXTS,
    bounded,
    ruled,
    sized,
)
from server.errors import InvalidArgumentError
from server.models.registry import Model
from server.printable import quoted
from server.service import validation
from server.service.caller import Caller
from server.service.context import ServiceContext
from server.service.encoder_call import EncoderCall, EncoderOutput
from server.service.encoder_options import Floats, LengthOptions, check_integer, length_limit
from server.service.images import check_alone, check_given, prepare_images, reserved
from server.service.requests import ModelRequest
from server.service.truncation import Truncation, truncation_of, usage_of
from server.service.usage import Timing, Usage
from server.text.windows import LongInput, TokenizedText

MIN_NORM = 1e-12  # the eps of torch.nn.functional.normalize


class InputType(StrEnum):
    """What a text is for. Models trained for search encode queries and documents differently."""

    QUERY = "query"
    DOCUMENT = "document"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedRequest(ModelRequest):
    """Texts or images to embed, and the properties of their vectors.

    ``images``: files, for a model that takes images.

    ``dimensions``: truncate vectors to this size (Matryoshka, Kusupati et al. 2022).
    ``normalize``: to length 1; ``None``: the model's default. ``prompt`` is prepended to each text;
    ``prompt_name`` selects one of the model's prompts instead; without both, the model's default
    prompt is used. ``input_type`` selects the prompt for queries or documents, and how a model with
    a vector for each token reads the text. ``token_embeddings``: also return the vector of each
    token; not with windows. ``max_active_dims``: weights that sparse vectors keep at most.
    """

    inputs: tuple[str, ...] = ruled(INPUT_BYTES, (), max_items=MAX_TEXTS)
    images: tuple[bytes, ...] = sized((), max_items=MAX_IMAGES, max_bytes=MAX_IMAGE_BYTES)
    dimensions: int | None = ruled("1 … the model's hidden size", None)
    normalize: bool | None = None
    prompt_name: str | None = sized(None, max_bytes=MAX_NAME_BYTES)
    prompt: str | None = sized(None, max_bytes=MAX_PREFIX_BYTES)
    input_type: InputType | None = None
    token_embeddings: bool = False
    max_active_dims: int | None = bounded(None, 1, MAX_ACTIVE_DIMS)
    length: LengthOptions = field(default_factory=LengthOptions)


@dataclass(frozen=True, slots=True)
class TokenEmbeddings:
    """Vectors of one input's tokens, special tokens included.

    ``tokens`` are spelled as in the vocabulary. ``offsets``: start and end of each token in the
    text, prompt included, in characters; (0, 0) for special tokens. ``vectors``: [tokens, size].
    """

    tokens: tuple[str, ...]
    offsets: tuple[tuple[int, int], ...]
    vectors: Floats


@dataclass(frozen=True, slots=True)
class SparseVector:
    """Weights of tokens of the vocabulary; all others have weight 0.

    ``indices``: token ids, ascending. ``values``: their weights. ``tokens``: their spelling.
    """

    indices: npt.NDArray[np.int32]
    values: Floats
    tokens: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Embedding:
    """One input's ``vector``: [size]. ``None`` if it is sparse, or if each token has a vector.

    ``tokens``: if the request asks for them, and always if each token has a vector.
    """

    vector: Floats | None
    usage: Usage
    truncation: Truncation
    tokens: TokenEmbeddings | None = None
    sparse: SparseVector | None = None


@dataclass(frozen=True, slots=True)
class EmbedResult:
    """The outputs in the order of the inputs."""

    model: str
    outputs: tuple[Embedding, ...]
    usage: Usage
    timing: Timing

    @property
    def num_values(self) -> int:
        """Numbers and short texts in the reply."""
        return sum(map(_num_values, self.outputs))


def _num_values(output: Embedding) -> int:
    num_in_vector = 0 if output.vector is None else output.vector.size // 4
    num_in_tokens = 0 if output.tokens is None else output.tokens.vectors.size // 16
    num_in_sparse = 0 if output.sparse is None else output.sparse.values.size
    return 4 + num_in_vector + num_in_tokens + num_in_sparse


async def embed(
    request: EmbedRequest, context: ServiceContext, caller: Caller, *, is_bulk: bool = False
) -> EmbedResult:
    """Embeds each text or image. The vector of several windows is their mean, weighted by tokens.

    Args:
        request: the texts and options.
        context: the server's components.
        caller: the client and its deadline.
        is_bulk: whether other requests may overtake this one.

    Raises:
        ServeError: an input or option is invalid, the model is unknown or does not embed, or its
            queue is full.
    """
    call = EncoderCall.open(request, Task.EMBED, context, caller, is_bulk=is_bulk)
    model, wants_tokens = call.model, request.token_embeddings
    _check_dimensions(request.dimensions, model)
    _check_normalize(request.normalize, model)
    check_given(call, request.inputs, request.images)
    if request.images:
        return await _embed_images(request, call)
    validation.check_texts(request.inputs, context.config.max_input_bytes)
    prompt = _prompt(request, model.manifest.embedding)
    limit = length_limit(request.length, model, LongInput.ERROR, windows=not wants_tokens)
    texts = [prompt + text for text in request.inputs] if prompt else request.inputs
    tokenized = await call.tokenize(texts, limit, with_offsets=wants_tokens)
    num_tokens = sum(text.num_tokens for text in tokenized)
    num_vectors = len(tokenized) + (num_tokens if wants_tokens else 0)
    size = model.manifest.dimensions.hidden_size
    validation.check_reply("inputs", num_vectors * size, MAX_REPLY_NUMBERS, "numbers")
    outputs = await call.run(await call.jobs(tokenized, wants_tokens=wants_tokens))

    def result() -> EmbedResult:
        texts = zip(tokenized, outputs, strict=True)
        return _result(call, (_embedding(text, windows, request, model) for text, windows in texts))

    return await call.build(num_tokens if wants_tokens else 0, result)


async def _embed_images(request: EmbedRequest, call: EncoderCall) -> EmbedResult:
    check_alone(
        inputs=request.inputs,
        prompt=request.prompt,
        prompt_name=request.prompt_name,
        token_embeddings=request.token_embeddings or None,
        **asdict(request.length),
    )
    async with reserved(request.images, call):
        inputs = await prepare_images(request.images, call)
        outputs = await call.run(inputs.jobs)

    def result() -> EmbedResult:
        images = zip(outputs, inputs.usages, inputs.truncations, strict=True)
        return _result(
            call,
            (
                Embedding(_finished(output.vector, request, call.model), usage, truncation)
                for (output,), usage, truncation in images
            ),
        )

    return await call.build(0, result)


def _result(call: EncoderCall, outputs: Iterable[Embedding]) -> EmbedResult:
    usage, timing = call.finish()
    return EmbedResult(call.model.manifest.name, tuple(outputs), usage, timing)


def named_prompt(embedding: bundle.Embedding | None, name: str | None, field: str) -> str:
    """The prompt called ``name``, or the model's default prompt if ``name`` is ``None``.

    Raises:
        InvalidArgumentError: the model has no such prompt; names ``field``.
    """
    prompts = {} if embedding is None else embedding.prompts
    if name is None:
        default = None if embedding is None else embedding.default_prompt
        return "" if default is None else prompts[default]
    if name not in prompts:
        known = ", ".join(map(repr, prompts)) or "none"
        raise InvalidArgumentError(field, f"the model has no prompt {quoted(name)}; it has {known}")
    return prompts[name]


def normalized(vector: Floats) -> Floats:
    """``vector`` scaled to length 1."""
    unit: Floats = vector / max(float(np.linalg.norm(vector)), MIN_NORM)
    return unit


def _check_dimensions(dimensions: int | None, model: Model) -> None:
    check_integer("dimensions", dimensions, high=model.manifest.dimensions.hidden_size)
    embedding = model.manifest.embedding
    if embedding is None or dimensions is None:
        return
    allowed = embedding.truncations
    if dimensions > embedding.size or (allowed and dimensions not in (*allowed, embedding.size)):
        sizes = ", ".join(map(str, allowed)) or f"1 … {embedding.size}"
        raise InvalidArgumentError("dimensions", f"{dimensions} is not in {sizes}")


def _check_normalize(normalize: bool | None, model: Model) -> None:
    if normalize is False and _is_normalized(model):
        raise InvalidArgumentError(
            "normalize", f"the vectors of {model.manifest.name!r} are always normalized"
        )


def _is_normalized(model: Model) -> bool:
    embedding = model.manifest.embedding
    return embedding is not None and embedding.is_normalized


def _prompt(request: EmbedRequest, embedding: bundle.Embedding | None) -> str:
    if request.prompt is None:
        return named_prompt(embedding, request.prompt_name, "prompt_name")
    if request.prompt_name is not None:
        raise InvalidArgumentError("prompt_name", "cannot be combined with prompt")
    return request.prompt


def _embedding(
    text: TokenizedText, outputs: Sequence[EncoderOutput], request: EmbedRequest, model: Model
) -> Embedding:
    vector = _finished(_mean_vector(text, outputs), request, model, is_mean=len(outputs) > 1)
    tokens = None
    if request.token_embeddings:
        tokens = _token_embeddings(text, outputs[0].token_vectors, model)
    return Embedding(vector, usage_of(text), truncation_of(text), tokens)


def _finished(
    vector: Floats, request: EmbedRequest, model: Model, *, is_mean: bool = False
) -> Floats:
    """``vector``, truncated and normalized. ``is_mean``: it is a mean of the model's vectors."""
    vector, is_unit = vector[: request.dimensions], _is_normalized(model)
    is_changed = request.dimensions is not None or is_mean
    if (is_unit and is_changed) or (request.normalize and not is_unit):
        vector = normalized(vector)
    return vector


def _mean_vector(text: TokenizedText, outputs: Sequence[EncoderOutput]) -> Floats:
    """The mean of the windows' vectors, weighted by the text's tokens in each."""
    if len(outputs) == 1:
        return outputs[0].vector
    weights = np.array([window.num_text_tokens for window in text.windows], np.float32)
    vectors = np.stack([output.vector for output in outputs])
    mean: Floats = (weights[:, None] * vectors).sum(0) / weights.sum()
    return mean


def _token_embeddings(text: TokenizedText, vectors: Floats | None, model: Model) -> TokenEmbeddings:
    if vectors is None:
        raise InvalidArgumentError(
            "token_embeddings", "the model's bundle does not return them: export it again"
        )
    window = text.windows[0]
    offsets = [(0, 0)] * len(window.token_ids)
    end = window.text_start + window.num_text_tokens
    offsets[window.text_start : end] = text.offsets[window.first_token :]
    return TokenEmbeddings(
        tokens=tuple(model.tokenizer.tokens(window.token_ids)),
        offsets=tuple(offsets),
        vectors=vectors,
    )
