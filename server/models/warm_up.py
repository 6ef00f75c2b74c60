"""Warm-up: runs each graph of a model once before the model is ready, on a GPU at all sizes.

A GPU's first runs take longer: CUDA loads kernels when they are first launched, ONNX Runtime's
memory grows, and it times variants of a mixture of experts' products for each power of two of
tokens. Prompts that the device has no memory for are found here too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count

import msgspec
import numpy as np

from model.bundle import BundleError
from model.config import Kind
from server.config import ServerConfig
from server.engine.decoding.options import GREEDY, Sampling
from server.engine.encoder_runner import TOKEN_VECTORS
from server.engine.observer import Unobserved
from server.engine.requests.job import EncodingJob, GenerationJob, Job
from server.engine.scheduler import MAX_PADDING
from server.models.memory_budget import max_padded_tokens
from server.models.registry import ATTENTION_GRAPHS, Model, Replica
from server.models.workers import make_worker
from server.runtime.thread_switching import copies_of

_MAX_LENGTH = 8
_MIN_PROMPT = 2  # a prompt of one token is not prefilled
# One for each sampling graph.
_SAMPLINGS = (GREEDY, Sampling(1.0), Sampling(1.0, top_k=1), Sampling(1.0, top_p=0.5))
_ID = 0  # every vocabulary has this token


def warm_up(model: Model, config: ServerConfig) -> None:
    """Runs a short job on each graph, with workers that are then discarded.

    On a device with memory of its own, runs of all sizes follow (:func:`run_sizes`). The graphs
    that return attention weights are left out: they are loaded on first use.

    Raises:
        BundleError: a run failed, or its output is not finite.
    """
    small = replace(config, num_slots=1, num_prefix_slots=0, cuda_graphs=False)
    short = replace(model, max_length=min(model.max_length, _MAX_LENGTH))
    for replica in (copy for loaded in model.replicas for copy in _copies(loaded)):
        _run(short, replica, small, [[job] for job in _jobs(model, config)])
        if config.has_separate_memory:
            _run_sizes(model, replica, config)


def run_sizes(most: int, longest: int) -> list[tuple[int, int]]:
    """Rows, and tokens of each, of runs over ``most``, …, 4, 2 and 1 tokens, the largest first.

    Each run has more tokens than the next power of two below its number.

    Args:
        most: tokens of a run.
        longest: tokens of a row.
    """
    numbers = [most, *(1 << power for power in reversed(range((most - 1).bit_length())))]
    return [(rows, number // rows) for number in numbers if (rows := -(-number // longest))]


def _run_sizes(model: Model, replica: Replica, config: ServerConfig) -> None:
    """Runs prompts, sources or texts of all sizes that a step or a batch may have."""
    manifest, longest = model.manifest, model.max_length
    if manifest.image is not None:
        longest = manifest.image.num_tokens
    elif manifest.audio is not None:
        longest = manifest.audio.num_tokens
    if manifest.kind == Kind.ENCODER:
        groups = [run_sizes(max_padded_tokens(manifest, config), longest)]
    else:
        most = int(config.max_batched_tokens * MAX_PADDING)
        # A decoder's last layer computes one token of each row.
        num_rows = max(min(config.num_slots, most // _MIN_PROMPT), 1)
        short = [(rows, _MIN_PROMPT) for rows, _ in run_sizes(num_rows, 1)]
        groups = [run_sizes(most, longest), short]
    scopes = map(str, count())
    for sizes in groups:
        num_rows, length = map(max, zip(*sizes, strict=True))
        cut = replace(model, max_length=min(model.max_length, max(length, _MIN_PROMPT)))
        batches = [
            [_prompt(cut, length, next(scopes)) for _ in range(rows)] for rows, length in sizes
        ]
        # Twice as many tokens as a run has, so that no batch is split: sources and prompts count
        # together, and an encoder leaves half of what waits to the next run.
        most = 2 * max(rows * length for rows, length in sizes)
        limits = replace(
            config,
            num_slots=num_rows,
            num_prefix_slots=0,
            cuda_graphs=False,
            max_batched_tokens=most,
            max_padded_tokens=most,
        )
        _run(cut, replica, limits, batches)


def _run(
    model: Model, replica: Replica, config: ServerConfig, batches: Sequence[Sequence[Job]]
) -> None:
    """Runs the jobs of each batch together, one batch after the other."""
    worker = make_worker(model, replica, config, Unobserved())
    for jobs in batches:
        for id_, job in enumerate(jobs):
            worker.submit(id_, job)
        while worker.has_work:
            for update in worker.step():
                if update.completion is not None and not update.completion.is_success:
                    raise BundleError(
                        f"{model.manifest.label}: warm-up: {update.completion.failure}"
                    )


def _copies(replica: Replica) -> Iterator[Replica]:
    """The replica with each loaded copy of its graphs: for one lane's threads and for all cores."""
    copies = {
        name: copies_of(graph)
        for name, graph in replica.graphs.items()
        if name not in ATTENTION_GRAPHS
    }
    for index in range(max(map(len, copies.values()))):
        graphs = {name: some[min(index, len(some) - 1)] for name, some in copies.items()}
        yield replace(replica, graphs=graphs)


def _jobs(model: Model, config: ServerConfig) -> list[Job]:
    job = _job(model, _MIN_PROMPT)
    if isinstance(job, EncodingJob):
        outputs = model.manifest.graphs["encode"].outputs
        wants_tokens = any(tensor.name == TOKEN_VECTORS for tensor in outputs)
        return [msgspec.structs.replace(job, wants_tokens=wants_tokens)]
    if config.samples_on_device:
        return [replace(job, sampling=sampling) for sampling in _SAMPLINGS]
    return [job]


def _prompt(model: Model, num_tokens: int, scope: str) -> Job:
    """A job that is done after its prompt. Jobs of different scopes share no prefix."""
    job = _job(model, min(num_tokens, model.max_length))
    if isinstance(job, EncodingJob):
        return job
    return replace(job, max_new_tokens=0, cache_scope=scope)


def _job(model: Model, num_tokens: int) -> Job:
    """``num_tokens``: of a text, a prompt, and a source."""
    manifest, tokens = model.manifest, (_ID,) * num_tokens
    if manifest.kind == Kind.ENCODER:
        spec = manifest.graphs["encode"]
        image, pixels = manifest.image, None
        if image is not None:
            pixels = np.zeros((image.height, image.width, image.num_channels), np.uint8)
        has_positions = any(tensor.name == "logit_positions" for tensor in spec.inputs)
        return EncodingJob(
            tokens if manifest.reads_texts else (),
            image=pixels,
            num_image_tokens=0 if image is None else image.num_tokens,
            logit_positions=(0,) if has_positions else (),
        )
    if manifest.audio is not None:
        samples = np.zeros(manifest.audio.num_samples, np.int16)
        size = manifest.audio.num_tokens
        return GenerationJob(tokens, 2, samples=samples, num_audio_tokens=size)
    source = tokens if manifest.kind == Kind.ENCODER_DECODER else ()
    return GenerationJob(tokens, 2, source=source)
