"""The common fields of OpenAI's generative calls, and their conversion to service options."""

from typing import Any, TypeVar

import msgspec

from server.bounds import MAX_ENTRIES, Size
from server.errors import InvalidArgumentError
from server.frontends.http.body import MAX_RAW_BYTES, NOTHING
from server.frontends.http.fields import flat_body, given_names, options_of
from server.frontends.http.openai.vllm_fields import VLLM_NEUTRAL, VllmFields
from server.service.generation_options import Grammar, GrammarKind
from server.service.generation_request import FinishReason, GenerateRequest

DEFAULT_TEMPERATURE = 1.0
"""OpenAI's default. The service's own default is 0, greedy."""

FINISH_REASONS = {
    FinishReason.STOP: "stop",
    FinishReason.STOP_STRING: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.DEADLINE: "length",
    FinishReason.CANCELLED: "stop",
}
# OpenAI's names of the service's fields, for errors.
NAMES = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "stop_strings": "stop",
    "num_hypotheses": "n",
    "grammar": "response_format",
    "inputs": "prompt",
    "token_inputs": "prompt",
}
# Fields with several names, in order of precedence.
_ALIASES = {
    "max_new_tokens": ("max_completion_tokens", "max_tokens"),
    "min_new_tokens": ("min_tokens", "min_new_tokens"),
}
# Options that have another name here, or that only the gRPC protocol has.
_WITHOUT = (
    *("bad_word_ids", "max_new_tokens", "stop_strings", "num_hypotheses", "token_ids"),
    *("prompt_logprobs", "logprobs", "top_logprobs", "echo", "grammar"),
    *("tool_choice", "tool_name", "parallel_tool_calls", "template_variables"),
    *("reasoning_effort", "separate_reasoning", "continue_final_message", "drop_oldest_messages"),
)


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Options of a stream. ``continuous_usage_stats`` comes from vLLM.

    ``include_obfuscation`` is ignored: events are never padded.
    """

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class JsonSchema(msgspec.Struct, kw_only=True):
    """A JSON schema. ``strict`` is ignored: output always conforms to the schema."""

    name: str | None = None
    schema: Any = None


class ResponseFormat(msgspec.Struct, kw_only=True):
    """The output format; ``type`` is text, json_object or json_schema."""

    type: str
    json_schema: JsonSchema | None = None


class StructuredOutputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """vLLM's ``structured_outputs``; at most one field may be set."""

    json: Any = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class GenerationFields(VllmFields, kw_only=True, forbid_unknown_fields=True):
    """The fields of chat and text completions that need conversion.

    :func:`body_type` adds the service's options by name. The fields of the last group are accepted
    and have no effect.
    """

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    logit_bias: dict[str, float] | None = None
    priority: int | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Any = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None

    user: msgspec.Raw = NOTHING
    store: msgspec.Raw = NOTHING
    service_tier: msgspec.Raw = NOTHING
    safety_identifier: msgspec.Raw = NOTHING
    prompt_cache_key: msgspec.Raw = NOTHING
    prompt_cache_retention: msgspec.Raw = NOTHING
    request_id: msgspec.Raw = NOTHING
    session_id: msgspec.Raw = NOTHING


Fields = TypeVar("Fields", bound=msgspec.Struct)


def body_type(fields: type[Fields]) -> type[Fields]:
    """Extends ``fields`` with every option of the service, under its own name."""
    return flat_body(fields.__name__, fields, GenerateRequest, _WITHOUT)


