"""The engines that are measured: how each is started, its models and its layouts.

Each peer is a table entry. Its pinned requirements live in an environment of its own, so that
they are no dependencies of the project.
"""

import dataclasses
import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from loadtest.compare.environments import (
    COMPLETE_FILE,
    CTRANSLATE2,
    LLAMA_CPP,
    ONNXRUNTIME_GENAI,
    SENTENCE_TRANSFORMERS,
    Environment,
    require,
)
from loadtest.tasks import Task

ROOT = Path(__file__).resolve().parents[2]


COMPARED = (Task.GENERATE, Task.TRANSLATE, Task.EMBED)


class Level(StrEnum):
    """The level of a comparison: engines, servers with clients, or batching policies."""

    ENGINE = "engine"
    SERVER = "server"
    STATIC = "static"


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One engine at one task.

    Args:
        module: run by ``python -m``; it speaks the protocol of ``loadtest/peers/json_lines.py``.
        models: paths below the folder of prepared models, by precision.
        layouts: ways to use the cores, by name: fields to add to the ``load`` message. The
            fastest for each workload counts.
        environment: ``None`` is our own interpreter.
        variables: environment variables of the process.
    """

    name: str
    module: str
    models: Mapping[str, str]
    layouts: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"": {}})
    environment: Environment | None = None
    variables: Mapping[str, str] = field(default_factory=dict)

    def command(self, environments: Path) -> list[str]:
        """Raises ``LookupError`` with the reason if the environment is missing."""
        if self.environment is None:
            return [sys.executable, "-m", self.module]
        require(environments / self.environment.name / COMPLETE_FILE)
        return [str(self.environment.python(environments)), "-m", self.module]

    def model(self, precision: str, models: Path) -> Path:
        """Raises ``LookupError`` with the reason if the model is missing."""
        if precision not in self.models:
            raise LookupError(f"has no {precision}")
        return require(models / self.models[precision])


def bundles_folder(models: Path) -> Path:
    """Folder of our own bundles: a new one for each version of the exporting code."""
    digest = hashlib.sha256()
    for folder in ("model", "export"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            digest.update(file.read_bytes())
    return models / f"bundles-{digest.hexdigest()[:12]}"


_INTER: dict[str, dict[str, Any]] = {
    "1 worker": {"inter": 1},
    "a worker a core": {"inter": "threads"},
}


def engine_command() -> list[str]:
    """Command of our engine as a process with the peers' protocol."""
    return [sys.executable, "-m", "server.bench"]


def our_engine(task: Task) -> Candidate:
    """Our own engine, without a server around it."""
    bundle = {
        Task.GENERATE: "smollm2",
        Task.TRANSLATE: "transformer-base",
        Task.EMBED: "minilm",
    }[task]
    # Each beam needs a slot; translations are short.
    layout = {"slots": 128, "max_length": 128} if task == Task.TRANSLATE else {"max_length": 1024}
    return Candidate(
        name="triune",
        module="server.bench",
        models={
            p: f"{bundles_folder(Path()).name}/{p}/{bundle}/1" for p in ("fp32", "int8", "int4")
        },
        layouts={"": layout},
    )


ENGINE_PEERS: dict[Task, tuple[Candidate, ...]] = {
    Task.GENERATE: (
        Candidate(
            name="ctranslate2",
            module="loadtest.peers.ctranslate2_engine",
            models=dict.fromkeys(("fp32", "int8"), "ctranslate2/smollm2"),
            layouts=_INTER,
            environment=CTRANSLATE2,
        ),
        Candidate(
            name="llama.cpp",
            module="loadtest.peers.llama_cpp_engine",
            models={
                "fp32": "gguf/smollm2-f32.gguf",
                "int8": "gguf/smollm2-q8_0.gguf",
                "int4": "gguf/smollm2-q4_1.gguf",
            },
            environment=LLAMA_CPP,
        ),
        Candidate(
            name="transformers",
            module="loadtest.peers.transformers_engine",
            models={"fp32": "hugging_face/smollm2"},
            environment=CTRANSLATE2,
        ),
        Candidate(
            name="onnxruntime-genai",
            module="loadtest.peers.genai_engine",
            models={p: f"genai/smollm2-{p}" for p in ("fp32", "int8", "int4")},
            environment=ONNXRUNTIME_GENAI,
        ),
    ),
    Task.TRANSLATE: (
        Candidate(
            name="ctranslate2",
            module="loadtest.peers.ctranslate2_engine",
            models=dict.fromkeys(("fp32", "int8"), "ctranslate2/transformer-base"),
            layouts=_INTER,
            environment=CTRANSLATE2,
        ),
    ),
    Task.EMBED: (
        Candidate(
            name="ctranslate2",
            module="loadtest.peers.ctranslate2_engine",
            models=dict.fromkeys(("fp32", "int8"), "ctranslate2/minilm"),
            layouts=_INTER,
            environment=CTRANSLATE2,
        ),
        Candidate(
            name="sentence-transformers",
            module="loadtest.peers.sentence_transformers_engine",
            models={"fp32": "hugging_face/minilm"},
            environment=SENTENCE_TRANSFORMERS,
        ),
        Candidate(
            name="pytorch",
            module="loadtest.peers.torch_encoder_engine",
            models={"fp32": "hugging_face/minilm"},
            environment=SENTENCE_TRANSFORMERS,
        ),
    ),
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
