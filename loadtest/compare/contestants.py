"""Who is measured: what each needs, how it is started, and which layouts it is given.

A peer is an entry of a table; what it needs is pinned here and lives in an environment of its
own, so that nothing of it is a dependency of the project.
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
    """What is compared: engines, servers as their clients see them, or ways to batch."""

    ENGINE = "engine"
    SERVER = "server"
    STATIC = "static"


@dataclass(frozen=True, kw_only=True, slots=True)
class Contestant:
    """One engine at one task.

    Args:
        module: that ``python -m`` runs.
        models: by precision, the model's path below the folder of prepared models.
        layouts: ways to use the cores, by name: what is added to the ``load`` question. The
            best for each work counts.
        environment: ``None`` is our own interpreter.
        variables: of the process's environment.
    """

    name: str
    module: str
    models: Mapping[str, str]
    layouts: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"": {}})
    environment: Environment | None = None
    variables: Mapping[str, str] = field(default_factory=dict)

    def command(self, environments: Path) -> list[str]:
        """Raises ``LookupError``, with the reason, if its environment is not there."""
        if self.environment is None:
            return [sys.executable, "-m", self.module]
        require(environments / self.environment.name / COMPLETE_FILE)
        return [str(self.environment.python(environments)), "-m", self.module]

    def model(self, precision: str, models: Path) -> Path:
        """Raises ``LookupError``, with the reason, if there is none."""
        if precision not in self.models:
            raise LookupError(f"has no {precision}")
        return require(models / self.models[precision])


def bundles_folder(models: Path) -> Path:
    """Of our own models: another one for each state of the code that makes them."""
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
    """Starts our engine as a process that speaks the lines of the peers."""
    return [sys.executable, "-m", "server.bench"]


def engine_of(task: Task) -> Contestant:
    """Our own engine, without gRPC."""
    bundle = {
        Task.GENERATE: "smollm2",
        Task.TRANSLATE: "transformer-base",
        Task.EMBED: "minilm",
    }[task]
    # Beams need rows, translations are short.
    room = {"slots": 128, "max_length": 128} if task == Task.TRANSLATE else {"max_length": 1024}
    return Contestant(
        name="triune",
        module="server.bench",
        models={
            p: f"{bundles_folder(Path()).name}/{p}/{bundle}/1" for p in ("fp32", "int8", "int4")
        },
        layouts={"": room},
    )


ENGINE_PEERS: dict[Task, tuple[Contestant, ...]] = {
    Task.GENERATE: (
        Contestant(
            name="ctranslate2",
            module="loadtest.peers.ctranslate2_engine",
            models=dict.fromkeys(("fp32", "int8"), "ctranslate2/smollm2"),
            layouts=_INTER,
            environment=CTRANSLATE2,
        ),
        Contestant(
            name="llama.cpp",
            module="loadtest.peers.llama_cpp_engine",
            models={
                "fp32": "gguf/smollm2-f32.gguf",
                "int8": "gguf/smollm2-q8_0.gguf",
                "int4": "gguf/smollm2-q4_1.gguf",
            },
            environment=LLAMA_CPP,
        ),
        Contestant(
            name="transformers",
            module="loadtest.peers.transformers_engine",
            models={"fp32": "hugging_face/smollm2"},
            environment=CTRANSLATE2,
        ),
        Contestant(
            name="onnxruntime-genai",
            module="loadtest.peers.genai_engine",
            models={p: f"genai/smollm2-{p}" for p in ("fp32", "int8", "int4")},
            environment=ONNXRUNTIME_GENAI,
        ),
    ),
    Task.TRANSLATE: (
        Contestant(
            name="ctranslate2",
            module="loadtest.peers.ctranslate2_engine",
            models=dict.fromkeys(("fp32", "int8"), "ctranslate2/transformer-base"),
            layouts=_INTER,
            environment=CTRANSLATE2,
        ),
    ),
    Task.EMBED: (
        Contestant(
            name="ctranslate2",
            module="loadtest.peers.ctranslate2_engine",
            models=dict.fromkeys(("fp32", "int8"), "ctranslate2/minilm"),
            layouts=_INTER,
            environment=CTRANSLATE2,
        ),
        Contestant(
            name="sentence-transformers",
            module="loadtest.peers.sentence_transformers_engine",
            models={"fp32": "hugging_face/minilm"},
            environment=SENTENCE_TRANSFORMERS,
        ),
        Contestant(
            name="pytorch",
            module="loadtest.peers.torch_encoder_engine",
            models={"fp32": "hugging_face/minilm"},
            environment=SENTENCE_TRANSFORMERS,
        ),
    ),
}

# Up to as many as our engine's lanes have room for.
_STATIC_ROWS = {Task.GENERATE: (32, 64), Task.TRANSLATE: (64, 128, 256)}
# Both read a batch when the one before has ended; as the field first had it, its rows all go on to
# the longest, and as our engine has it, a row that has ended costs nothing.
STATIC_PEERS: dict[Task, tuple[Contestant, ...]] = {
    task: tuple(
        dataclasses.replace(
            engine_of(task),
            name=name,
            layouts={
                f"{rows} rows": {**engine_of(task).layouts[""], "static": rows, "padded": padded}
                for rows in _STATIC_ROWS[task]
            },
        )
        for name, padded in (("static batches", True), ("static batches, rows leave", False))
    )
    for task in _STATIC_ROWS
}
