"""Images through a real server: results, batches, limits and errors."""

import io
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from client.encoder_types import LongInput
from client.sync import Client
from export.encoding import EncoderInputs, encode_eagerly
from export.runtime import Floats
from model.images import decode_image, encode_png
from model.transformer import from_weights
from tests.image_models import CHECKPOINTS, IMAGE
from tests.server.clients import connected
from tests.server.encoder_calls import error_of, field_of


def picture(seed: int, height: int = 40, width: int = 30) -> bytes:
    """Random pixels as a PNG file."""
    rng = np.random.default_rng(seed)
    return encode_png(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))


def bomb(side: int) -> bytes:
    """A PNG of a few kilobytes, black, with ``side * side`` pixels."""
    buffer = io.BytesIO()
    Image.new("1", (side, side)).save(buffer, "PNG")
    return buffer.getvalue()


PICTURES = [picture(seed, 20 + 7 * seed, 50 - 5 * seed) for seed in range(6)]
TEXTS = ["HELLO", "A", "WHAT+IS-THIS", "B?", "LONGER.TEXT-THAN-OTHERS", "C"]


@pytest.fixture(scope="module")
def client(image_bundles: Path) -> Iterator[Client]:
    with connected(image_bundles, "--threads", "1") as client:
        yield client


def outputs_of(name: str, texts: list[str]) -> list[Floats]:
    """The eager module's outputs for :data:`PICTURES`, each with one of ``texts``."""
    checkpoint = CHECKPOINTS[name]()
    model = from_weights(checkpoint.config, checkpoint.weights)
    rows = [[ord(character) - 33 for character in text] for text in texts]
    images = [decode_image(data, IMAGE) for data in PICTURES]
    segments = [[0] * len(row) for row in rows] if rows else None
    return [outputs[0] for outputs in encode_eagerly(model, EncoderInputs(rows, segments, images))]


def probabilities(logits: Floats) -> list[float]:
    weights = np.exp(logits - logits.max())
    return sorted((weights / weights.sum()).tolist(), reverse=True)


def test_labels_of_images(client: Client) -> None:
    result = client.classify("vit", PICTURES)
    for output, logits in zip(result.outputs, outputs_of("vit", []), strict=True):
        assert [x.score for x in output.labels] == pytest.approx(probabilities(logits), abs=1e-5)
        assert output.labels[0].label == "abc"[int(logits.argmax())]
        assert output.usage.input_tokens == IMAGE.num_tokens
    assert result.usage.input_tokens == len(PICTURES) * IMAGE.num_tokens
    assert result.timing.tokenize_seconds > 0


def test_vectors_of_images(client: Client) -> None:
    result = client.embed("vit-embed", PICTURES)
    vectors = np.stack([output.values for output in result.outputs])
    np.testing.assert_allclose(vectors, np.stack(outputs_of("vit-embed", [])), atol=1e-5)
    (shorter,) = client.embed("vit-embed", PICTURES[0], dimensions=8).outputs
    expected = vectors[0, :8] / np.linalg.norm(vectors[0, :8])
    np.testing.assert_allclose(shorter.values, expected, atol=1e-5)


def test_vectors_of_a_stream(client: Client) -> None:
    whole = client.embed("vit-embed", PICTURES)
    batches = [PICTURES[:1], PICTURES[1:4], PICTURES[4:]]
    streamed = [x for part in client.embed_stream("vit-embed", batches) for x in part.outputs]
    assert [x.values for x in streamed] == [x.values for x in whole.outputs]


def test_labels_of_texts_with_images(client: Client) -> None:
    pairs = list(zip(TEXTS, PICTURES, strict=True))
    result = client.classify("vilbert", pairs=pairs)
    for text, output, logits in zip(
        TEXTS, result.outputs, outputs_of("vilbert", TEXTS), strict=True
    ):
        assert [x.score for x in output.labels] == pytest.approx(probabilities(logits), abs=1e-5)
        assert output.usage.input_tokens == len(text) + IMAGE.num_tokens


