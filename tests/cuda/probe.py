"""Serves a model on ONNX Runtime's CUDA provider with stand-ins of NVIDIA's libraries.

:func:`probe` starts ``python -m tests.cuda.probe BUNDLE REQUEST REPLY``: ONNX Runtime for GPUs and
for CPUs cannot be in one process.
"""

import gc
import json
import logging
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from model.bundle import PIXELS, SAMPLES, AttentionKind
from server.app import make_backends
from server.config import ServerConfig
from server.config_defaults import BATCHED_TOKENS, PADDED_TOKENS
from server.engine.decoding.options import AttentionSelection, Beams, LogprobOptions, Sampling
from server.engine.encoder_runner import TOKEN_VECTORS
from server.engine.lane import Worker
from server.engine.observer import Unobserved
from server.engine.requests.busy_lanes import BusyLanes
from server.engine.requests.job import EncodingJob, GenerationJob
from server.engine.requests.update import JobUpdate
from server.models.registry import Model, load_bundle
from server.models.warm_up import warm_up
from server.models.workers import make_workers
from server.runtime.contract import Backend
from server.runtime.cuda.attention_checks import AttentionKernel
from server.runtime.ort.loader import placements
from tests.cuda.libraries import ROOT, StandIn, environment

Call = list[str]
"""A CUDA call: name, then arguments. Launches have the name ``kernel``."""

NUM_SLOTS, MAX_LENGTH = 16, 256  # defaults
_LENGTHS = (20, 19, 18, 3, 11, 1, 7, 16, 2)  # lengths of jobs' inputs, repeated in turn
_FIRST_ID, _NUM_NEW_TOKENS, _MAX_STEPS = 3, 6, 60
# Options of the jobs, by kind.
_KINDS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"sampling": Sampling(temperature=0.8, top_k=40, top_p=0.9, seed=1)},
    "logprobs": {"logprob_options": LogprobOptions(top_logprobs=2)},
    "beams": {"beams": Beams(3)},
    "scores": {"logprob_options": LogprobOptions(prompt_logprobs=2)},
    "tokens": {"token_outputs": (TOKEN_VECTORS,)},
    "attention": {},
}
_ATTENTION = "attention"
_SELECTION = AttentionSelection(AttentionKind.SELF, layers=(0, 1), heads=(0, 1), average=False)


@dataclass(frozen=True)
class Request:
    """What to serve.

    Args:
        bundle: the folder of one version.
        config: fields of :class:`ServerConfig`.
        jobs: kinds of jobs; ``num_jobs`` of each kind run together.
        computes: whether kernels compute.
        attentions: kernels of encoders to accept as accurate; ignored if kernels compute, since
            results decide then.
        has_library: whether our library of CUDA operators exists.
        memory_bytes: device memory left after the model is loaded; None: plenty.
        warms_up: whether runs of all sizes come first, to allocate the memory for any run.
        num_loads: how often the model is loaded, served and removed.
        steps_between: steps between the arrivals of two jobs; 0: all arrive at once.
    """

    bundle: str
    config: dict[str, Any] = field(default_factory=dict)
    jobs: tuple[str, ...] = ("greedy",)
    num_jobs: int = 3
    computes: bool = False
    attentions: tuple[str, ...] = tuple(kernel.value for kernel in AttentionKernel)
    has_library: bool = True
    memory_bytes: int | None = None
    warms_up: bool = True
    num_loads: int = 1
    steps_between: int = 0


