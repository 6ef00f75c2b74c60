"""``python -m tests.fuzz.slowest --seconds N``: the slowest requests of each call and HTTP route.

Mutates the slowest inputs so far: those with the most CPU time per byte of request, of all threads
or of the event loop, which other threads of the process don't disturb. Exit status 1
if an accepted request takes more of the event loop than ``costs.MAX_LOOP_MICROSECONDS_PER_BYTE``.
"""

import json
import random
import time
from collections.abc import Collection, Iterator
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from loadtest.machine import machine
from tests.fuzz.registry import ROOT
from tests.fuzz.targets import costs, protocol_costs

KEPT = 8
REPEATS = 3
FRESH = 0.25  # the share of inputs that are drawn anew
TARGETS = (costs, protocol_costs)
REPORT = ROOT / "docs" / "slowest.json"

Input = tuple[ModuleType, bytes]


class Search:
    """The slowest inputs of each call so far.

    Args:
        seed: of the mutations.
        only: the calls to mutate; all by default.

    ``worst``: of each call, the most CPU time per byte. ``worst_of_loop``: of those that were
    accepted, the most CPU time per byte on the event loop.
    """

    def __init__(self, seed: int, only: Collection[str] = ()) -> None:
        self._rng = random.Random(seed)
        self._only = only
        self._slowest: dict[str, list[tuple[float, Input]]] = {}
        self._slowest_of_loop: dict[str, list[tuple[float, Input]]] = {}
        self.worst: dict[str, costs.MeasuredCost] = {}
        self.worst_of_loop: dict[str, costs.MeasuredCost] = {}
        self.num_inputs = 0

    def run(
        self, seconds: float, max_inputs: float = float("inf"), *, stops_at_first: bool = False
    ) -> None:
        """Measures the seeds, then mutations, until ``seconds`` or ``max_inputs`` are over.

        ``stops_at_first``: ends once a request is over the limit.
        """
        for target in TARGETS:
            for data in target.seeds():
                target.measure(data)  # the first call of a method loads what it needs
                self._measure(target, data)
        end = time.monotonic() + seconds
        for target, data in self._mutations():
            if time.monotonic() > end or self.num_inputs >= max_inputs:
                return
            if stops_at_first and self.too_slow:
                return
            self._measure(target, data)

    @property
    def too_slow(self) -> list[costs.MeasuredCost]:
        """Accepted requests over the limit of the event loop."""
        limit = costs.MAX_LOOP_MICROSECONDS_PER_BYTE
        return [
            cost for cost in self.worst_of_loop.values() if cost.loop_microseconds_per_byte > limit
        ]

    def _mutations(self) -> Iterator[Input]:
        while True:
            slowest = self._rng.choice((self._slowest, self._slowest_of_loop))
            method = self._rng.choice(sorted(self._only or slowest))
            _, (target, data) = self._rng.choice(slowest[method])
            if self._rng.random() < FRESH:  # all slow ones may be alike
                yield target, data[:2] + self._rng.randbytes(target.SIZE - 2)
                continue
            changed = bytearray(data.ljust(target.SIZE, b"\0"))
            for _ in range(self._rng.randrange(1, 5)):
                # Most requests are drawn from the first bytes alone.
                position = 2 + int((len(changed) - 2) * self._rng.random() ** 3)
                changed[position] = self._rng.randrange(256)
            yield target, bytes(changed)

    def _measure(self, target: ModuleType, data: bytes) -> None:
        self.num_inputs += 1
        cost = target.measure(data)
        if self._is_record(cost):  # a record must be so again: the machine has other work
            repeats = [cost, *(target.measure(data) for _ in range(REPEATS - 1))]
            cost = min(repeats, key=lambda each: each.loop_microseconds_per_byte)
            self._keep_records(min(repeats, key=lambda each: each.microseconds_per_byte), cost)
        for slowest, value in (
            (self._slowest, cost.microseconds_per_byte),
            (self._slowest_of_loop, cost.loop_microseconds_per_byte),
        ):
            kept = slowest.setdefault(cost.method, [])
            kept.append((value, (target, data)))
            kept.sort(key=lambda each: -each[0])
            del kept[KEPT:]

    def _is_record(self, cost: costs.MeasuredCost) -> bool:
        worst, of_loop = self.worst.get(cost.method), self.worst_of_loop.get(cost.method)
        return (
            worst is None
            or cost.microseconds_per_byte > worst.microseconds_per_byte
            or (cost.is_accepted and of_loop is None)
            or (
                cost.is_accepted
                and of_loop is not None
                and cost.loop_microseconds_per_byte > of_loop.loop_microseconds_per_byte
            )
        )

    def _keep_records(self, whole: costs.MeasuredCost, loop: costs.MeasuredCost) -> None:
        worst = self.worst.get(whole.method)
        if worst is None or whole.microseconds_per_byte > worst.microseconds_per_byte:
            self.worst[whole.method] = whole
        of_loop = self.worst_of_loop.get(loop.method)
        if loop.is_accepted and (
            of_loop is None or loop.loop_microseconds_per_byte > of_loop.loop_microseconds_per_byte
        ):
            self.worst_of_loop[loop.method] = loop


def report_of(search: Search, seconds: float) -> dict[str, object]:
    """What ``docs/slowest.json`` holds."""
    return {
        "how": f"python -m tests.fuzz.slowest --seconds {seconds:g} --json docs/slowest.json",
        "machine": machine(),
        "inputs": search.num_inputs,
        "max_loop_microseconds_per_byte": costs.MAX_LOOP_MICROSECONDS_PER_BYTE,
        "worst": {method: asdict(cost) for method, cost in sorted(search.worst.items())},
        "worst_of_loop": {
            method: asdict(cost) for method, cost in sorted(search.worst_of_loop.items())
        },
    }


def main(
    seconds: Annotated[float, typer.Option(min=0)] = 60.0,
    seed: Annotated[int, typer.Option(min=1)] = 1,
    json_: Annotated[Path | None, typer.Option("--json", help="Write the results here.")] = None,
) -> None:
    """Prints the worst CPU time per byte of each call, by thread."""
    search = Search(seed)
    search.run(seconds)
    for method, cost in sorted(
        search.worst.items(), key=lambda item: -item[1].microseconds_per_byte
    ):
        times = (cost.loop_seconds, cost.tokenize_seconds, cost.other_seconds)
        loop, tokenize, other = (f"{1000 * value:7.1f} ms" for value in times)
        of_loop = search.worst_of_loop.get(method)
        loop_cost = 0.0 if of_loop is None else of_loop.loop_microseconds_per_byte
        print(
            f"{method:28} {cost.microseconds_per_byte:8.2f} µs/B {cost.num_bytes:8} B  loop {loop}"
            f"  tokenize {tokenize}  other {other}  {'OK' if cost.is_accepted else 'rejected'}"
            f"  of the loop at most {loop_cost:.2f} µs/B"
        )
    for cost in search.too_slow:
        print(f"TOO SLOW on the event loop: {cost}")
    if json_ is not None:
        json_.write_text(json.dumps(report_of(search, seconds), indent=2) + "\n", "utf-8")
    raise typer.Exit(bool(search.too_slow))


if __name__ == "__main__":
    typer.run(main)
