"""Compares the speed of two checkouts, to see what a change costs.

    python -m tests.benchmarks.two_checkouts --base ../before --json build/two.json

Engine: ``python -m server.bench`` of both checkouts run the same work alternately. Server: both
checkouts serve, and this one's ``python -m loadtest run`` loads them alternately; the idle one
takes no processor time. The figures are medians of the rounds and their ratio, this checkout over
the base: above 1 is faster. Where a process's memory lies changes its speed by some percent, so
engines are restarted ``--restarts`` times and the ratio is the median of the pairs' ratios.
"""

import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer

from tests.serving import wait_until_ready

ROOT = Path(__file__).resolve().parents[2]
_FIRST_ID, _NUM_IDS = 1000, 20_000

# Name: (bundle, batch size, tokens per input, new tokens). 0 new tokens: an encoder.
ENGINE_WORKLOADS = {
    "decode 1": ("smollm2", 1, 32, 96),
    "decode 8": ("smollm2", 8, 32, 96),
    "decode 32": ("smollm2", 32, 32, 64),
    "prefill 512": ("smollm2", 2, 512, 1),
    "translate 32": ("en-pt", 32, 30, 30),
    "embed 16x32": ("minilm", 256, 32, 0),
    "embed 32x128": ("minilm", 128, 128, 0),
}
# Name: (task, bundle, clients).
SERVER_WORKLOADS = {
    "generate 1 client": ("generate", "smollm2", 1),
    "generate 8 clients": ("generate", "smollm2", 8),
    "generate 32 clients": ("generate", "smollm2", 32),
    "translate 8 clients": ("translate", "en-pt", 8),
    "embed 1 client": ("embed", "minilm", 1),
    "embed 16 clients": ("embed", "minilm", 16),
    "embed 64 clients": ("embed", "minilm", 64),
}


