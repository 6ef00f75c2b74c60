"""Arguments set the right fields of requests, and only those that were given."""

from typing import Any

import pytest

from client import encoder_requests, requests, responses, types
from protos.triune.v1 import common_pb2
from protos.triune.v1 import inference_pb2 as wire


def _generate(**options: object) -> wire.GenerateRequest:
    return requests.generate(
        wire.GenerateRequest,
        "m",
        "text",
        token_inputs=(),
        messages=(),
        options=options,  # type: ignore[arg-type]
    )


def test_a_single_text_is_a_batch_of_one() -> None:
    assert list(_generate().inputs) == ["text"]
    assert list(encoder_requests.embed("m", "abc", {}).inputs) == ["abc"]


def test_texts_and_images_have_fields_of_their_own() -> None:
    assert list(encoder_requests.embed("m", b"file", {}).images) == [b"file"]
    part = encoder_requests.embed_part(0, "m", [b"a", b"b"], {})
    assert (list(part.inputs), list(part.images)) == ([], [b"a", b"b"])
    texts = encoder_requests.classify("m", (), [("a", "b")], {})
    assert [(pair.text, pair.text_pair) for pair in texts.pairs] == [("a", "b")]
    images = encoder_requests.classify("m", (), [("a", b"1"), ("b", b"2")], {})
    assert (list(images.inputs), list(images.images)) == (["a", "b"], [b"1", b"2"])
    assert not images.pairs
    for audio in (b"1", [b"1"]):
        recordings = encoder_requests.classify("m", (), (), {}, audio)
        assert (list(recordings.audio), list(recordings.images)) == ([b"1"], [])


def test_an_input_that_is_neither_text_nor_image_is_an_error() -> None:
    """Results have one output for each input: none may be left out."""
    inputs: Any = ["a", None, "b"]
    with pytest.raises(TypeError, match="not NoneType"):
        encoder_requests.embed("m", inputs, {})
    pairs: Any = [("a", bytearray(b"1"))]
    with pytest.raises(TypeError, match="not bytearray"):
        encoder_requests.classify("m", (), pairs, {})
    once: Any = zip(["a"], [b"1"], strict=True)
    assert list(encoder_requests.classify("m", (), once, {}).images) == [b"1"]


def test_options_that_are_not_given_stay_unset() -> None:
    request = _generate(temperature=None)
    assert request.sampling.ListFields() == []
    assert request.stopping.ListFields() == []
    assert request.response.ListFields() == []


def test_zero_is_set() -> None:
    request = _generate(temperature=0.0, seed=0, top_k=0)
    assert request.sampling.HasField("temperature")
    assert request.sampling.HasField("seed")
    assert request.sampling.HasField("top_k")


def test_every_option_has_its_field() -> None:
    request = _generate(
        temperature=0.5,
        top_k=3,
        top_p=0.9,
        seed=2**64 - 1,
        max_seconds=2.5,
        stop_before_deadline=True,
        max_new_tokens=7,
        stop_strings=["a", "b"],
        ignore_eos=True,
        token_ids=True,
        version="2",
        min_p=0.1,
        typical_p=0.8,
        repetition_penalty=1.2,
        presence_penalty=0.3,
        frequency_penalty=-0.4,
        logit_bias={5: -1.5},
        beam_size=4,
        length_penalty=0.6,
        early_stopping=types.EarlyStopping.NEVER,
        num_hypotheses=2,
        no_repeat_ngram_size=3,
        encoder_no_repeat_ngram_size=4,
        target_prefix="So",
        alternatives=True,
        grammar=types.Choices(("x", "y")),
        bad_words=["w"],
        min_new_tokens=2,
        stop_token_ids=[9],
        logprobs=True,
        top_logprobs=5,
        prompt_logprobs=True,
        attention=types.AttentionOptions(
            kind=types.AttentionKind.CROSS,
            layers=(1,),
            heads=(0, 2),
            average=True,
            alignments=True,
        ),
        echo=True,
        priority=3,
        tools=[types.Tool("f", "F.", "{}")],
        tool_choice=types.ToolChoice.REQUIRED,
        tool_name="f",
        parallel_tool_calls=False,
        template_variables='{"a": 1}',
        reasoning_effort="low",
        separate_reasoning=True,
    )
    assert request == wire.GenerateRequest(
        model="m",
        inputs=["text"],
        sampling=wire.SamplingOptions(
            temperature=0.5,
            top_k=3,
            top_p=0.9,
            seed=2**64 - 1,
            min_p=0.1,
            typical_p=0.8,
            repetition_penalty=1.2,
            presence_penalty=0.3,
            frequency_penalty=-0.4,
            logit_bias={5: -1.5},
        ),
        decoding=wire.DecodingOptions(
            beam_size=4,
            length_penalty=0.6,
            early_stopping=wire.EARLY_STOPPING_NEVER,
            num_hypotheses=2,
            no_repeat_ngram_size=3,
            encoder_no_repeat_ngram_size=4,
            target_prefix=["So"],
            alternatives=True,
            grammar=wire.Grammar(choices=wire.Choices(values=["x", "y"])),
            bad_words=["w"],
        ),
        stopping=wire.StoppingOptions(
            max_new_tokens=7,
            stop_strings=["a", "b"],
            ignore_eos=True,
            min_new_tokens=2,
            stop_token_ids=[9],
            max_seconds=2.5,
            stop_before_deadline=True,
        ),
        response=wire.ResponseOptions(
            token_ids=True,
            logprobs=True,
            top_logprobs=5,
            prompt_logprobs=True,
            echo=True,
            attention=wire.AttentionOptions(
                kind=wire.ATTENTION_KIND_CROSS,
                layers=[1],
                heads=[0, 2],
                average=True,
                alignments=True,
            ),
        ),
        priority=3,
        version="2",
        chat=wire.ChatOptions(
            tools=[wire.Tool(name="f", description="F.", parameters="{}")],
            tool_choice=wire.TOOL_CHOICE_REQUIRED,
            tool_name="f",
            parallel_tool_calls=False,
            template_variables='{"a": 1}',
            reasoning_effort="low",
            separate_reasoning=True,
        ),
    )


