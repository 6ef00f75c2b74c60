"""The Embed call: maps texts or images to vectors."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict

from model.bundle import EmbeddingKind, Task
from server.bounds import MAX_ACTIVE_DIMS, MAX_REPLY_NUMBERS
from server.engine.encoder_runner import TOKEN_VECTORS
from server.errors import InvalidArgumentError
from server.models.registry import Model
from server.service import validation
from server.service.caller import Caller
from server.service.context import ServiceContext
from server.service.embedding import Embedding, EmbedRequest, EmbedResult
from server.service.embedding_kinds import is_beside, kinds_of, token_outputs, token_vector_size
from server.service.encoder_call import EncoderCall
from server.service.encoder_options import check_integer, length_limit
from server.service.images import check_alone, check_given, prepare_images, reserved
from server.service.input_types import InputType, named_prompt, reader_of, typed_prompt
from server.service.vectors import embeddings_of, finished, is_normalized
from server.text.windows import LongInput, TokenizedText

# Values in a reply per weight of a sparse vector: token id, weight and token.
_NUMBERS_PER_WEIGHT = 3


async def embed(
    request: EmbedRequest, context: ServiceContext, caller: Caller, *, is_bulk: bool = False
) -> EmbedResult:
    """Embeds each text or image.

    A text in several windows gets the mean of their vectors, weighted by their numbers of tokens;
    for sparse vectors, the highest weight of each token.

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
    model = call.model
    kinds = kinds_of(request.vectors, model)
    _check_options(request, kinds, model)
    check_given(call, request.inputs, request.images)
    if request.images:
        return await _embed_images(request, call)
    validation.check_texts(request.inputs, context.config.max_input_bytes)
    reader = reader_of(model, request.input_type)
    is_multi_vector = EmbeddingKind.MULTI_VECTOR in kinds
    if is_multi_vector and request.length.long_input == LongInput.WINDOWS:
        raise InvalidArgumentError(
            "long_input", "a text in windows has no vector for each token: truncate or divide it"
        )
    prompt = _prompt(request, model)
    wants_tokens = request.token_embeddings or is_multi_vector
    limit = length_limit(
        request.length, model, LongInput.ERROR, windows=not wants_tokens, reader=reader
    )
    texts = [prompt + text for text in request.inputs] if prompt else request.inputs
    tokenized = await call.tokenize(texts, limit, with_offsets=wants_tokens, reader=reader)
    num_numbers = _max_numbers(tokenized, request, kinds, model)
    validation.check_reply("inputs", num_numbers, MAX_REPLY_NUMBERS, "numbers")
    jobs = await call.jobs(
        tokenized,
        token_outputs=_token_outputs(request, kinds, model),
        max_active_dims=request.max_active_dims or MAX_ACTIVE_DIMS,
    )
    outputs = await call.run(jobs)

    def result() -> EmbedResult:
        return _result(call, embeddings_of(tokenized, outputs, request, model))

    num_values = sum(text.num_tokens for text in tokenized) if wants_tokens else 0
    if model.manifest.embedding_kind == EmbeddingKind.SPARSE:
        num_values = sum(output.vector.size for windows in outputs for output in windows) // 4
    elif EmbeddingKind.SPARSE in kinds:
        num_values += sum(text.num_tokens for text in tokenized)
    return await call.build(num_values, result)


def _token_outputs(
    request: EmbedRequest, kinds: Sequence[EmbeddingKind], model: Model
) -> tuple[str, ...]:
    """The names of the graph's outputs for each token that the reply needs."""
    if request.token_embeddings and model.manifest.embedding_kind != EmbeddingKind.MULTI_VECTOR:
        return (TOKEN_VECTORS, *token_outputs(kinds, model))
    return token_outputs(kinds, model)


async def _embed_images(request: EmbedRequest, call: EncoderCall) -> EmbedResult:
    check_alone(
        inputs=request.inputs,
        prompt=request.prompt,
        prompt_name=request.prompt_name,
        input_type=request.input_type,
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
                Embedding(
                    finished(output.vector, request, is_normalized(call.model)), usage, truncation
                )
                for (output,), usage, truncation in images
            ),
        )

    return await call.build(0, result)


def _result(call: EncoderCall, outputs: Iterable[Embedding]) -> EmbedResult:
    usage, timing = call.finish()
    return EmbedResult(call.model.manifest.name, tuple(outputs), usage, timing)


