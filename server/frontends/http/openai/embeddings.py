"""``/v1/embeddings``."""

import base64
from typing import Any, Literal, cast

import msgspec
import numpy as np
from starlette.responses import Response

from server.frontends.http.endpoint import Call, json_response
from server.frontends.http.images import ImageItem, ImageMessage, images_of
from server.frontends.http.openai.prompts import Texts, texts_or_tokens
from server.frontends.http.openai.usage import prompt_usage
from server.service.embed import EmbedRequest
from server.service.encoder_options import LengthOptions, LongInput
from server.service.tokenize import DetokenizeRequest

NAMES = {
    "inputs": "input",
    "token_inputs": "input",
    "max_tokens": "truncate_prompt_tokens",
    "long_input": "truncate_prompt_tokens",
}


class EmbeddingsBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body. The options after ``dimensions`` are vLLM's and the service's own.

    ``input``: :data:`Texts`, or images. ``messages``: one image, instead of ``input``. Token ids
    are detokenized: the model's special tokens are added around the text, as for texts.
    """

    model: str
    input: str | ImageItem | list[str | int | list[int] | ImageItem] | None = None
    messages: list[ImageMessage] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    truncate_prompt_tokens: int | None = None
    normalize: bool | None = None
    prompt: str | None = None
    prompt_name: str | None = None
    user: Any = None
    safety_identifier: Any = None


async def embeddings(call: Call[EmbeddingsBody]) -> Response:
    """Embeds texts, token ids or images."""
    body = call.body
    images = images_of(body.input, body.messages)
    inputs = images.texts
    token_inputs: tuple[tuple[int, ...], ...] = ()
    if not images.images:
        inputs, token_inputs = texts_or_tokens(cast("Texts", body.input), "input")
    if token_inputs:
        detokenized = await call.service.detokenize(
            DetokenizeRequest(model=body.model, token_inputs=token_inputs), call.caller
        )
        inputs = detokenized.texts
    truncated = body.truncate_prompt_tokens
    request = EmbedRequest(
        model=body.model,
        inputs=inputs,
        images=await images.files(call),
        dimensions=body.dimensions,
        normalize=body.normalize,
        prompt=body.prompt,
        prompt_name=body.prompt_name,
        length=LengthOptions(
            long_input=None if truncated is None else LongInput.TRUNCATE_RIGHT,
            max_tokens=None if truncated == -1 else truncated,  # vLLM: -1 is the model's limit
        ),
    )
    with images.named():
        result = await call.service.embed(request, call.caller)
    packs = body.encoding_format == "base64"
    return json_response(
        {
            "object": "list",
            "model": result.model,
            "data": [
                {
                    "object": "embedding",
                    "index": index,
                    "embedding": _packed(output.vector) if packs else output.vector.tolist(),
                }
                for index, output in enumerate(result.outputs)
            ],
            "usage": prompt_usage(result.usage),
        }
    )


def _packed(vector: "np.ndarray[Any, np.dtype[np.float32]]") -> str:
    """Little-endian float32 in base64."""
    return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
