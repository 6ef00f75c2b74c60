"""From answers to figures, and from figures to rows. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np

from loadtest.compare.errors import InvalidResultError
from loadtest.compare.workloads import Workload, WorkloadKind

Rates = Sequence[float]


def rate(workload: Workload, answer: Mapping[str, Any]) -> float:
    """Tokens per second of one run.

    Of a decode: the tokens that came after every row had its first and while every row went
    on, over that time. Of a prefill: prompt tokens until the last first token. Else whatever
    tokens ``workload`` counts, over the whole run.

    Raises:
        BadAnswerError: tokens are missing.
    """
    wanted = workload.num_outputs or sum(workload.lengths)
    arrivals: list[list[float]] | None = answer.get("arrivals")
    if arrivals is None:
        if answer["num_tokens"] != wanted:
            raise InvalidResultError(f"{answer['num_tokens']} tokens came of {wanted}")
        return float(wanted / answer["seconds"])
    found = sum(map(len, arrivals))
    if len(arrivals) != workload.batch or found != wanted:
        raise InvalidResultError(f"{found} tokens came of {wanted}")
    if workload.kind == WorkloadKind.DECODE:
        return _steady_rate(arrivals)
    last = max(row[0] if workload.kind == WorkloadKind.PREFILL else row[-1] for row in arrivals)
    return (sum(workload.lengths) if workload.kind == WorkloadKind.PREFILL else wanted) / last


def _steady_rate(arrivals: list[list[float]]) -> float:
    begin, end = max(row[0] for row in arrivals), min(row[-1] for row in arrivals)
    count = sum(begin < moment <= end for row in arrivals for moment in row)
    if end <= begin or not count:
        raise InvalidResultError("the rows never ran together")
    return count / (end - begin)


def min_cosine(vectors: Sequence[Sequence[float]], exact: Sequence[Sequence[float]]) -> float:
    """Of each vector, ``[N, H]``, with the one in the same place; the lowest."""
    a, b = np.array(vectors), np.array(exact)
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return float(((a * b).sum(1) / norms).min())


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One contestant's rates on one work, a round each; or why there are none."""

    rates: tuple[float, ...] = ()
    reason: str = ""
    layout: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def value(self) -> float | str:
        """The median, or the reason."""
        return self.reason or median(self.rates)


def row(
    about: Mapping[str, Any],
    ours: Measurement,
    peers: Mapping[str, Measurement],
    floor: float | None,
) -> dict[str, Any]:
    """A row of the report.

    ``ratio_to_best_peer`` is the median of the ratios of each round, so that a machine whose
    speed drifts harms neither side; the best peer is the one with the highest median. Of each
    contestant, ``spread`` has the lowest and the highest round.
    """
    running = {name: found for name, found in peers.items() if not found.reason}
    best = max(running, key=lambda name: median(running[name].rates), default=None)
    ratios: list[float] = []
    if best is not None and not ours.reason:
        ratios = [a / b for a, b in zip(ours.rates, running[best].rates, strict=True)]
    everyone = {"ours": ours, **peers}
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
            for name, found in everyone.items()
            if not found.reason
        },
        "layouts": {name: found.layout for name, found in everyone.items() if found.layout},
        **{
            key: {name: found.extra[key] for name, found in everyone.items() if key in found.extra}
            for key in sorted({key for found in everyone.values() for key in found.extra})
        },
        "rounds": max(len(found.rates) for found in everyone.values()),
    }
