"""Prometheus metrics. This is the only file that imports prometheus_client."""

import functools
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    generate_latest,
    make_asgi_app,
)
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from server.engine.observer import RunReport, WorkerStats
from server.errors import Code
from server.telemetry.histogram import Histogram
from server.telemetry.statistics import ModelStatistics, Total

# Calls that statistics() leaves out, because they run no model.
_LOOKUPS = frozenset({"GetModel"})
# Bounds in seconds: 0.5 ms to 60 s, about a factor of 2.2 apart.
SECONDS_BUCKETS = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1),
    *(0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
_HISTOGRAMS = ("request", "queue", "prefill", "decode", "run")
# Names of the samples that statistics() reads.
_STATISTICS = (
    *(f"triune_{name}_seconds_{part}" for name in _HISTOGRAMS for part in ("count", "sum")),
    "triune_requests_total",
    "triune_failed_request_seconds_total",
    "triune_last_request_timestamp_seconds",
)
# Metric name and documentation, by field of WorkerStats.
_WORKER_GAUGES = {
    "num_waiting": ("sequences_waiting", "Sequences and texts in the queue."),
    "num_running": ("sequences_running", "Sequences that hold a slot."),
    "num_slots": ("slots", "Slots: the most sequences that run at a time."),
    "num_cached_tokens": ("cache_tokens", "Tokens of running sequences in the cache."),
    "cache_capacity_tokens": ("cache_capacity_tokens", "Tokens that fit into the cache."),
    "num_cuda_graphs": ("cuda_graphs", "Sizes of runs recorded as CUDA graphs."),
    "cuda_graph_bytes": ("cuda_graph_bytes", "GPU memory of the recorded CUDA graphs."),
}
ROWS_BUCKETS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256)


