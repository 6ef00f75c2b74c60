"""Classify with recordings for models with windows of one length: AST and Whisper's encoder."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client.encoder_types import Classification, LongInput, ScoreFunction
from client.sync import Client
from export.bundle_writer import write_bundle
from export.sources import load_checkpoint
from export.speech import recording
from model.audio import Samples
from model.bundle import AudioSpec
from model.bundle_files import read_manifest
from server.service.audio_windows import split_windows
from tests import audio_models
from tests.audio_models import LABELS
from tests.recordings import wav
from tests.server.clients import connected

RATE = 16_000
Floats = np.ndarray[Any, Any]
MODELS: dict[str, tuple[Callable[[Path], Any], Callable[[], Any]]] = {
    "ast": (audio_models.save_ast, audio_models.ast_network),
    "whisper-sounds": (audio_models.save_whisper, audio_models.whisper_network),
}


class Reference:
    """A model in transformers."""

    def __init__(self, name: str, folder: Path) -> None:
        save, network = MODELS[name]
        self.extractor, self.network = save(folder), network()

    def logits(self, samples: Samples) -> Floats:
        return audio_models.expected_logits(self.network, self.extractor, samples)


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reference]:
    return {name: Reference(name, tmp_path_factory.mktemp(name)) for name in MODELS}


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("bundles")
    for name, (save, _) in MODELS.items():
        folder = tmp_path_factory.mktemp(name)
        save(folder)
        write_bundle(load_checkpoint(str(folder)), root, name=name)
    return root


@pytest.fixture(scope="module")
def client(bundles: Path) -> Iterator[Client]:
    with connected(bundles, "--threads", "1") as client:
        yield client


def logits_of(output: Classification) -> list[float]:
    scores = {label.label: label.score for label in output.labels}
    return [scores[label] for label in LABELS]


def classify(client: Client, model: str, audio: Any, **options: Any) -> list[Classification]:
    result = client.classify(model, audio=audio, score_function=ScoreFunction.IDENTITY, **options)
    return list(result.outputs)


def check(output: Classification, expected: Floats) -> None:
    assert logits_of(output) == pytest.approx(expected.tolist(), abs=4e-4)


def spec_of(bundles: Path, model: str) -> AudioSpec:
    spec = read_manifest(bundles / model / "1").audio
    assert spec is not None
    return spec


@pytest.mark.parametrize("model", MODELS)
def test_logits_are_those_of_transformers(
    client: Client, references: dict[str, Reference], bundles: Path, model: str
) -> None:
    size = spec_of(bundles, model).num_samples
    samples = recording("austen-1", RATE)[8000:]
    parts = [samples[:size], samples[: size // 3], samples[:400], np.zeros(4000, np.int16)] * 2
    expected = [references[model].logits(part) for part in parts]
    for output, logits in zip(
        classify(client, model, list(map(wav, parts))), expected, strict=True
    ):
        check(output, logits)
        assert output.usage.input_tokens == spec_of(bundles, model).num_tokens
        assert output.reading.windows == 1
    with ThreadPoolExecutor(len(parts)) as pool:
        alone = list(pool.map(lambda part: classify(client, model, wav(part))[0], parts))
    for output, logits in zip(alone, expected, strict=True):
        check(output, logits)


@pytest.mark.parametrize("model", MODELS)
def test_long_recordings_are_read_whole_or_as_transformers_does(
    client: Client, references: dict[str, Reference], bundles: Path, model: str
) -> None:
    samples, spec = recording("austen-2", RATE), spec_of(bundles, model)
    windows = split_windows(samples, spec)
    assert len(windows) > 1
    parts = [references[model].logits(samples[x.start : x.stop]) for x in windows]
    mean = np.average(parts, 0, [window.num_samples for window in windows])
    (output,) = classify(client, model, wav(samples))
    check(output, mean)
    assert output.reading.windows == len(windows)
    (output,) = classify(client, model, wav(samples), long_input=LongInput.TRUNCATE_RIGHT)
    check(output, references[model].logits(samples))


@pytest.mark.parametrize("model", MODELS)
def test_silence_fills_up_a_frame(
    client: Client, references: dict[str, Reference], model: str
) -> None:
    samples = recording("austen-2", RATE)[8000:8100]
    (output,) = classify(client, model, wav(samples))
    check(output, references[model].logits(np.pad(samples, (0, 300))))
