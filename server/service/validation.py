"""Validates tasks, texts, tokens and messages. Errors name the invalid field."""

from collections.abc import Sequence

from model.bundle import Manifest, Task
from model.config import Kind
from server.bounds import MAX_ARGUMENTS_BYTES
from server.errors import ContextLengthError, InvalidArgumentError
from server.models.registry import Model
from server.printable import quoted
from server.text.chat import ROLES, Message


def _call_name(task: Task) -> str:
    """The name of the call for a task: ``fill_mask`` becomes "FillMask"."""
    return task.value.title().replace("_", "")


def check_task(model: Model, task: Task) -> None:
    """Rejects a call for a task that the model does not support."""
    manifest = model.manifest
    if task not in manifest.tasks:
        calls = ", ".join(_call_name(known) for known in manifest.tasks)
        raise InvalidArgumentError(
            "model",
            f"{manifest.name!r} does not answer {_call_name(task)}; "
            f"its kind is {manifest.kind}, it answers {calls}{of_inputs(model)}",
        )


def of_inputs(model: Model) -> str:
    """Describes a model's inputs, for errors, such as " of speech"; empty for texts."""
    if model.manifest.audio is not None:
        return f" of {_sound_of(model.manifest)}"
    if model.manifest.image is None or model.manifest.image_prompt is not None:
        return ""
    return " of texts with images" if model.manifest.reads_texts else " of images"


def _sound_of(manifest: Manifest) -> str:
    """What a model that takes recordings hears, for errors."""
    return "speech" if Task.TRANSCRIBE in manifest.tasks else "recordings"


def check_text_source(model: Model) -> None:
    """Rejects a model that writes text about speech or images, for calls that check no task."""
    manifest = model.manifest
    if manifest.kind == Kind.ENCODER_DECODER and not manifest.reads_texts:
        calls = ", ".join(map(_call_name, manifest.tasks))
        raise InvalidArgumentError(
            "model", f"{manifest.name!r} answers only {calls}{of_inputs(model)}"
        )


def check_takes_texts(model: Model, field: str, *, has_images: bool = False) -> None:
    """Rejects texts or token ids, in the request's ``field``, that the model does not take.

    ``has_images`` says whether each text comes with an image.
    """
    manifest = model.manifest
    if not manifest.reads_texts:
        taken = "images" if manifest.audio is None else _sound_of(manifest)
        raise InvalidArgumentError(field, f"{manifest.name!r} takes {taken}, not texts")
    needs_image = manifest.image is not None and manifest.image_prompt is None
    if needs_image and not has_images:
        raise InvalidArgumentError(field, f"{manifest.name!r} takes an image with each text")


def check_texts(
    texts: Sequence[str], max_bytes: int, field: str = "inputs", member: str = ""
) -> None:
    """Rejects an empty list, an empty text, or a text of more than ``max_bytes``.

    The texts are ``field`` of the request, or ``member`` of each item of ``field``.
    """
    if not texts:
        raise InvalidArgumentError(field, "must not be empty")
    for index, text in enumerate(texts):
        check_text(text, max_bytes, f"{field}[{index}]{member}")


def check_reply(field: str, count: int, limit: int, unit: str) -> None:
    """Rejects a request if its reply or intermediate results could exceed ``limit`` units."""
    if count > limit:
        raise InvalidArgumentError(
            field, f"could need {count} {unit} in the reply, at most {limit} are accepted"
        )


def check_text(text: str, max_bytes: int, field: str) -> None:
    """Rejects an empty text, or one of more than ``max_bytes`` in UTF-8."""
    if not text.strip():
        raise InvalidArgumentError(field, "is empty")
    if len(text.encode()) > max_bytes:
        raise InvalidArgumentError(field, f"has more than {max_bytes} bytes")


def check_lengths(field: str, rows: Sequence[Sequence[int]], max_tokens: int) -> None:
    """Rejects an input without tokens, or with more than ``max_tokens``."""
    for index, row in enumerate(rows):
        _check_length(f"{field}[{index}]", row, max_tokens)


def check_total_length(field: str, rows: Sequence[Sequence[int]], max_tokens: int) -> None:
    """The same for the tokens of all items of ``field`` together, which are the only row."""
    (row,) = rows
    _check_length(field, row, max_tokens)


def _check_length(path: str, row: Sequence[int], max_tokens: int) -> None:
    if not row:
        raise InvalidArgumentError(path, "has no tokens")
    if len(row) > max_tokens:
        raise ContextLengthError(path, f"has {len(row)} tokens, at most {max_tokens} are accepted")


def check_token_inputs(rows: Sequence[Sequence[int]], vocabulary_size: int) -> None:
    """Rejects token ids outside the vocabulary."""
    for index, row in enumerate(rows):
        if min(row) >= 0 and max(row) < vocabulary_size:  # much faster than to compare each here
            continue
        position, id_ = next(
            (position, id_) for position, id_ in enumerate(row) if not 0 <= id_ < vocabulary_size
        )
        raise InvalidArgumentError(
            f"token_inputs[{index}].ids[{position}]", f"{id_} is not in 0 … {vocabulary_size - 1}"
        )


def check_messages(messages: Sequence[Message], max_bytes: int) -> None:
    """Rejects unknown roles, and conversations without content or of more than ``max_bytes``.

    Some messages may be empty: clients send empty prompts of the system, and answers that stopped
    at once.
    """
    for index, message in enumerate(messages):
        if message.role not in ROLES:
            raise InvalidArgumentError(
                f"messages[{index}].role",
                f"{quoted(message.role)} is not one of {', '.join(ROLES)}",
            )
        _check_parts(message, f"messages[{index}]")
    if not any(message.content or message.parts or message.tool_calls for message in messages):
        raise InvalidArgumentError(f"messages[{len(messages) - 1}].content", "is empty")
    arguments = [call.arguments for message in messages for call in message.tool_calls]
    check_arguments("messages", arguments)
    texts = [text for message in messages for text in (message.text, message.reasoning)]
    if sum(len(text.encode()) for text in (*texts, *arguments)) > max_bytes:
        raise InvalidArgumentError("messages", f"have more than {max_bytes} bytes")


def _check_parts(message: Message, path: str) -> None:
    """Rejects parts beside ``content``, and parts that are neither a text nor an image."""
    if message.parts and message.content:
        raise InvalidArgumentError(f"{path}.parts", "cannot be combined with content")
    for index, part in enumerate(message.parts):
        if (part.text is None) == (part.image is None):
            raise InvalidArgumentError(f"{path}.parts[{index}]", "is neither a text nor an image")


def check_arguments(field: str, arguments: Sequence[str]) -> None:
    """Rejects arguments of tool calls that are more than ``MAX_ARGUMENTS_BYTES`` together."""
    if sum(len(text.encode()) for text in arguments) > MAX_ARGUMENTS_BYTES:
        raise InvalidArgumentError(
            field, f"have more than {MAX_ARGUMENTS_BYTES} bytes of arguments of tool calls"
        )