def test_an_unknown_option_is_an_error() -> None:
    with pytest.raises(TypeError, match="temprature"):
        _generate(temprature=1.0)


def test_a_number_out_of_range_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"seed: .*-1"):
        _generate(seed=-1, temperature=1.0)
    with pytest.raises(ValueError, match=r"priority: .*1099511627776"):
        _generate(top_k=3, priority=1 << 40)


def test_token_inputs_and_messages() -> None:
    request = requests.generate(
        wire.GenerateStreamRequest,
        "m",
        (),
        token_inputs=[[1, 2], [3]],
        messages=[types.Message("user", "hi")],
        options={},
    )
    assert [list(row.ids) for row in request.token_inputs] == [[1, 2], [3]]
    assert [(turn.role, turn.content) for turn in request.messages] == [("user", "hi")]
    for images in (b"file", [b"file", b"other"]):
        request = requests.generate(wire.GenerateStreamRequest, "m", (), (), (), {}, images)
        assert list(request.images) == ([images] if isinstance(images, bytes) else images)


def test_a_piece_has_usage_and_timing_only_if_sent() -> None:
    middle = responses.piece(wire.GenerateStreamResponse(model="m", index=1, text="a"))
    assert (middle.usage, middle.timing, middle.finish_reason) == (None, None, None)
    last = responses.piece(
        wire.GenerateStreamResponse(
            finish_reason=common_pb2.FINISH_REASON_LENGTH,
            usage=common_pb2.Usage(output_tokens=2),
            timing=common_pb2.Timing(total_seconds=0.5),
        )
    )
    assert last.finish_reason is types.FinishReason.LENGTH
    assert last.usage == types.Usage(input_tokens=0, output_tokens=2, reused_tokens=0)
    assert last.timing is not None
    assert last.timing.total_seconds == 0.5


@pytest.mark.parametrize(("name", "value"), common_pb2.FinishReason.items())
def test_every_finish_reason_has_a_name(
    name: str, value: common_pb2.FinishReason.ValueType
) -> None:
    piece = responses.piece(wire.TranslateStreamResponse(finish_reason=value))
    if value == common_pb2.FINISH_REASON_UNSPECIFIED:
        assert piece.finish_reason is None
    else:
        assert piece.finish_reason is types.FinishReason[name.removeprefix("FINISH_REASON_")]


@pytest.mark.parametrize(
    ("grammar", "expected"),
    [
        (types.JsonSchema("{}"), wire.Grammar(json_schema="{}")),
        (types.Regex("a+"), wire.Grammar(regex="a+")),
        (types.Lark('start: "a"'), wire.Grammar(lark='start: "a"')),
    ],
)
def test_every_grammar_has_its_field(grammar: types.Grammar, expected: wire.Grammar) -> None:
    assert _generate(grammar=grammar).decoding.grammar == expected
