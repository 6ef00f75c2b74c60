"""The engines that are measured, ours and the peers'.

Each peer is a table entry. Its pinned requirements live in an environment of its own, so that
they are no dependencies of the project.
"""

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest.compare.candidates import Candidate, Level, bundles_folder
from loadtest.compare.decoders import SMOLLM2, Decoder
from loadtest.compare.environments import (
    BERGAMOT,
    CTRANSLATE2,
    LLAMA_CPP,
    ONNXRUNTIME_GENAI,
    OPENVINO,
    OPENVINO_MARIAN,
    SENTENCE_TRANSFORMERS,
)
from loadtest.tasks import Task

_PRECISIONS = ("fp32", "int8", "int4")
_WORKERS: dict[str, dict[str, Any]] = {
    "1 worker": {"workers": 1},
    "a worker a core": {"workers": "threads"},
}


def engine_command() -> list[str]:
    """Command of our engine as a process with the peers' protocol."""
    return [sys.executable, "-m", "server.bench"]


def our_engine(task: Task, level: Level = Level.ENGINE, decoder: Decoder = SMOLLM2) -> Candidate:
    """Our own engine, without a server around it. ``decoder``: what generates."""
    if level == Level.TEXT:
        return _ours("server.service_bench", "en-pt", {"slots": 64})
    bundle = {
        Task.GENERATE: decoder.name,
        Task.TRANSLATE: "transformer-base",
        Task.EMBED: "minilm",
    }[task]
    # Each beam needs a slot; translations are short.
    layout = {"slots": 128, "max_length": 128} if task == Task.TRANSLATE else {"max_length": 1024}
    return _ours("server.bench", bundle, layout)


def _ours(module: str, bundle: str, layout: Mapping[str, Any]) -> Candidate:
    folder = bundles_folder(Path()).name
    return Candidate(
        name="triune",
        module=module,
        models={precision: f"{folder}/{precision}/{bundle}/1" for precision in _PRECISIONS},
        layouts={"": layout},
    )


def _ctranslate2(model: str) -> Candidate:
    """It quantizes when it loads a model."""
    return Candidate(
        name="ctranslate2",
        module="loadtest.peers.ctranslate2_engine",
        models=dict.fromkeys(("fp32", "int8"), f"ctranslate2/{model}"),
        layouts=_WORKERS,
        environment=CTRANSLATE2,
    )


def _openvino(
    module: str,
    model: str,
    precisions: Sequence[str],
    layouts: Mapping[str, Mapping[str, Any]] | None = None,
) -> Candidate:
    return Candidate(
        name="openvino",
        module=f"loadtest.peers.openvino_{module}_engine",
        models={precision: f"openvino/{model}-{precision}" for precision in precisions},
        layouts=layouts or {"": {}},
        environment=OPENVINO,
    )


def _minilm_on_pytorch(name: str, module: str) -> Candidate:
    return Candidate(
        name=name,
        module=f"loadtest.peers.{module}_engine",
        models={"fp32": "hugging_face/minilm"},
        environment=SENTENCE_TRANSFORMERS,
    )


def _bergamot(name: str, *, shortlist: bool) -> Candidate:
    return Candidate(
        name=name,
        module="loadtest.peers.bergamot_engine",
        models={"int8": "firefox/en-pt"},
        layouts={
            layout: {**options, "shortlist": shortlist} for layout, options in _WORKERS.items()
        },
        environment=BERGAMOT,
    )


def _decoder_peers(name: str) -> tuple[Candidate, ...]:
    return (
        _ctranslate2(name),
        Candidate(
            name="llama.cpp",
            module="loadtest.peers.llama_cpp_engine",
            models={precision: f"gguf/{name}-{precision}.gguf" for precision in _PRECISIONS},
            environment=LLAMA_CPP,
        ),
        Candidate(
            name="transformers",
            module="loadtest.peers.transformers_engine",
            models={"fp32": f"hugging_face/{name}"},
            environment=CTRANSLATE2,
        ),
        Candidate(
            name="onnxruntime-genai",
            module="loadtest.peers.genai_engine",
            models={precision: f"genai/{name}-{precision}" for precision in _PRECISIONS},
            environment=ONNXRUNTIME_GENAI,
        ),
        _openvino("genai", name, _PRECISIONS),
    )


ENGINE_PEERS: dict[Task, tuple[Candidate, ...]] = {
    Task.TRANSLATE: (
        _ctranslate2("transformer-base"),
        dataclasses.replace(
            _openvino("translator", "transformer-base", ("int8",)), environment=OPENVINO_MARIAN
        ),
    ),
    Task.EMBED: (
        _ctranslate2("minilm"),
        _minilm_on_pytorch("sentence-transformers", "sentence_transformers"),
        _minilm_on_pytorch("pytorch", "torch_encoder"),
        _openvino(
            "encoder",
            "minilm",
            ("fp32", "int8"),
            {f"requests of {rows}": {"rows": rows} for rows in (8, 16, 32)},
        ),
    ),
}

TEXT_PEERS: dict[Task, tuple[Candidate, ...]] = {
    Task.TRANSLATE: (
        _bergamot("bergamot", shortlist=True),
        _bergamot("bergamot, all words", shortlist=False),
    )
}

# Batch sizes, up to the slots of our engine's lanes.
_STATIC_BATCHES = {Task.GENERATE: (32, 64), Task.TRANSLATE: (64, 128, 256)}
# Static batching on our own engine: a batch starts when the one before has ended. With padding, all
# sequences run until the longest has ended; without, a sequence that has ended costs nothing.
STATIC_PEERS: dict[Task, tuple[Candidate, ...]] = {
    task: tuple(
        dataclasses.replace(
            our_engine(task),
            name=name,
            layouts={
                f"{rows} rows": {**our_engine(task).layouts[""], "static": rows, "padded": padded}
                for rows in _STATIC_BATCHES[task]
            },
        )
        for name, padded in (("static batches", True), ("static batches, rows leave", False))
    )
    for task in _STATIC_BATCHES
}

_PEERS = {Level.ENGINE: ENGINE_PEERS, Level.TEXT: TEXT_PEERS, Level.STATIC: STATIC_PEERS}


def engine_peers(task: Task, level: Level, decoder: Decoder = SMOLLM2) -> Sequence[Candidate]:
    """The peers of our engine; none where the level does not apply to the task."""
    if (task, level) == (Task.GENERATE, Level.ENGINE):
        return _decoder_peers(decoder.name)
    return _PEERS[level].get(task, ())
