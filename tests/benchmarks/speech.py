"""Whisper base through the server, beside faster-whisper and OpenVINO GenAI, as JSON.

    python -m tests.benchmarks.speech --json loadtest/results/speech.json

All take turns at the same recordings: people who read *Sense and Sensibility*, alone and eight at
once, and a long one with names of cards too. Ours are WAV files that clients send by gRPC; the
peers read them from disk in their own process. All decode greedily with timestamps. ``--openvino``
is a folder that ``optimum-cli export openvino --task automatic-speech-recognition-with-past
--weight-format int8`` made in the environment of ``loadtest compare``, from the model as
``transformers`` saves it.
"""

import itertools
import json
import re
import tempfile
import time
import wave
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer

from client.sync import Client
from export.bundle_writer import write_bundle
from export.sources import DEFAULT_SOURCES, load_checkpoint
from export.speech import CARDS, SENTENCES, recording
from loadtest.compare.candidates import ROOT
from loadtest.compare.environments import FASTER_WHISPER, OPENVINO
from loadtest.compare.prepare import prepare
from loadtest.compare.worker import Worker
from loadtest.machine import machine
from model.bundle import Precision
from model.bundle_files import read_parity
from tests.serving import server_process

MODEL, SAMPLE_RATE = "whisper", 16_000
PRECISIONS = (Precision.FP32, Precision.INT8)
CALL_SECONDS = 600.0
NUM_TOGETHER, NUM_REPEATS = 8, 6
PAUSE_SECONDS = 0.5
PEERS = ROOT / "build" / "peers"


@dataclass(frozen=True)
class Spoken:
    """A recording on disk, and what is said in it."""

    path: Path
    seconds: float
    text: str


Run = Callable[[Sequence[Spoken]], list[str]]


def speak(path: Path, names: Sequence[str]) -> Spoken:
    """Writes the recordings ``names`` one after another, with pauses."""
    pause = np.zeros(round(PAUSE_SECONDS * SAMPLE_RATE), np.int16)
    parts = [part for name in names for part in (recording(name, SAMPLE_RATE), pause)]
    samples = np.concatenate(parts)
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, SAMPLE_RATE, len(samples), "NONE", ""))
        file.writeframes(samples.tobytes())
    texts = SENTENCES | CARDS
    return Spoken(path, len(samples) / SAMPLE_RATE, "".join(texts[name] for name in names))


def word_errors(said: str, heard: str) -> float:
    """The word error rate: edits of words to the number of words that were said."""
    expected, actual = (re.sub(r"[^a-z' ]", " ", text.lower()).split() for text in (said, heard))
    costs = list(range(len(actual) + 1))
    for row, word in enumerate(expected, 1):
        diagonal, costs[0] = costs[0], row
        for column, other in enumerate(actual, 1):
            change = diagonal + (word != other)
            diagonal = costs[column]
            costs[column] = min(diagonal + 1, costs[column - 1] + 1, change)
    return costs[-1] / len(expected)


def workloads(folder: Path) -> dict[str, list[Spoken]]:
    """Recordings by the name of the work. No window of the long one repeats a phrase."""
    orders = itertools.islice(itertools.permutations(SENTENCES, 2), NUM_TOGETHER)
    pairs = [speak(folder / f"pair-{i}.wav", names) for i, names in enumerate(orders)]
    long = speak(folder / "long.wav", [*SENTENCES, *CARDS] * NUM_REPEATS)
    return {"one": pairs[:1], "eight": pairs, "long": [long]}


def ours(client: Client, model: str) -> Run:
    def transcribe(spoken: Spoken) -> str:
        return client.transcribe(model, spoken.path.read_bytes(), language="en").text

    def run(recordings: Sequence[Spoken]) -> list[str]:
        with ThreadPoolExecutor(len(recordings)) as pool:
            return list(pool.map(transcribe, recordings))

    return run


def peer(environment: str, module: str, load: dict[str, Any], **options: Any) -> Run:
    command = [str(PEERS / environment / "bin" / "python"), "-m", f"loadtest.peers.{module}"]
    worker = Worker(command, {}, ROOT / "build" / f"{module}.log", ROOT)
    worker.call({"op": "load", **load}, CALL_SECONDS)

    def run(recordings: Sequence[Spoken]) -> list[str]:
        files = [str(spoken.path) for spoken in recordings]
        reply = worker.call({"op": "run", "files": files, **options}, CALL_SECONDS)
        return list(reply["texts"])

    return run


def candidates(client: Client, folder: Path, openvino: Path | None, threads: int) -> dict[str, Run]:
    """All of them; peers in each configuration that may be their best."""
    found = {f"triune {precision}": ours(client, precision) for precision in PRECISIONS}
    load = {"model": str(folder), "precision": "int8", "threads": threads}
    name, module = FASTER_WHISPER.name, "faster_whisper_engine"
    for workers in dict.fromkeys((1, threads)):
        label = f"faster-whisper int8, {workers} workers"
        found[label] = peer(name, module, load | {"workers": workers}, batched=False)
    found["faster-whisper int8, batched"] = peer(name, module, load | {"workers": 1}, batched=True)
    if openvino is not None:
        load = {"model": str(openvino), "precision": "int8", "threads": threads}
        found["openvino-genai int8"] = peer(OPENVINO.name, "openvino_speech_engine", load)
    return found


def main(
    json_path: Annotated[Path | None, typer.Option("--json")] = None,
    openvino: Path | None = None,
    threads: int = 2,
    rounds: int = 5,
) -> None:
    """Prints and writes the medians of all rounds."""
    prepare([FASTER_WHISPER], [], ROOT / "build", print)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        checkpoint, fidelity = load_checkpoint(MODEL), {}
        for precision in PRECISIONS:
            path = write_bundle(
                checkpoint, scratch / "bundles", name=precision, precision=precision
            )
            fidelity[precision.value] = read_parity(path).min_cosine
        folder = stack.enter_context(DEFAULT_SOURCES[MODEL].whole())
        running = stack.enter_context(server_process(scratch / "bundles"))
        client = stack.enter_context(Client(running.target))
        runs = candidates(client, folder, openvino, threads)
        measured = {
            work: measure(runs, recordings, rounds)
            for work, recordings in workloads(scratch).items()
        }
    report = {
        "machine": machine(),
        "threads": threads,
        "min_cosine": fidelity,
        "works": measured,
        "missing": [] if openvino is not None else ["openvino-genai"],
    }
    text = json.dumps(report, indent=2)
    print(text)
    if json_path is not None:
        json_path.write_text(text + "\n", encoding="utf-8")


def measure(
    runs: dict[str, Run], recordings: Sequence[Spoken], rounds: int
) -> dict[str, dict[str, float]]:
    """Returns seconds of speech per second (medians) and word errors; all take turns."""
    seconds = sum(spoken.seconds for spoken in recordings)
    said = " ".join(spoken.text for spoken in recordings)
    rates: dict[str, list[float]] = {name: [] for name in runs}
    errors: dict[str, float] = {}
    for number in range(rounds + 1):
        for name, run in runs.items():
            started = time.perf_counter()
            texts = run(recordings)
            if number:  # the first round warms up
                rates[name].append(seconds / (time.perf_counter() - started))
            errors[name] = word_errors(said, " ".join(texts))
    return {
        name: {"times_real_time": round(median(found), 2), "word_errors": round(errors[name], 4)}
        for name, found in rates.items()
    }


if __name__ == "__main__":
    typer.run(main)
