"""The default model of speech in fp32: the tokens and timestamps of ``transformers``."""

import asyncio
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import GenerationConfig, WhisperFeatureExtractor

from export.speech import SENTENCES, recording
from model.bundle import Manifest
from model.bundle_files import read_manifest
from server.service.caller import Caller
from server.service.segments import TokenSegment, divide
from server.service.service import Service
from server.service.transcription_request import (
    TranscribeRequest,
    TranscribeResult,
    TranscriptionOptions,
)
from tests.bundles import ROOT
from tests.reference.whisper import whisper_by_transformers
from tests.server.in_process_service import service_context
from tests.server.transcription_reference import RATE, wav


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundles")
    command = [sys.executable, "-m", "export", "whisper", "--out", str(folder / "whisper")]
    subprocess.run([*command, "--precision", "fp32"], check=True, cwd=ROOT)
    return folder


def generation_config(manifest: Manifest) -> GenerationConfig:
    tokens, special = manifest.transcription, manifest.special_tokens
    assert tokens is not None
    return GenerationConfig(
        is_multilingual=True,
        lang_to_id={f"<|{name}|>": id_ for name, id_ in manifest.languages.items()},
        task_to_id={"transcribe": tokens.transcribe, "translate": tokens.translate},
        no_timestamps_token_id=tokens.no_timestamps,
        max_initial_timestamp_index=50,
        max_length=448,
        decoder_start_token_id=special.decoder_start,
        eos_token_id=special.eos[0],
        pad_token_id=special.eos[0],
        suppress_tokens=list(special.suppressed),
        begin_suppress_tokens=list(tokens.first_suppressed),
    )


def expected(name: str, manifest: Manifest) -> list[TokenSegment]:
    model = whisper_by_transformers()
    model.generation_config = generation_config(manifest)
    samples = recording(name, RATE)
    floats = samples.astype(np.float32) / 32768
    features = WhisperFeatureExtractor()(floats, sampling_rate=RATE, return_tensors="pt")
    with torch.no_grad():
        (ids,) = model.generate(
            features.input_features, language="en", task="transcribe", return_timestamps=True
        ).tolist()
    assert manifest.transcription is not None
    first, (eos,) = manifest.transcription.first_timestamp, manifest.special_tokens.eos
    kept = [id_ for id_ in ids if id_ < eos or id_ >= first]
    return divide(kept, manifest.transcription, len(samples) / RATE).segments


def test_segments_are_those_of_transformers(bundles: Path) -> None:
    options = TranscriptionOptions(language="en")
    requests = [
        TranscribeRequest(model="whisper", audio=wav(recording(name, RATE)), options=options)
        for name in SENTENCES
    ]

    async def run() -> list[TranscribeResult]:
        async with service_context(bundles, num_lanes=1, num_threads=2, num_slots=8) as context:
            service, caller = Service(context), Caller("", None)
            return await asyncio.gather(*(service.transcribe(one, caller) for one in requests))

    manifest = read_manifest(next((bundles / "whisper").iterdir()))
    for name, result in zip(SENTENCES, asyncio.run(run()), strict=True):
        segments = expected(name, manifest)
        assert [segment.token_ids for segment in result.segments] == [x for x, *_ in segments]
        times = [t for part in result.segments for t in (part.start_seconds, part.end_seconds)]
        assert times == pytest.approx([time for segment in segments for time in segment[1:]])
