"""The engine without gRPC, as a process: ``python -m server.bench``.

It reads a JSON object a line and answers with one, as the peers of ``python -m loadtest compare``
do (``loadtest/peers/lines.py`` says what they hold). What it drives is the engine that the server
has: lanes, scheduling and all, from submission to the news of each token.

``{"op": "ceilings"}`` measures what no model can exceed on this machine.
"""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TextIO

import onnx

from model.bundle import BundleError
from server.app import make_backend
from server.ceilings import measure_ceilings
from server.config import ServerConfig
from server.engine.build import build_engine, capacity_of, clock, make_workers
from server.engine.busy import BusyLanes
from server.engine.engine import Engine, Ticket
from server.engine.lifecycle import Outcome
from server.engine.observer import Unobserved
from server.engine.options import Beams
from server.engine.sequence import EncodingJob, GenerationJob, Job
from server.errors import StartupError
from server.registry import Model, load_bundle

Message = dict[str, Any]
_GOOD = {Outcome.DONE, Outcome.LENGTH, Outcome.STOP}


class Bench:
    """Answers the questions, one at a time. Lives on one event loop."""

    def __init__(self) -> None:
        self._engine: Engine | None = None
        self._model: Model | None = None

    async def load(self, message: Message) -> Message:
        """Fields: ``model`` (a bundle's folder), ``threads``; optional ``lanes``, ``slots``."""
        directory, threads = Path(message["model"]), message["threads"]
        config = ServerConfig(
            bundles=directory,
            num_lanes=message.get("lanes") or threads,
            num_threads=threads,
            num_slots=message.get("slots", 32),
            max_length=message.get("max_length", 1024),
        )
        busy = BusyLanes()
        backend = make_backend(config, busy)
        self._model = load_bundle(directory, backend, config.max_length)
        self._engine = build_engine(config, Unobserved(), busy, _die)
        workers = make_workers(self._model, config, Unobserved())
        self._engine.add(self._model.key, workers, capacity_of(self._model, config))
        return {"version": f"ONNX Runtime {backend.version}, ONNX {onnx.__version__}"}

    async def run(self, message: Message) -> Message:
        """Runs all inputs at once. Answers with when tokens came; of texts, with the end alone."""
        started = clock()
        results = await self._results(message)
        seconds = clock() - started
        if not message["max_new_tokens"]:
            return {"seconds": seconds, "num_tokens": sum(map(len, message["inputs"]))}
        arrivals = [[moment - started for moment in moments] for moments, _ in results]
        return {"arrivals": arrivals}

    async def vectors(self, message: Message) -> Message:
        results = await self._results({**message, "max_new_tokens": 0})
        return {"vectors": [vector for _, vector in results]}

    async def ceilings(self, message: Message) -> Message:
        return measure_ceilings(message["threads"])

    def close(self) -> None:
        if self._engine is not None:
            self._engine.stop()

    async def _results(self, message: Message) -> list[tuple[list[float], list[float]]]:
        if self._engine is None or self._model is None:
            raise ValueError("nothing is loaded")
        jobs = [self._job(row, message) for row in message["inputs"]]
        tickets = self._engine.submit(self._model.key, jobs)
        return await asyncio.gather(*map(_follow, tickets))

    def _job(self, ids: list[int], message: Message) -> Job:
        num_new, beams = message["max_new_tokens"], message.get("beams", 1)
        if not num_new:
            return EncodingJob(tuple(ids))
        assert self._model is not None
        start = self._model.manifest.special_tokens.decoder_start
        search = None if beams == 1 else Beams(beams)
        # No end of sequence: the work is as long as was asked for.
        if start is None:
            return GenerationJob(tuple(ids), num_new, beams=search)
        return GenerationJob((start,), num_new, source=tuple(ids), beams=search)


def _die(error: BaseException) -> None:
    print(f"the engine died: {error}", file=sys.stderr)
    os._exit(1)


async def _follow(ticket: Ticket) -> tuple[list[float], list[float]]:
    """When each token came, and the vector of a text."""
    moments: list[float] = []
    vector: list[float] = []
    while True:
        news = await ticket.next()
        moments += [clock()] * len(news.tokens)
        if news.vector is not None:
            vector = news.vector.tolist()
        if news.end is not None and news.end.outcome not in _GOOD:
            raise RuntimeError(f"a sequence ended as {news.end.outcome}: {news.end.failure}")
        if news.is_last:
            return moments, vector


async def serve(questions: TextIO, answers: TextIO) -> None:
    """Answers until the input ends; what a question asks in vain is an answer too."""
    bench = Bench()
    handlers: dict[str, Callable[[Message], Awaitable[Message]]] = {
        "load": bench.load,
        "run": bench.run,
        "vectors": bench.vectors,
        "ceilings": bench.ceilings,
    }
    while line := await asyncio.to_thread(questions.readline):
        try:
            message = json.loads(line)
            answer = await handlers[message["op"]](message)
        except (BundleError, StartupError, KeyError, ValueError, RuntimeError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
    bench.close()


if __name__ == "__main__":
    asyncio.run(serve(sys.stdin, sys.stdout))
