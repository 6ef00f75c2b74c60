"""Searches for slow requests of the other protocols: JSON bodies of every HTTP route, tensors.

As :mod:`tests.fuzz.targets.costs`, for bodies whose texts and lists are repeated.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

from server.errors import ServeError
from tests.fuzz.draw import Draw
from tests.fuzz.service import MAX_LENGTH, REFUSALS, service
from tests.fuzz.targets import costs, http, tensors
from tests.server.oip.messages import infer_request

SIZE = 96
INFER = "ModelInfer"
# Fields of any route that hold texts.
_TEXT_FIELDS = ("prompt", "input", "inputs", "q", "texts", "query", "documents", "text_1", "text_2")
# Makes a valid body of a route from two long values. A path that ends with the name has it.
_Body = Callable[[Any, Any], dict[str, Any]]
_BODIES: tuple[tuple[str, _Body], ...] = (
    ("api/generate", lambda a, b: _ollama() | {"prompt": _one(a), "system": _one(b)}),
    ("api/chat", lambda a, _: _ollama() | {"messages": [_turn(text) for text in _several(a)]}),
    ("api/embed", lambda a, _: {"model": "embedder", "input": a}),
    ("api/embeddings", lambda a, _: {"model": "embedder", "prompt": _one(a)}),
    ("v1/completions", lambda a, _: {"model": "tiny-decoder", "prompt": a, "max_tokens": 4}),
    ("responses", lambda a, _: {"model": "tiny-decoder", "input": a, "max_output_tokens": 4}),
    ("v1/messages", lambda a, b: {"model": "tiny-decoder", **_turns(a, b), "max_tokens": 4}),
    ("count_tokens", lambda a, b: {"model": "tiny-decoder", **_turns(a, b)}),
    ("embeddings", lambda a, _: {"model": "embedder", "input": a}),
    ("}/rerank", lambda a, b: {"query": _one(a), "texts": _several(b)}),
    ("rerank", lambda a, b: {"model": "judge", "query": _one(a), "documents": _several(b)}),
    ("score", lambda a, b: {"model": "judge", "text_1": _one(a), "text_2": b}),
    ("/classify", lambda a, _: {"model": "sorter", "input": a}),
    ("}/tokenize", lambda a, _: {"inputs": a}),
    ("/tokenize", lambda a, _: {"model": "tiny-decoder", "prompt": _one(a)}),
    ("detokenize", lambda a, _: {"model": "tiny-decoder", "tokens": [3] * len(a)}),
    ("decode", lambda a, _: {"ids": [5] * len(a)}),
    ("similarity", lambda a, b: {"inputs": {"source_sentence": _one(a), "sentences": _several(b)}}),
    ("v2/embed", lambda a, _: {"texts": _several(a), "input_type": "search_query"}),
    ("multi-vector", lambda a, _: {"model": "colbert", "input": _several(a)}),
    ("pooling", lambda a, _: {"input": a, "task": "token_embed"}),
    ("embed", lambda a, _: {"inputs": a}),
    ("embed_all", lambda a, _: {"inputs": a}),
    ("embed_sparse", lambda a, _: {"inputs": a}),
    ("infer", lambda a, _: {"inputs": [_tensor(_several(a))]}),
    ("generate", lambda a, _: {"text_input": _one(a), "parameters": {"max_tokens": 2}}),
    ("generate_stream", lambda a, _: {"text_input": _one(a), "parameters": {"max_tokens": 2}}),
)


def _one(value: Any) -> str:
    return value if isinstance(value, str) else str(value[0])


def _several(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else value


def _ollama() -> dict[str, Any]:
    return {"model": "tiny-decoder", "options": {"num_predict": 4}}


def _turn(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _turns(first: Any, second: Any) -> dict[str, Any]:
    """Anthropic's messages: one with a block for each text, and a result of a tool."""
    blocks = [{"type": "text", "text": text} for text in _several(first)]
    result = {"type": "tool_result", "tool_use_id": "1", "content": _one(second)}
    turns = [{"role": "user", "content": blocks}, {"role": "user", "content": [result]}]
    return {"messages": turns, "system": _one(second)}


def _tensor(texts: list[str]) -> dict[str, Any]:
    return {"name": "text_input", "shape": [len(texts)], "datatype": "BYTES", "data": texts}


def run(data: bytes) -> None:
    """Two bytes: the route, or tensors. Then the model, and the fields to repeat."""
    cost = measure(data)
    assert cost.seconds < costs.MAX_SECONDS, cost


def calls() -> list[str]:
    """The paths of the routes, and the call with tensors."""
    running = service(MAX_LENGTH, costs.MAX_INPUT_BYTES)
    return [*sorted({route.path for route in running.routes}), INFER]


def measure(data: bytes) -> costs.MeasuredCost:
    """The cost of the request that ``data`` describes."""
    method, num_bytes, send = request_of(data)
    return costs.measure_call(method, num_bytes, send)


def request_of(data: bytes) -> tuple[str, int, Callable[[], bool]]:
    """The path, the bytes of the body, and a function that sends it: whether it is accepted."""
    draw = Draw(data)
    names = calls()
    name = names[draw.below(len(names))]
    if name == INFER:
        return _tensors(draw)
    running = service(MAX_LENGTH, costs.MAX_INPUT_BYTES)
    route = next(route for route in running.routes if route.path == name)
    fields: dict[str, Any] = {"model": draw.choice(http.MODELS)}
    made = next((make for suffix, make in _BODIES if name.endswith(suffix)), None)
    if made is not None and draw.below(8):
        fields |= made(_repeated(draw), _repeated(draw))
    else:
        for _ in range(1 + draw.below(3)):
            fields[draw.choice(_TEXT_FIELDS)] = _repeated(draw)
    for _ in range(draw.below(4) if draw.flag() else 0):
        field = draw.choice(http.NAMES)
        fields.setdefault(field, draw.choice(http.FIELDS[field]))
    body = json.dumps(fields).encode()
    return name, len(body), lambda: running.post(route, body)[0] == 200


def _tensors(draw: Draw) -> tuple[str, int, Callable[[], bool]]:
    running = service(MAX_LENGTH, costs.MAX_INPUT_BYTES)
    model = draw.choice(tensors.MODELS)
    inputs: Any = {}
    for _ in range(1 + draw.below(2)):
        value = _repeated(draw)
        inputs[draw.choice(tensors.INPUTS)] = [value] if isinstance(value, str) else value
    options = {draw.choice(tensors.OPTIONS): draw.choice(tensors.VALUES)} if draw.flag() else {}
    request = infer_request(model, options, **inputs)
    if draw.flag():  # as a list in the message instead of bytes
        for tensor, texts in zip(request.inputs, inputs.values(), strict=True):
            tensor.contents.bytes_contents.extend(text.encode() for text in texts)
        del request.raw_input_contents[:]

    def send() -> bool:
        try:
            tensors.infer(request, model, running)
        except ServeError as error:
            if error.code.value not in REFUSALS:
                raise
            return False
        return True

    return INFER, request.ByteSize(), send


def _repeated(draw: Draw) -> Any:
    """A long text, or a list of short ones."""
    text = draw.choice(costs.TEXTS)
    count = 1 + draw.below(costs.MAX_REPEATS)
    return text * count if draw.flag() else [text] * count


def seeds() -> Iterator[bytes]:
    """Each call with a long text, and with a list of short ones."""
    for call in range(len(calls())):
        for is_text in (1, 0):
            numbers = (call, 1, 1, 1, 200, is_text, 1, 200, is_text, 0, 0)
            yield b"".join(number.to_bytes(2, "little") for number in numbers)
