"""Images in bodies: OpenAI's and vLLM's routes, and the Open Inference Protocol by HTTP."""

import base64
import json
from collections.abc import Iterator
from typing import Any

from tests.fuzz.draw import Draw
from tests.fuzz.registry import cases
from tests.fuzz.service import service

SIZE = 1024
MODELS = ("vit", "vit-embed", "vilbert", "embedder")
PATHS = ("/v1/embeddings", "/classify", "/v2/models/{model}/infer")
# What comes before the base64, or instead of it.
STARTS = ("", "data:image/png;base64,", "data:,", "DATA:;BASE64,", "https://", "file:", "data:")
OTHERS: tuple[Any, ...] = ("a cat", "", [3, 4], 5, {"image": 5}, {"text": "a"}, None, {})
ROLES = ("user", "system", "")
TYPES = ("image_url", "text", "input_image")


def run(data: bytes) -> None:
    """Bytes that choose the route, the model and the form; the rest is a file or base64."""
    draw = Draw(data)
    path, model = draw.choice(PATHS), draw.choice(MODELS)
    form, start = draw.below(4), draw.choice(STARTS)
    is_file, other, count = draw.flag(), draw.below(4 * len(OTHERS)), 1 + draw.below(3)
    role, kind = draw.choice(ROLES), draw.choice(TYPES)
    rest = draw.rest()
    image = start + (base64.b64encode(rest).decode() if is_file else rest.decode(errors="replace"))
    items: list[Any] = [{"image": image}] * count
    if other < len(OTHERS):
        items[-1] = OTHERS[other]
    if "{model}" in path:
        body: dict[str, Any] = {"inputs": _tensors(form, [image] * count, model)}
    elif form == 0:
        body = {"model": model, "input": items[-1]}
    elif form == 1:
        body = {"model": model, "input": items}
    else:
        parts = [{"type": kind, "image_url": {"url": image}, "text": "A?"}]
        if form == 2:
            parts.append({"type": "text", "text": "A?"})
        body = {"model": model, "messages": [{"role": role, "content": parts}]}
    _send(path, model, json.dumps(body).encode())


def _tensors(form: int, images: list[str], model: str) -> list[dict[str, Any]]:
    """``form``: with the texts that go with images, and by which shape."""
    shape = [[len(images)], [len(images), 1], [1], [-1]][form]
    tensor = {"datatype": "BYTES", "shape": shape}
    tensors: list[dict[str, Any]] = [{**tensor, "name": "image_input", "data": images}]
    if model == "vilbert":
        tensors.append({**tensor, "name": "text_input", "data": ["A?"] * len(images)})
    return tensors


def _send(path: str, model: str, body: bytes) -> None:
    running = service()
    route = next(route for route in running.routes if route.path == path)
    status, answer = running.post(route, body, model)
    assert status in (200, 400, 404), (path, body, answer)
    if status != 200:
        error = json.loads(answer)["error"]
        assert (error if isinstance(error, str) else error["message"]).isprintable(), error


def _numbers(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(2, "little") for number in numbers)


# Routes with models that answer there.
_SUITABLE = ((0, 1), (1, 0), (1, 2), (2, 0), (2, 1), (2, 2), (0, 3))
_NO_OTHER = 4 * len(OTHERS) - 1


def seeds() -> Iterator[bytes]:
    """Files of the target ``image`` by each route and model, and base64 that is none."""
    files = [case.read_bytes() for case in cases("image") if case.stat().st_size < SIZE]
    for index, file in enumerate(files):
        for place, (path, model) in enumerate(_SUITABLE):
            form = (index + place) % 4
            yield (
                _numbers(path, model, form, index % 2) + b"\1" + _numbers(_NO_OTHER, 0, 0, 0) + file
            )
    for start in range(len(STARTS)):
        for tail in (b"AAAA", b"AA=A", b"not base64", b""):
            yield (
                _numbers(start % 3, 0, start % 3, start)
                + b"\0"
                + _numbers(_NO_OTHER, 0, 0, 0)
                + tail
            )
    for other in range(len(OTHERS)):
        yield _numbers(other % 2, 1 - other % 2, 1, 0) + b"\1" + _numbers(other, 1, 0, 0) + files[0]
