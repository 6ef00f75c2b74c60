"""The servers that are measured: how each is started, and which protocol it speaks.

A command may contain placeholders in braces: ``python`` and ``bin`` of its environment,
``model``, ``port``, ``threads``, ``clients``, and ``context`` (cache tokens for that many
clients). A command with ``clients`` or ``context`` is restarted for each number of clients.
"""

import ctypes.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

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
from loadtest.compare.paths import Paths
from loadtest.machine import cpu_flags
from loadtest.tasks import Task

TOKENS_PER_CLIENT = 640
"""Cache tokens for the longest prompt and its output."""


class Protocol(StrEnum):
    """The protocol of a server; ``senders.py`` has a sender for each."""

    TRIUNE = "triune.v1 gRPC"
    OIP = "OIP gRPC"
    JSON_GRPC = "JSON gRPC"  # loadtest/peers/ctranslate2_server.py
    LLAMA = "llama.cpp HTTP"
    COMPLETIONS = "OpenAI completions HTTP"
    EMBEDDINGS = "OpenAI embeddings HTTP"
    TEI = "TEI HTTP"
    TRITON = "Triton HTTP"


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerCandidate:
    """A server at one task.

    Args:
        model: path below the folder of prepared models.
        layouts: ways to use the cores, by name: arguments to add to the command. The fastest
            for each load counts.
        health: HTTP path that returns 200 once the server is ready; empty for gRPC.
        preloads: shared libraries for ``LD_PRELOAD``, if present: names as the linker knows
            them, or glob patterns below the environment.
        start_seconds: approximate time until it is ready.
        compiles: whether the first start compiles for minutes; ``--prepare`` then does it.
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

    def format_command(
        self, layout: str, *, port: int, clients: int, threads: int, paths: Paths
    ) -> list[str]:
        """The command with its placeholders filled in.

        Raises ``LookupError`` with the reason if the model or the environment is missing.
        """
        values = {
            "model": str(require(paths.models / self.model)),
            "port": port,
            "clients": clients,
            "context": clients * TOKENS_PER_CLIENT,
            "threads": threads,
            **self._interpreter(paths.environments),
        }
        return [part.format(**values) for part in (*self.command, *self.layouts[layout])]

    @property
    def depends_on_clients(self) -> bool:
        """Whether the command depends on the number of clients."""
        return any("{clients}" in part for part in self.command)

    @property
    def model_name(self) -> str:
        """The name in requests: that of our bundle; peers serve theirs as ``model``."""
        return Path(self.model).parent.name if self.environment is None else "model"

    def environment_variables(self, threads: int, environments: Path) -> dict[str, str]:
        values = {"threads": threads, "cache": environments / "cache"}
        found = {name: value.format(**values) for name, value in self.variables.items()}
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


def _vllm(
    model: str, *options: str, protocol: Protocol, layouts: tuple[str, ...]
) -> ServerCandidate:
    return ServerCandidate(
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
            # vLLM fails to reload its own AOT cache; the inductor cache works.
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


SERVER_PEERS: dict[Task, tuple[ServerCandidate, ...]] = {
    Task.GENERATE: (
        ServerCandidate(
            name="llama-server Q8_0",
            protocol=Protocol.LLAMA,
            command=(
                *("{python}", "-m", "loadtest.peers.llama_server", "--model", "{model}"),
                *("--host", "127.0.0.1", "--port", "{port}", "--parallel", "{clients}"),
                *("--threads", "{threads}", "--threads-batch", "{threads}"),
                *("--ctx-size", "{context}", "--no-webui"),
            ),
            health="/health",
            model="gguf/smollm2-int8.gguf",
            environment=LLAMA_SERVER,
        ),
        _vllm(
            "hugging_face/smollm2",
            *("--max-num-seqs", "64", "--max-model-len", "1024"),
            protocol=Protocol.COMPLETIONS,
            # Without AVX-512, oneDNN has only a slow reference matmul for bfloat16.
            layouts=("float32", "bfloat16") if "avx512f" in cpu_flags() else ("float32",),
        ),
    ),
    Task.TRANSLATE: (
        ServerCandidate(
            name="ctranslate2 grpc.aio",
            protocol=Protocol.JSON_GRPC,
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
        ServerCandidate(
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
                # Its default takes the first token's vector.
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
        ServerCandidate(
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
