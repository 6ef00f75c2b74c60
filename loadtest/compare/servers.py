"""Which servers are measured, how each is started, and by which protocol it is asked.

Words in braces are filled in: ``python`` and ``bin`` of its environment, ``model``, ``port``,
``threads``, ``clients``, and ``context``, the tokens that so many need room for. A command that
holds the last two is started anew for each number of clients.
"""

import ctypes.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from loadtest.compare.contestants import bundles_folder
from loadtest.compare.environments import (
    COMPLETE_FILE,
    CTRANSLATE2,
    INFINITY,
    LLAMA_SERVER,
    PYTRITON,
    VLLM,
    Environment,
    require,
)
from loadtest.machine import instructions
from loadtest.tasks import Task

ROW_TOKENS = 640
"""Room for the longest prompt and its answer."""


class Protocol(StrEnum):
    """How a server is asked; ``senders.py`` has one for each."""

    TRIUNE = "triune"
    LINES = "lines"  # JSON by gRPC: loadtest/peers/ctranslate2_server.py
    LLAMA = "llama"
    COMPLETIONS = "completions"  # OpenAI's
    EMBEDDINGS = "embeddings"  # OpenAI's
    TRITON = "triton"


@dataclass(frozen=True, kw_only=True, slots=True)
class Server:
    """A server at one task.

    Args:
        model: below the folder of prepared models.
        layouts: by name, what is added to the command. The best for each load counts.
        health: path that answers 200 once it serves; empty for gRPC.
        preloads: shared libraries that are loaded first, if they are there: names as the
            linker knows them, or patterns below the environment.
        start_seconds: about how long it takes until it serves.
        compiles: what it serves with, when it is started for the first time; for minutes.
    """

    name: str
    protocol: Protocol
    command: tuple[str, ...]
    model: str
    layouts: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {"": ()})
    health: str = ""
    environment: Environment | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    preloads: tuple[str, ...] = ()
    start_seconds: float = 5.0
    compiles: bool = False

    def filled(
        self, layout: str, *, port: int, clients: int, threads: int, places: "ServerPlaces"
    ) -> list[str]:
        """The command. Raises ``LookupError``, with the reason, if something is not there."""
        words = {
            "model": str(require(places.models / self.model)),
            "port": port,
            "clients": clients,
            "context": clients * ROW_TOKENS,
            "threads": threads,
            **self._interpreter(places.environments),
        }
        return [part.format(**words) for part in (*self.command, *self.layouts[layout])]

    @property
    def is_for_clients(self) -> bool:
        """Whether its command depends on their number."""
        return any("{clients}" in part for part in self.command)

    @property
    def model_name(self) -> str:
        """Of our own server: the bundle's."""
        return Path(self.model).parent.name

    def environment_variables(self, threads: int, environments: Path) -> dict[str, str]:
        words = {"threads": threads, "cache": environments / "cache"}
        found = {name: value.format(**words) for name, value in self.variables.items()}
        libraries = [path for name in self.preloads for path in self._library(name, environments)]
        if libraries:
            found["LD_PRELOAD"] = ":".join(libraries)
        return found

    def _interpreter(self, environments: Path) -> dict[str, str]:
        if self.environment is None:
            return {"python": sys.executable, "bin": str(Path(sys.executable).parent)}
        require(environments / self.environment.name / COMPLETE_FILE)
        python = self.environment.python(environments)
        return {"python": str(python), "bin": str(python.parent)}

    def _library(self, name: str, environments: Path) -> list[str]:
        if "*" in name and self.environment is not None:
            return [str(path) for path in (environments / self.environment.name).glob(name)][:1]
        found = ctypes.util.find_library(name)
        return [found] if found else []


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerPlaces:
    """Where environments and models lie."""

    environments: Path
    models: Path


_BUNDLES = {
    Task.GENERATE: "smollm2",
    Task.TRANSLATE: "transformer-base",
    Task.EMBED: "minilm",
}
# Beams need rows, translations are short.
_OPTIONS: dict[Task, dict[str, tuple[str, ...]]] = {
    Task.GENERATE: {"": ()},
    Task.TRANSLATE: {"": ("--slots", "128", "--max-length", "256")},
    Task.EMBED: {"": ()},
}
OURS = "triune"


def server_of(task: Task, precision: str) -> Server:
    """Our own, as ``python -m server`` starts it."""
    return Server(
        name=f"{OURS} {precision}",
        protocol=Protocol.TRIUNE,
        command=(
            *("{python}", "-m", "server", "--bundles", "{model}/../.."),
            *("--listen", "127.0.0.1:{port}", "--metrics", "127.0.0.1:0"),
            *("--threads", "{threads}"),
        ),
        layouts=_OPTIONS[task],
        model=f"{bundles_folder(Path()).name}/{precision}/{_BUNDLES[task]}/1",
    )


