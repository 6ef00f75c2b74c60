"""Accuracy of tiny trained models after export, with KV cache and batching."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from client.sync import Client
from tests import tiny
from tests.serving import server_process

NUM_CLIENTS = 16


@pytest.fixture(scope="module")
def client(tiny_bundles: Path) -> Iterator[Client]:
    with server_process(tiny_bundles) as running, Client(running.target) as client:
        yield client


def test_translates_held_out_dates(client: Client) -> None:
    """One request per date, 16 concurrently: sequences join and leave the batch at every step."""
    _, held_out = tiny.dates()
    assert len(held_out) >= 400
    with ThreadPoolExecutor(NUM_CLIENTS) as pool:
        answers = list(
            pool.map(lambda pair: client.translate("dates", pair[0]).outputs[0].text, held_out)
        )
    exact = sum(answer == iso for answer, (_, iso) in zip(answers, held_out, strict=True))
    assert exact / len(held_out) >= 0.99


def test_translates_a_batch_in_one_request(client: Client) -> None:
    _, held_out = tiny.dates()
    texts = [text for text, _ in held_out[:200]]
    outputs = client.translate("dates", texts).outputs
    exact = sum(o.text == iso for o, (_, iso) in zip(outputs, held_out[:200], strict=True))
    assert exact >= 198


def test_decoder_continues_number_sequences(client: Client) -> None:
    _, examples = tiny.decoder()
    with ThreadPoolExecutor(NUM_CLIENTS) as pool:
        answers = list(
            pool.map(
                lambda pair: client.generate("tiny-decoder", pair[0]).outputs[0].text, examples
            )
        )
    exact = sum(answer == text for answer, (_, text) in zip(answers, examples, strict=True))
    assert exact / len(examples) >= 0.95


def test_classifier_predicts_labels(client: Client) -> None:
    _, held_out = tiny.classifier()
    outputs = client.classify("tiny-classifier", [text for text, _ in held_out]).outputs
    right = sum(
        output.labels[0].label == label
        for output, (_, label) in zip(outputs, held_out, strict=True)
    )
    assert right / len(held_out) >= 0.95
    for output in outputs:
        assert sum(score.score for score in output.labels) == pytest.approx(1.0, abs=1e-5)
