"""vLLM's ``/score``, ``/classify``, ``/tokenize``, ``/detokenize`` and ``/version``."""

import re
import time
from typing import Any, cast

import msgspec
from starlette.responses import Response
from starlette.routing import BaseRoute

from server.bounds import MAX_TEXTS, Size
from server.errors import InvalidArgumentError
from server.frontends.http.endpoint import Api, Call, Context, json_response
from server.frontends.http.fields import given_names
from server.frontends.http.images import ImageItem, ImageMessage, images_of
from server.frontends.http.json_size import MAX_ID_VALUES
from server.frontends.http.openai.errors import error_response
from server.frontends.http.openai.messages import ChatMessage, image_files, service_messages
from server.frontends.http.openai.options import check_neutral
from server.frontends.http.openai.prompts import ENCODER_NAMES, truncation
from server.frontends.http.openai.tools import (
    ToolDefinition,
    chat_option_names,
    chat_options,
    continues_final_message,
)
from server.frontends.http.openai.usage import prompt_usage
from server.frontends.oip.models import server_version
from server.service.classify import ClassifyRequest
from server.service.rerank import RerankRequest
from server.service.tokenize import DetokenizeRequest, TokenizeRequest
from server.service.usage import Usage

_Some = str | list[str] | None


class ScoreBody(msgspec.Struct, kw_only=True):
    """One text to compare with several, or equally many first and second texts, by one pair of
    vLLM's names.
    """

    model: str
    text_1: _Some = None
    text_2: _Some = None
    data_1: _Some = None
    data_2: _Some = None
    queries: _Some = None
    documents: _Some = None
    items: _Some = None
    truncate_prompt_tokens: int | None = None


_SCORE_FIELDS = (
    ("text_1", "text_2"),
    ("data_1", "data_2"),
    ("queries", "documents"),
    ("queries", "items"),
)


def _score_fields(body: ScoreBody) -> tuple[str, str]:
    """The fields of the first and of the second texts: the pair of which most is given."""
    return max(_SCORE_FIELDS, key=lambda pair: len(given_names(body, pair)))


def score_names(body: ScoreBody) -> dict[str, str]:
    """The names that ``body`` uses for the service's fields."""
    first, second = _score_fields(body)
    return {"query": first, "documents": second, "max_tokens": "truncate_prompt_tokens"}


class ClassifyBody(msgspec.Struct, kw_only=True):
    """Texts or images to classify. ``messages`` is one image, with or without a text."""

    model: str
    input: str | ImageItem | list[str | ImageItem] | None = None
    messages: list[ImageMessage] | None = None
    truncate_prompt_tokens: int | None = None


class TokenizeBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A text to tokenize, or messages and what the chat template reads besides them.

    Fields of the last group are rejected unless their values have no effect.
    """

    model: str
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    tools: list[ToolDefinition] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    mm_processor_kwargs: dict[str, Any] | None = None


def tokenize_names(body: TokenizeBody) -> dict[str, str]:
    """The names that ``body`` uses for the service's fields."""
    return {"inputs": "prompt", "chat": "tools", **chat_option_names(len(body.tools or ()))}


class DetokenizeBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Token ids to detokenize."""

    model: str
    tokens: list[int]


def routes(context: Context) -> list[BaseRoute]:
    """The routes."""
    api = Api(context=context, error=error_response)
    return [
        api.post("/score", ScoreBody, _score, names=score_names),
        api.post("/v1/score", ScoreBody, _score, names=score_names),
        api.post("/classify", ClassifyBody, _classify, names=ENCODER_NAMES),
        api.post("/tokenize", TokenizeBody, _tokenize, names=tokenize_names),
        api.post(
            "/detokenize",
            DetokenizeBody,
            _detokenize,
            names={"token_inputs": "tokens"},
            max_values=MAX_ID_VALUES,
        ),
        api.get("/version", _version),
    ]


async def _score(call: Call[ScoreBody]) -> Response:
    body = call.body
    fields = _score_fields(body)
    first, second = (_texts_of(body, name) for name in fields)
    if len(first) not in (1, len(second)):
        raise InvalidArgumentError(fields[0], f"has {len(first)} texts for {len(second)}")
    queries = first * len(second) if len(first) == 1 else first
    places: dict[str, list[int]] = {}
    for index, query in enumerate(queries):
        places.setdefault(query, []).append(index)
    scores, usage = [0.0] * len(second), Usage()
    for query, indices in places.items() or [(first[0] if first else "", [])]:
        request = RerankRequest(
            model=body.model,
            query=query,
            documents=tuple(second[index] for index in indices),
            length=truncation(body.truncate_prompt_tokens),
        )
        try:
            result = await call.service.rerank(request, call.caller)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(_place(error.field, indices), error.description) from None
        usage = Usage.total((usage, result.usage))
        for output in result.outputs:
            scores[indices[output.index]] = output.score
    data = [
        {"index": index, "object": "score", "score": score} for index, score in enumerate(scores)
    ]
    return list_response(call, "score", data, usage)


def _texts_of(body: ScoreBody, name: str) -> list[str]:
    given: _Some = getattr(body, name)
    if given is None:
        raise InvalidArgumentError(name, "is required")
    texts = [given] if isinstance(given, str) else given
    Size(MAX_TEXTS).check_count(name, texts)
    return texts


def _place(field: str, indices: list[int]) -> str:
    """Replaces the index in ``field``, which counts ``indices``, by the index in the call."""
    document = re.fullmatch(r"documents\[(\d+)\]", field)
    return field if document is None else f"documents[{indices[int(document[1])]}]"


async def _classify(call: Call[ClassifyBody]) -> Response:
    body = call.body
    images = images_of(body.input, body.messages)
    given = images.texts if images.images else cast("str | list[str]", body.input)
    request = ClassifyRequest(
        model=body.model,
        inputs=(given,) if isinstance(given, str) else tuple(given),
        images=await images.files(call),
        length=truncation(body.truncate_prompt_tokens),
    )
    with images.named():
        result = await call.service.classify(request, call.caller)
    names = call.service.get_model(result.model).labels

    def encode() -> Response:
        data = []
        for index, output in enumerate(result.outputs):
            scores = {label.label: label.score for label in output.labels}
            data.append(
                {
                    "index": index,
                    "label": output.labels[0].label,
                    "probs": [scores[name] for name in names],
                    "num_classes": len(names),
                }
            )
        return list_response(call, "classify", data, result.usage)

    return await call.service.build(result.num_values, encode, call.caller)


def list_response(call: Call[Any], kind: str, data: list[dict[str, Any]], usage: Usage) -> Response:
    """vLLM's response with a result for each input. Its id starts with ``kind``."""
    return json_response(
        {
            "id": f"{kind}-{call.request_id}",
            "object": "list",
            "created": int(time.time()),
            "model": call.body.model,
            "data": data,
            "usage": prompt_usage(usage),
        }
    )


async def _tokenize(call: Call[TokenizeBody]) -> Response:
    body = call.body
    if (body.prompt is None) == (body.messages is None):
        raise InvalidArgumentError("prompt", "exactly one of prompt and messages is required")
    if body.prompt is None:
        request = await _chat_request(body, call)
    else:
        request = TokenizeRequest(
            model=body.model,
            inputs=(body.prompt,),
            without_special_tokens=body.add_special_tokens is False,
        )
    result = await call.service.tokenize(request, call.caller)
    (output,) = result.outputs
    answer = {
        "count": len(output.token_ids),
        "max_model_len": call.service.get_model(body.model).max_length,
        "tokens": output.token_ids,
        "token_strs": output.tokens if body.return_token_strs else None,
    }
    return await call.service.build(result.num_values, lambda: json_response(answer), call.caller)


async def _chat_request(body: TokenizeBody, call: Call[TokenizeBody]) -> TokenizeRequest:
    """The request for the prompt of ``body.messages``."""
    check_neutral(
        body,
        add_special_tokens=(False,),
        chat_template=(),
        mm_processor_kwargs=({},),
    )
    given = body.messages or []
    messages = service_messages(given, await image_files(given, call))
    body.messages = []  # they would keep the bytes of the body
    continues = continues_final_message(body)
    chat = chat_options(body.tools, None, None, body.chat_template_kwargs, continues=continues)
    return TokenizeRequest(model=body.model, messages=messages, chat=chat)


async def _detokenize(call: Call[DetokenizeBody]) -> Response:
    request = DetokenizeRequest(model=call.body.model, token_inputs=(tuple(call.body.tokens),))
    result = await call.service.detokenize(request, call.caller)
    return json_response({"prompt": result.texts[0]})


async def _version(_: Call[None]) -> Response:
    return json_response({"version": server_version()})