class Metrics:
    """All metrics of one server. The number of label values is bounded by the registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = self._count("requests", "Finished calls.", "model", "method", "status")
        self._queue = self._seconds("queue", "From admission to the first model run.")
        self._prefill = self._seconds("prefill", "From the first model run to the first token.")
        self._decode = self._seconds("decode", "From the first token to the last.")
        self._total = self._seconds("request", "Whole calls.", "method")
        self._failed = self._count(
            "failed_request_seconds", "Whole calls that ended in an error.", "model"
        )
        self._last_call = functools.cache(
            Gauge(
                "triune_last_request_timestamp_seconds",
                "When the last call ended, in seconds since the Unix epoch.",
                ["model"],
                registry=self.registry,
            ).labels
        )
        self._first_token = self._seconds(
            "first_token", "From the arrival of the call to the first token."
        )
        self._inter_token = self._seconds(
            "inter_token", "Between consecutive tokens of a sequence."
        )
        self._tokens = self._count(
            "tokens",
            "Prompt (direction=in) and generated (direction=out) tokens.",
            "model",
            "direction",
        )
        self._reused = self._count(
            "reused_tokens", "Prompt tokens copied from the cache instead of prefilled.", "model"
        )
        self._drafts = self._count(
            "draft_tokens", "Tokens that speculative decoding drafted.", "model"
        )
        self._accepted = self._count(
            "accepted_tokens", "Drafted tokens that saved a run of the decoder.", "model"
        )
        self._worker_gauges = _WorkerGauges()
        self.registry.register(self._worker_gauges)
        self._run_rows = self._histograms(
            "triune_run_rows", "Batch size of a model run.", ROWS_BUCKETS, "model", "phase"
        )
        self._kernels = Gauge(
            "triune_native_kernels",
            "1: the server's own kernel runs on CPUs; 0: ONNX Runtime's operator.",
            ["kernel"],
            registry=self.registry,
        )
        self._memory = Gauge(
            "triune_memory_bytes",
            "Memory by part: weights and working (estimates), cache_reserved, cache_resident.",
            ["model", "part"],
            registry=self.registry,
        )
        self._resident = Gauge(
            "triune_process_resident_bytes",
            "Memory of the server's process that is in use.",
            registry=self.registry,
        )
        self._run_seconds = self._seconds("run", "Model runs.", "phase")
        self._step_seconds = self._seconds("step", "Steps of the engine: one or more runs.")

    def on_kernels(self, in_use: Mapping[str, bool]) -> None:
        """Reports which native kernels run, by name. Called once."""
        for kernel, is_used in in_use.items():
            self._kernels.labels(kernel).set(is_used)

    def asgi_app(self) -> Callable[..., Awaitable[None]]:
        """An ASGI application that serves the metrics at every path, in the format asked for."""
        app: Callable[..., Awaitable[None]] = make_asgi_app(self.registry)
        return app

    content_type = CONTENT_TYPE_LATEST

    def exposition(self) -> bytes:
        """All metrics in Prometheus's text format (:attr:`content_type`)."""
        return generate_latest(self.registry)

    def on_run(self, model: str, report: RunReport) -> None:
        num_runs = len(report.seconds)
        self._run_rows(model, report.phase).add_all([report.num_sequences] * num_runs)
        self._run_seconds(model, report.phase).add_all(report.seconds)
        if report.num_draft_tokens:
            self._drafts(model).inc(report.num_draft_tokens)
            self._accepted(model).inc(report.num_accepted_tokens)

    def on_step(self, model: str, seconds: float) -> None:
        self._step_seconds(model).add(seconds)

    def on_stats(self, model: str, lane: int, stats: WorkerStats) -> None:
        self._worker_gauges.latest[model, lane] = stats

    def on_memory(
        self, model: str, *, weights: int, cache_reserved: int, cache_resident: int, working: int
    ) -> None:
        """Reports the memory of a model, in bytes."""
        self._memory.labels(model, "weights").set(weights)
        self._memory.labels(model, "cache_reserved").set(cache_reserved)
        self._memory.labels(model, "cache_resident").set(cache_resident)
        self._memory.labels(model, "working").set(working)

    def on_process_memory(self, resident: int) -> None:
        """Reports the resident memory of this process, in bytes."""
        self._resident.set(resident)

    def forget(self, model: str) -> None:
        """Removes the gauges of an unloaded model. Its counters and histograms stay."""
        self._memory.remove_by_labels({"model": model})
        for key in list(self._worker_gauges.latest):
            if key[0] == model:
                del self._worker_gauges.latest[key]

    def on_request(self, model: str, method: str, status: str, seconds: float) -> None:
        """Counts a finished call. ``status`` is a value of ``server.errors.Code``."""
        self._requests(model, method, status).inc()
        self._total(model, method).add(seconds)
        self._last_call(model).set(time.time())
        if status != Code.OK:
            self._failed(model).inc(seconds)

    def statistics(self, model: str) -> ModelStatistics:
        """The totals of one model. Takes about a millisecond, because it reads the metrics."""
        totals: dict[str, float] = defaultdict(float)
        for family in self.registry.restricted_registry(_STATISTICS).collect():
            for sample in family.samples:
                labels = sample.labels
                if labels["model"] == model and labels.get("method") not in _LOOKUPS:
                    totals[sample.name] += sample.value
                    if labels.get("status") == Code.OK:
                        totals["succeeded"] += sample.value

        def total(name: str) -> Total:
            return Total(round(totals[f"{name}_count"]), totals[f"{name}_sum"])

        calls, prefill, decode = (
            total(f"triune_{name}_seconds") for name in ("request", "prefill", "decode")
        )
        failed_seconds = totals["triune_failed_request_seconds_total"]
        num_succeeded = round(totals["succeeded"])
        return ModelStatistics(
            succeeded=Total(num_succeeded, calls.seconds - failed_seconds),
            failed=Total(calls.count - num_succeeded, failed_seconds),
            queue=total("triune_queue_seconds"),
            compute=Total(prefill.count, prefill.seconds + decode.seconds),
            num_runs=total("triune_run_seconds").count,
            last_call=totals["triune_last_request_timestamp_seconds"],
        )

    def on_phases(
        self, model: str, queue_seconds: float, prefill_seconds: float, decode_seconds: float
    ) -> None:
        """Reports the phases of a finished sequence."""
        self._queue(model).add(queue_seconds)
        self._prefill(model).add(prefill_seconds)
        self._decode(model).add(decode_seconds)

    def on_tokens(
        self,
        model: str,
        num_input_tokens: int,
        num_output_tokens: int,
        num_reused_tokens: int = 0,
    ) -> None:
        """Counts tokens. ``num_reused_tokens`` is the number of input tokens from the cache."""
        self._tokens(model, "in").inc(num_input_tokens)
        self._tokens(model, "out").inc(num_output_tokens)
        self._reused(model).inc(num_reused_tokens)

    def on_first_token(self, model: str, seconds: float) -> None:
        self._first_token(model).add(seconds)

    def on_next_tokens(self, model: str, seconds: Sequence[float]) -> None:
        """Reports the inter-token times of several tokens, in seconds."""
        self._inter_token(model).add_all(seconds)

    def _count(self, name: str, documentation: str, *labels: str) -> Callable[..., Counter]:
        """A counter by label values. The lookup is cached: it costs more than the increment."""
        return functools.cache(
            Counter(f"triune_{name}_total", documentation, labels, registry=self.registry).labels
        )

    def _seconds(self, name: str, documentation: str, *labels: str) -> Callable[..., Histogram]:
        """A histogram of durations by label values."""
        name = f"triune_{name}_seconds"
        return self._histograms(name, documentation, SECONDS_BUCKETS, "model", *labels)

    def _histograms(
        self, name: str, documentation: str, bounds: Sequence[float], *labels: str
    ) -> Callable[..., Histogram]:
        """A histogram by label values."""
        made = _Histograms(name, documentation, bounds, labels)
        self.registry.register(made)
        return made.of


class _Histograms(Collector):
    """The histograms of a metric, one per combination of label values."""

    def __init__(
        self, name: str, documentation: str, bounds: Sequence[float], labels: Sequence[str]
    ) -> None:
        self._family = functools.partial(HistogramMetricFamily, name, documentation, labels=labels)
        self._bounds = bounds
        self._of: dict[tuple[str, ...], Histogram] = {}

    def of(self, *values: str) -> Histogram:
        """The histogram of these label values."""
        found = self._of.get(values)
        return self._of.setdefault(values, Histogram(self._bounds)) if found is None else found

    def describe(self) -> Iterator[HistogramMetricFamily]:
        yield self._family()

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = self._family()
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        for values, histogram in self._of.copy().items():
            counts, total = histogram.totals()
            buckets = list(zip(names, counts, strict=True))
            family.add_metric(values, buckets, total)
        yield family


class _WorkerGauges(Collector):
    """Gauges of the ``latest`` stats of each worker, by model and lane.

    They are made at each scrape, because steps are far more frequent than scrapes.
    """

    def __init__(self) -> None:
        self.latest: dict[tuple[str, int], WorkerStats] = {}

    def describe(self) -> Iterator[GaugeMetricFamily]:
        for name, documentation in _WORKER_GAUGES.values():
            yield GaugeMetricFamily(f"triune_{name}", documentation, labels=("model", "lane"))

    def collect(self) -> Iterator[GaugeMetricFamily]:
        latest = self.latest.copy()
        for field, family in zip(_WORKER_GAUGES, self.describe(), strict=True):
            for (model, lane), stats in latest.items():
                family.add_metric((model, str(lane)), getattr(stats, field))
            yield family
