"""The whole server on ONNX Runtime's CUDA provider, without a GPU: three kinds of models."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from client import sync
from export.bundle_writer import write_bundle
from model.bundle import Device, Precision
from tests import tiny
from tests.cuda.libraries import environment, onnxruntime_for_gpus
from tests.serving import server_process

pytestmark = pytest.mark.slow

OPTIONS = ("--device", "cuda", "--slots", "8", "--max-length", "40", "--max-batched-tokens", "64")
COUNT = 12


@pytest.fixture(scope="module")
def client(cuda_libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[sync.Client]:
    folder = tmp_path_factory.mktemp("bundles")
    for checkpoint in (tiny.dates()[0], tiny.decoder()[0], tiny.classifier()[0]):
        write_bundle(checkpoint, folder, precision=Precision.FP16, device=Device.CUDA)
    needed = environment(cuda_libraries, onnxruntime_for_gpus(), computes=True)
    with (
        server_process(folder, *OPTIONS, **needed) as running,
        sync.Client(running.target, timeout_seconds=120) as made,
    ):
        yield made


@pytest.mark.parametrize("options", [{}, {"beam_size": 4}, {"beam_size": 3, "min_new_tokens": 3}])
def test_translates_dates(client: sync.Client, options: dict[str, Any]) -> None:
    pairs = tiny.held_out_dates(COUNT)
    outputs = client.translate("dates", [source for source, _ in pairs], **options).outputs
    right = sum(o.text == iso for o, (_, iso) in zip(outputs, pairs, strict=True))
    assert right >= COUNT - 1


def test_counts_on_and_scores_what_it_says(client: sync.Client) -> None:
    prompt, expected = tiny.counting_text(37)
    (output,) = client.generate("tiny-decoder", [prompt], logprobs=True, top_logprobs=2).outputs
    assert output.text == expected
    sampled = client.generate("tiny-decoder", [prompt], temperature=0.1, seed=1, logprobs=True)
    assert sampled.outputs[0].text == expected
    scores = client.score("tiny-decoder", [(prompt, expected), (prompt, "1,2,3,4.")]).outputs
    right, wrong = (scored.score for scored in scores)
    assert right > wrong


def test_classifies(client: sync.Client) -> None:
    texts = tiny.classifier()[1][:COUNT]
    outputs = client.classify("tiny-classifier", [text for text, _ in texts]).outputs
    right = sum(o.labels[0].label == label for o, (_, label) in zip(outputs, texts, strict=True))
    assert right >= COUNT - 1
