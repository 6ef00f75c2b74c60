"""ViT-base through the server, beside ``transformers`` and OpenVINO: images per second, as JSON.

    python -m tests.benchmarks.images --json loadtest/results/images.json

The model has random weights. All take turns over the same number of images of 224 x 224 pixels.
Ours are PNG files that a client sends by gRPC; the peers' are arrays in memory.
OpenVINO runs in the environment that ``loadtest compare --task embed`` makes.
"""

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import torch
import typer
from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessorPil

from client.sync import Client
from export.bundle_writer import write_bundle
from export.sources import load_checkpoint
from loadtest.compare.candidates import ROOT
from loadtest.compare.worker import Worker
from loadtest.machine import machine
from model.bundle import Precision
from model.bundle_files import read_parity
from model.images import encode_png
from tests.serving import server_process

PRECISIONS = (Precision.FP32, Precision.INT8)
SIDE = 224
OPENVINO = ROOT / "build" / "peers" / "openvino" / "bin" / "python"
LOAD_SECONDS = 300.0

Run = Callable[[int], float]
"""Classifies so many images; returns the seconds that it took."""


def _checkpoint(folder: Path) -> Path:
    torch.manual_seed(0)
    config: Any = ViTConfig
    ViTForImageClassification(config(num_labels=1000)).save_pretrained(folder)
    ViTImageProcessorPil().save_pretrained(folder)
    return folder


def _ours(client: Client, name: str) -> Run:
    rng = np.random.default_rng(0)
    files = [encode_png(rng.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)) for _ in range(64)]

    def run(num_images: int) -> float:
        started = time.perf_counter()
        client.classify(name, files[:num_images], top_k=1)
        return time.perf_counter() - started

    return run


def _transformers(folder: Path) -> Run:
    model = ViTForImageClassification.from_pretrained(folder).eval()

    def run(num_images: int) -> float:
        pixels = torch.rand(num_images, 3, SIDE, SIDE)
        started = time.perf_counter()
        with torch.inference_mode():
            model(pixels)
        return time.perf_counter() - started

    return run


def _openvino(folder: Path, threads: int, streams: int) -> Run:
    command = [str(OPENVINO), "-m", "loadtest.peers.openvino_image_engine"]
    worker = Worker(command, {}, ROOT / "build" / "openvino-images.log", ROOT)
    load = {"op": "load", "model": str(folder), "precision": "fp32", "threads": threads}
    worker.call({**load, "streams": streams, "rows": 4}, LOAD_SECONDS)

    def run(num_images: int) -> float:
        reply = worker.call({"op": "run", "num_images": num_images}, LOAD_SECONDS)
        return float(reply["seconds"])

    return run


def main(
    json_path: Annotated[Path | None, typer.Option("--json")] = None,
    threads: int = 2,
    rounds: int = 7,
) -> None:
    """Prints and writes the medians of all rounds."""
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as scratch:
        folder, bundles = _checkpoint(Path(scratch) / "vit"), Path(scratch) / "bundles"
        checkpoint = load_checkpoint(str(folder))
        fidelity = {}
        for precision in PRECISIONS:
            path = write_bundle(checkpoint, bundles, name=precision.value, precision=precision)
            fidelity[precision.value] = read_parity(path).min_cosine
        with server_process(bundles) as running, Client(running.target) as client:
            candidates = {f"triune {p}": _ours(client, p.value) for p in PRECISIONS}
            candidates["transformers fp32"] = _transformers(folder)
            peers: dict[int, dict[str, Run]] = {1: {}, 16: {}}  # each in its best configuration
            if OPENVINO.exists():
                peers[1]["openvino fp32"] = _openvino(folder, threads, 1)
                peers[16]["openvino fp32"] = _openvino(folder, threads, threads)
            rates = {
                str(size): _rates(candidates | also, size, rounds) for size, also in peers.items()
            }
    report = {
        "machine": machine(),
        "threads": threads,
        "min_cosine": fidelity,
        "images_per_second": rates,
        "missing": [] if OPENVINO.exists() else ["openvino"],
    }
    text = json.dumps(report, indent=2)
    print(text)
    if json_path is not None:
        json_path.write_text(text + "\n", encoding="utf-8")


def _rates(candidates: dict[str, Run], size: int, rounds: int) -> dict[str, float]:
    """The median rate of each; they take turns."""
    rates: dict[str, list[float]] = {name: [] for name in candidates}
    for number in range(rounds + 1):
        for name, run in candidates.items():
            seconds = run(size)
            if number:  # the first round warms up
                rates[name].append(size / seconds)
    return {name: round(median(found), 2) for name, found in rates.items()}


if __name__ == "__main__":
    typer.run(main)
