"""``/api/generate`` and ``/api/chat``."""

from dataclasses import replace
from typing import Any

import msgspec
from starlette.responses import Response

from server.errors import InvalidArgumentError
from server.frontends.http.endpoint import Call
from server.frontends.http.event_stream import EventStream
from server.frontends.http.ollama.messages import (
    OllamaMessage,
    image_files,
    image_names,
    service_messages,
)
from server.frontends.http.ollama.options import (
    NAMES,
    Options,
    check_options,
    effort_of,
    generate_request,
)
from server.frontends.http.ollama.replies import (
    Fields,
    answer,
    message_fields,
    response_fields,
    without_output,
)
from server.frontends.http.openai.options import check_neutral
from server.frontends.http.openai.tools import ToolDefinition, chat_option_names, chat_options


class OllamaTool(ToolDefinition, kw_only=True):
    """A tool, by default a function."""

    type: str = "function"


class GenerationFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The fields of both routes. Those of the last group are rejected if they ask for something.

    ``keep_alive`` has no effect, since models stay loaded; an empty request with 0 asks to unload
    a model, and is rejected.
    """

    model: str
    stream: bool | None = None
    options: Options | None = None
    format: str | dict[str, Any] | None = None
    think: bool | str | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    keep_alive: float | str | None = None

    truncate: bool | None = None
    shift: bool | None = None

    def __post_init__(self) -> None:
        self.stream = self.stream is not False


class GenerateBody(GenerationFields, kw_only=True):
    """The body of ``/api/generate``."""

    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None
    images: list[str] | None = None
    suffix: str | None = None

    template: str | None = None
    context: list[int] | None = None


class ChatBody(GenerationFields, kw_only=True):
    """The body of ``/api/chat``."""

    messages: list[OllamaMessage] | None = None
    tools: list[OllamaTool] | None = None


_ZERO = {"0", "-0", "0s", "0m", "0h", "0ms"}


def generate_names(body: GenerateBody) -> dict[str, str]:
    """The names of the service's fields in the body of ``/api/generate``."""
    names = {"inputs": "prompt", "inputs[0]": "prompt", "messages": "prompt"}
    path, count = f"messages[{1 if body.system else 0}]", len(body.images or ())
    if body.system:
        names["messages[0]"] = names["messages[0].content"] = "system"
    for field in (path, f"{path}.content", f"{path}.content[{count}].text"):
        names[field] = "prompt"
    for place in range(count):
        names[f"{path}.content[{place}].image_url"] = f"images[{place}]"
    return {**NAMES, **names}


def chat_names(body: ChatBody) -> dict[str, str]:
    """The names of the service's fields in the body of ``/api/chat``."""
    names = {**NAMES, "inputs": "messages", "chat": "tools"}
    return names | chat_option_names(len(body.tools or ())) | image_names(body.messages or ())


async def generate(call: Call[GenerateBody]) -> Response | EventStream:
    """Continues a prompt, or answers it by the model's chat template, which ``raw`` turns off.

    With ``suffix``, fills in what is between it and the prompt, without the template.
    """
    body = call.body
    check_neutral(body, truncate=(False,), shift=(False,), template=(), context=())
    if not body.prompt and not body.images and not body.suffix:
        return _without_prompt(call, response_fields)
    has_template = call.service.bundle(body.model).chat_template is not None
    if not body.raw and not body.suffix and (has_template or body.images):
        turns = [OllamaMessage(role="user", content=body.prompt, images=body.images)]
        if body.system:
            turns.insert(0, OllamaMessage(role="system", content=body.system))
        return await _chat(call, turns, None, response_fields, at="images")
    reason = f"{body.model!r} has no chat template"
    if body.raw or body.suffix:
        reason = f"is not combined with {'suffix' if body.suffix else 'raw'}"
    for field, given in (("system", body.system), ("think", body.think), ("images", body.images)):
        if given:
            raise InvalidArgumentError(field, reason)
    request = generate_request(body, inputs=(body.prompt or "",), suffix=body.suffix)
    return await answer(call, request, response_fields, has_thinking=False)


async def chat(call: Call[ChatBody]) -> Response | EventStream:
    """Answers a conversation."""
    body = call.body
    check_neutral(body, shift=(False,))
    if not body.messages:
        return _without_prompt(call, message_fields)
    return await _chat(call, body.messages, body.tools, message_fields)


async def _chat(
    call: Call[Any],
    turns: list[OllamaMessage],
    tools: list[OllamaTool] | None,
    fields: Fields,
    at: str = "",
) -> Response | EventStream:
    body = call.body
    effort = effort_of(body.think, body.model, call.service)
    last = turns[-1]
    continues = last.role == "assistant" and bool(last.content) and not last.tool_calls
    options = chat_options(tools, None, None, effort=effort, continues=continues)
    options = replace(options, drop_oldest_messages=body.truncate is not False)
    messages = service_messages(turns, await image_files(turns, call, at))
    request = generate_request(body, messages=messages, chat=options)
    return await answer(call, request, fields, has_thinking=body.think is not False)


def _without_prompt(call: Call[Any], fields: Fields) -> Response:
    """Answers a request that only asks whether the model is loaded.

    Raises:
        ServeError: there is no such model, or the request asks to unload it.
    """
    body = call.body
    check_options(body.options or Options())
    call.service.bundle(body.model)
    keep = body.keep_alive
    if keep == 0 or (isinstance(keep, str) and keep.strip() in _ZERO):
        raise InvalidArgumentError(
            "keep_alive", "0 unloads no model: the operator of this server does"
        )
    return without_output(body.model, fields, "load")
