"""Two checkouts side by side: does a change cost speed?

    python -m tests.benchmarks.two_checkouts --base ../before --json build/two.json

Engine: ``python -m server.bench`` of both checkouts runs the same work in turn. Server: both
checkouts serve, and ``python -m loadtest run`` of this one loads them in turn; the idle one takes
no processor time. The figures are medians of the rounds and their ratio, this checkout over the
base: above 1 is faster.
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

from tests.serving import until_ready

ROOT = Path(__file__).resolve().parents[2]
_FIRST_ID, _NUM_IDS = 1000, 20_000

# Name: (bundle, rows, tokens of each input, new tokens). 0 new tokens: an encoder's work.
ENGINE_WORK = {
    "decode 1": ("smollm2", 1, 32, 96),
    "decode 8": ("smollm2", 8, 32, 96),
    "decode 32": ("smollm2", 32, 32, 64),
    "prefill 512": ("smollm2", 2, 512, 1),
    "translate 32": ("en-pt", 32, 30, 30),
    "embed 16x32": ("minilm", 256, 32, 0),
    "embed 32x128": ("minilm", 128, 128, 0),
}
# Name: (task, bundle, clients, figure of the report).
SERVER_WORK = {
    "generate 1 client": ("generate", "smollm2", 1),
    "generate 8 clients": ("generate", "smollm2", 8),
    "generate 32 clients": ("generate", "smollm2", 32),
    "translate 8 clients": ("translate", "en-pt", 8),
    "embed 1 client": ("embed", "minilm", 1),
    "embed 16 clients": ("embed", "minilm", 16),
    "embed 64 clients": ("embed", "minilm", 64),
}


class Engine:
    """One checkout's engine as a process, asked one JSON line at a time."""

    def __init__(self, checkout: Path, bundle: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "server.bench"],
            cwd=checkout,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.ask({"op": "load", "model": str(bundle), "threads": 2})

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """The answer to one question."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the engine's process ended")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def seconds(self, inputs: list[list[int]], num_new_tokens: int) -> float:
        """For all inputs together."""
        question = {"op": "run", "inputs": inputs, "max_new_tokens": num_new_tokens}
        answer = self.ask(question)
        if "seconds" in answer:
            return float(answer["seconds"])
        return float(max(row[-1] for row in answer["arrivals"]))

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()


@contextmanager
def _server(checkout: Path, bundles: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "server", "--bundles", str(bundles)]
    command += ["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]
    with subprocess.Popen(command, cwd=checkout, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield until_ready(process).target
        finally:
            process.terminate()
            process.communicate(timeout=60)


def _load(target: str, task: str, model: str, clients: int, seconds: float, seed: int) -> float:
    """Requests per second, or tokens per second of texts that are generated."""
    report = Path("build") / "two-checkouts-run.json"
    report.parent.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "loadtest", "run", "--task", task, "--model", model]
    command += ["--target", target, "--concurrency", str(clients), "--seed", str(seed)]
    command += ["--duration", str(seconds), "--warmup", "2", "--json", str(report)]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    found = json.loads((ROOT / report).read_text())
    key = "requests_per_second" if task == "embed" else "output_tokens_per_second"
    return float(found[key])


def _in_turn(name: str, rounds: int, measures: Sequence[Callable[[int], float]]) -> dict[str, Any]:
    """Both measures in each round, the first one alternating. The first round is not counted."""
    found: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        order = (0, 1) if number % 2 else (1, 0)
        for side in order:
            value = measures[side](number)
            if number:
                found[side].append(value)
    base, this = (median(values) for values in found)
    ratio = median(b / a for a, b in zip(*found, strict=True))
    print(f"{name:24} {base:10.2f} {this:10.2f}  {ratio:.3f}", flush=True)
    return {"base": base, "this": this, "ratio": ratio, "rounds": rounds}


def _inputs(rows: int, tokens: int, seed: int) -> list[list[int]]:
    random = np.random.default_rng(seed)
    ids: list[list[int]] = random.integers(_FIRST_ID, _NUM_IDS, (rows, tokens)).tolist()
    return ids


def _newest(bundles: Path, name: str) -> Path:
    return max((bundles / name).iterdir(), key=lambda path: path.name)


def measure_engine(checkouts: tuple[Path, Path], bundles: Path, rounds: int) -> dict[str, Any]:
    """Work per second of both engines."""
    rows: dict[str, Any] = {}
    for bundle, names in itertools.groupby(ENGINE_WORK, key=lambda name: ENGINE_WORK[name][0]):
        engines = tuple(Engine(path, _newest(bundles, bundle)) for path in checkouts)
        for name in names:
            _, count, tokens, new = ENGINE_WORK[name]

            def rate(engine: Engine, number: int) -> float:
                seconds = engine.seconds(_inputs(count, tokens, number), new)  # noqa: B023
                return count * max(new, 1) / seconds  # noqa: B023

            rows[name] = _in_turn(name, rounds, [partial(rate, engine) for engine in engines])
        for engine in engines:
            engine.close()
    return rows


def measure_server(
    checkouts: tuple[Path, Path], bundles: Path, rounds: int, seconds: float
) -> dict[str, Any]:
    """Answers per second of both servers."""
    rows: dict[str, Any] = {}
    with ExitStack() as stack:
        targets = [stack.enter_context(_server(path, bundles)) for path in checkouts]
        for name, (task, model, clients) in SERVER_WORK.items():

            def rate(target: str, number: int) -> float:
                return _load(target, task, model, clients, seconds, number)  # noqa: B023

            rows[name] = _in_turn(name, rounds, [partial(rate, target) for target in targets])
    return rows


def main(
    base: Annotated[Path, typer.Option(help="The checkout to compare with, kernels built.")],
    bundles: Annotated[Path, typer.Option(help="Bundles that both can serve.")] = Path("bundles"),
    report: Annotated[Path | None, typer.Option("--json", help="Where figures go.")] = None,
    rounds: Annotated[int, typer.Option(min=1)] = 7,
    seconds: Annotated[float, typer.Option(min=1, help="Of each load of a server.")] = 4.0,
    level: Annotated[str, typer.Option(help="engine, server or both.")] = "both",
) -> None:
    """Prints and writes medians of the base, of this checkout, and their ratio."""
    checkouts, bundles = (base.resolve(), ROOT), bundles.resolve()
    found: dict[str, Any] = {}
    if level in {"engine", "both"}:
        found["engine"] = measure_engine(checkouts, bundles, rounds)
    if level in {"server", "both"}:
        found["server"] = measure_server(checkouts, bundles, rounds, seconds)
    if report is not None:
        report.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
