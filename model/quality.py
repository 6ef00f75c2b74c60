"""Task quality of a bundle on held-out examples: ``quality.json``. Imports no torch."""

import msgspec

from model.bundle import Task
from model.graph_spec import LargeCount, Record

QUALITY_FILE = "quality.json"


class Measurement(Record, frozen=True, kw_only=True):
    """The metrics of one task on one held-out set.

    Attributes:
        dataset: the name of the held-out set.
        sha256: the hash of its file (JSON lines of :mod:`model.examples`).
        decoding: how outputs were generated; empty for an encoder.
        metrics: those of the bundle's graphs. BLEU and chrF are in percent; accuracy, F1, exact
            match and character error rate are shares.
        fp32_metrics: those of the fp32 graphs.
    """

    task: Task
    dataset: str
    sha256: str
    num_examples: LargeCount
    decoding: str = ""
    metrics: dict[str, float]
    fp32_metrics: dict[str, float]


class Quality(Record, frozen=True, kw_only=True):
    """``quality.json``."""

    measurements: tuple[Measurement, ...] = msgspec.field(default=())
