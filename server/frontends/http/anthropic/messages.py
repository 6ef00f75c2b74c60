"""Anthropic's ``/v1/messages`` and ``/v1/messages/count_tokens``."""

from typing import Any

from starlette.responses import Response

from server.frontends.http.anthropic.answer import Answer
from server.frontends.http.anthropic.blocks import conversation_of
from server.frontends.http.anthropic.bodies import PromptFields
from server.frontends.http.anthropic.errors import error_event
from server.frontends.http.anthropic.options import chat_options, messages_request
from server.frontends.http.endpoint import Call, json_response
from server.frontends.http.event_stream import EventStream
from server.service.tokenize import TokenizeRequest


async def create_message(call: Call[Any]) -> Response | EventStream:
    """Answers a conversation, as one message or a stream of events."""
    body = call.body
    conversation = await conversation_of(body, call)
    body.messages, body.system = [], None  # they would keep the bytes of the body
    request = messages_request(body, conversation.messages)
    is_shown = body.thinking is None or body.thinking.display != "omitted"
    answer = Answer(call.request_id, body.model, shows_thinking=is_shown)
    if body.stream:
        with conversation.named():
            chunks = await call.service.generate_stream(request, call.caller)
        return EventStream(answer.events(chunks), error_event=error_event)
    with conversation.named():
        result = await call.service.generate(request, call.caller)
    (hypothesis,) = result.outputs[0].hypotheses

    def encode() -> Response:
        return json_response(answer.whole(hypothesis))

    return await call.service.build(result.num_values, encode, call.caller)


async def count_tokens(call: Call[PromptFields]) -> Response:
    """Counts the tokens of the prompt that :func:`create_message` would make."""
    body = call.body
    conversation = await conversation_of(body, call)
    body.messages, body.system = [], None  # they would keep the bytes of the body
    messages = conversation.messages
    request = TokenizeRequest(
        model=body.model, messages=messages, chat=chat_options(body, messages)
    )
    with conversation.named():
        result = await call.service.tokenize(request, call.caller)
    return json_response({"input_tokens": result.usage.input_tokens})
