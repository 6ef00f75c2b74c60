"""Renames request fields of the service to tensors and parameters, for errors."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from server.errors import InvalidArgumentError
from server.frontends.oip.signatures import AUDIO_INPUT, IMAGE_INPUT, Task

# The path of a field, such as ``inputs[2].target``: a field, an index, and a field of the item.
_PATH = re.compile(r"(?P<name>\w+)(?P<index>\[\d+\])?(?:\.(?P<member>\w+))?")
_TENSORS = {
    "inputs": "text_input",
    "images": IMAGE_INPUT,
    "audio": AUDIO_INPUT,
    "pairs": "text_input",
    "token_inputs": "input_ids",
    "questions": "question",
    "documents": "passages",
    "query": "query",
    "candidate_labels": "candidate_labels",
    "vectors": "vectors",
    "weights": "weights",
}
# Fields of items that are separate tensors.
_MEMBERS = {"text_pair", "context", "target"}
_MAX_LENGTH = "max_new_tokens"  # errors of other fields mention this parameter
_FIELDS = {"model": "model_name", "version": "model_version"}


@contextmanager
def tensor_fields(task: Task, sent: Mapping[str, str]) -> Iterator[None]:
    """Renames the field of an ``InvalidArgumentError`` that the block raises.

    ``sent`` maps fields to the parameter names that the request uses for them, where they differ.
    """
    try:
        yield
    except InvalidArgumentError as error:
        description = error.description.replace(_MAX_LENGTH, sent.get(_MAX_LENGTH, _MAX_LENGTH))
        raise InvalidArgumentError(_renamed(error.field, task, sent), description) from error


def _renamed(field: str, task: Task, sent: Mapping[str, str]) -> str:
    match = _PATH.match(field)
    if match is None:
        return field
    name, index, member = match["name"], match["index"] or "", match["member"]
    if name in _FIELDS:
        return _FIELDS[name]
    if member in _MEMBERS:
        return f"{member}{index}"
    if name in _TENSORS:
        tensor = "target" if task == Task.SCORE else _TENSORS[name]
        return f"{tensor}{index}"
    if name == "grammar" and member:  # each kind is a parameter
        return f"parameters.{member}"
    return f"parameters.{sent.get(name, name)}{field[match.end('name') :]}"
