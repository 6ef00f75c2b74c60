"""Hugging Face's inference API: ``POST /MODEL`` runs the pipeline of the model's task.

``huggingface_hub.InferenceClient(model=ADDRESS)`` sends such requests, and so do the clients of
Inference Endpoints and of text-generation-inference.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.routing import BaseRoute

from model.bundle import Task
from server.bounds import MAX_AUDIO_BYTES
from server.errors import Code, InvalidArgumentError, ModelNotFoundError
from server.frontends.http.body import BodyLimits
from server.frontends.http.endpoint import Api, Call, Context, json_response
from server.frontends.http.event_stream import EventStream
from server.frontends.http.failures import TEI_PATHS, Failure, RouteNotFoundError
from server.frontends.http.openai.chat import ChatBody, chat_completions, chat_names
from server.frontends.http.openai.errors import error_response as openai_error
from server.frontends.http.pipeline_bodies import (
    FEATURES,
    InvalidBody,
    PipelineBody,
    check_root,
    decode_body,
    names_of,
)
from server.frontends.http.pipeline_tasks import (
    classification,
    features,
    fill_mask,
    question_answering,
    speech_recognition,
    token_classification,
)
from server.frontends.http.pipeline_text import text_generation, translation
from server.frontends.http.settings import RECORDING_SECONDS

Pipeline = Callable[[str, Call[PipelineBody]], Awaitable[Response | EventStream]]

# The first of these tasks that a model has is the one of its pipeline.
_PIPELINES: dict[Task, Pipeline] = {
    Task.GENERATE: text_generation,
    Task.TRANSLATE: translation,
    Task.TRANSCRIBE: speech_recognition,
    Task.EMBED: features,
    Task.CLASSIFY: classification,
    Task.TAG: token_classification,
    Task.FILL_MASK: fill_mask,
    Task.ANSWER: question_answering,
}
# The fields beside ``inputs`` and ``parameters``.
_ROOT_FIELDS = {Task.GENERATE: {"stream"}, Task.EMBED: {*FEATURES, "encoding_format"}}
_LIMITS = BodyLimits(max_bytes=MAX_AUDIO_BYTES, seconds=RECORDING_SECONDS)
# text-generation-inference's error types.
_ERROR_TYPES = {Code.INVALID_ARGUMENT: "validation", Code.RESOURCE_EXHAUSTED: "overloaded"}


def routes(context: Context) -> list[BaseRoute]:
    """The route of each model, and that of ``tei_model`` at the root if it is set."""
    api = Api(context=context, error=_error)
    default = context.settings.tei_model
    made: list[BaseRoute] = [api.get("/{model}", _nothing)]
    for path, model_of in (
        ("/", lambda _: default),
        ("/{model}", lambda call: call.path_params["model"]),
    ):
        if path != "/" or default:
            handler = partial(_answer, model_of)
            made.append(
                api.post(
                    path,
                    decode_body,
                    handler,
                    names=names_of,
                    model_of=model_of,
                    limits=_LIMITS,
                )
            )
    chat = Api(context=context, error=openai_error)
    made.append(
        chat.post(
            "/{model}/v1/chat/completions",
            ChatBody,
            _chat,
            names=chat_names,
            model_of=lambda call: call.path_params["model"],
        )
    )
    return made


async def _chat(call: Call[Any]) -> Response | EventStream:
    """OpenAI's chat with the model of the path: the clients' own is a placeholder."""
    body = msgspec.structs.replace(call.body, model=call.path_params["model"])
    return await chat_completions(replace(call, body=body))


async def _nothing(call: Call[None]) -> Response:
    """Only ``POST`` is answered: to all others, there is nothing at the address."""
    raise RouteNotFoundError(f"/{call.path_params['model']}")


async def _answer(
    model_of: Callable[[Call[PipelineBody]], str], call: Call[PipelineBody]
) -> Response | EventStream:
    model = model_of(call)
    try:
        tasks = call.service.manifest(model).tasks
    except ModelNotFoundError:
        if f"/{model}" in TEI_PATHS:
            raise RouteNotFoundError(f"/{model}") from None
        raise
    if isinstance(call.body, InvalidBody):
        raise call.body.error
    for task, pipeline in _PIPELINES.items():
        if task in tasks:
            check_root(call.body, _ROOT_FIELDS.get(task, ()))
            return await pipeline(model, call)
    raise InvalidArgumentError("model", f"{model!r} has a task without a pipeline: {tasks[0]}")


def _error(failure: Failure) -> Response:
    error = {"error": failure.message}
    if failure.error.code != Code.NOT_FOUND:
        error["error_type"] = _ERROR_TYPES.get(failure.error.code, "generation")
    return json_response(error)
