"""Requests that need much of a GPU's memory, and short ones whose answers must stay the same."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import grpc

from client.errors import TriuneError
from client.model_info import Model
from client.sync import Client
from loadtest.prompts import sentences
from loadtest.tasks import Task

_SECONDS = 40.0
_NUM_TEXTS = {Task.EMBED: 256, Task.GENERATE: 1, Task.TRANSLATE: 64}
_MAX_TOKENS = {Task.EMBED: 512, Task.GENERATE: 1900, Task.TRANSLATE: 250}
_NEW_TOKENS = 8
_SAMPLE_WORDS = 500
# The share of the wanted tokens that a text has: texts differ in tokens per word.
_PART = 0.85
# The lowest cosine of two vectors of a text; in a batch, the last bits of fp16 differ.
_SAME = 0.999
TOLD = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)

Models = Mapping[Task, Model]


def large_texts(target: str, models: Models) -> dict[Task, list[str]]:
    """The texts of one large request of each task. Raises ``TriuneError``."""
    with Client(target, timeout_seconds=_SECONDS) as client:
        return {task: _large_texts(client, task, model) for task, model in models.items()}


def large_requests(
    target: str, models: Models, texts: Mapping[Task, list[str]]
) -> dict[str, dict[str, Any]]:
    """Sends ``texts`` of :func:`large_texts`. Returns how each ends: see :func:`outcome`."""
    with Client(target, timeout_seconds=_SECONDS) as client:
        return {
            f"{task}, {len(texts[task])} x {_num_tokens(task, model)} tokens": outcome(
                _caller(client, task, model.name, texts[task])
            )
            for task, model in models.items()
        }


def outcome(call: Callable[[], object]) -> dict[str, Any]:
    """How a call ends: its code, the message of an error, seconds, and whether that is right.

    It is if the call succeeds, or fails with a code that allows a retry and names the memory.
    """
    started = time.monotonic()
    try:
        call()
    except TriuneError as error:
        is_told = error.code in TOLD and "memory" in error.message
        found = {"code": error.code.name, "message": error.message, "is_right": is_told}
    else:
        found = {"code": grpc.StatusCode.OK.name, "is_right": True}
    return {**found, "seconds": round(time.monotonic() - started, 3)}


def answers(target: str, models: Models) -> dict[Task, Any]:
    """The answer to a short text by each model: token ids or a vector; the error of a failure."""
    text = sentences()[0]
    found: dict[Task, Any] = {}
    with Client(target, timeout_seconds=_SECONDS) as client:
        for task, model in models.items():
            try:
                result = _caller(client, task, model.name, [text])()
            except TriuneError as error:
                found[task] = str(error)
                continue
            output = result.outputs[0]
            found[task] = list(output.values if task is Task.EMBED else output.token_ids)
    return found


def are_same(before: Mapping[Task, Any], after: Mapping[Task, Any]) -> dict[str, bool | str]:
    """Whether answers are the same; an error instead of an answer is its text."""
    return {
        task: after[task] if isinstance(after[task], str) else _is_same(before[task], after[task])
        for task in before
    }


def _is_same(before: Any, after: Any) -> bool:
    if isinstance(before, str):
        return False
    if before and isinstance(before[0], float):
        product = sum(a * b for a, b in zip(before, after, strict=True))
        norms = (sum(a * a for a in row) ** 0.5 for row in (before, after))
        return bool(product >= _SAME * next(norms) * next(norms))
    return bool(before == after)


def _num_tokens(task: Task, model: Model) -> int:
    return min(_MAX_TOKENS[task], model.max_length - _NEW_TOKENS)


def _large_texts(client: Client, task: Task, model: Model) -> list[str]:
    """Different texts of nearly as many tokens as :func:`_num_tokens` says."""
    wanted, count = _num_tokens(task, model), _NUM_TEXTS[task]
    words = " ".join(sentences()).split()
    sample = words[:_SAMPLE_WORDS]
    (tokenized,) = client.tokenize(model.name, " ".join(sample)).outputs
    num_words = max(1, int(_PART * wanted * len(sample) / len(tokenized.token_ids)))
    long = words * (1 + (num_words + count) // len(words))
    return [" ".join(long[first : first + num_words]) for first in range(count)]


def _caller(client: Client, task: Task, model: str, texts: list[str]) -> Callable[[], Any]:
    if task is Task.EMBED:
        return lambda: client.embed(model, texts)
    call = client.generate if task is Task.GENERATE else client.translate
    return lambda: call(model, texts, max_new_tokens=_NEW_TOKENS, token_ids=True)
