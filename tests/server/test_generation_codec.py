"""Decoding generation requests from protobuf: every option, defaults and error fields."""

from dataclasses import fields, is_dataclass
from typing import Any

import pytest
from google.protobuf.message import Message

from model.bundle import AttentionKind
from protos.triune.v1 import inference_pb2 as pb
from server.engine.decoding.options import EarlyStopping, LogitsOptions, Sampling
from server.errors import InvalidArgumentError, OverloadedError
from server.frontends.grpc import generation_codec
from server.frontends.grpc.codec import decode, wire_path
from server.frontends.grpc.status import message_of
from server.service.generation_options import (
    AttentionOptions,
    DecodingOptions,
    Grammar,
    GrammarKind,
    ResponseOptions,
    ShortlistMode,
    StoppingOptions,
)
from server.service.generation_request import GenerateRequest, TranslateRequest
from server.service.score import ScoreInput, ScoreRequest
from server.service.tokenize import TokenizeRequest
from server.text.chat import ChatOptions, Tool, ToolCall, ToolChoice
from server.text.chat import Message as ChatMessage

assert generation_codec, "importing it registers the grammar decoder"

OPTIONS: dict[str, Any] = {
    "model": "m",
    "version": "2",
    "inputs": ["a", "b"],
    "priority": -3,
    "sampling": pb.SamplingOptions(
        temperature=0.5,
        top_k=7,
        top_p=0.25,
        seed=2**63 + 1,
        min_p=0.125,
        typical_p=0.75,
        repetition_penalty=2.0,
        presence_penalty=-1.0,
        frequency_penalty=1.5,
        logit_bias={9: 1.0, 3: -2.0},
    ),
    "decoding": pb.DecodingOptions(
        beam_size=4,
        length_penalty=0.5,
        early_stopping=pb.EARLY_STOPPING_NEVER,
        num_hypotheses=2,
        no_repeat_ngram_size=3,
        encoder_no_repeat_ngram_size=4,
        target_prefix=["x", "y"],
        alternatives=True,
        grammar=pb.Grammar(regex="[ab]+"),
        bad_words=["w"],
        shortlist=pb.SHORTLIST_MODE_ON,
    ),
    "stopping": pb.StoppingOptions(
        max_new_tokens=12,
        stop_strings=["s"],
        ignore_eos=True,
        min_new_tokens=2,
        stop_token_ids=[5, 6],
        max_seconds=1.5,
        stop_before_deadline=True,
    ),
    "response": pb.ResponseOptions(
        token_ids=True,
        logprobs=True,
        top_logprobs=2,
        prompt_logprobs=True,
        echo=True,
        attention=pb.AttentionOptions(
            layers=[0, 2],
            heads=[1],
            average=True,
            alignments=True,
            kind=pb.ATTENTION_KIND_SELF,
        ),
    ),
}
EXPECTED: dict[str, Any] = {
    "model": "m",
    "version": "2",
    "inputs": ("a", "b"),
    "priority": -3,
    "sampling": Sampling(
        temperature=0.5, top_k=7, top_p=0.25, min_p=0.125, typical_p=0.75, seed=2**63 + 1
    ),
    "logits": LogitsOptions(
        repetition_penalty=2.0,
        presence_penalty=-1.0,
        frequency_penalty=1.5,
        no_repeat_ngram_size=3,
        encoder_no_repeat_ngram_size=4,
        min_new_tokens=2,
        logit_bias=((3, -2.0), (9, 1.0)),
    ),
    "decoding": DecodingOptions(
        beam_size=4,
        length_penalty=0.5,
        early_stopping=EarlyStopping.NEVER,
        num_hypotheses=2,
        target_prefix=("x", "y"),
        alternatives=True,
        grammar=Grammar(GrammarKind.REGEX, "[ab]+"),
        bad_words=("w",),
        shortlist=ShortlistMode.ON,
    ),
    "stopping": StoppingOptions(
        max_new_tokens=12,
        stop_strings=("s",),
        ignore_eos=True,
        stop_token_ids=(5, 6),
        max_seconds=1.5,
        stop_before_deadline=True,
    ),
    "response": ResponseOptions(
        token_ids=True,
        logprobs=True,
        top_logprobs=2,
        prompt_logprobs=True,
        echo=True,
        attention=AttentionOptions(
            kind=AttentionKind.SELF, layers=(0, 2), heads=(1,), average=True, alignments=True
        ),
    ),
}


@pytest.mark.parametrize("kind", [pb.GenerateRequest, pb.GenerateStreamRequest])
def test_generate_requests_decode_every_field(kind: Any) -> None:
    message = kind(
        **OPTIONS,
        token_inputs=[pb.TokenIds(ids=[1, 2]), pb.TokenIds()],
        messages=[
            pb.ChatMessage(role="user", content="hi"),
            pb.ChatMessage(
                role="assistant",
                tool_calls=[pb.ToolCall(id="1", name="f", arguments="{}")],
                reasoning="r",
            ),
            pb.ChatMessage(role="tool", content="4", tool_call_id="1"),
        ],
        chat=pb.ChatOptions(
            tools=[pb.Tool(name="f", description="F.", parameters="{}")],
            tool_choice=pb.TOOL_CHOICE_REQUIRED,
            tool_name="f",
            parallel_tool_calls=False,
            template_variables="{}",
            reasoning_effort="low",
            separate_reasoning=True,
        ),
    )
    messages = (
        ChatMessage("user", "hi"),
        ChatMessage("assistant", "", (ToolCall("1", "f", "{}"),), reasoning="r"),
        ChatMessage("tool", "4", tool_call_id="1"),
    )
    tools = (Tool("f", "F.", "{}"),)
    chat = ChatOptions(tools, ToolChoice.REQUIRED, "f", False, "{}", "low", True)
    assert decode(message, GenerateRequest) == GenerateRequest(
        **EXPECTED, token_inputs=((1, 2), ()), messages=messages, chat=chat
    )