def _max_numbers(
    texts: Sequence[TokenizedText],
    request: EmbedRequest,
    kinds: Sequence[EmbeddingKind],
    model: Model,
) -> int:
    """Upper bound of the numbers in the reply, and of those in windows' vectors before it."""
    num_tokens, num_numbers = sum(text.num_tokens for text in texts), 0
    if EmbeddingKind.SPARSE in kinds:
        limit = request.max_active_dims or MAX_ACTIVE_DIMS
        num_weights = sum(len(text.windows) for text in texts) * limit
        if is_beside(EmbeddingKind.SPARSE, model):  # then only a text's own tokens have weights
            num_weights = min(num_weights, num_tokens)
        num_numbers += num_weights * _NUMBERS_PER_WEIGHT
    num_numbers += num_tokens * (token_vector_size(kinds, model) or 0)
    if EmbeddingKind.DENSE in kinds:
        num_vectors = len(texts) + (num_tokens if request.token_embeddings else 0)
        num_numbers += num_vectors * model.manifest.dimensions.hidden_size
    return num_numbers


def _check_options(request: EmbedRequest, kinds: Sequence[EmbeddingKind], model: Model) -> None:
    """Rejects options that the vectors of the requested kinds do not support."""
    if kinds == (EmbeddingKind.SPARSE,):
        given = {
            "dimensions": request.dimensions is not None,
            "normalize": request.normalize is not None,
            "token_embeddings": request.token_embeddings,
        }
        for name in (name for name, is_given in given.items() if is_given):
            raise InvalidArgumentError(
                name, f"does not apply to the sparse vectors of {model.manifest.name!r}"
            )
    elif request.max_active_dims is not None and EmbeddingKind.SPARSE not in kinds:
        raise InvalidArgumentError(
            "max_active_dims", f"the vectors of {model.manifest.name!r} are not sparse"
        )
    if request.token_embeddings and EmbeddingKind.MULTI_VECTOR in kinds and len(kinds) > 1:
        raise InvalidArgumentError("token_embeddings", "cannot be combined with multi_vector")
    _check_dimensions(request.dimensions, kinds, model)
    _check_normalize(request.normalize, kinds, model)


def _check_dimensions(dimensions: int | None, kinds: Sequence[EmbeddingKind], model: Model) -> None:
    check_integer("dimensions", dimensions, high=model.manifest.dimensions.hidden_size)
    embedding = model.manifest.embedding
    if embedding is None or dimensions is None:
        return
    allowed, size = embedding.truncations, embedding.size
    if is_beside(EmbeddingKind.MULTI_VECTOR, model):
        size = min(size, token_vector_size(kinds, model) or size)
    if dimensions > size or (allowed and dimensions not in (*allowed, size)):
        sizes = ", ".join(map(str, allowed)) or f"1 … {size}"
        raise InvalidArgumentError("dimensions", f"{dimensions} is not in {sizes}")


def _check_normalize(normalize: bool | None, kinds: Sequence[EmbeddingKind], model: Model) -> None:
    has_units = EmbeddingKind.MULTI_VECTOR in kinds and is_beside(EmbeddingKind.MULTI_VECTOR, model)
    if normalize is False and (is_normalized(model) or has_units):
        raise InvalidArgumentError(
            "normalize", f"the vectors of {model.manifest.name!r} are always normalized"
        )


def _prompt(request: EmbedRequest, model: Model) -> str:
    """The prompt to prepend to each text. At most one of ``prompt``, ``prompt_name`` and
    ``input_type`` may be given.

    Without them, a multi-vector (late-interaction) model gets its prompt for documents.
    """
    embedding, kind = model.manifest.embedding, model.manifest.embedding_kind
    if request.prompt is not None and request.prompt_name is not None:
        raise InvalidArgumentError("prompt_name", "cannot be combined with prompt")
    if request.input_type is not None:
        for name in ("prompt", "prompt_name"):
            if getattr(request, name) is not None:
                raise InvalidArgumentError("input_type", f"cannot be combined with {name}")
        return typed_prompt(embedding, request.input_type)
    if request.prompt is not None:
        return request.prompt
    if kind == EmbeddingKind.MULTI_VECTOR:
        return typed_prompt(embedding, InputType.DOCUMENT, request.prompt_name, "prompt_name")
    return named_prompt(embedding, request.prompt_name, "prompt_name")
