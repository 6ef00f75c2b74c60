"""Request bodies of Hugging Face's inference API: ``inputs`` and ``parameters`` of a pipeline."""

from collections.abc import Collection, Mapping
from typing import Any, Literal

import msgspec
from starlette.datastructures import Headers

from server.bounds import MAX_TEXTS, Size
from server.errors import InvalidArgumentError
from server.frontends.http.body import NOTHING, json_decoder
from server.frontends.http.failures import BodyTooLargeError
from server.frontends.http.settings import MAX_BODY_BYTES
from server.service.tag import Aggregation

ScoreFunctionName = Literal["sigmoid", "softmax", "none"]
_JSON = "application/json"


class PipelineInputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A question and its context, or a sentence and those to compare it with."""

    question: str | None = None
    context: str | None = None
    source_sentence: str | None = None
    sentences: list[str] | None = None


class GenerationParameters(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How text is generated, by names of text-generation-inference and ``transformers``.

    ``language`` and ``task`` are those of speech.
    """

    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    typical_p: float | None = None
    seed: int | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    no_repeat_ngram_size: int | None = None
    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    num_beams: int | None = None
    length_penalty: float | None = None
    language: str | None = None
    task: Literal["transcribe", "translate"] | None = None


class PipelineGrammar(msgspec.Struct, kw_only=True):
    """text-generation-inference's grammar: a JSON schema, or a regular expression."""

    type: Literal["json", "json_schema", "regex"]
    value: Any


class Parameters(GenerationParameters, kw_only=True, forbid_unknown_fields=True):
    """The parameters of all tasks; each task accepts its own (:func:`check_parameters`)."""

    function_to_apply: ScoreFunctionName | None = None
    candidate_labels: list[str] | None = None
    hypothesis_template: str | None = None
    multi_label: bool | None = None
    aggregation_strategy: Aggregation | None = None
    ignore_labels: list[str] | None = None
    stride: int | None = None
    targets: list[str] | None = None
    doc_stride: int | None = None
    handle_impossible_answer: bool | None = None
    max_answer_len: int | None = None
    max_seq_len: int | None = None
    max_question_len: int | None = None
    align_to_words: bool | None = None
    return_timestamps: bool | Literal["word"] | None = None
    src_lang: str | None = None
    tgt_lang: str | None = None
    generate_parameters: GenerationParameters | None = None
    generate_kwargs: GenerationParameters | None = None
    generation_parameters: GenerationParameters | None = None
    clean_up_tokenization_spaces: bool | None = None
    stop: list[str] | None = None
    return_full_text: bool | None = None
    details: bool | None = None
    decoder_input_details: bool | None = None
    top_n_tokens: int | None = None
    grammar: PipelineGrammar | None = None
    best_of: int | None = None
    watermark: bool | None = None
    truncate: int | None = None
    truncation: str | None = None
    adapter_id: str | None = None


class PipelineBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body. Feature extraction has its options beside ``inputs``, all others in ``parameters``.

    ``options`` is accepted and ignored.
    """

    inputs: str | list[str] | PipelineInputs
    parameters: Parameters | None = None
    stream: bool | None = None
    normalize: bool | None = None
    prompt_name: str | None = None
    truncate: bool | None = None
    truncation_direction: Literal["Left", "Right", "left", "right"] | None = None
    dimensions: int | None = None
    encoding_format: Literal["float"] | None = None
    options: msgspec.Raw = NOTHING

    @property
    def given(self) -> Parameters:
        """The parameters; without any if the body has none."""
        return self.parameters or Parameters()


class FileBody(PipelineBody, kw_only=True, forbid_unknown_fields=True):
    """A body that is a file: a recording or an image. ``inputs`` is empty."""

    data: bytes


class InvalidBody(PipelineBody, kw_only=True, forbid_unknown_fields=True):
    """A body that is no request of a pipeline, as ``error`` says. Its model may be unknown too."""

    error: Any


FEATURES = frozenset({"normalize", "prompt_name", "truncate", "truncation_direction", "dimensions"})
"""The options of feature extraction."""
_ROOT = {*FEATURES, "encoding_format", "stream"}
_decode_json = json_decoder(PipelineBody)


def decode_body(data: bytes, headers: Headers) -> PipelineBody:
    """Decodes JSON; a body of another type that is no JSON object is a file.

    If the JSON is malformed or a field is invalid, returns an :class:`InvalidBody`: that there is
    no such model is said first.

    Raises:
        BodyTooLargeError: the JSON is too large.
    """
    content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != _JSON and data[:64].lstrip()[:1] != b"{":
        return FileBody(inputs="", data=data)
    if len(data) > MAX_BODY_BYTES:
        raise BodyTooLargeError(MAX_BODY_BYTES)
    try:
        return _decode_json(data)
    except InvalidArgumentError as error:
        return InvalidBody(inputs="", error=error)


# The service's names of parameters, where they differ.
_RENAMED = {
    "score_function": "function_to_apply",
    "ignored_labels": "ignore_labels",
    "aggregation": "aggregation_strategy",
    "allow_no_answer": "handle_impossible_answer",
    "max_answer_tokens": "max_answer_len",
    "max_tokens": "max_seq_len",
    "stop_strings": "stop",
    "beam_size": "num_beams",
    "top_logprobs": "top_n_tokens",
    "source_language": "src_lang",
    "target_language": "tgt_lang",
    "grammar.json_schema": "grammar.value",
    "grammar.regex": "grammar.value",
}
_NAMES = {
    **{name: f"parameters.{name}" for name in Parameters.__struct_fields__},
    **{own: f"parameters.{name}" for own, name in _RENAMED.items()},
    "questions[0].question": "inputs.question",
    "questions[0].context": "inputs.context",
    "images": "inputs",
    "images[0]": "inputs",
    "audio": "inputs",
    "long_input": "truncate",
    **{name: name for name in ("truncate", "stream")},
}
_NAMES_OF_ONE = {**_NAMES, "inputs[0]": "inputs"}


def names_of(body: PipelineBody) -> Mapping[str, str]:
    """The names of the service's fields in ``body``."""
    names = _NAMES if isinstance(body.inputs, list) else _NAMES_OF_ONE
    given = body.given
    if given.doc_stride is not None:
        names = {**names, "stride": "parameters.doc_stride"}
    for group in ("generate_parameters", "generate_kwargs", "generation_parameters"):
        inner = getattr(given, group)
        if inner is not None:
            names = {
                **names,
                **{own: f"parameters.{group}.{name}" for own, name in _generation_names()},
            }
    return names


def _generation_names() -> list[tuple[str, str]]:
    fields = GenerationParameters.__struct_fields__
    return [*((name, name) for name in fields), ("beam_size", "num_beams")]


GENERATION = frozenset(GenerationParameters.__struct_fields__) - {"language", "task"}


def check_parameters(given: Parameters, allowed: Collection[str]) -> None:
    """Rejects parameters of other tasks; ``false`` and an empty list have no effect.

    Raises:
        InvalidArgumentError: a parameter is not in ``allowed``.
    """
    for name in Parameters.__struct_fields__:
        if name not in allowed and getattr(given, name) not in (None, False, []):
            raise InvalidArgumentError(
                f"parameters.{name}", "is not supported for this model's task"
            )


def check_root(body: PipelineBody, allowed: Collection[str]) -> None:
    """Rejects fields beside ``inputs`` that the task does not have.

    Raises:
        InvalidArgumentError: a field is not in ``allowed``.
    """
    for name in _ROOT:
        if name not in allowed and getattr(body, name) not in (None, False):
            raise InvalidArgumentError(name, "is not supported for this model's task")


def one_text(body: PipelineBody) -> str:
    """The only text of a body.

    Raises:
        InvalidArgumentError: ``inputs`` is a list or an object, or the body is a file.
    """
    if isinstance(body, FileBody) or not isinstance(body.inputs, str):
        raise InvalidArgumentError("inputs", "must be a text")
    return body.inputs


def texts_of(body: PipelineBody) -> tuple[str, ...]:
    """The texts of a body: one or several.

    Raises:
        InvalidArgumentError: ``inputs`` is an object or has too many texts, or the body is a file.
    """
    if isinstance(body.inputs, list):
        Size(MAX_TEXTS).check_count("inputs", body.inputs)
        return tuple(body.inputs)
    return (one_text(body),)
