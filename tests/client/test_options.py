"""An option is declared once: requests and flags follow from its declaration."""

from enum import StrEnum
from typing import Any, get_type_hints

import pytest
import typer
from typer.testing import CliRunner

from client import cli, encoder_types, types
from client.messages import _option_fields, build
from client.option_flags import takes_options
from client.options import Flag
from protos.triune.v1 import encoding_pb2
from protos.triune.v1 import inference_pb2 as wire

# Fields of requests that are arguments of the call itself, or hold the options.
INPUTS = {
    *("model", "inputs", "token_inputs", "messages", "pairs", "questions", "query", "documents"),
    *("images", "audio", "source_language", "target_language"),
}
GROUPS = {"sampling", "decoding", "stopping", "response", "chat", "options", "length"}
REQUESTS = [
    (wire.GenerateRequest, types.GenerateOptions),
    (wire.GenerateStreamRequest, types.GenerateOptions),
    (wire.TranslateRequest, types.TranslationOptions),
    (wire.TranslateStreamRequest, types.TranslationOptions),
    (wire.TranscribeRequest, types.TranscriptionOptions),
    (wire.TranscribeStreamRequest, types.TranscriptionOptions),
    (encoding_pb2.EmbedRequest, encoder_types.EmbedOptions),
    (encoding_pb2.ClassifyRequest, encoder_types.ClassifyOptions),
    (encoding_pb2.TagRequest, encoder_types.TagOptions),
    (encoding_pb2.FillMaskRequest, encoder_types.FillMaskOptions),
    (encoding_pb2.AnswerRequest, encoder_types.AnswerOptions),
    (encoding_pb2.RerankRequest, encoder_types.RerankOptions),
]


@pytest.mark.parametrize(("message", "options"), REQUESTS)
def test_options_are_the_fields_of_the_request(message: Any, options: type) -> None:
    assert _option_fields(message).keys() - INPUTS - GROUPS == options.__annotations__.keys()


def test_options_of_score_are_fields_of_its_request() -> None:
    assert types.ScoreOptions.__annotations__.keys() <= _option_fields(wire.ScoreRequest).keys()


@pytest.mark.parametrize(
    ("enum", "field"),
    [
        (types.EarlyStopping, wire.DecodingOptions.DESCRIPTOR.fields_by_name["early_stopping"]),
        (types.SentenceSplit, wire.TranslateRequest.DESCRIPTOR.fields_by_name["sentence_split"]),
        (types.AttentionKind, wire.AttentionOptions.DESCRIPTOR.fields_by_name["kind"]),
        (
            encoder_types.LongInput,
            encoding_pb2.LengthOptions.DESCRIPTOR.fields_by_name["long_input"],
        ),
        (
            encoder_types.EncodingFormat,
            encoding_pb2.EmbedOptions.DESCRIPTOR.fields_by_name["encoding_format"],
        ),
        (
            encoder_types.InputType,
            encoding_pb2.EmbedOptions.DESCRIPTOR.fields_by_name["input_type"],
        ),
        (
            encoder_types.Aggregation,
            encoding_pb2.TagOptions.DESCRIPTOR.fields_by_name["aggregation"],
        ),
        (
            encoder_types.ScoreFunction,
            encoding_pb2.ClassifyOptions.DESCRIPTOR.fields_by_name["score_function"],
        ),
    ],
)
def test_enums_have_the_values_of_the_wire(enum: type[StrEnum], field) -> None:
    values = list(field.enum_type.values_by_name)
    prefix = values[0].removesuffix("UNSPECIFIED")
    assert [f"{prefix}{name}" for name in enum.__members__] == values[1:]


def test_an_enum_may_be_given_as_text() -> None:
    request = build(wire.GenerateRequest, types.GenerationOptions, {"early_stopping": "never"})
    assert request.decoding.early_stopping == wire.EARLY_STOPPING_NEVER
    with pytest.raises(ValueError, match="SOMETIMES"):
        build(wire.GenerateRequest, types.GenerationOptions, {"early_stopping": "sometimes"})


def _given(schema: type, *arguments: str) -> dict:
    """The options that a command with the flags of ``schema`` receives."""
    received: dict = {}
    app = typer.Typer()

    def command(*, options) -> None:
        received.update(options)

    command.__annotations__["options"] = schema
    app.command()(takes_options()(command))
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return received


def test_flags_that_are_not_given_leave_options_out() -> None:
    assert _given(encoder_types.FillMaskOptions) == {}
    given = _given(types.GenerationOptions)
    assert given.pop("max_new_tokens") == 256
    assert set(given.values()) == {False}


def test_a_flag_has_the_type_of_its_option() -> None:
    given = _given(
        types.GenerationOptions,
        *("--temperature", "0.5", "--seed", "7", "--early-stopping", "first", "--echo"),
        *("--stop", "a", "--stop", "b", "--stop-token-id", "3", "--target-prefix", "So"),
    )
    assert given["temperature"] == 0.5
    assert given["seed"] == 7
    assert given["early_stopping"] is types.EarlyStopping.FIRST
    assert given["echo"] is True
    assert given["stop_strings"] == ["a", "b"]
    assert given["stop_token_ids"] == [3]
    assert given["target_prefix"] == "So"


def test_options_with_several_flags() -> None:
    given = _given(
        types.GenerationOptions,
        *("--choice", "x", "--choice", "y", "--attention", "self", "--attention-layer", "2"),
    )
    assert given["grammar"] == types.Choices(("x", "y"))
    assert given["attention"] == types.AttentionOptions(
        kind=types.AttentionKind.SELF, layers=(2,), average=True
    )


@pytest.mark.parametrize(("flag", "value"), [("--normalize", True), ("--no-normalize", False)])
def test_a_negatable_flag(flag: str, value: bool) -> None:
    assert _given(encoder_types.EmbedOptions, flag)["normalize"] is value
    assert "normalize" not in _given(encoder_types.EmbedOptions)


@pytest.mark.parametrize(
    "schema", [types.GenerationOptions, types.ScoreOptions, *(options for _, options in REQUESTS)]
)
def test_help_of_flags_is_a_sentence(schema: type) -> None:
    hints = get_type_hints(schema, include_extras=True)
    flags = [each for hint in hints.values() for each in getattr(hint, "__metadata__", ())]
    assert flags
    for flag in flags:
        assert isinstance(flag, Flag)
        assert flag.help[0].isupper()
        assert flag.help.endswith(".")


def test_a_version_of_all_models_is_an_error() -> None:
    ran = CliRunner().invoke(cli.app, ["models", "--version", "2"])
    assert ran.exit_code == 2
    assert "--version needs --model" in ran.stderr
