"""Converts OpenAI's messages to those of the service."""

from collections.abc import Sequence

import msgspec

from server.bounds import MAX_MESSAGES, Size
from server.errors import InvalidArgumentError
from server.frontends.http.body import NOTHING
from server.frontends.http.openai.options import check_neutral
from server.frontends.http.openai.tools import SentToolCall, sent_calls
from server.printable import quoted
from server.service.generation_request import Message
from server.service.validation import check_arguments

_ROLES = {"developer": "system"}
_TEXT_TYPES = ("text", "input_text", "output_text", "reasoning_text")


class ContentPart(msgspec.Struct, kw_only=True):
    """A part of a message. Only texts are supported."""

    type: str
    text: str | None = None


class ChatMessage(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One turn. Fields after ``content`` occur when clients send earlier answers back."""

    role: str
    content: str | list[ContentPart] | None = None
    type: str | None = None
    id: msgspec.Raw = NOTHING
    name: str | None = None
    status: msgspec.Raw = NOTHING
    phase: msgspec.Raw = NOTHING
    refusal: msgspec.Raw = NOTHING
    annotations: msgspec.Raw = NOTHING
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[SentToolCall] | None = None
    tool_call_id: str | None = None
    function_call: msgspec.Raw = NOTHING
    audio: msgspec.Raw = NOTHING


def service_messages(
    messages: Sequence[ChatMessage], field: str = "messages"
) -> tuple[Message, ...]:
    """Converts messages: the role ``developer`` becomes ``system``, and text parts are joined.

    Raises:
        InvalidArgumentError: there are no messages or too many, a part is not text, or a tool call
            is malformed; the error names the field.
    """
    Size(MAX_MESSAGES).check_count(field, messages)
    if not messages:
        raise InvalidArgumentError(field, "must not be empty")
    calls = [call for message in messages for call in message.tool_calls or ()]
    check_arguments(field, [call.function.arguments for call in calls])
    return tuple(
        service_message(message, f"{field}[{index}]") for index, message in enumerate(messages)
    )


def service_message(message: ChatMessage, path: str) -> Message:
    """Converts the message at ``path``, as :func:`service_messages`."""
    if message.type not in (None, "message"):
        raise InvalidArgumentError(f"{path}.type", f"{quoted(message.type)} is not supported")
    try:
        check_neutral(message, function_call=(), audio=())
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{path}.{error.field}", error.description) from None
    role = _ROLES.get(message.role, message.role)
    content = text_of(message.content, f"{path}.content")
    calls = sent_calls(message.tool_calls or (), f"{path}.tool_calls")
    reasoning = message.reasoning_content or message.reasoning or ""
    return Message(role, content, calls, message.tool_call_id or "", reasoning)


def text_of(content: str | list[ContentPart] | None, path: str) -> str:
    """Joins the text parts of a content. Raises ``InvalidArgumentError`` for other parts."""
    if content is None or isinstance(content, str):
        return content or ""
    for index, part in enumerate(content):
        if part.type not in _TEXT_TYPES:
            raise InvalidArgumentError(
                f"{path}[{index}].type", f"{quoted(part.type)} is not supported, only text"
            )
    return "".join(part.text or "" for part in content)
