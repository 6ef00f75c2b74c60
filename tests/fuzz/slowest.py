"""``python -m tests.fuzz.slowest --seconds N``: the slowest requests of each method.

Mutates the slowest inputs so far, those with the most CPU time per byte of request.
"""

import json
import random
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from tests.fuzz.service import CALLS
from tests.fuzz.targets import costs

KEPT = 8


def search(seconds: float, seed: int) -> dict[str, costs.MeasuredCost]:
    """The worst cost of each method that ``seconds`` of search find."""
    rng = random.Random(seed)
    kept: dict[str, list[tuple[float, bytes]]] = {method: [] for method, *_ in CALLS}
    worst: dict[str, costs.MeasuredCost] = {}

    def measure(data: bytes) -> None:
        cost = costs.measure(data)
        best = kept[cost.method]
        best.append((cost.microseconds_per_byte, data))
        best.sort(reverse=True)
        del best[KEPT:]
        if best[0][1] is data:
            worst[cost.method] = cost

    for data in costs.seeds():
        costs.measure(data)  # the first call of a method loads what it needs
        measure(data)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        _, data = rng.choice(kept[rng.choice(CALLS)[0]])
        changed = bytearray(data.ljust(costs.SIZE, b"\0"))
        for _ in range(rng.randrange(1, 5)):
            changed[rng.randrange(2, len(changed))] = rng.randrange(256)
        measure(bytes(changed))
    return worst


def main(
    seconds: Annotated[float, typer.Option(min=0)] = 60.0,
    seed: Annotated[int, typer.Option(min=1)] = 1,
    json_: Annotated[Path | None, typer.Option("--json", help="Write the results here.")] = None,
) -> None:
    """Prints the worst CPU time per byte of each method, by thread."""
    worst = search(seconds, seed)
    for method, cost in sorted(worst.items(), key=lambda item: -item[1].microseconds_per_byte):
        times = (cost.loop_seconds, cost.tokenize_seconds, cost.other_seconds)
        loop, tokenize, other = (f"{1000 * value:7.1f} ms" for value in times)
        print(
            f"{method:16} {cost.microseconds_per_byte:8.2f} µs/B {cost.num_bytes:8} B  loop {loop}"
            f"  tokenize {tokenize}  other {other}  {'OK' if cost.is_accepted else 'rejected'}"
        )
    if json_ is not None:
        rows = {method: asdict(cost) for method, cost in worst.items()}
        json_.write_text(json.dumps(rows, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    typer.run(main)