@pytest.mark.parametrize("name", ["vit", "vilbert"])
def test_results_do_not_depend_on_other_requests(client: Client, name: str) -> None:
    def classify(index: int) -> list[float]:
        pairs = [(TEXTS[index], PICTURES[index])]
        if name == "vit":
            (output,) = client.classify(name, PICTURES[index]).outputs
        else:
            (output,) = client.classify(name, pairs=pairs).outputs
        return [x.score for x in output.labels]

    alone = [classify(index) for index in range(len(PICTURES))]
    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(classify, [*range(len(PICTURES))] * 8))
    for index, scores in enumerate(together):
        assert scores == pytest.approx(alone[index % len(PICTURES)], abs=1e-6)


def test_a_model_tells_its_images(client: Client) -> None:
    model = client.get_model("vit")
    assert model.image is not None
    assert (model.image.height, model.image.width, model.image.num_channels) == (24, 16, 3)
    assert model.image.num_tokens == IMAGE.num_tokens


ONE = PICTURES[0]
TRUNCATED = ONE[: len(ONE) // 2]
WHOLE = {
    "narrow": picture(0, 1, 30_000),
    "one pixel": picture(0, 1, 1),
}
REFUSED = {
    "text": ("vit", [b"not an image"], "images[0]", "is not one of PNG, JPEG"),
    "empty": ("vit", [ONE, b""], "images[1]", "is not one of"),
    "truncated": ("vit", [ONE, ONE, TRUNCATED], "images[2]", "is damaged"),
    "bomb": ("vit", [ONE, bomb(30_000)], "images[1]", "has too many pixels"),
    "large": ("vit", [ONE, bomb(6_000)], "images[1]", "has 36000000 pixels"),
    "many pixels": ("vit", [bomb(5_000)] * 6, "images", "have 150000000 pixels"),
    "many images": ("vit", [ONE] * 257, "images", "257 given, at most 256"),
}


@pytest.mark.parametrize(("model", "images", "field", "reason"), REFUSED.values(), ids=REFUSED)
def test_bad_images_are_refused_by_name(
    client: Client, model: str, images: list[bytes], field: str, reason: str
) -> None:
    error = error_of(lambda: client.classify(model, images))
    assert field_of(error) == field
    assert reason in str(error)
    assert client.classify("vit", ONE).outputs  # the server goes on


@pytest.mark.parametrize("image", WHOLE.values(), ids=WHOLE)
def test_any_shape_is_resized(client: Client, image: bytes) -> None:
    assert len(client.classify("vit", image).outputs[0].labels) == 3


def test_what_a_model_does_not_take_is_refused_by_name(client: Client) -> None:
    mixed: Any = ["A", "B", ONE]  # two texts and one image
    cases: dict[str, list[Callable[[], object]]] = {
        "inputs": [
            lambda: client.classify("vit", "HELLO"),
            lambda: client.embed("vit-embed", "HELLO"),
            lambda: client.tokenize("vit", ["HELLO"]),
            lambda: client.classify("vilbert", "HELLO"),
            lambda: client.classify("vilbert", ONE),
        ],
        "pairs": [
            lambda: client.classify("vit", pairs=[("A", "B")]),
            lambda: client.classify("vilbert", pairs=[("A", "B")]),
            lambda: client.classify("vilbert", pairs=[("A", ONE), ("B", "C")]),
        ],
        "long_input": [lambda: client.classify("vit", ONE, long_input=LongInput.TRUNCATE_RIGHT)],
        "prompt": [lambda: client.embed("vit-embed", ONE, prompt="A")],
        "token_embeddings": [lambda: client.embed("vit-embed", ONE, token_embeddings=True)],
        "max_tokens": [lambda: client.embed("vit-embed", ONE, max_tokens=4)],
        "images": [
            lambda: client.classify("vilbert", mixed),
            lambda: client.classify("vit"),
            lambda: client.embed("vit-embed", []),
        ],
    }
    for field, calls in cases.items():
        for call in calls:
            error = error_of(call)
            assert field in field_of(error), error
