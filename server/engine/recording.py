"""Records a worker's decode runs as CUDA graphs when it starts."""

import logging
from typing import NamedTuple

from server.engine.model_runner import ModelRunner

log = logging.getLogger(__name__)


class RecordedRuns(NamedTuple):
    """How many sizes of runs are recorded, and the device memory that they take, in bytes."""

    num_graphs: int = 0
    num_bytes: int = 0


def record_runs(runner: ModelRunner, model: str) -> RecordedRuns:
    """Records runs of the sizes of ``runner.buckets``. If that fails, runs are not padded.

    ``model``: its name, for the log.
    """
    if runner.buckets is None:
        return RecordedRuns()
    before = runner.cache.free_bytes
    try:
        num_graphs = runner.record()
    except Exception:
        log.exception("%s: recording decode runs failed; they are not padded", model)
        runner.buckets = None
        return RecordedRuns()
    after = runner.cache.free_bytes
    num_bytes = 0 if before is None or after is None else max(before - after, 0)
    counts = (num_graphs, len(runner.buckets), num_bytes >> 20)
    log.info("%s: %d of %d sizes of decode runs are recorded, in %d MiB", model, *counts)
    return RecordedRuns(num_graphs, num_bytes)
