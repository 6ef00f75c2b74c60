"""Checks of request fields. Each names the field that it refuses."""

from collections.abc import Sequence

from model.bundle import Task
from protos.triune.v1 import inference_pb2 as pb
from server.errors import InvalidArgumentError
from server.models.registry import Model
from server.text.chat import ROLES, Message

_TASK_CALLS = {
    Task.GENERATE: "Generate",
    Task.TRANSLATE: "Translate",
    Task.EMBED: "Embed",
    Task.CLASSIFY: "Classify",
    Task.TAG: "Tag",
    Task.FILL_MASK: "FillMask",
    Task.ANSWER: "Answer",
    Task.RERANK: "Rerank",
}


def check_task(model: Model, task: Task) -> None:
    """Refuses a call that the model's kind cannot answer."""
    manifest = model.manifest
    if task not in manifest.tasks:
        calls = ", ".join(_TASK_CALLS[known] for known in manifest.tasks)
        raise InvalidArgumentError(
            "model",
            f"{manifest.name!r} does not answer {_TASK_CALLS[task]}; "
            f"it is of kind {manifest.kind} and answers {calls}",
        )


def check_texts(
    texts: Sequence[str], max_bytes: int, field: str = "inputs", member: str = ""
) -> None:
    """Refuses no input, an empty one, or more bytes than will be tokenized.

    Texts are ``field`` of the request, or ``member`` of each of its ``field``.
    """
    if not texts:
        raise InvalidArgumentError(field, "at least one is needed")
    for index, text in enumerate(texts):
        check_text(text, max_bytes, f"{field}[{index}]{member}")


def check_text(text: str, max_bytes: int, field: str) -> None:
    """Refuses an empty text, or more bytes than will be tokenized."""
    if not text.strip():
        raise InvalidArgumentError(field, "is empty")
    if len(text.encode()) > max_bytes:
        raise InvalidArgumentError(field, f"has more than {max_bytes} bytes")


def check_lengths(field: str, rows: Sequence[Sequence[int]], max_tokens: int) -> None:
    """Refuses token counts of 0 or above ``max_tokens``."""
    for index, row in enumerate(rows):
        if not row:
            raise InvalidArgumentError(f"{field}[{index}]", "has no tokens")
        if len(row) > max_tokens:
            raise InvalidArgumentError(
                f"{field}[{index}]", f"has {len(row)} tokens, at most {max_tokens} are accepted"
            )


def token_inputs(rows: Sequence[pb.TokenIds], vocabulary_size: int) -> list[tuple[int, ...]]:
    """Token ids that a caller made. Refuses those out of the vocabulary."""
    result = []
    for index, row in enumerate(rows):
        for position, id_ in enumerate(row.ids):
            if not 0 <= id_ < vocabulary_size:
                raise InvalidArgumentError(
                    f"token_inputs[{index}].ids[{position}]",
                    f"{id_} is not in 0 … {vocabulary_size - 1}",
                )
        result.append(tuple(row.ids))
    return result


def messages(rows: Sequence[pb.ChatMessage], max_bytes: int) -> list[Message]:
    """A conversation. Refuses unknown roles and empty content."""
    for index, row in enumerate(rows):
        if row.role not in ROLES:
            raise InvalidArgumentError(
                f"messages[{index}].role", f"{row.role!r} is not one of {', '.join(ROLES)}"
            )
        if not row.content:
            raise InvalidArgumentError(f"messages[{index}].content", "is empty")
    if sum(len(row.content.encode()) for row in rows) > max_bytes:
        raise InvalidArgumentError("messages", f"have more than {max_bytes} bytes")
    return [Message(row.role, row.content) for row in rows]
