"""``/api/embed``, and the older ``/api/embeddings``."""

import msgspec
from starlette.responses import Response

from model.bundle import EmbeddingKind
from server.bounds import MAX_TEXTS, Size
from server.frontends.http.embedding_kinds import check_kind, required
from server.frontends.http.endpoint import Call, json_response
from server.frontends.http.ollama.options import Options, check_options
from server.frontends.http.ollama.replies import durations
from server.service.embedding import EmbedRequest
from server.service.encoder_options import LengthOptions, LongInput

EMBED_NAMES = {"inputs": "input", "long_input": "truncate", "max_tokens": "truncate"}
EMBEDDINGS_NAMES = {"inputs": "prompt", "inputs[0]": "prompt"}


class EmbedBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Texts to embed. ``keep_alive`` and the ``options`` of Ollama have no effect."""

    model: str
    input: str | list[str] | None = None
    truncate: bool | None = None
    dimensions: int | None = None
    options: Options | None = None
    keep_alive: float | str | None = None


class EmbeddingsBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A text to embed."""

    model: str
    prompt: str | None = None
    options: Options | None = None
    keep_alive: float | str | None = None


async def embed(call: Call[EmbedBody]) -> Response:
    """Embeds texts: vectors of length 1, of texts that are cut unless ``truncate`` is false."""
    body = call.body
    texts = [body.input] if isinstance(body.input, str) else body.input or []
    Size(MAX_TEXTS).check_count("input", texts)
    check_options(body.options or Options())
    check_kind(call.service.get_model(body.model), EmbeddingKind.DENSE)
    head = {"model": body.model}
    if not any(texts):
        return json_response({**head, "embeddings": []})
    cut = LongInput.ERROR if body.truncate is False else LongInput.TRUNCATE_RIGHT
    request = EmbedRequest(
        model=body.model,
        inputs=tuple(texts),
        dimensions=body.dimensions or None,
        normalize=True,
        length=LengthOptions(long_input=cut),
    )
    result = await call.service.embed(request, call.caller)

    def encode() -> Response:
        vectors = [required(output.vector).tolist() for output in result.outputs]
        count = {"prompt_eval_count": result.usage.input_tokens}
        return json_response({**head, "embeddings": vectors, **durations(result.timing), **count})

    return await call.service.build(result.num_values, encode, call.caller)


async def embeddings(call: Call[EmbeddingsBody]) -> Response:
    """Embeds one text: the vector as the model makes it."""
    body = call.body
    check_options(body.options or Options())
    check_kind(call.service.get_model(body.model), EmbeddingKind.DENSE)
    if not body.prompt:
        return json_response({"embedding": []})
    result = await call.service.embed(
        EmbedRequest(model=body.model, inputs=(body.prompt,)), call.caller
    )
    (output,) = result.outputs
    return json_response({"embedding": required(output.vector).tolist()})
