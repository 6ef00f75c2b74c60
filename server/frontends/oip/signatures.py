"""The tensors of each task: names, types and shapes, and which inputs imply which task."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache, cached_property

from model.bundle import EmbeddingKind, Manifest
from model.bundle import Task as ModelTask
from server.errors import InvalidArgumentError
from server.frontends.oip.tensor_spec import ANY, TensorSpec
from server.frontends.oip.tensors import BOOL, BYTES
from server.printable import quoted


class Task(StrEnum):
    """The task that a request asks a model to do."""

    GENERATE = "generate"
    TRANSLATE = "translate"
    EMBED = "embed"
    CLASSIFY = "classify"
    TAG = "tag"
    FILL_MASK = "fill_mask"
    ANSWER = "answer"
    RERANK = "rerank"
    CORRECT = "correct"
    SCORE = "score"
    TRANSCRIBE = "transcribe"


GENERATIVE = frozenset({Task.GENERATE, Task.TRANSLATE})


@dataclass(frozen=True)
class Signature:
    """The tensors of one task."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    @cached_property
    def input_names(self) -> frozenset[str]:
        """The names of all inputs."""
        return frozenset(spec.name for spec in self.inputs)

    @cached_property
    def required_inputs(self) -> frozenset[str]:
        """The names of the inputs that may not be left out."""
        return frozenset(spec.name for spec in self.inputs if not spec.is_optional)

    @cached_property
    def output_names(self) -> frozenset[str]:
        """The names of all outputs."""
        return frozenset(spec.name for spec in self.outputs)

    @cached_property
    def default_outputs(self) -> frozenset[str]:
        """The outputs to return if the request names none."""
        return frozenset(spec.name for spec in self.outputs if not spec.is_optional)


IMAGE_INPUT = "image_input"
AUDIO_INPUT = "audio_input"
FILE_INPUTS = frozenset({IMAGE_INPUT, AUDIO_INPUT})
_IMAGE = TensorSpec(IMAGE_INPUT, BYTES)
_TEXT = TensorSpec("text_input", BYTES)
_SCORES = TensorSpec("scores", "FP32")
# Span i is in input spans[i, 0], from character spans[i, 1] to spans[i, 2].
_SPANS = TensorSpec("spans", "INT64", (ANY, 3))
# Inputs and outputs of Triton's vLLM backend.
_GENERATION_OPTIONS = (
    TensorSpec("stream", BOOL, (1,), is_optional=True),
    TensorSpec("sampling_parameters", BYTES, (1,), is_optional=True),
    TensorSpec("exclude_input_in_output", BOOL, (1,), is_optional=True),
    TensorSpec("return_finish_reason", BOOL, (1,), is_optional=True),
    TensorSpec("return_cumulative_logprob", BOOL, (1,), is_optional=True),
    TensorSpec("return_num_input_tokens", BOOL, (1,), is_optional=True),
    TensorSpec("return_num_output_tokens", BOOL, (1,), is_optional=True),
)
_GENERATED = (
    TensorSpec("text_output", BYTES),
    TensorSpec("finish_reason", BYTES, is_optional=True),
    TensorSpec("cumulative_logprob", "FP32", is_optional=True),
    TensorSpec("num_input_tokens", "UINT32", is_optional=True),
    TensorSpec("num_output_tokens", "UINT32", is_optional=True),
    TensorSpec("output_ids", "INT64", (ANY, ANY), is_optional=True),
)

