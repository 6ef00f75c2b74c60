"""Records a worker's runs as CUDA graphs when it starts."""

import logging
from collections.abc import Sized
from typing import NamedTuple, Protocol

log = logging.getLogger(__name__)


class RecordedRuns(NamedTuple):
    """The number of recorded sizes of runs, and the device memory that they take, in bytes."""

    num_graphs: int = 0
    num_bytes: int = 0


class Recorder(Protocol):
    """Pads runs to a few sizes, which a device can record.

    ``buckets``: the sizes; None if runs are not padded. ``free_bytes``: the device's free memory;
    None if the device does not report it.
    """

    @property
    def buckets(self) -> Sized | None: ...
    @property
    def free_bytes(self) -> int | None: ...
    def record(self) -> int:
        """Runs each size until the device has recorded it. Returns how many sizes it recorded."""
        ...

    def stop_padding(self) -> None:
        """Makes ``buckets`` None."""
        ...


def record_runs(runner: Recorder, model: str) -> RecordedRuns:
    """Records a run of each size of ``runner.buckets``. If that fails, runs are not padded.

    ``model``: the model's name, for the log.
    """
    if runner.buckets is None:
        return RecordedRuns()
    before, num_sizes = runner.free_bytes, len(runner.buckets)
    try:
        num_graphs = runner.record()
    except Exception:
        log.exception("%s: recording runs failed; they are not padded", model)
        runner.stop_padding()
        return RecordedRuns()
    after = runner.free_bytes
    num_bytes = 0 if before is None or after is None else max(before - after, 0)
    counts = (num_graphs, num_sizes, num_bytes >> 20)
    log.info("%s: %d of %d sizes of runs are recorded, in %d MiB", model, *counts)
    return RecordedRuns(num_graphs, num_bytes)