def generate_request(body: Any, **given: Any) -> GenerateRequest:
    """Builds the service's request. ``given`` are fields that ``body`` has in another form.

    Raises:
        InvalidArgumentError: a field is invalid; the error names it.
    """
    if body.stream_options is not None and not body.stream:
        raise InvalidArgumentError("stream_options", "needs stream")
    check_neutral(
        body,
        **{
            name: values
            for name, values in VLLM_NEUTRAL.items()
            if isinstance(getattr(body, name), msgspec.Raw)  # else the route supports it
        },
    )
    is_search = body.beam_size is not None and body.beam_size > 1
    grammar = _given_grammar(body)
    default = 0.0 if is_search else DEFAULT_TEMPERATURE
    values = {
        "temperature": default if body.temperature is None else body.temperature,
        "top_k": 0 if body.top_k == -1 else body.top_k,  # vLLM: -1 keeps all tokens
        "num_hypotheses": body.n,
        "stop_strings": (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
        "max_new_tokens": body.max_tokens,
        "min_new_tokens": body.min_new_tokens if body.min_tokens is None else body.min_tokens,
        "seed": _seed(body.seed),
        "logit_bias": _logit_bias(body.logit_bias or {}),
        "grammar": None if grammar is None else grammar[1],
        # vLLM serves lower numbers earlier.
        "priority": None if body.priority is None else -body.priority,
        "version": None,
        "prompt_logprobs": None,  # a field of vLLM's, of another form
        "chat": None,
    }
    return options_of(body, GenerateRequest, {**values, **given})


def sent_names(body: Any) -> dict[str, str]:
    """:data:`NAMES`, but with the names that ``body`` uses if a field has several."""
    names = dict(NAMES)
    for field, aliases in _ALIASES.items():
        given = given_names(body, aliases)
        if given:
            names[field] = given[0]
    try:
        found = _given_grammar(body)
    except InvalidArgumentError:  # the caller reports this error
        return names
    if found is not None:
        path, grammar = found
        if path == "response_format" and body.response_format.json_schema is not None:
            path = "response_format.json_schema.schema"
        names["grammar"] = names[f"grammar.{grammar.kind}"] = path
    return names


def check_neutral(body: Any, **allowed: tuple[Any, ...]) -> None:
    """Rejects fields that request an unsupported feature.

    Args:
        body: a struct.
        allowed: by field, the values without an effect, in addition to null, [] and "". Fields of
            type ``msgspec.Raw`` are decoded if they are short.

    Raises:
        InvalidArgumentError: a field has another value; the error names the field.
    """
    for name, values in allowed.items():
        value = _neutral_value(getattr(body, name))
        if value is not None and value not in ([], "") and value not in values:
            raise InvalidArgumentError(name, "is not supported by this server")


def _neutral_value(given: Any) -> Any:
    """``given``; decoded if it is a short ``msgspec.Raw``. A long one asks for something."""
    if not isinstance(given, msgspec.Raw):
        return given
    size = len(memoryview(given))
    if size > MAX_RAW_BYTES:
        return given
    try:
        return msgspec.json.decode(given) if size else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return given


def _seed(given: int | None) -> int | None:
    """Converts a seed to an unsigned 64-bit integer; OpenAI's seeds are signed."""
    if given is None or -(2**63) <= given < 2**64:
        return None if given is None else given % 2**64
    raise InvalidArgumentError("seed", "does not fit into 64 bits")


def _logit_bias(given: dict[str, float]) -> tuple[tuple[int, float], ...]:
    Size(MAX_ENTRIES).check_count("logit_bias", given)
    try:
        return tuple((int(token), bias) for token, bias in given.items())
    except ValueError:
        raise InvalidArgumentError("logit_bias", "its keys must be token ids") from None


def _given_grammar(body: GenerationFields) -> tuple[str, Grammar] | None:
    """The body's only grammar, in any of its forms, with the path of its field."""
    outputs = body.structured_outputs or StructuredOutputs()
    found = {
        "response_format": _response_format(body.response_format),
        "structured_outputs.json": json_schema(outputs.json),
        "structured_outputs.regex": _text(GrammarKind.REGEX, outputs.regex),
        "structured_outputs.choice": _choices(outputs.choice),
        "structured_outputs.grammar": _text(GrammarKind.LARK, outputs.grammar),
        "structured_outputs.json_object": json_schema(
            {"type": "object"} if outputs.json_object else None
        ),
        "guided_json": json_schema(body.guided_json),
        "guided_regex": _text(GrammarKind.REGEX, body.guided_regex),
        "guided_choice": _choices(body.guided_choice),
        "guided_grammar": _text(GrammarKind.LARK, body.guided_grammar),
    }
    given = [(name, grammar) for name, grammar in found.items() if grammar is not None]
    if len(given) > 1:
        raise InvalidArgumentError(given[1][0], f"cannot be combined with {given[0][0]}")
    return given[0] if given else None


def _response_format(given: ResponseFormat | None) -> Grammar | None:
    if given is None or given.type == "text":
        return None
    if given.type == "json_object":
        return json_schema({"type": "object"})
    if given.type != "json_schema":
        raise InvalidArgumentError(
            "response_format.type", "is not one of text, json_object, json_schema"
        )
    if given.json_schema is None or given.json_schema.schema is None:
        raise InvalidArgumentError("response_format.json_schema.schema", "is required")
    return json_schema(given.json_schema.schema)


def json_schema(schema: Any) -> Grammar | None:
    """The grammar of ``schema``, an object or its JSON as a string."""
    if schema is None:
        return None
    text = schema if isinstance(schema, str) else msgspec.json.encode(schema).decode()
    return Grammar(GrammarKind.JSON_SCHEMA, text)


def _text(kind: GrammarKind, text: str | None) -> Grammar | None:
    return None if text is None else Grammar(kind, text)


def _choices(choices: list[str] | None) -> Grammar | None:
    return None if choices is None else Grammar(GrammarKind.CHOICES, choices=tuple(choices))
