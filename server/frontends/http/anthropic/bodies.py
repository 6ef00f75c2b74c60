"""The bodies of Anthropic's Messages API."""

from typing import Any

import msgspec

from server.frontends.http.body import NOTHING
from server.frontends.http.openai.options import body_type


class Source(msgspec.Struct, kw_only=True):
    """The file of an image. ``media_type`` is ignored: the file tells its format."""

    type: str
    data: str | None = None
    media_type: str | None = None


class Block(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A part of a message, with the fields of all types.

    ``signature``, ``is_error`` and the fields after ``content`` have no effect.
    """

    type: str
    text: str | None = None
    source: Source | None = None
    thinking: str | None = None
    signature: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    is_error: bool | None = None
    content: "str | list[Block] | None" = None
    cache_control: msgspec.Raw = NOTHING
    citations: msgspec.Raw = NOTHING
    caller: msgspec.Raw = NOTHING


class SentMessage(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One turn of a conversation."""

    role: str
    content: str | list[Block]


class SentTool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A tool that the model may ask to use. Only tools of the client are supported.

    ``strict`` has no effect: only the input of a forced use is constrained. The fields of the
    second group are rejected unless their values have no effect; those of the last are ignored.
    """

    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None

    allowed_callers: list[str] | None = None
    defer_loading: bool | None = None
    input_examples: list[dict[str, Any]] | None = None

    cache_control: dict[str, str | None] | None = None
    eager_input_streaming: bool | None = None


class SentToolChoice(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Whether the answer uses tools: auto, none, any, or the tool of a name."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Whether the model thinks: enabled, disabled or adaptive. ``budget_tokens`` is ignored."""

    type: str
    budget_tokens: int | None = None
    display: str | None = None


class OutputFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The format of the text: a JSON schema."""

    type: str
    schema: Any = None


class OutputConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How much the model thinks, in the words of its chat template; and the format of its text."""

    effort: str | None = None
    format: OutputFormat | None = None


class PromptFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The fields that a prompt is made of. Those of the last group are ignored."""

    model: str
    messages: list[SentMessage]
    system: str | list[Block] | None = None
    tools: list[SentTool] | None = None
    tool_choice: SentToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    speed: msgspec.Raw = NOTHING

    cache_control: msgspec.Raw = NOTHING
    user_profile_id: msgspec.Raw = NOTHING


class MessagesFields(PromptFields, kw_only=True):
    """The body of a request for a message.

    The fields of the second group are rejected unless their values have no effect; those of the
    last group are ignored.
    """

    max_tokens: int
    stream: bool | None = None
    stop_sequences: list[str] | None = None

    container: msgspec.Raw = NOTHING
    diagnostics: msgspec.Raw = NOTHING
    inference_geo: msgspec.Raw = NOTHING

    metadata: msgspec.Raw = NOTHING
    service_tier: msgspec.Raw = NOTHING


CountBody = PromptFields
MessagesBody = body_type(MessagesFields)
