"""Who is measured: what each needs, how it is started, and which layouts it is given.

A peer is an entry of a table; what it needs is pinned here and lives in an environment of its
own, so that nothing of it is a dependency of the project.
"""

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtest.tasks import Task

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """A virtual environment: its name below ``build/peers`` and what pip installs there."""

    name: str
    requirements: tuple[str, ...]

    def python(self, root: Path) -> Path:
        return root / self.name / "bin" / "python"


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


COMPLETE_FILE = "complete"
FAILURE_SUFFIX = ".failure.txt"


def require(path: Path) -> Path:
    """``path``. Raises ``LookupError`` if it is not there: why it could not be made."""
    if path.exists():
        return path
    for made in (path, path.parent):
        failure = made.with_name(made.name + FAILURE_SUFFIX)
        if failure.exists():
            raise LookupError(failure.read_text(encoding="utf-8").strip())
    raise LookupError(f"{path.name} is missing: run the comparison with --prepare")


def bundles_folder(models: Path) -> Path:
    """Of our own models: another one for each state of the code that makes them."""
    digest = hashlib.sha256()
    for folder in ("model", "export"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            digest.update(file.read_bytes())
    return models / f"bundles-{digest.hexdigest()[:12]}"


CTRANSLATE2 = Environment(
    name="ctranslate2",
    requirements=(
        "accelerate==1.15.0",
        "ctranslate2==4.8.5",
        "grpcio==1.85.1",
        "numpy==2.4.6",
        "safetensors==0.8.0",
        "torch==2.13.0",
        "transformers==5.23.0",
        "gguf==0.19.0",
        "sentencepiece==0.2.3",
    ),
)
LLAMA_CPP = Environment(name="llama-cpp", requirements=("llama-cpp-python==0.3.36",))

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
    ),
}
