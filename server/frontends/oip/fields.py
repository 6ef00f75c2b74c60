"""Names of a service's request's fields as tensors and parameters, for errors."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from server.errors import InvalidArgumentError, RequestTooLargeError
from server.frontends.oip.signatures import Task

# ``inputs[2].target``: a field, an index, a field of the item.
_PATH = re.compile(r"(?P<name>\w+)(?P<index>\[\d+\])?(?:\.(?P<member>\w+))?")
_TENSORS = {
    "inputs": "text_input",
    "pairs": "text_input",
    "token_inputs": "input_ids",
    "questions": "question",
    "documents": "passages",
    "query": "query",
}
# Fields of items that are tensors of their own.
_MEMBERS = {"text_pair", "context", "target"}
_FIELDS = {"model": "model_name", "version": "model_version"}


@contextmanager
def tensor_fields(task: Task) -> Iterator[None]:
    """Renames the field of an error raised in the block, which becomes ``InvalidArgumentError``."""
    try:
        yield
    except RequestTooLargeError as error:
        field = "max_new_tokens" if error.counts_new_tokens else "inputs"
        raise InvalidArgumentError(_renamed(field, task), str(error)) from error
    except InvalidArgumentError as error:
        raise InvalidArgumentError(_renamed(error.field, task), error.description) from error


def _renamed(field: str, task: Task) -> str:
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
    return f"parameters.{field}"
