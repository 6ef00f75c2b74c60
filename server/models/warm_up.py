"""Warm-up: runs each graph of a model once before the model is ready."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from model.bundle import BundleError
from model.config import Kind
from server.config import ServerConfig
from server.engine.decoding.options import GREEDY, Sampling
from server.engine.encoder_runner import TOKEN_VECTORS
from server.engine.observer import Unobserved
from server.engine.requests.job import EncodingJob, GenerationJob, Job
from server.models.registry import ATTENTION_GRAPHS, Model, Replica
from server.models.workers import make_worker
from server.runtime.thread_switching import copies_of

_MAX_LENGTH = 8
# One for each sampling graph.
_SAMPLINGS = (GREEDY, Sampling(1.0), Sampling(1.0, top_k=1), Sampling(1.0, top_p=0.5))
_ID = 0  # every vocabulary has this token


def warm_up(model: Model, config: ServerConfig) -> None:
    """Runs a short job on each graph, with workers that are then discarded.

    The graphs that return attention weights are left out: they are loaded on first use.

    Raises:
        BundleError: a run failed, or its output is not finite.
    """
    small = replace(config, num_slots=1, num_prefix_slots=0, cuda_graphs=False)
    short = replace(model, max_length=min(model.max_length, _MAX_LENGTH))
    for replica in (copy for loaded in model.replicas for copy in _copies(loaded)):
        worker = make_worker(short, replica, small, Unobserved())
        for id_, job in enumerate(_jobs(model, config)):
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
    job = _job(model)
    if isinstance(job, GenerationJob) and config.samples_on_device:
        return [replace(job, sampling=sampling) for sampling in _SAMPLINGS]
    return [job]


def _job(model: Model) -> Job:
    manifest = model.manifest
    if manifest.kind == Kind.ENCODER:
        spec = manifest.graphs["encode"]
        image, pixels = manifest.image, None
        if image is not None:
            pixels = np.zeros((image.height, image.width, image.num_channels), np.uint8)
        has_positions = any(tensor.name == "logit_positions" for tensor in spec.inputs)
        return EncodingJob(
            (_ID, _ID) if manifest.reads_texts else (),
            image=pixels,
            num_image_tokens=0 if image is None else image.num_tokens,
            logit_positions=(0,) if has_positions else (),
            wants_tokens=any(tensor.name == TOKEN_VECTORS for tensor in spec.outputs),
        )
    if manifest.audio is not None:
        samples = np.zeros(manifest.audio.num_samples, np.int16)
        size = manifest.audio.num_tokens
        return GenerationJob((_ID, _ID), 2, samples=samples, num_audio_tokens=size)
    source = (_ID, _ID) if manifest.kind == Kind.ENCODER_DECODER else ()
    return GenerationJob((_ID, _ID), 2, source=source)