@pytest.mark.parametrize("kind", [pb.TranslateRequest, pb.TranslateStreamRequest])
def test_translate_requests_decode_every_field(kind: Any) -> None:
    message = kind(**OPTIONS, source_language="en", target_language="pt")
    assert decode(message, TranslateRequest) == TranslateRequest(
        **EXPECTED, source_language="en", target_language="pt"
    )


def test_score_and_tokenize_requests_decode_every_field() -> None:
    message = pb.ScoreRequest(
        model="m",
        version="2",
        inputs=[pb.ScoreInput(context="c", target="t")],
        response=pb.ResponseOptions(logprobs=True, top_logprobs=3),
        priority=1,
        source_language="en",
        target_language="pt",
    )
    assert decode(message, ScoreRequest) == ScoreRequest(
        model="m",
        version="2",
        inputs=(ScoreInput("c", "t"),),
        response=ResponseOptions(logprobs=True, top_logprobs=3),
        priority=1,
        source_language="en",
        target_language="pt",
    )
    tokenize = pb.TokenizeRequest(model="m", inputs=["a"], without_special_tokens=True)
    assert decode(tokenize, TokenizeRequest) == TokenizeRequest(
        model="m", inputs=("a",), without_special_tokens=True
    )


def _protobuf_names(message: Message) -> set[str]:
    """Protobuf field names of a request, option groups flattened."""
    names: set[str] = set()
    for field in message.DESCRIPTOR.fields:
        if field.message_type is not None and field.name in {*OPTIONS, "chat"}:
            names |= {option.name for option in field.message_type.fields}
        else:
            names.add(field.name)
    return names


def _dataclass_names(kind: Any) -> set[str]:
    names: set[str] = set()
    for field in fields(kind):
        default = field.default_factory() if callable(field.default_factory) else field.default
        names |= _dataclass_names(type(default)) if is_dataclass(default) else {field.name}
    return names


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (pb.GenerateRequest, GenerateRequest),
        (pb.GenerateStreamRequest, GenerateRequest),
        (pb.TranslateRequest, TranslateRequest),
        (pb.TranslateStreamRequest, TranslateRequest),
        (pb.TokenizeRequest, TokenizeRequest),
    ],
)
def test_tests_cover_every_protobuf_field(message: Any, kind: Any) -> None:
    assert _protobuf_names(message()) <= _dataclass_names(kind) | {"bad_words"}


def test_unset_fields_use_defaults() -> None:
    assert decode(pb.GenerateRequest(model="m"), GenerateRequest) == GenerateRequest(model="m")
    empty = pb.GenerateRequest(model="m", decoding=pb.DecodingOptions(grammar=pb.Grammar()))
    assert decode(empty, GenerateRequest).decoding.grammar is None


def test_rejects_unknown_enum_values_by_field() -> None:
    message = pb.GenerateRequest(decoding=pb.DecodingOptions(early_stopping=99))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError) as caught:
        decode(message, GenerateRequest)
    assert (caught.value.field, caught.value.description) == (
        "early_stopping",
        "99 is not a value of this enum",
    )


@pytest.mark.parametrize(
    ("neutral", "on_the_wire"),
    [
        ("model", "model"),
        ("inputs[2]", "inputs[2]"),
        ("top_p", "sampling.top_p"),
        ("logit_bias[7]", "sampling.logit_bias[7]"),
        ("min_new_tokens", "stopping.min_new_tokens"),
        ("no_repeat_ngram_size", "decoding.no_repeat_ngram_size"),
        ("bad_words[1]", "decoding.bad_words[1]"),
        ("grammar.regex", "decoding.grammar.regex"),
        ("attention.layers[1]", "response.attention.layers[1]"),
        ("token_inputs[0].ids[3]", "token_inputs[0].ids[3]"),
        ("decoding", "decoding"),
    ],
)
def test_errors_name_the_protobuf_field(neutral: str, on_the_wire: str) -> None:
    request = pb.GenerateRequest()
    assert wire_path(request, neutral) == on_the_wire
    error = InvalidArgumentError(neutral, "is wrong")
    assert message_of(error, request) == f"{on_the_wire}: is wrong"


def test_engine_limit_errors_name_a_request_field() -> None:
    error = InvalidArgumentError("max_new_tokens", "too much")
    assert message_of(error, pb.GenerateRequest()) == "stopping.max_new_tokens: too much"
    overloaded = OverloadedError("later", 1.0, limit=None)  # type: ignore[arg-type]
    assert message_of(overloaded, pb.GenerateRequest()) == "later"