class Engine:
    """One checkout's engine as a child process, called with one JSON line at a time."""

    def __init__(self, checkout: Path, bundle: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "server.bench"],
            cwd=checkout,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.call({"op": "load", "model": str(bundle), "threads": 2})

    def call(self, request: dict[str, Any]) -> dict[str, Any]:
        """Sends one request and returns the reply."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the engine's process ended")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return reply

    def seconds(self, inputs: list[list[int]], num_new_tokens: int) -> float:
        """Seconds for all inputs together."""
        request = {"op": "run", "inputs": inputs, "max_new_tokens": num_new_tokens}
        reply = self.call(request)
        if "seconds" in reply:
            return float(reply["seconds"])
        return float(max(row[-1] for row in reply["arrivals"]))

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()


@contextmanager
def _server(checkout: Path, bundles: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "server", "--bundles", str(bundles)]
    command += ["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]
    if (checkout / "server/frontends/http").exists():
        command += ["--http", "none"]
    with subprocess.Popen(command, cwd=checkout, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield wait_until_ready(process).target
        finally:
            process.terminate()
            process.communicate(timeout=60)


def _load(target: str, task: str, model: str, clients: int, seconds: float, seed: int) -> float:
    """Requests per second, or output tokens per second for generation."""
    report = Path("build") / "two-checkouts-run.json"
    report.parent.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "loadtest", "run", "--task", task, "--model", model]
    command += ["--target", target, "--concurrency", str(clients), "--seed", str(seed)]
    command += ["--duration", str(seconds), "--warmup", "2", "--json", str(report)]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    figures = json.loads((ROOT / report).read_text())
    key = "requests_per_second" if task == "embed" else "output_tokens_per_second"
    return float(figures[key])


def _alternate(rounds: int, measures: Sequence[Callable[[int], float]]) -> dict[str, float]:
    """Runs both measurements in each round, in alternating order. The first round is a warm-up."""
    values: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        order = (0, 1) if number % 2 else (1, 0)
        for side in order:
            value = measures[side](number)
            if number:
                values[side].append(value)
    base, this = (median(side_values) for side_values in values)
    ratio = median(b / a for a, b in zip(*values, strict=True))
    return {"base": base, "this": this, "ratio": ratio}


def _summary(name: str, rounds: int, pairs: list[dict[str, float]]) -> dict[str, Any]:
    """Prints one line and returns the medians of all pairs of processes."""
    result = {key: median(pair[key] for pair in pairs) for key in ("base", "this", "ratio")}
    ratios = sorted(pair["ratio"] for pair in pairs)
    print(
        f"{name:24} {result['base']:10.2f} {result['this']:10.2f}  {result['ratio']:.3f}"
        f"  ({ratios[0]:.3f} to {ratios[-1]:.3f})",
        flush=True,
    )
    return {**result, "rounds": rounds, "pairs": ratios}


def _inputs(rows: int, tokens: int, seed: int) -> list[list[int]]:
    random = np.random.default_rng(seed)
    ids: list[list[int]] = random.integers(_FIRST_ID, _NUM_IDS, (rows, tokens)).tolist()
    return ids


def _newest(bundles: Path, name: str) -> Path:
    return max((bundles / name).iterdir(), key=lambda path: path.name)


def measure_engine(
    checkouts: tuple[Path, Path], bundles: Path, rounds: int, restarts: int, only: str
) -> dict[str, Any]:
    """Throughput of both engines, in workloads whose name contains ``only``."""
    results: dict[str, Any] = {}
    selected = [name for name in ENGINE_WORKLOADS if only in name]
    for bundle, group in itertools.groupby(selected, key=lambda name: ENGINE_WORKLOADS[name][0]):
        names = list(group)
        pairs: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        for restart in range(restarts):
            with ExitStack() as stack:
                engines = [
                    Engine(path, _newest(bundles, bundle))
                    for path in (checkouts if restart % 2 else reversed(checkouts))
                ]
                for engine in engines:
                    stack.callback(engine.close)
                if restart % 2 == 0:
                    engines.reverse()
                for name in names:
                    rates = [partial(_engine_rate, name, engine) for engine in engines]
                    pairs[name].append(_alternate(rounds, rates))
        for name in names:
            results[name] = _summary(name, rounds, pairs[name])
    return results


def _engine_rate(name: str, engine: Engine, number: int) -> float:
    """Output tokens per second, or inputs per second of an encoder."""
    _, count, tokens, new = ENGINE_WORKLOADS[name]
    return count * max(new, 1) / engine.seconds(_inputs(count, tokens, number), new)


def measure_server(
    checkouts: tuple[Path, Path], bundles: Path, rounds: int, seconds: float
) -> dict[str, Any]:
    """Throughput of both servers."""
    results: dict[str, Any] = {}
    with ExitStack() as stack:
        targets = [stack.enter_context(_server(path, bundles)) for path in checkouts]
        for name, (task, model, clients) in SERVER_WORKLOADS.items():

            def rate(target: str, number: int) -> float:
                return _load(target, task, model, clients, seconds, number)  # noqa: B023

            pair = _alternate(rounds, [partial(rate, target) for target in targets])
            results[name] = _summary(name, rounds, [pair])
    return results


def main(
    base: Annotated[Path, typer.Option(help="The checkout to compare with, kernels built.")],
    bundles: Annotated[Path, typer.Option(help="Bundles that both can serve.")] = Path("bundles"),
    report: Annotated[Path | None, typer.Option("--json", help="Output file.")] = None,
    rounds: Annotated[int, typer.Option(min=1)] = 7,
    restarts: Annotated[int, typer.Option(min=1, help="Pairs of engine processes.")] = 1,
    seconds: Annotated[float, typer.Option(min=1, help="Duration of each load test.")] = 4.0,
    level: Annotated[str, typer.Option(help="engine, server or both.")] = "both",
    only: Annotated[str, typer.Option(help="Engine workloads whose name contains this.")] = "",
) -> None:
    """Prints and writes medians of the base, of this checkout, and their ratio."""
    checkouts, bundles = (base.resolve(), ROOT), bundles.resolve()
    figures: dict[str, Any] = {}
    if level in {"engine", "both"}:
        figures["engine"] = measure_engine(checkouts, bundles, rounds, restarts, only)
    if level in {"server", "both"}:
        figures["server"] = measure_server(checkouts, bundles, rounds, seconds)
    if report is not None:
        report.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
