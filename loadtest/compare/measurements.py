"""Computes rates from replies, and rows of the report from rates. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from loadtest.compare.errors import InvalidResultError
from loadtest.compare.workloads import Workload, WorkloadKind


def rate(workload: Workload, reply: Mapping[str, Any]) -> float:
    """Tokens per second of one run; sentences per second from text to text.

    - Decode: tokens that arrive while all sequences decode, over that time: from the last first
      token to the first last token.
    - Prefill: prompt tokens over the time until the last first token.
    - Text: sentences over the whole run.
    - Else: the tokens that ``workload`` counts, over the whole run.

    Raises:
        InvalidResultError: tokens or texts are missing.
    """
    if workload.kind == WorkloadKind.TEXT:
        requested, found = workload.batch * workload.num_requests, len(reply["texts"])
        if found != requested:
            raise InvalidResultError(f"got {found} of {requested} texts")
        return float(found / reply["seconds"])
    wanted = workload.num_outputs or sum(workload.lengths)
    arrivals: list[list[float]] | None = reply.get("arrivals")
    if arrivals is None:
        if reply["num_tokens"] != wanted:
            raise InvalidResultError(f"got {reply['num_tokens']} of {wanted} tokens")
        return float(wanted / reply["seconds"])
    arrived = sum(map(len, arrivals))
    if len(arrivals) != workload.batch or arrived != wanted:
        raise InvalidResultError(f"got {arrived} of {wanted} tokens")
    if workload.kind == WorkloadKind.DECODE:
        return _steady_rate(arrivals)
    last = max(row[0] if workload.kind == WorkloadKind.PREFILL else row[-1] for row in arrivals)
    return (sum(workload.lengths) if workload.kind == WorkloadKind.PREFILL else wanted) / last


def _steady_rate(arrivals: list[list[float]]) -> float:
    begin, end = max(row[0] for row in arrivals), min(row[-1] for row in arrivals)
    count = sum(begin < moment <= end for row in arrivals for moment in row)
    if end <= begin or not count:
        raise InvalidResultError("the sequences never decoded together")
    return count / (end - begin)


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """A candidate's rates on one workload, one for each round; or the reason why it has none."""

    rates: tuple[float, ...] = ()
    reason: str = ""
    layout: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def value(self) -> float | str:
        """The median rate, or the reason."""
        return self.reason or median(self.rates)


def row(
    about: Mapping[str, Any],
    ours: Measurement,
    peers: Mapping[str, Measurement],
    floor: float | None,
) -> dict[str, Any]:
    """A row of the report.

    ``ratios`` has the median of the ratios of each round, ours to each peer's, so that drift of
    the machine's speed affects both sides alike. ``ratio_to_best_peer`` is that of the peer with
    the highest median. ``spread`` has the lowest and the highest rate of each candidate.

    Args:
        about: the row's identifying fields.
        floor: the roofline's rate, if known.
    """
    running = {name: found for name, found in peers.items() if not found.reason}
    best = max(running, key=lambda name: median(running[name].rates), default=None)
    ratios = {
        name: [a / b for a, b in zip(ours.rates, found.rates, strict=True)]
        for name, found in running.items()
        if not ours.reason
    }
    of_best = ratios.get(best or "", [])
    candidates = {"ours": ours, **peers}
    found = {
        **about,
        "ours": ours.value,
        "peers": {name: found.value for name, found in peers.items()},
        "ratio_to_best_peer": median(of_best) if of_best else None,
        "best_peer": best,
        "ratio_spread": [min(of_best), max(of_best)] if of_best else None,
        "ratios": {name: median(each) for name, each in ratios.items()},
        "spread": {
            name: [min(found.rates), max(found.rates)]
            for name, found in candidates.items()
            if not found.reason
        },
        "layouts": {name: found.layout for name, found in candidates.items() if found.layout},
        **{
            key: {
                name: found.extra[key] for name, found in candidates.items() if key in found.extra
            }
            for key in sorted({key for found in candidates.values() for key in found.extra})
        },
        "rounds": max(len(found.rates) for found in candidates.values()),
    }
    return with_floor(found, floor)


def with_floor(row: Mapping[str, Any], floor: float | None) -> dict[str, Any]:
    """``row`` with the roofline's rate and the part of it that we reach."""
    ours = row["ours"]
    part = None if floor is None or isinstance(ours, str) else ours / floor
    return {**row, "floor": floor, "part_of_floor": part}
