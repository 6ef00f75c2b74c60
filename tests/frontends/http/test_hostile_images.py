"""Hostile images by HTTP: each is refused by its field, and the next request is answered."""

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

from server.bounds import MAX_IMAGES
from tests.pictures import animation, black, encoded, picture, png_file
from tests.serving import server_process

CLASSIFIER, EMBEDDER = "vit", "vit-embed"
PATHS = {"/v1/embeddings": EMBEDDER, "/classify": CLASSIFIER, "/v2/models/vit/infer": CLASSIFIER}
FILES = [picture(0), picture(1, "JPEG"), picture(2, "WEBP")]


@pytest.fixture(scope="module")
def http(image_bundles: Path) -> Iterator[httpx2.Client]:
    with (
        server_process(image_bundles, "--threads", "1") as running,
        httpx2.Client(base_url=running.http_url, timeout=60) as client,
    ):
        yield client


def body(path: str, files: list[bytes]) -> dict[str, Any]:
    texts = [encoded(data) for data in files]
    if path.startswith("/v2"):
        tensor = {"name": "image_input", "datatype": "BYTES", "shape": [len(texts)], "data": texts}
        return {"inputs": [tensor]}
    return {"model": PATHS[path], "input": [{"image": text} for text in texts]}


# A few kilobytes that claim 900 million pixels; 36 million pixels in 5 KB; less.
BOMB, LARGE, MANY = (
    png_file(30_000, 30_000, zlib.compress(bytes(1 << 22), 9)),
    black(6000),
    black(5000),
)
# A line of 33 million pixels, of which the file has one.
RUN_LENGTH = struct.pack(
    "<2sIHHI IiiHHIIiiII", b"BM", 58, 0, 0, 54, 40, 1 << 25, 1, 1, 8, 1, 4, 0, 0, 1, 0
) + bytes([0, 0, 0, 0, 1, 0, 0, 0])
HOSTILE: dict[str, tuple[list[bytes], str, str]] = {
    "a bomb": ([FILES[0], BOMB], "[1]", "the image has too many pixels"),
    "a large image": ([FILES[0], LARGE], "[1]", "has 36000000 pixels, at most 33554432"),
    "run lengths": ([FILES[0], RUN_LENGTH], "[1]", "the image has run-length encoding"),
    "many pixels": ([MANY] * 6, "", "have 150000000 pixels, at most 134217728"),
    "half a PNG": ([FILES[0][: len(FILES[0]) // 2]], "[0]", "the image is damaged"),
    "half a JPEG": ([FILES[1][: len(FILES[1]) // 2]], "[0]", "the image is damaged"),
    "half a WebP": ([FILES[2][: len(FILES[2]) // 2]], "[0]", "the image is damaged"),
    "half an animation": ([animation()[:1200]], "[0]", "the image is damaged"),
    "a text": ([b"not an image"], "[0]", "the image is not one of PNG, JPEG"),
    "SVG": ([b"<svg xmlns='http://www.w3.org/2000/svg'/>"], "[0]", "the image is not one of PNG"),
    "an empty file": ([FILES[0], b""], "[1]", "the image is not one of PNG"),
    "many images": ([b""] * (MAX_IMAGES + 1), "", f"at most {MAX_IMAGES}"),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("files", "place", "reason"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_files_are_refused(
    http: httpx2.Client, path: str, files: list[bytes], place: str, reason: str
) -> None:
    refused = http.post(path, json=body(path, files))
    assert refused.status_code == 400
    field = f"image_input{place}"
    message = refused.json()["error"]
    if not path.startswith("/v2"):
        field = f"input{place}.image" if place else "input"
        assert message["param"] == field
        message = message["message"]
    assert message.startswith(f"{field}: ")
    assert reason in message
    assert http.post(path, json=body(path, FILES)).status_code == 200


def test_an_animation_is_its_first_frame(http: httpx2.Client) -> None:
    path = "/v1/embeddings"
    answer = http.post(path, json=body(path, [animation(), picture(0), picture(1)]))
    data = answer.json()["data"]
    moving, still, other = (np.array(item["embedding"]) for item in data)
    assert moving @ still > moving @ other  # GIF has 256 colours, so that they are not equal
