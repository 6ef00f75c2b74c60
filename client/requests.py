"""Builds the requests of ``generate``, ``translate``, ``score`` and ``tokenize``.

Only the names of options are checked here; the server validates their values.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from client.messages import build
from client.options import (
    Choices,
    GenerateOptions,
    GenerationOptions,
    Grammar,
    JsonSchema,
    Lark,
    Message,
    Regex,
    ScoreOptions,
    TranslationOptions,
)
from protos.triune.v1 import inference_pb2 as wire

Texts = str | Sequence[str]
"""One text, or a batch of them."""
Pairs = Sequence[tuple[str, str]]
PairsOrImages = Sequence[tuple[str, str | bytes]]
"""Pairs of texts, or pairs of a text and the contents of an image file."""
Images = bytes | Sequence[bytes]
"""One image or a batch of images, as the contents of files."""
Recordings = bytes | Sequence[bytes]
"""One recording or a batch of recordings, as the contents of files."""

GenerateT = TypeVar("GenerateT", wire.GenerateRequest, wire.GenerateStreamRequest)
TranslateT = TypeVar("TranslateT", wire.TranslateRequest, wire.TranslateStreamRequest)


def texts(inputs: Texts) -> Sequence[str]:
    """The texts as a sequence: a single text becomes a batch of one."""
    return [inputs] if isinstance(inputs, str) else inputs


def generate(
    request: type[GenerateT],
    model: str,
    inputs: Texts,
    token_inputs: Sequence[Sequence[int]],
    messages: Sequence[Message],
    options: GenerateOptions,
    images: Images = (),
) -> GenerateT:
    """The request of ``Generate`` or ``GenerateStream``; ``request`` is its type."""
    return build(
        request,
        GenerateOptions,
        _with_wire_grammar(options),
        model=model,
        inputs=texts(inputs),
        token_inputs=[wire.TokenIds(ids=ids) for ids in token_inputs],
        messages=[_chat_message(turn) for turn in messages],
        images=[images] if isinstance(images, bytes) else images,
    )


def _chat_message(turn: Message) -> wire.ChatMessage:
    content, parts = (turn.content, ()) if isinstance(turn.content, str) else ("", turn.content)
    return wire.ChatMessage(
        role=turn.role,
        content=content,
        parts=map(_content_part, parts),
        tool_calls=[
            wire.ToolCall(id=call.id, name=call.name, arguments=call.arguments)
            for call in turn.tool_calls
        ],
        tool_call_id=turn.tool_call_id,
        reasoning=turn.reasoning,
    )


def _content_part(part: str | bytes) -> wire.ContentPart:
    """A part of a message. Raises ``TypeError`` if it is neither a text nor an image."""
    if isinstance(part, bytes):
        return wire.ContentPart(image=part)
    return wire.ContentPart(text=part)


def translate(
    request: type[TranslateT],
    model: str,
    inputs: Texts,
    source_language: str,
    target_language: str,
    options: TranslationOptions,
) -> TranslateT:
    """The request of ``Translate`` or ``TranslateStream``; ``request`` is its type."""
    return build(
        request,
        TranslationOptions,
        _with_wire_grammar(options),
        model=model,
        inputs=texts(inputs),
        source_language=source_language,
        target_language=target_language,
    )


def score(model: str, pairs: Pairs, options: ScoreOptions) -> wire.ScoreRequest:
    """The request of ``Score``; ``pairs`` are contexts with their targets."""
    inputs = [wire.ScoreInput(context=context, target=target) for context, target in pairs]
    return build(wire.ScoreRequest, ScoreOptions, options, model=model, inputs=inputs)


def tokenize(
    model: str, inputs: Texts, without_special_tokens: bool, version: str
) -> wire.TokenizeRequest:
    """The request of ``Tokenize``."""
    return wire.TokenizeRequest(
        model=model,
        inputs=texts(inputs),
        without_special_tokens=without_special_tokens,
        version=version,
    )


def _with_wire_grammar(
    options: GenerationOptions | TranslationOptions,
) -> Mapping[str, Any]:
    """Returns ``options`` with the grammar, if any, as a protobuf message."""
    grammar = options.get("grammar")
    return options if grammar is None else {**options, "grammar": _grammar(grammar)}


def _grammar(grammar: Grammar) -> wire.Grammar:
    match grammar:
        case JsonSchema(schema):
            return wire.Grammar(json_schema=schema)
        case Regex(pattern):
            return wire.Grammar(regex=pattern)
        case Lark(text):
            return wire.Grammar(lark=text)
        case Choices(values):
            return wire.Grammar(choices=wire.Choices(values=values))
