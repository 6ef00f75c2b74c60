"""Warm-up: runs each graph of a model before the model is ready; on a GPU, at all sizes.

First runs on a GPU take longer: CUDA loads kernels at their first launch, ONNX Runtime's arenas
grow, and it times variants of mixture-of-experts products for each power of two of tokens. Sizes
that need too much device memory are logged.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import msgspec
import numpy as np

from model.bundle import BundleError, ImagePrompt, ImageSpec, Manifest
from model.config import Kind
from model.images import Pixels
from server.config import ServerConfig
from server.engine.decoding.options import GREEDY, Sampling
from server.engine.encoder_runner import TOKEN_OUTPUTS
from server.engine.lane import Worker
from server.engine.observer import Unobserved
from server.engine.requests.job import EncodingJob, GenerationJob, Job, PromptImage
from server.engine.scheduler import MAX_PADDING
from server.models.memory_budget import max_padded_tokens
from server.models.registry import ATTENTION_GRAPHS, Model, Replica
from server.models.workers import make_worker
from server.runtime.thread_switching import copies_of

log = logging.getLogger(__name__)

_MAX_LENGTH = 8
_MIN_PROMPT = 2  # a prompt of one token is not prefilled
# One configuration per sampling graph.
_SAMPLINGS = (GREEDY, Sampling(1.0), Sampling(1.0, top_k=1), Sampling(1.0, top_p=0.5))
_ID = 0  # every vocabulary has this token


def warm_up(model: Model, config: ServerConfig) -> None:
    """Runs a short job on each graph, with workers that are then discarded.

    On a device with separate memory, runs of all sizes follow (:func:`run_sizes`). Graphs that
    return attention weights are skipped, because they are loaded on first use.

    Raises:
        BundleError: a short run failed, or its output is not finite.
    """
    small = replace(config, num_slots=1, num_prefix_slots=0, cuda_graphs=False)
    image = model.manifest.image if model.manifest.image_prompt else None
    short = model.shortened(_MAX_LENGTH + (0 if image is None else image.num_tokens))
    for replica in (copy for loaded in model.replicas for copy in _copies(loaded)):
        worker = make_worker(short, replica, small, Unobserved())
        for job in _jobs(model, config):
            if failure := _failure_of(worker, [job]):
                raise BundleError(f"{model.manifest.label}: warm-up: {failure}")
        if config.has_separate_memory:
            _run_sizes(model, replica, config)


def run_sizes(most: int, longest: int) -> list[tuple[int, int]]:
    """Shapes ``(rows, tokens per row)`` of runs of up to ``most``, …, 4, 2 and 1 tokens.

    Args:
        most: maximum tokens of a run.
        longest: maximum tokens of a row.

    Returns:
        The shapes, largest first.
    """
    sizes = []
    for number in (most, *(1 << power for power in reversed(range((most - 1).bit_length())))):
        rows = -(-number // longest)
        sizes.append((rows, number // rows))
    return sizes


def _run_sizes(model: Model, replica: Replica, config: ServerConfig) -> None:
    """Runs prompts, sources or texts of all sizes. Failures are logged and do not end it."""
    if model.manifest.kind == Kind.ENCODER:
        _run_batches(model, replica, config, _sizes_of_texts(model, config))
        return
    _run_batches(model, replica, config, _sizes_of_prompts(model, config))
    spec = model.manifest.graphs["decode"]
    if _fixed_source(model.manifest) is None and not spec.chunk_within_source:
        # A decoder's last layer computes one token per row, so its size depends on the rows.
        num_rows = min(config.num_slots, config.max_batched_tokens // _MIN_PROMPT)
        sizes = [(rows, _MIN_PROMPT) for rows, _ in run_sizes(max(num_rows, 1), 1)]
        _run_batches(model, replica, config, sizes)


def _sizes_of_texts(model: Model, config: ServerConfig) -> list[tuple[int, int]]:
    manifest, longest = model.manifest, model.max_length
    most = max_padded_tokens(manifest, config)
    if manifest.image is not None:
        num_tokens = manifest.image.num_tokens + (longest if manifest.reads_texts else 0)
        return [(rows, longest) for rows, _ in run_sizes(max(most // num_tokens, 1), 1)]
    alone = [(1, longest)] if longest > most else []  # such a text runs alone
    return [*alone, *run_sizes(most, longest)]


def _sizes_of_prompts(model: Model, config: ServerConfig) -> list[tuple[int, int]]:
    longest = min(model.max_length, config.max_batched_tokens)
    num_tokens = _fixed_source(model.manifest)
    if num_tokens is not None:
        most = max(config.max_batched_tokens // num_tokens, 1)
        return [(rows, longest) for rows, _ in run_sizes(most, 1)]
    return run_sizes(int(config.max_batched_tokens * MAX_PADDING), longest)


def _fixed_source(manifest: Manifest) -> int | None:
    """The vectors of each source of speech or images of an encoder-decoder; None for texts."""
    spec = manifest.audio or manifest.image_source
    return None if spec is None else spec.num_tokens


def _run_batches(
    model: Model, replica: Replica, config: ServerConfig, sizes: Sequence[tuple[int, int]]
) -> None:
    """Runs prompts or texts, with a worker that is then discarded.

    ``sizes`` are the shapes of the runs: ``(rows, tokens per row)``.
    """
    manifest, length = model.manifest, max([_MIN_PROMPT, *(length for _, length in sizes)])
    model = model.shortened(length)
    scopes = map(str, count())  # separate cache scopes, so that prompts share no prefix
    batches = [
        [_prompt(model, length, next(scopes)) for _ in range(rows)] for rows, length in sizes
    ]
    config = replace(
        config,
        num_slots=max(rows for rows, _ in sizes),
        num_prefix_slots=0,
        cuda_graphs=False,
        max_batched_tokens=max(map(_num_tokens, batches)),
    )
    worker = make_worker(model, replica, config, Unobserved())
    for (rows, length), jobs in zip(sizes, batches, strict=True):
        # An encoder splits a large batch into two runs, so twice the jobs fill a run.
        is_large = 2 * _num_tokens(jobs) > max_padded_tokens(manifest, config)
        is_halved = manifest.kind == Kind.ENCODER and is_large
        if failure := _failure_of(worker, jobs * 2 if is_halved else jobs):
            values = (manifest.label, rows, length, failure)
            log.warning("%s: warm-up: a run of %d rows of %d tokens: %s", *values)


def _prompt(model: Model, num_tokens: int, scope: str) -> Job:
    """A job that ends after its prompt. Jobs of other scopes share no cached prefix with it."""
    job = _job(model, min(num_tokens, model.max_length))
    if isinstance(job, EncodingJob):
        return job
    return replace(job, max_new_tokens=0, cache_scope=scope)


def _num_tokens(jobs: Sequence[Job]) -> int:
    return sum(job.cost.num_tokens for job in jobs)


def _failure_of(worker: Worker[Any], jobs: Sequence[Job]) -> str:
    """Runs jobs together. Returns the first failure; empty if there is none."""
    failure = ""
    for id_, job in enumerate(jobs):
        worker.submit(id_, job)
    while worker.has_work:
        for update in worker.step():
            if update.completion is not None and not update.completion.is_success:
                failure = failure or update.completion.failure
    return failure


def _copies(replica: Replica) -> Iterator[Replica]:
    """Yields the replica with each copy of its graphs: those for one lane and for all cores."""
    copies = {
        name: copies_of(graph)
        for name, graph in replica.graphs.items()
        if name not in ATTENTION_GRAPHS
    }
    for index in range(max(map(len, copies.values()))):
        graphs = {name: some[min(index, len(some) - 1)] for name, some in copies.items()}
        yield replace(replica, graphs=graphs)


def _jobs(model: Model, config: ServerConfig) -> list[Job]:
    job, adapters = _job(model, _MIN_PROMPT), range(len(model.manifest.adapters or ()) + 1)
    if isinstance(job, EncodingJob):
        outputs = model.manifest.graphs["encode"].outputs
        names = tuple(tensor.name for tensor in outputs if tensor.name in TOKEN_OUTPUTS)
        job = msgspec.structs.replace(job, token_outputs=names)
        return [msgspec.structs.replace(job, adapter=adapter) for adapter in adapters]
    image = model.manifest.image
    if image is not None and image.prompt is not None:
        return [job, _with_image(job, image, image.prompt)]
    if config.samples_on_device:
        return [replace(job, sampling=sampling) for sampling in _SAMPLINGS]
    return [replace(job, adapter=adapter) for adapter in adapters]


def _with_image(job: GenerationJob, image: ImageSpec, prompt: ImagePrompt) -> GenerationJob:
    """``job`` with a black image after its first token."""
    first, *rest = job.prompt
    tokens = (first, *[prompt.token] * image.num_tokens, *rest)
    placed = PromptImage(1, image.num_tokens, _black(image), -1)
    return replace(job, prompt=tokens, images=(placed,))


def _job(model: Model, num_tokens: int) -> Job:
    """A short job, whose text, prompt or source has ``num_tokens`` tokens."""
    manifest, tokens = model.manifest, (_ID,) * num_tokens
    if manifest.kind == Kind.ENCODER:
        spec = manifest.graphs["encode"]
        image, audio = manifest.image, manifest.audio
        if audio is not None:
            samples = np.zeros(audio.frame_size or audio.num_samples, np.int16)
            return EncodingJob((), samples=samples, num_audio_tokens=audio.tokens_of(len(samples)))
        has_positions = any(tensor.name == "logit_positions" for tensor in spec.inputs)
        return EncodingJob(
            tokens if manifest.reads_texts else (),
            image=None if image is None else _black(image),
            num_image_tokens=0 if image is None else image.num_tokens,
            logit_positions=(0,) if has_positions else (),
            word_positions=tuple(range(num_tokens)) if manifest.span_tagging else (),
            label_positions=(0,) if manifest.span_tagging else (),
        )
    if manifest.audio is not None:
        samples = np.zeros(manifest.audio.num_samples, np.int16)
        size = manifest.audio.num_tokens
        return GenerationJob(tokens, 2, samples=samples, num_audio_tokens=size)
    if (image := manifest.image_source) is not None:
        return GenerationJob(tokens, 2, image=_black(image), num_image_tokens=image.num_tokens)
    source = tokens if manifest.kind == Kind.ENCODER_DECODER else ()
    return GenerationJob(tokens, 2, source=source)


def _black(spec: ImageSpec) -> Pixels:
    return np.zeros((spec.height, spec.width, spec.num_channels), np.uint8)
