"""Prompt reuse of conversations and of equal prompts under load, as a table and JSON.

    python -m tests.benchmarks.multi_turn --bundles bundles --json build/multi-turn.json

``turns``: each conversation sends its history, its last answer and a new question as the next
prompt as soon as it has the answer; ``pauses``: after a pause. ``equal``: clients send one prompt
at the same time. With ``--base``, the server of another checkout runs the same load, alternately.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated

import numpy as np
import typer

from client.aio import AsyncClient
from loadtest.machine import machine
from tests.benchmarks import reports
from tests.serving import wait_until_ready

ROOT = Path(__file__).resolve().parents[2]
SYSTEM_TOKENS = 48  # shared by all conversations
QUESTION_TOKENS = 60
ANSWER_TOKENS = 32
_FIRST_ID, _NUM_IDS = 1000, 20_000


@dataclass
class Figures:
    """The times at one load. ``first_token_seconds``: of every turn after the first."""

    seconds: float = 0.0
    num_prompt_tokens: int = 0
    num_reused_tokens: int = 0
    first_token_seconds: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, float]:
        return {
            "seconds": self.seconds,
            "reused_share": self.num_reused_tokens / self.num_prompt_tokens,
            "first_token_seconds": median(self.first_token_seconds),
        }


@contextmanager
def _server(checkout: Path, bundles: Path, options: list[str]) -> Iterator[str]:
    command = [sys.executable, "-m", "server", "--bundles", str(bundles), *options]
    command += ["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]
    if (checkout / "server/frontends/http").exists():
        command += ["--http", "none"]
    with subprocess.Popen(command, cwd=checkout, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield wait_until_ready(process).target
        finally:
            process.terminate()
            process.communicate(timeout=60)


async def _turn(
    client: AsyncClient, model: str, prompt: list[int], figures: Figures, *, counts: bool
) -> list[int]:
    """Sends one prompt. Returns the answer's token ids."""
    started, answer = time.perf_counter(), list[int]()
    async for piece in client.generate_stream(
        model,
        token_inputs=[prompt],
        max_new_tokens=ANSWER_TOKENS,
        ignore_eos=True,
        token_ids=True,
    ):
        if piece.token_ids and not answer and counts:
            figures.first_token_seconds.append(time.perf_counter() - started)
        answer += piece.token_ids
        if piece.usage is not None and counts:
            figures.num_prompt_tokens += piece.usage.input_tokens
            figures.num_reused_tokens += piece.usage.reused_tokens
    return answer


async def _converse(
    client: AsyncClient, model: str, seed: int, conversations: int, turns: int, pause: float
) -> Figures:
    random, figures = np.random.default_rng(seed), Figures()
    system = random.integers(_FIRST_ID, _NUM_IDS, SYSTEM_TOKENS).tolist()
    questions = random.integers(
        _FIRST_ID, _NUM_IDS, (conversations, turns, QUESTION_TOKENS)
    ).tolist()

    async def converse(number: int) -> None:
        history = list(system)
        for turn, question in enumerate(questions[number]):
            if turn:
                await asyncio.sleep(pause)
            history += question
            history += await _turn(client, model, history, figures, counts=turn > 0)

    started = time.perf_counter()
    await asyncio.gather(*map(converse, range(conversations)))
    figures.seconds = time.perf_counter() - started
    return figures


async def _send_equal(client: AsyncClient, model: str, seed: int, count: int) -> Figures:
    prompt = np.random.default_rng(seed).integers(_FIRST_ID, _NUM_IDS, 400).tolist()
    figures = Figures()
    started = time.perf_counter()
    await asyncio.gather(
        *(_turn(client, model, prompt, figures, counts=True) for _ in range(count))
    )
    figures.seconds = time.perf_counter() - started
    return figures


async def _measure(
    targets: dict[str, str],
    model: str,
    conversations: int,
    turns: int,
    pause: float,
    rounds: int,
    only: str,
) -> dict[str, dict[str, dict[str, float]]]:
    """Medians by load, side and figure."""
    samples: dict[str, dict[str, list[dict[str, float]]]] = {}
    for number in range(rounds + 1):
        for side in sorted(targets, reverse=number % 2 == 1):
            async with AsyncClient(targets[side]) as client:
                shape = (conversations, turns)
                loads = {
                    "turns": partial(_converse, client, model, number, *shape, 0.0),
                    "pauses": partial(_converse, client, model, 100 + number, *shape, pause),
                    "equal": partial(_send_equal, client, model, 200 + number, conversations),
                }
                for name in (name for name in loads if only in name):
                    summary = (await loads[name]()).summary()
                    print(f"round {number} {name} {side}: {_text(summary)}", flush=True)
                    if number:  # the first round is a warm-up
                        samples.setdefault(name, {}).setdefault(side, []).append(summary)
    return {
        name: {
            side: {key: median(run[key] for run in runs) for key in runs[0]}
            for side, runs in sides.items()
        }
        for name, sides in samples.items()
    }


def _text(figures: dict[str, float]) -> str:
    return "  ".join(f"{key} {value:.3f}" for key, value in figures.items())


def main(
    bundles: Annotated[Path, typer.Option(help="Folder of bundles.")] = Path("bundles"),
    model: Annotated[str, typer.Option(help="A decoder.")] = "smollm2",
    base: Annotated[Path | None, typer.Option(help="Another checkout, kernels built.")] = None,
    conversations: Annotated[int, typer.Option(min=1)] = 8,
    turns: Annotated[int, typer.Option(min=2)] = 6,
    slots: Annotated[int, typer.Option(min=1)] = 4,
    lanes: Annotated[int, typer.Option(min=1)] = 1,
    pause: Annotated[float, typer.Option(min=0, help="Seconds between answer and question.")] = 1.0,
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    only: Annotated[str, typer.Option(help="Loads whose name contains this.")] = "",
    option: Annotated[list[str] | None, typer.Option(help="An option of this server.")] = None,
    out: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    """Prints the figures of this checkout, and of the base."""
    bundles = bundles.resolve()
    common = ["--slots", str(slots), "--lanes", str(lanes)]
    sides = {"this": (ROOT, [*common, *(option or [])])}
    if base is not None:
        sides["base"] = (base.resolve(), common)
    results: dict[str, dict[str, dict[str, float]]] = {}
    targets: dict[str, str] = {}

    def start(names: list[str]) -> None:
        if not names:
            results.update(
                asyncio.run(_measure(targets, model, conversations, turns, pause, rounds, only))
            )
            return
        checkout, options = sides[names[0]]
        with _server(checkout, bundles, options) as targets[names[0]]:
            start(names[1:])

    start(list(sides))
    for name, by_side in results.items():
        for side, figures in by_side.items():
            print(f"median {name} {side}: {_text(figures)}", flush=True)
    if out is not None:
        setup = {
            "model": model,
            "machine": machine()["processor"],
            "cores": len(os.sched_getaffinity(0)),
            "conversations": conversations,
            "turns": turns,
            "slots": slots,
            "lanes": lanes,
            "pause_seconds": pause,
            "rounds": rounds,
            "options": option or [],
        }
        reports.write({**setup, "results": results}, out)


if __name__ == "__main__":
    typer.run(main)