@dataclass(frozen=True)
class Output:
    """The result of a job.

    Args:
        tokens: the generated tokens.
        logprobs: one for each token, if the job asks for them.
        leads: each token's log-probability minus that of the second most likely token.
        vector: an encoder's output, for all tokens if the job asks for those.
        attention: attention weights, if the job asks for them.
        scores: log-probabilities of the prompt, if the job asks for them.
    """

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    leads: list[float] = field(default_factory=list)
    vector: list[float] = field(default_factory=list)
    attention: list[float] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Reply:
    """What was observed.

    Args:
        warnings: logged warnings.
        host_operators: operators of nodes that run on the host, by graph.
        num_graphs: number of recorded CUDA graphs.
        loaded, prepared: calls while the model was loaded, and while its worker prepared.
        ran: calls of the jobs, by kind.
        failures: failures of jobs, by kind.
        outputs: outputs of jobs, by kind.
        used_bytes: device memory in use after each removal of the model.
    """

    warnings: list[str]
    host_operators: dict[str, list[str]]
    num_graphs: int
    loaded: list[Call]
    prepared: list[Call]
    ran: dict[str, list[Call]]
    failures: dict[str, list[str]]
    outputs: dict[str, list[Output]]
    used_bytes: list[int] = field(default_factory=list)


