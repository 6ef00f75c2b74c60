"""Decodes tensors and parameters into the service's requests."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from model.bundle import EmbeddingKind, Manifest
from server.errors import InvalidArgumentError
from server.frontends.oip.messages import InferRequest
from server.frontends.oip.options import boolean, build_request, sampling_parameters, sent_names
from server.frontends.oip.signatures import (
    AUDIO_INPUT,
    GENERATIVE,
    IMAGE_INPUT,
    OUTPUT_KINDS,
    Task,
    check_inputs_of,
    outputs_of,
    task_of,
)
from server.frontends.oip.tensors import InputTensor, check_inputs
from server.printable import counted, quoted
from server.service.answer import AnswerRequest, Question
from server.service.classify import ClassifyRequest
from server.service.correct import CorrectRequest
from server.service.embedding import EmbedRequest
from server.service.fill_mask import FillMaskRequest
from server.service.generation_request import GenerateRequest, TranslateRequest
from server.service.requests import ModelRequest
from server.service.rerank import RerankRequest
from server.service.score import ScoreInput, ScoreRequest
from server.service.tag import TagRequest
from server.service.text_pairs import TextPair
from server.service.transcription_request import TranscribeRequest

Tensors = Mapping[str, InputTensor]

# Inputs that request an optional output, with its name.
_RETURN_FLAGS = {
    "return_finish_reason": "finish_reason",
    "return_cumulative_logprob": "cumulative_logprob",
    "return_num_input_tokens": "num_input_tokens",
    "return_num_output_tokens": "num_output_tokens",
}
# Outputs of a transcription that need word timestamps.
_WORDS = frozenset({"words", "word_seconds"})
# Non-generative tasks whose requests have a priority.
_PRIORITIZED = frozenset({Task.SCORE, Task.TRANSCRIBE})


@dataclass(frozen=True, slots=True)
class DecodedRequest:
    """A request of the service, and the data to build its response.

    ``outputs`` are the names of the tensors to return. ``shape`` is the shape of the tensor with
    the texts, images or recordings. ``streams`` says whether the request asks for a stream;
    ``None`` if it leaves that open. ``sent`` maps fields of ``request`` to the parameter names that
    the client used, where they differ.
    """

    task: Task
    request: ModelRequest
    outputs: frozenset[str]
    shape: tuple[int, ...]
    streams: bool | None = None
    sent: Mapping[str, str] = field(default_factory=dict)


def decode_request(infer: InferRequest, manifest: Manifest) -> DecodedRequest:
    """Decodes a request for the model that ``manifest`` describes.

    Raises:
        InvalidArgumentError: a tensor or parameter is invalid; the error names it.
    """
    infer.check()
    check_inputs(infer.inputs)
    tensors = {tensor.name: tensor for tensor in infer.inputs}
    task = task_of(manifest, infer.parameters.get("task"), tensors)
    check_inputs_of(task, manifest, tensors)
    outputs = outputs_of(task, manifest, infer.outputs)
    if task in GENERATIVE:
        return _generation(infer, task, tensors, outputs)
    kind, main, decode = _ENCODERS[task]
    given = {"model": infer.model, "version": infer.version, **decode(tensors)}
    if task in _PRIORITIZED:
        given["priority"] = infer.priority
    if not _WORDS.isdisjoint(outputs):
        given["word_timestamps"] = True
    if task == Task.EMBED and manifest.embedding is not None and manifest.embedding.kinds[1:]:
        kinds = {OUTPUT_KINDS[name] for name in outputs}
        given["vectors"] = tuple(each for each in manifest.embedding.kinds if each in kinds)
    request = build_request(kind, given, infer.options)
    place = next(name for name in (main, IMAGE_INPUT, AUDIO_INPUT) if name in tensors)
    return DecodedRequest(task, request, outputs, tensors[place].shape)


def _generation(
    infer: InferRequest, task: Task, tensors: Tensors, outputs: frozenset[str]
) -> DecodedRequest:
    options = dict(infer.options)
    if "sampling_parameters" in tensors:
        for name, value in sampling_parameters(_one_text(tensors["sampling_parameters"])).items():
            if name in options:
                raise InvalidArgumentError(f"parameters.{name}", "is also in sampling_parameters")
            options[name] = value
    if "exclude_input_in_output" in tensors:
        options.setdefault("echo", not _flag(tensors["exclude_input_in_output"]))
    returned = {
        output for name, output in _RETURN_FLAGS.items() if name in tensors and _flag(tensors[name])
    }
    outputs |= returned
    given: dict[str, Any] = {
        "model": infer.model,
        "version": infer.version,
        "priority": infer.priority,
        "token_ids": "output_ids" in outputs,
        "logprobs": "cumulative_logprob" in outputs,
    }
    shape: tuple[int, ...]
    if IMAGE_INPUT in tensors:
        given["images"] = tensors[IMAGE_INPUT].files()
        shape = tensors[IMAGE_INPUT].shape
    elif "input_ids" in tensors:
        if "text_input" in tensors:
            raise InvalidArgumentError("input_ids", "cannot be combined with text_input")
        rows = _token_rows(tensors["input_ids"], tensors.get("input_lengths"))
        given["token_inputs"] = rows
        shape = (len(rows),)
    else:
        if "text_input" not in tensors:
            raise InvalidArgumentError("text_input", "is required, or input_ids")
        if "input_lengths" in tensors:
            raise InvalidArgumentError("input_lengths", "needs input_ids")
        given["inputs"] = tensors["text_input"].texts()
        shape = tensors["text_input"].shape
    kind = GenerateRequest if task == Task.GENERATE else TranslateRequest
    request: Any = build_request(kind, given, options)
    sent = sent_names(kind, options)
    return DecodedRequest(task, request, outputs, shape, _streams(infer, tensors), sent)


def _streams(infer: InferRequest, tensors: Tensors) -> bool | None:
    if "stream" in tensors:
        return _flag(tensors["stream"])
    value = infer.parameters.get("stream")
    return None if value is None else boolean(value, "parameters.stream")


def _flag(tensor: InputTensor) -> bool:
    values = tensor.flags()
    if len(values) != 1:
        raise InvalidArgumentError(tensor.name, f"has {len(values)} elements, not 1")
    return values[0]


def _one_text(tensor: InputTensor) -> str:
    texts = tensor.texts()
    if len(texts) != 1:
        raise InvalidArgumentError(tensor.name, f"has {len(texts)} elements, not 1")
    return texts[0]


def _token_rows(ids: InputTensor, lengths: InputTensor | None) -> tuple[tuple[int, ...], ...]:
    """The rows of ``ids`` ``[tokens]`` or ``[texts, tokens]``, cut to ``lengths`` ``[texts]``."""
    if len(ids.shape) > 2:
        raise InvalidArgumentError(ids.name, f"shape {list(ids.shape)} has more than 2 dimensions")
    values = ids.integers()
    width = ids.shape[-1]
    num_rows = ids.shape[0] if len(ids.shape) == 2 else 1
    if not values:
        raise InvalidArgumentError(ids.name, "has no tokens")
    used = [width] * num_rows if lengths is None else lengths.integers()
    if len(used) != num_rows:
        raise InvalidArgumentError(
            "input_lengths",
            f"has {counted(len(used), 'element')} for {counted(num_rows, 'text')}",
        )
    for index, length in enumerate(used):
        if not 0 <= length <= width:
            raise InvalidArgumentError(f"input_lengths[{index}]", f"{length} is not in 0 … {width}")
    return tuple(values[row * width : row * width + length] for row, length in enumerate(used))


def _inputs(tensors: Tensors) -> dict[str, Any]:
    return {"inputs": tensors["text_input"].texts()}


def _texts_or_images(tensors: Tensors) -> dict[str, Any]:
    given = _inputs(tensors) if "text_input" in tensors else {}
    if IMAGE_INPUT in tensors:
        given["images"] = tensors[IMAGE_INPUT].files()
    return given


def _candidates(tensors: Tensors) -> dict[str, Any]:
    if "candidate_labels" not in tensors:
        return {}
    return {"candidate_labels": tensors["candidate_labels"].texts()}


def _tagged(tensors: Tensors) -> dict[str, Any]:
    return _candidates(tensors) | _inputs(tensors)


def _classified(tensors: Tensors) -> dict[str, Any]:
    given = _candidates(tensors)
    if AUDIO_INPUT in tensors:
        return given | {"audio": tensors[AUDIO_INPUT].files()}
    if "text_pair" not in tensors:
        return given | _texts_or_images(tensors)
    pairs = _pairs(TextPair, tensors["text_input"], tensors["text_pair"])
    return {**given, "pairs": pairs}


def _questions(tensors: Tensors) -> dict[str, Any]:
    return {"questions": _pairs(Question, tensors["question"], tensors["context"])}


def _query(tensors: Tensors) -> dict[str, Any]:
    given: dict[str, Any] = {
        "query": _one_text(tensors["query"]),
        "documents": tensors["passages"].texts(),
    }
    if "vectors" in tensors:
        given["vectors"] = tuple(_kinds(tensors["vectors"]))
    if "weights" in tensors:
        given["weights"] = tensors["weights"].fractions()
    return given


def _kinds(tensor: InputTensor) -> Iterator[EmbeddingKind]:
    names = [kind.value for kind in EmbeddingKind]
    for index, text in enumerate(tensor.texts()):
        if text not in names:
            raise InvalidArgumentError(
                f"{tensor.name}[{index}]", f"{quoted(text)} is not one of {', '.join(names)}"
            )
        yield EmbeddingKind(text)


def _targets(tensors: Tensors) -> dict[str, Any]:
    return {"inputs": _pairs(ScoreInput, tensors["context"], tensors["target"])}


def _pairs(
    kind: Callable[[str, str], Any], first: InputTensor, second: InputTensor
) -> tuple[Any, ...]:
    ones, others = first.texts(), second.texts()
    if len(ones) != len(others):
        raise InvalidArgumentError(
            second.name,
            f"has {counted(len(others), 'element')}, but {first.name} has {len(ones)}",
        )
    return tuple(kind(one, other) for one, other in zip(ones, others, strict=True))


def _recording(tensors: Tensors) -> dict[str, Any]:
    recordings = tensors[AUDIO_INPUT].files()
    if len(recordings) != 1:
        raise InvalidArgumentError(AUDIO_INPUT, f"has {len(recordings)} elements, not 1")
    return {"audio": recordings[0]}


# By task: the type of the service's request, the input whose shape the outputs have, and the
# decoder of the tensors.
_ENCODERS: dict[Task, tuple[Any, str, Callable[[Tensors], dict[str, Any]]]] = {
    Task.EMBED: (EmbedRequest, "text_input", _texts_or_images),
    Task.CLASSIFY: (ClassifyRequest, "text_input", _classified),
    Task.TAG: (TagRequest, "text_input", _tagged),
    Task.FILL_MASK: (FillMaskRequest, "text_input", _inputs),
    Task.ANSWER: (AnswerRequest, "question", _questions),
    Task.RERANK: (RerankRequest, "passages", _query),
    Task.CORRECT: (CorrectRequest, "text_input", _inputs),
    Task.SCORE: (ScoreRequest, "target", _targets),
    Task.TRANSCRIBE: (TranscribeRequest, AUDIO_INPUT, _recording),
}