def tokenizer_of(task: Task, precision: str, models: Path) -> Path:
    """Of our bundle: what cuts the texts that everybody is sent.

    Raises ``FileNotFoundError`` if there is none.
    """
    try:
        return require(models / server_of(task, precision).model) / "tokenizer.json"
    except LookupError as error:
        raise FileNotFoundError(str(error)) from error


def _vllm(model: str, *options: str, protocol: Protocol, layouts: tuple[str, ...]) -> Server:
    return Server(
        name="vllm",
        protocol=protocol,
        command=(
            *("{python}", "-m", "vllm.entrypoints.openai.api_server", "--model", "{model}"),
            *("--host", "127.0.0.1", "--port", "{port}"),
            *("--served-model-name", "model", "--disable-uvicorn-access-log", *options),
        ),
        layouts={name: ("--dtype", name) for name in layouts},
        health="/health",
        model=model,
        environment=VLLM,
        variables={
            "OMP_NUM_THREADS": "{threads}",
            "VLLM_CPU_KVCACHE_SPACE": "2",
            "VLLM_CPU_OMP_THREADS_BIND": "auto",
            "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CACHE_ROOT": "{cache}/vllm",
            # What it saves it cannot load again; what inductor saves it can.
            "VLLM_USE_AOT_COMPILE": "0",
            "TORCHINDUCTOR_CACHE_DIR": "{cache}/inductor",
            "DO_NOT_TRACK": "1",
            "HF_HUB_OFFLINE": "1",
        },
        preloads=("tcmalloc_minimal", "lib/libiomp5.so*"),
        start_seconds=60.0,
        compiles=True,
    )


def _ctranslate2(workers: str, threads: str) -> tuple[str, ...]:
    return ("--workers", workers, "--threads", threads)


SERVER_PEERS: dict[Task, tuple[Server, ...]] = {
    Task.GENERATE: (
        Server(
            name="llama-server Q8_0",
            protocol=Protocol.LLAMA,
            command=(
                *("{python}", "-m", "loadtest.peers.llama_server", "--model", "{model}"),
                *("--host", "127.0.0.1", "--port", "{port}", "--parallel", "{clients}"),
                *("--threads", "{threads}", "--threads-batch", "{threads}"),
                *("--ctx-size", "{context}", "--no-webui"),
            ),
            health="/health",
            model="gguf/smollm2-q8_0.gguf",
            environment=LLAMA_SERVER,
        ),
        _vllm(
            "hugging_face/smollm2",
            *("--max-num-seqs", "64", "--max-model-len", "1024"),
            protocol=Protocol.COMPLETIONS,
            # oneDNN has no products in bfloat16 for processors without AVX-512: only a reference.
            layouts=("float32", "bfloat16") if "avx512f" in instructions() else ("float32",),
        ),
    ),
    Task.TRANSLATE: (
        Server(
            name="ctranslate2 grpc.aio",
            protocol=Protocol.LINES,
            command=(
                *("{python}", "-m", "loadtest.peers.ctranslate2_server"),
                *("--model", "{model}", "--port", "{port}"),
            ),
            layouts={
                "2 workers of 1 thread": _ctranslate2("{threads}", "1"),
                "1 worker of 2 threads": _ctranslate2("1", "{threads}"),
                "1 worker of 1 thread": _ctranslate2("1", "1"),
            },
            model="ctranslate2/transformer-base",
            environment=CTRANSLATE2,
        ),
    ),
    Task.EMBED: (
        Server(
            name="infinity",
            protocol=Protocol.EMBEDDINGS,
            command=(
                *(
                    "{python}",
                    "-m",
                    "loadtest.peers.infinity_server",
                    "v2",
                    "--model-id",
                    "{model}",
                ),
                *("--served-model-name", "model", "--engine", "optimum", "--device", "cpu"),
                # Its own choice is the first token's vector.
                *("--pooling-method", "mean", "--no-model-warmup", "--batch-size", "32"),
                *("--host", "127.0.0.1", "--port", "{port}", "--url-prefix", "/v1"),
                *("--log-level", "warning"),
            ),
            health="/health",
            model="onnx/minilm",
            environment=INFINITY,
            variables={
                "INFINITY_ANONYMOUS_USAGE_STATS": "0",
                "HF_HUB_OFFLINE": "1",
                "OMP_NUM_THREADS": "{threads}",
            },
        ),
        _vllm(
            "onnx/minilm",
            *("--runner", "pooling", "--max-num-seqs", "64"),
            protocol=Protocol.EMBEDDINGS,
            layouts=("float32",),
        ),
        Server(
            name="triton",
            protocol=Protocol.TRITON,
            command=(
                *("{python}", "-m", "loadtest.peers.pytriton_server", "--model", "{model}"),
                *("--port", "{port}", "--threads", "{threads}"),
            ),
            health="/v2/models/model/ready",
            model="onnx/minilm",
            environment=PYTRITON,
        ),
    ),
}
