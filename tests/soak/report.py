"""The report of a soak run and its verdict, as pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from tests.soak.slope import Slope, theil_sen

KILOBYTE, MEGABYTE = 1e3, 1e6
HOUR = 3600.0
# More threads or descriptors at the end than after the warm-up: clients come and go.
MAX_MORE = 40
# What gRPC loses with a cancelled stream: https://github.com/grpc/grpc/issues/43360. It is 85 in
# this load, and up to 290 if each client cancels while the server writes (test_grpc_leak.py).
LOST_BYTES_PER_CANCELLED_STREAM = 100
# Statuses that this load may cause. Any other is a fault.
EXPECTED = frozenset(
    {"OK", "CANCELLED", "DEADLINE_EXCEEDED", "INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED"}
)


@dataclass(frozen=True)
class Sample:
    """State of the server, ``seconds`` after the start of the load.

    ``median_milliseconds``, ``p99_milliseconds``: of a well-behaved client's small calls since the
    previous sample.
    """

    seconds: float
    num_calls: int
    resident_bytes: int
    open_slots: int
    threads: int = 0
    descriptors: int = 0
    median_milliseconds: float = 0.0
    p99_milliseconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Report:
    """The result of a run.

    Attributes:
        requests: finished calls by method and status, as the server counts them.
        megabytes_per_hour, kilobytes_per_call: slopes of the resident memory after the warm-up.
        max_megabytes_per_hour: the limit of our own growth; ``lost_megabytes_per_hour``, what gRPC
            loses with cancelled streams, comes on top.
        faults: why the run failed; empty if it passed.
        first_threads, first_descriptors, last_threads, last_descriptors: medians of the first and
            of the last tenth of the samples after the warm-up.
        median_milliseconds, p99_milliseconds: medians over the samples after the warm-up.
        failed_probes: small calls of the well-behaved client that failed.
        samples: seconds, calls, megabytes, open slots, threads, descriptors, and the latency of
            small calls in milliseconds: median and 99th percentile.
    """

    seconds: float
    warm_up_seconds: float
    requests: dict[str, dict[str, int]]
    errors: dict[str, int]
    killed_clients: int
    megabytes_per_hour: Slope
    max_megabytes_per_hour: float | None
    lost_megabytes_per_hour: float
    kilobytes_per_call: Slope
    max_kilobytes_per_call: float | None
    first_resident_mb: float
    last_resident_mb: float
    most_open_slots: int
    open_slots_at_end: int
    exit_status: int
    first_threads: int
    last_threads: int
    first_descriptors: int
    last_descriptors: int
    median_milliseconds: float
    p99_milliseconds: float
    failed_probes: int
    faults: tuple[str, ...] = ()
    samples: tuple[tuple[float, ...], ...] = field(default=(), repr=False)


def make_report(
    samples: Sequence[Sample],
    requests: dict[str, dict[str, int]],
    *,
    warm_up_seconds: float,
    max_megabytes_per_hour: float | None = None,
    max_kilobytes_per_call: float | None = None,
    killed_clients: int,
    open_slots_at_end: int,
    exit_status: int,
    failed_probes: int = 0,
) -> Report:
    """Evaluates a run; at least 3 samples must be after the warm-up."""
    after_warm_up = [sample for sample in samples if sample.seconds >= warm_up_seconds]
    memory = [float(sample.resident_bytes) for sample in after_warm_up]
    by_hour = theil_sen([sample.seconds / HOUR for sample in after_warm_up], memory).over(MEGABYTE)
    by_call = theil_sen([float(sample.num_calls) for sample in after_warm_up], memory).over(
        KILOBYTE
    )
    by_status: dict[str, int] = {}
    for statuses in requests.values():
        for status, count in statuses.items():
            by_status[status] = by_status.get(status, 0) + count
    cancelled = sum(row.get("CANCELLED", 0) for name, row in requests.items() if "Stream" in name)
    lost = LOST_BYTES_PER_CANCELLED_STREAM * cancelled / MEGABYTE
    lost_by_hour = lost * HOUR / samples[-1].seconds
    faults = []
    # Only an interval entirely above the limit is a leak; the rest may be noise.
    for slope, bound, lost_by_grpc, unit in (
        (by_hour, max_megabytes_per_hour, lost_by_hour, "MB/hour"),
        (by_call, max_kilobytes_per_call, 0.0, "kB/call"),
    ):
        if bound is not None and slope.low > bound + lost_by_grpc:
            faults.append(
                f"memory grows by {slope.low:.1f} to {slope.high:.1f} {unit}, "
                f"the limit is {bound + lost_by_grpc:.4g}"
            )
    if open_slots_at_end:
        faults.append(f"{open_slots_at_end} slots are in use without calls")
    if unexpected := {status: n for status, n in by_status.items() if status not in EXPECTED}:
        faults.append(f"calls ended with {unexpected}")
    if not by_status.get("OK"):
        faults.append("no call succeeded")
    tenth = max(1, len(after_warm_up) // 10)
    first, last = after_warm_up[:tenth], after_warm_up[-tenth:]
    counts: dict[str, int] = {}
    for name in ("threads", "descriptors"):
        ends = [int(median(getattr(sample, name) for sample in part)) for part in (first, last)]
        counts |= {f"first_{name}": ends[0], f"last_{name}": ends[1]}
        if ends[1] > ends[0] + MAX_MORE:
            faults.append(f"{name} grow from {ends[0]} to {ends[1]}")
    if failed_probes:
        faults.append(f"{failed_probes} calls of the well-behaved client failed")
    if exit_status:
        faults.append(f"the server ended with status {exit_status}")
    return Report(
        seconds=round(samples[-1].seconds, 1),
        warm_up_seconds=warm_up_seconds,
        requests=requests,
        errors={status: count for status, count in by_status.items() if status != "OK"},
        killed_clients=killed_clients,
        megabytes_per_hour=by_hour,
        max_megabytes_per_hour=max_megabytes_per_hour,
        lost_megabytes_per_hour=lost_by_hour,
        kilobytes_per_call=by_call,
        max_kilobytes_per_call=max_kilobytes_per_call,
        first_resident_mb=after_warm_up[0].resident_bytes / MEGABYTE,
        last_resident_mb=after_warm_up[-1].resident_bytes / MEGABYTE,
        most_open_slots=max(sample.open_slots for sample in samples),
        open_slots_at_end=open_slots_at_end,
        exit_status=exit_status,
        **counts,
        median_milliseconds=median(sample.median_milliseconds for sample in after_warm_up),
        p99_milliseconds=median(sample.p99_milliseconds for sample in after_warm_up),
        failed_probes=failed_probes,
        faults=tuple(faults),
        samples=tuple(
            (
                *(round(x.seconds, 1), x.num_calls, round(x.resident_bytes / MEGABYTE, 2)),
                *(x.open_slots, x.threads, x.descriptors),
                *(round(x.median_milliseconds, 2), round(x.p99_milliseconds, 2)),
            )
            for x in samples
        ),
    )
