"""Transcribe and TranscribeStream of encoders with CTC, end to end: small random models."""

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import numpy as np
import pytest
from huggingface_hub import InferenceClient

from client.errors import TriuneError
from client.sync import Client
from export.speech import recording
from model.audio import Samples
from model.bundle_files import read_manifest
from server.config import ServerConfig
from server.models.memory_budget import max_padded_tokens, plan_memory
from server.service.audio_windows import split_windows
from tests import ctc_models
from tests.recordings import wav
from tests.serving import ServerProcess, server_process
from tests.waveform_bundles import write_bundles

MODEL = "ctc"
SHORT_WINDOWS = "ctc-short"  # the same with windows of 2 s
RATE = ctc_models.SAMPLE_RATE
NAMES = ("austen-2", "cards-1", "austen-5", "cards-4")


class Reference:
    """The model in transformers."""

    def __init__(self, folder: Path) -> None:
        self.processor = ctc_models.save(folder, **ctc_models.BASE)
        self.network = ctc_models.network(**ctc_models.BASE)

    def text(self, samples: Samples) -> str:
        return ctc_models.expected_text(self.network, self.processor, samples)

    def word_offsets(self, samples: Samples) -> list[dict[str, Any]]:
        logits = ctc_models.expected_logits(self.network, self.processor, samples)
        decoded = self.processor.decode(logits.argmax(-1), output_word_offsets=True)
        offsets: list[dict[str, Any]] = decoded.word_offsets
        return offsets


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return Reference(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, root = tmp_path_factory.mktemp("checkpoint"), tmp_path_factory.mktemp("bundles")
    ctc_models.save(folder, **ctc_models.BASE)
    (folder / "README.md").write_text("---\nlanguage: en\n---\n")
    write_bundles(folder, root, MODEL, SHORT_WINDOWS)
    return root


@pytest.fixture(scope="module")
def server(bundles: Path) -> Iterator[ServerProcess]:
    with server_process(bundles, "--threads", "1") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.target, timeout_seconds=60) as client:
        yield client


def test_a_model_tells_what_it_hears(client: Client) -> None:
    model = client.get_model(MODEL)
    assert (model.kind, model.tasks) == ("encoder", ("transcribe",))
    assert model.audio is not None
    assert (model.audio.sample_rate, model.audio.window_seconds, model.audio.num_tokens) == (
        *(RATE, 30.0, 1499),
    )


def test_texts_are_those_of_transformers(client: Client, reference: Reference) -> None:
    for name in NAMES:
        samples = recording(name, RATE)
        found = client.transcribe(MODEL, wav(samples))
        assert found.text == reference.text(samples) != ""
        assert found.language == "en"
        assert found.duration_seconds == pytest.approx(len(samples) / RATE)
        assert found.usage.input_tokens == (len(samples) - 400) // 320 + 1
        assert found.usage.output_tokens >= sum(len(x.token_ids) for x in found.segments)
        assert all(segment.mean_logprob < 0 for segment in found.segments)


def test_a_text_is_the_same_among_others(client: Client, reference: Reference) -> None:
    recordings = [recording(name, RATE) for name in NAMES] * 4
    with ThreadPoolExecutor(len(recordings)) as pool:
        files = map(wav, recordings)
        found = list(pool.map(lambda file: client.transcribe(MODEL, file).text, files))
    texts = {name: reference.text(recording(name, RATE)) for name in NAMES}
    assert found == [texts[name] for name in NAMES] * 4


def test_words_have_the_times_of_transformers(client: Client, reference: Reference) -> None:
    samples = recording("austen-2", RATE)
    found = client.transcribe(MODEL, wav(samples), word_timestamps=True)
    words = [word for segment in found.segments for word in segment.words]
    expected = reference.word_offsets(samples)
    assert [word.text for word in words] == [" " + word["word"] for word in expected]
    for word, offsets in zip(words, expected, strict=True):
        assert word.start_seconds == pytest.approx(offsets["start_offset"] * 320 / RATE, abs=1e-3)
        assert word.end_seconds == pytest.approx(offsets["end_offset"] * 320 / RATE, abs=1e-3)
        assert 0 < word.probability <= 1
    assert found.segments[0].start_seconds == words[0].start_seconds
    assert found.segments[-1].end_seconds == words[-1].end_seconds


