"""Computes rates from replies, and rows of the report from rates. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np

from loadtest.compare.errors import InvalidResultError
from loadtest.compare.workloads import Workload, WorkloadKind

Rates = Sequence[float]


def rate(workload: Workload, reply: Mapping[str, Any]) -> float:
    """Tokens per second of one run.

    - Decode: tokens that arrive while all sequences decode, over that time: from the last first
      token to the first last token.
    - Prefill: prompt tokens over the time until the last first token.
    - Else: the tokens that ``workload`` counts, over the whole run.

    Raises:
        InvalidResultError: tokens are missing.
    """
    wanted = workload.num_outputs or sum(workload.lengths)
    arrivals: list[list[float]] | None = reply.get("arrivals")
    if arrivals is None:
        if reply["num_tokens"] != wanted:
            raise InvalidResultError(f"got {reply['num_tokens']} of {wanted} tokens")
        return float(wanted / reply["seconds"])
    found = sum(map(len, arrivals))
    if len(arrivals) != workload.batch or found != wanted:
        raise InvalidResultError(f"got {found} of {wanted} tokens")
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


def min_cosine(vectors: Sequence[Sequence[float]], exact: Sequence[Sequence[float]]) -> float:
    """The lowest cosine similarity of vectors at the same index; both ``[N, H]``."""
    a, b = np.array(vectors), np.array(exact)
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return float(((a * b).sum(1) / norms).min())


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

    ``ratio_to_best_peer`` is the median of the ratios of each round, so that drift of the
    machine's speed affects both sides alike. The best peer is the one with the highest median.
    ``spread`` has the lowest and the highest rate of each candidate.

    Args:
        about: the row's identifying fields.
        floor: the roofline's rate, if known.
    """
    running = {name: found for name, found in peers.items() if not found.reason}
    best = max(running, key=lambda name: median(running[name].rates), default=None)
    ratios: list[float] = []
    if best is not None and not ours.reason:
        ratios = [a / b for a, b in zip(ours.rates, running[best].rates, strict=True)]
    candidates = {"ours": ours, **peers}
    return {
        **about,
        "ours": ours.value,
        "peers": {name: found.value for name, found in peers.items()},
        "floor": floor,
        "ratio_to_best_peer": median(ratios) if ratios else None,
        "best_peer": best,
        "ratio_spread": [min(ratios), max(ratios)] if ratios else None,
        "part_of_floor": median(ours.rates) / floor if floor and not ours.reason else None,
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