SIGNATURES = {
    Task.GENERATE: Signature(
        (
            TensorSpec("text_input", BYTES, is_optional=True),
            TensorSpec("input_ids", "INT64", (ANY, ANY), is_optional=True),
            TensorSpec("input_lengths", "INT64", is_optional=True),
            *_GENERATION_OPTIONS,
        ),
        _GENERATED,
    ),
    Task.TRANSLATE: Signature((_TEXT, *_GENERATION_OPTIONS), _GENERATED),
    Task.EMBED: Signature((_TEXT,), (TensorSpec("embedding_output", "FP32", (ANY, ANY)),)),
    Task.CLASSIFY: Signature(
        (
            _TEXT,
            TensorSpec("text_pair", BYTES, is_optional=True),
            TensorSpec("candidate_labels", BYTES, is_optional=True),
        ),
        (TensorSpec("labels", BYTES, (ANY, ANY)), TensorSpec("scores", "FP32", (ANY, ANY))),
    ),
    Task.TAG: Signature(
        (_TEXT, TensorSpec("candidate_labels", BYTES, is_optional=True)),
        (TensorSpec("labels", BYTES), TensorSpec("entities", BYTES), _SCORES, _SPANS),
    ),
    Task.FILL_MASK: Signature(
        (_TEXT,),
        (
            TensorSpec("tokens", BYTES, (ANY, ANY)),
            TensorSpec("token_ids", "INT64", (ANY, ANY)),
            TensorSpec("scores", "FP32", (ANY, ANY)),
            _SPANS,
        ),
    ),
    Task.ANSWER: Signature(
        (TensorSpec("question", BYTES), TensorSpec("context", BYTES)),
        (TensorSpec("answers", BYTES), _SCORES, _SPANS),
    ),
    Task.RERANK: Signature(
        (TensorSpec("query", BYTES, (1,)), TensorSpec("passages", BYTES)), (_SCORES,)
    ),
    Task.CORRECT: Signature(
        (_TEXT,),
        (
            TensorSpec("text_output", BYTES),
            TensorSpec("replacements", BYTES, is_optional=True),
            TensorSpec("scores", "FP32", is_optional=True),
            TensorSpec("spans", "INT64", (ANY, 3), is_optional=True),
        ),
    ),
    Task.SCORE: Signature(
        (TensorSpec("context", BYTES), TensorSpec("target", BYTES)),
        (_SCORES, TensorSpec("num_tokens", "INT64")),
    ),
    Task.TRANSCRIBE: Signature(
        (TensorSpec(AUDIO_INPUT, BYTES, (1,)),),
        (
            TensorSpec("text_output", BYTES, (1,)),
            TensorSpec("language", BYTES, (1,), is_optional=True),
            # segments[i] is the text from second segment_seconds[i, 0] to segment_seconds[i, 1].
            TensorSpec("segments", BYTES, is_optional=True),
            TensorSpec("segment_seconds", "FP32", (ANY, 2), is_optional=True),
            TensorSpec("words", BYTES, is_optional=True),
            TensorSpec("word_seconds", "FP32", (ANY, 2), is_optional=True),
        ),
    ),
}
# Outputs of sparse and multi-vector models. Rows are those of all texts; each has its text's index.
_EMBEDDINGS = {
    EmbeddingKind.SPARSE: (
        # values[i] is the weight of token id indices[i, 1] in text indices[i, 0].
        TensorSpec("indices", "INT64", (ANY, 2)),
        TensorSpec("values", "FP32"),
        TensorSpec("tokens", BYTES),
    ),
    EmbeddingKind.MULTI_VECTOR: (
        TensorSpec("token_embeddings", "FP32", (ANY, ANY)),
        TensorSpec("tokens", BYTES),
        _SPANS,
    ),
}
# Inputs of Rerank for a model with several kinds: those to compare, and the weight of each.
_COMPARED = (
    TensorSpec("vectors", BYTES, is_optional=True),
    TensorSpec("weights", "FP32", is_optional=True),
)
# The kinds whose outputs a request of a model with several kinds names. Tokens are those of spans.
OUTPUT_KINDS = {
    "embedding_output": EmbeddingKind.DENSE,
    **dict.fromkeys(("indices", "values"), EmbeddingKind.SPARSE),
    **dict.fromkeys(("token_embeddings", "tokens", "spans"), EmbeddingKind.MULTI_VECTOR),
}
# Tasks whose inputs may be images, and their inputs by whether the model also takes texts.
_IMAGE_TASKS = frozenset({Task.CLASSIFY, Task.EMBED, Task.GENERATE})
_IMAGE_INPUTS = {False: (_IMAGE,), True: (_TEXT, _IMAGE)}
_RECORDINGS = TensorSpec(AUDIO_INPUT, BYTES)
# Inputs that imply a task, because no other task of a model has them.
_TELLING = {
    "passages": Task.RERANK,
    "query": Task.RERANK,
    "question": Task.ANSWER,
    "target": Task.SCORE,
}