def test_long_recordings_are_cut_into_windows(
    client: Client, reference: Reference, bundles: Path
) -> None:
    samples = np.concatenate([recording(name, RATE) for name in NAMES])
    spec = read_manifest(bundles / SHORT_WINDOWS / "1").audio
    assert spec is not None
    windows = split_windows(samples, spec)
    assert len(windows) > 3
    texts = [reference.text(samples[window.start : window.stop]) for window in windows]
    found = client.transcribe(SHORT_WINDOWS, wav(samples))
    assert found.text == " ".join(text for text in texts if text)
    pieces = list(client.transcribe_stream(SHORT_WINDOWS, wav(samples)))
    assert len([piece for piece in pieces if piece.segments]) > 3
    assert "".join(x.text for piece in pieces for x in piece.segments).strip() == found.text
    starts = [segment.start_seconds for segment in found.segments]
    assert starts == sorted(starts)


def test_a_recording_shorter_than_a_frame_is_read(client: Client) -> None:
    samples = recording("austen-2", RATE)[8000:8100]
    found = client.transcribe(MODEL, wav(samples))
    assert found.usage.input_tokens == 1


def test_silence_has_no_text(client: Client) -> None:
    found = client.transcribe(MODEL, wav(np.zeros(RATE, np.int16)))
    assert (found.text, found.segments) == ("", ())


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"translate": True}, "translate"),
        ({"prompt": "Names"}, "prompt"),
        ({"temperature": 0.5}, "temperature"),
        ({"beam_size": 2}, "beam_size"),
        ({"language": "de"}, "language"),
    ],
)
def test_options_of_other_models_are_refused(
    client: Client, options: dict[str, Any], field: str
) -> None:
    with pytest.raises(TriuneError) as caught:
        client.transcribe(MODEL, wav(recording("cards-4", RATE)), **options)
    assert [violation.field for violation in caught.value.violations] == [f"options.{field}"]


def test_memory_is_planned_for_the_convolutions(bundles: Path) -> None:
    manifest = read_manifest(bundles / MODEL / "1")
    base = msgspec.structs.replace(manifest.dimensions, hidden_size=768)
    config = ServerConfig(bundles=bundles, num_lanes=1, max_padded_tokens=1 << 20)
    assert max_padded_tokens(manifest, config) == 1499
    sized = msgspec.structs.replace(manifest, dimensions=base)
    plan = plan_memory(sized, 1499, 1499, config, 0, None)
    assert 0.96e9 < plan.working_bytes < 1.5e9


def test_texts_are_refused(client: Client) -> None:
    with pytest.raises(TriuneError, match="does not answer Embed"):
        client.embed(MODEL, ["a text"])


def test_http_and_the_command_line_have_the_same_text(
    server: ServerProcess, reference: Reference, tmp_path: Path
) -> None:
    samples = recording("austen-2", RATE)
    expected, file = reference.text(samples), wav(samples)
    with httpx2.Client(base_url=server.http_url, timeout=60) as http:
        answer = http.post(
            "/v1/audio/transcriptions",
            data={"model": MODEL, "language": "en", "temperature": "0"},
            files={"file": ("a.wav", file)},
        )
        assert answer.json()["text"] == expected
    with InferenceClient(model=f"{server.http_url}/{MODEL}") as hub:
        assert hub.automatic_speech_recognition(file).text == expected
    path = tmp_path / "a.wav"
    path.write_bytes(file)
    arguments = ["transcribe", "--model", MODEL, str(path), "--json"]
    printed = subprocess.run(
        [sys.executable, "-m", "client", "--target", server.target, *arguments],
        check=True,
        capture_output=True,
    )
    assert json.loads(printed.stdout)["outputs"][0]["text"] == expected