def probe(request: Request, libraries: Path, onnxruntime: Path, folder: Path) -> Reply:
    """Serves a model in another process.

    Args:
        libraries: folder of :func:`tests.cuda.libraries.build_all`.
        onnxruntime: folder of :func:`tests.cuda.libraries.onnxruntime_for_gpus`.
        folder: where to write the request and the reply.
    """
    asked, told = folder / "request.json", folder / "reply.json"
    asked.write_text(json.dumps(vars(request)))
    needed = environment(libraries, onnxruntime, computes=request.computes)
    command = (sys.executable, "-m", "tests.cuda.probe", str(asked), str(told))
    done = subprocess.run(
        command, env={**os.environ, **needed}, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    fields = json.loads(told.read_text())
    outputs = {kind: [Output(**each) for each in all_] for kind, all_ in fields["outputs"].items()}
    return Reply(**{**fields, "outputs": outputs})


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def _serve(request: Request) -> Reply:
    warnings, runtime = _Warnings(), StandIn()
    logging.getLogger().addHandler(warnings)
    if not request.has_library:
        for module in list(sys.modules.values()):
            if "CUDA_LIBRARY" in vars(module):
                vars(module)["CUDA_LIBRARY"] = Path("none.so")
    directory = Path(request.bundle)
    fields: dict[str, Any] = {
        "devices": ("cuda",),
        "num_lanes": 1,
        "num_slots": NUM_SLOTS,
        "max_length": MAX_LENGTH,
        "max_batched_tokens": BATCHED_TOKENS["cuda"],
        "max_padded_tokens": PADDED_TOKENS["cuda"],
    }
    config = ServerConfig(bundles=directory.parent, **(fields | request.config))
    (backend,) = make_backends(config, BusyLanes())
    if not request.computes:
        backend._is_accurate = lambda kernel, *_: kernel.value in request.attentions  # type: ignore
    used_bytes = []
    for _ in range(request.num_loads):
        reply = _serve_once(request, config, backend, runtime, warnings)
        gc.collect()
        used_bytes.append(runtime.used_bytes)
    return replace(reply, used_bytes=used_bytes)


def _serve_once(
    request: Request,
    config: ServerConfig,
    backend: Backend,
    runtime: StandIn,
    warnings: _Warnings,
) -> Reply:
    directory = Path(request.bundle)
    model = load_bundle(directory, backend, config.max_length)
    if request.warms_up:
        warm_up(model, config)
    (worker,) = make_workers(model, config, Unobserved())
    loaded = runtime.log()
    worker.prepare()
    prepared = runtime.log()
    graphs: dict[str, Any] = {**model.replicas[0].graphs}
    if (steps := model.replicas[0].steps) is not None:
        graphs |= {"few": steps.few, "many": steps.many}
    if request.memory_bytes is not None:
        runtime.limit_memory(request.memory_bytes)
    ran, failures, outputs = {}, {}, {}
    for kind in request.jobs:
        runtime.reset()
        jobs = [_job(model, number, kind) for number in range(request.num_jobs)]
        outputs[kind], failures[kind] = _run(worker, jobs, request.steps_between)
        ran[kind] = runtime.log()
    return Reply(
        warnings.messages,
        {name: _host_operators(graph) for name, graph in graphs.items()},
        worker.stats.num_cuda_graphs,
        loaded,
        prepared,
        ran,
        failures,
        outputs,
    )


def _host_operators(graph: Any) -> list[str]:
    """The operators of a loaded graph's nodes that run on the host."""
    session = getattr(graph, "session", None)
    if session is None:
        return []
    return [node.operator for node in placements(session) if node.provider.startswith("CPU")]


def _job(model: Model, number: int, kind: str) -> Any:
    """A job with tokens, an image or speech, as the model takes."""
    manifest, options = model.manifest, _KINDS[kind]
    encode = manifest.graphs.get("encode")
    inputs = {} if encode is None else {tensor.name: tensor for tensor in encode.inputs}
    random = np.random.default_rng(number)
    length = _LENGTHS[number % len(_LENGTHS)]
    end = max(model.manifest.dimensions.vocabulary_size, _FIRST_ID + 1)
    tokens = tuple(random.integers(_FIRST_ID, end, length).tolist())
    if "decode" not in manifest.graphs:
        given: dict[str, Any] = {}
        if PIXELS in inputs:
            shape = tuple(int(size) for size in inputs[PIXELS].shape[1:])
            image = random.integers(0, 256, shape).astype(np.uint8)
            given = {"image": image, "num_image_tokens": 8}
        if "logit_positions" in inputs:
            given["logit_positions"] = (1, 2)
        if kind == _ATTENTION:
            given["attention"] = _SELECTION
        return EncodingJob(tokens if "token_ids" in inputs else (), **given, **options)
    start = manifest.special_tokens.decoder_start
    given = {}
    if SAMPLES in inputs:
        samples = random.integers(-(2**12), 2**12, int(inputs[SAMPLES].shape[1]))
        given = {"samples": samples.astype(np.int16)}
        given["num_audio_tokens"] = model.max_source_length
    elif PIXELS in inputs:
        shape = tuple(map(int, inputs[PIXELS].shape[1:]))
        given = {"image": random.integers(0, 256, shape).astype(np.uint8)}
        given["num_image_tokens"] = model.max_source_length
    elif encode is not None:
        given = {"source": tokens}
    if kind == _ATTENTION:
        given["attention"] = _SELECTION
    prompt = tokens if start is None else (start,)
    return GenerationJob(prompt, _NUM_NEW_TOKENS, **given, **options)


def _run(
    worker: Worker[Any], jobs: list[Any], steps_between: int
) -> tuple[list[Output], list[str]]:
    """Runs jobs. Returns their outputs, and the failures."""
    outputs, failures = [Output() for _ in jobs], []
    waiting = list(enumerate(jobs))
    for step in range(_MAX_STEPS):
        while waiting and waiting[0][0] * steps_between <= step:
            worker.submit(*waiting.pop(0))
        for update in worker.step(lambda: True):
            _add(update, outputs[update.id])
            if update.completion is not None and not update.completion.is_success:
                failures.append(update.completion.failure)
        if not (worker.has_work or waiting):
            return outputs, failures
    return outputs, [*failures, f"no end after {_MAX_STEPS} steps"]


def _add(update: JobUpdate, output: Output) -> None:
    """Adds an update to the output; of beams, only the first is kept."""
    if update.output == 0:
        output.tokens.extend(update.tokens)
        for found in update.logprobs:
            output.logprobs.append(found.logprob)
            (_, first), (_, second) = found.top
            output.leads.append(first - second)
    output.scores.extend(score.logprob for score in update.prompt.logprobs)
    attention = update.prompt.attention
    if update.encoded is not None:
        encoded, attention = update.encoded, update.encoded.attention
        vector = encoded.of_tokens.get(TOKEN_VECTORS, encoded.vector)
        output.vector.extend(vector.ravel().tolist())
    if attention is not None:
        output.attention.extend(attention.ravel().tolist())


if __name__ == "__main__":
    _, asked, told = sys.argv
    Path(told).write_text(
        json.dumps(asdict(_serve(Request(**json.loads(Path(asked).read_text())))))
    )
