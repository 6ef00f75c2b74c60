"""Queries and documents: their prompts, and their encoding by multi-vector models."""

from enum import StrEnum

import msgspec

from model.bundle import Embedding
from server.errors import InvalidArgumentError
from server.models.registry import Model
from server.printable import quoted
from server.text.late_interaction import LateInteraction


class InputType(StrEnum):
    """The role of a text in search; models may encode queries and documents differently."""

    QUERY = "query"
    DOCUMENT = "document"


# Prompt names by input type; the first one that a model has is used, as in sentence-transformers'
# encode_query and encode_document.
_PROMPT_NAMES = {
    InputType.QUERY: ("query",),
    InputType.DOCUMENT: ("document", "passage", "corpus"),
}


def named_prompt(embedding: Embedding | None, name: str | None, field: str) -> str:
    """The prompt called ``name``, or the model's default prompt if ``name`` is ``None``.

    Raises:
        InvalidArgumentError: the model has no such prompt; the error names ``field``.
    """
    prompts = {} if embedding is None else embedding.prompts
    if name is None:
        default = None if embedding is None else embedding.default_prompt
        return "" if default is None else prompts[default]
    if name not in prompts:
        known = ", ".join(map(repr, prompts)) or "none"
        raise InvalidArgumentError(field, f"the model has no prompt {quoted(name)}; it has {known}")
    return prompts[name]


def typed_prompt(
    embedding: Embedding | None, input_type: InputType, name: str | None = None, field: str = ""
) -> str:
    """The model's prompt for texts of this type; if there is none, its default prompt.

    If ``name`` is given, returns the prompt with this name instead; ``field`` is the request field
    of ``name``, for errors.
    """
    if name is not None:
        return named_prompt(embedding, name, field)
    prompts = {} if embedding is None else embedding.prompts
    names = (name for name in _PROMPT_NAMES[input_type] if name in prompts)
    return named_prompt(embedding, next(names, None), "input_type")


def reader_of(model: Model, input_type: InputType | None) -> LateInteraction | None:
    """The reader of a multi-vector (late-interaction) model; by default for documents.

    ``None`` for other models.
    """
    embedding = model.manifest.embedding
    spec = None if embedding is None else embedding.multi_vector
    if spec is None:
        return None
    spec = msgspec.structs.replace(
        spec,
        query_length=min(spec.query_length, model.max_length),
        document_length=min(spec.document_length, model.max_length),
    )
    return LateInteraction(spec, is_query=input_type == InputType.QUERY)