def tasks_of(manifest: Manifest) -> tuple[Task, ...]:
    """The tasks of a model, its main one first.

    Models that generate text also score texts, unless they read images.
    """
    return _tasks(manifest.tasks, reads_texts=manifest.reads_texts)


@cache
def _tasks(tasks: tuple[ModelTask, ...], *, reads_texts: bool) -> tuple[Task, ...]:
    found = [Task(task.value) for task in tasks]
    if reads_texts and not GENERATIVE.isdisjoint(found):
        found.append(Task.SCORE)
    return tuple(found)


def signature_of(task: Task, manifest: Manifest) -> Signature:
    """The tensors of a model's task.

    A model that takes images has an image input, instead of or beside the text; a classifier of
    recordings has them instead. The outputs of embedding and the inputs of reranking depend on the
    model's kinds of embeddings.
    """
    signature = SIGNATURES[task]
    kind = manifest.embedding_kind
    if task == Task.EMBED and kind in _EMBEDDINGS:
        signature = Signature(signature.inputs, _EMBEDDINGS[kind])
    embedding = manifest.embedding
    if task == Task.EMBED and embedding is not None and embedding.kinds[1:]:
        others = (_EMBEDDINGS[kind] for kind in embedding.kinds[1:])
        more = {spec.name: replace(spec, is_optional=True) for each in others for spec in each}
        signature = replace(signature, outputs=(*signature.outputs, *more.values()))
    if task == Task.CLASSIFY and manifest.audio is not None:
        return replace(signature, inputs=(_RECORDINGS,))
    if task == Task.RERANK and embedding is not None and embedding.kinds[1:]:
        signature = replace(signature, inputs=(*signature.inputs, *_COMPARED))
    if manifest.image is None or task not in _IMAGE_TASKS:
        return signature
    options = _GENERATION_OPTIONS if task == Task.GENERATE else ()
    return replace(signature, inputs=(*_IMAGE_INPUTS[manifest.reads_texts], *options))


def task_of(manifest: Manifest, requested: object, names: Iterable[str]) -> Task:
    """The task of a request: the parameter ``task``, else the one that its inputs imply.

    Args:
        manifest: the model's manifest.
        requested: the parameter; ``None`` if it is not given.
        names: the names of the input tensors.

    Raises:
        InvalidArgumentError: the model does not have the requested task.
    """
    tasks = tasks_of(manifest)
    if requested is None:
        for name in names:
            if _TELLING.get(name) in tasks:
                return _TELLING[name]
        return tasks[0]
    if requested not in tasks:
        raise InvalidArgumentError(
            "parameters.task",
            f"{quoted(str(requested))} is not a task of {manifest.name!r}: {', '.join(tasks)}",
        )
    return Task(str(requested))


def check_inputs_of(task: Task, manifest: Manifest, names: Collection[str]) -> None:
    """Rejects unknown and missing inputs of ``task``. The error names the input."""
    signature = signature_of(task, manifest)
    for name in names:
        if name not in signature.input_names:
            known = ", ".join(spec.name for spec in signature.inputs)
            raise InvalidArgumentError(name, f"is not an input of {task}: {known}")
    for name in signature.required_inputs:
        if name not in names:
            raise InvalidArgumentError(name, f"is required for {task}")


def outputs_of(task: Task, manifest: Manifest, requested: Iterable[str]) -> frozenset[str]:
    """The outputs to return: the requested ones, or the task's default.

    Some clients request every output in the model's metadata, so outputs of its other tasks are
    ignored.

    Raises:
        InvalidArgumentError: the model does not have a requested output, or all requested outputs
            belong to other tasks; the error names one.
    """
    own, wanted = signature_of(task, manifest), list(requested)
    if not wanted:
        return own.default_outputs
    found = own.output_names.intersection(wanted)
    others = {
        name for each in tasks_of(manifest) for name in signature_of(each, manifest).output_names
    }
    for name in wanted:
        if name not in (others if found else own.output_names):
            known = ", ".join(spec.name for spec in own.outputs)
            raise InvalidArgumentError(name, f"is not an output of {task}: {known}")
    return found
