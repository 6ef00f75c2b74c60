"""Before a model is ready, each of its graphs runs once."""

from collections.abc import Iterator
from dataclasses import replace

from model.bundle import ATTEND, BundleError
from model.config import Kind
from server.config import ServerConfig
from server.engine.decoding.options import GREEDY, Sampling
from server.engine.encoder import TOKEN_VECTORS
from server.engine.observer import Unobserved
from server.engine.requests.sequence import EncodingJob, GenerationJob, Job
from server.models.registry import Model, Replica
from server.models.workers import make_worker
from server.runtime.thread_switching import sides

_MAX_LENGTH = 8
# One for each graph that chooses tokens.
_SAMPLINGS = (GREEDY, Sampling(1.0), Sampling(1.0, top_k=1), Sampling(1.0, top_p=0.5))
_ID = 0  # any token will do, and every vocabulary has this one


def warm_up(model: Model, config: ServerConfig) -> None:
    """Runs a short job on each graph, through workers that are thrown away.

    A graph that tells attention is left out: it is loaded when it is first asked for.

    Raises:
        BundleError: a run failed, or its output is not finite.
    """
    small = replace(config, num_slots=1, cuda_graphs=False)
    short = replace(model, max_length=min(model.max_length, _MAX_LENGTH))
    for replica in (side for whole in model.replicas for side in _sides(whole)):
        worker = make_worker(short, replica, small, Unobserved())
        for id_, job in enumerate(_jobs(model, config)):
            worker.submit(id_, job)
        while worker.has_work:
            for update in worker.step():
                if update.completion is not None and not update.completion.is_success:
                    raise BundleError(
                        f"{model.manifest.label}: warm-up: {update.completion.failure}"
                    )


def _sides(whole: Replica) -> Iterator[Replica]:
    """Its graphs, as one lane that is alone runs them and as one of several does."""
    graphs = {name: sides(graph) for name, graph in whole.graphs.items() if name != ATTEND}
    for index in range(max(map(len, graphs.values()))):
        side = {name: pair[min(index, len(pair) - 1)] for name, pair in graphs.items()}
        yield replace(whole, graphs=side)


def _jobs(model: Model, config: ServerConfig) -> list[Job]:
    job = _job(model)
    if isinstance(job, GenerationJob) and config.samples_on_device:
        return [replace(job, sampling=sampling) for sampling in _SAMPLINGS]
    return [job]


def _job(model: Model) -> Job:
    manifest = model.manifest
    if manifest.kind == Kind.ENCODER:
        spec = manifest.graphs["encode"]
        has_positions = any(tensor.name == "logit_positions" for tensor in spec.inputs)
        return EncodingJob(
            (_ID, _ID),
            logit_positions=(0,) if has_positions else (),
            wants_tokens=any(tensor.name == TOKEN_VECTORS for tensor in spec.outputs),
        )
    source = (_ID, _ID) if manifest.kind == Kind.ENCODER_DECODER else ()
    return GenerationJob((_ID, _ID), 2, source=source)
