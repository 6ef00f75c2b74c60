"""The engine without gRPC, as a process: ``python -m server.bench``.

It reads a JSON object a line and answers with one, as the peers of ``python -m loadtest compare``
do (see ``loadtest/peers/json_lines.py``). What it drives is the engine that the server
has: lanes, scheduling and all, from submission to the updates of each token.

``{"op": "ceilings"}`` measures what no model can exceed on this machine.
"""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TextIO

import onnx

from model.bundle import BundleError
from server.app import make_backends
from server.ceilings import measure_ceilings
from server.config import BATCHED_TOKENS, PADDED_TOKENS, ServerConfig
from server.engine.decoding.options import NO_LOGPROBS, Beams, LogprobOptions
from server.engine.engine import Engine
from server.engine.observer import Unobserved
from server.engine.requests.busy_lanes import BusyLanes
from server.engine.requests.job_handle import JobHandle
from server.engine.requests.sequence import EncodingJob, GenerationJob, Job
from server.errors import StartupError
from server.installation import check_installation
from server.models.registry import Model, load_bundle
from server.models.workers import build_engine, capacity_of, clock, make_workers
from server.runtime.devices import parse_device

Message = dict[str, Any]


@dataclass(slots=True)
class Result:
    """The tokens of a row, their token_times and what was told of them; the vector of a text."""

    tokens: list[int] = field(default_factory=list)
    token_times: list[float] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    vector: list[float] = field(default_factory=list)


TOLD = LogprobOptions(top_logprobs=0)


@dataclass(frozen=True, slots=True)
class Row:
    ids: tuple[int, ...]
    num_new_tokens: int


@dataclass(frozen=True, slots=True)
class Static:
    """Batches that are formed once and run to their end; ``num_rows`` 0: none, rows come and go.

    ``padded``: rows run on to the longest of their batch, as where a batch is one array.
    """

    num_rows: int = 0
    padded: bool = False


class Bench:
    """Answers the questions, one at a time. Lives on one event loop."""

    def __init__(self) -> None:
        self._engine: Engine | None = None
        self._model: Model | None = None
        self._static = Static()

    async def load(self, message: Message) -> Message:
        """Fields: ``model`` (a bundle's folder), ``threads``; optional ``device``, ``lanes``,
        ``slots``, ``max_length``, ``static`` and ``padded``: see :class:`Static`. ``config`` has
        other fields of :class:`server.config.ServerConfig`, by name.
        """
        options = message.get("config", {})
        if unknown := options.keys() - {each.name for each in fields(ServerConfig)}:
            raise ValueError(f"this version has no {', '.join(sorted(unknown))}")
        device = message.get("device", "cpu")
        check_installation(device)
        kind = parse_device(device).kind
        directory, threads = Path(message["model"]), message["threads"]
        config = ServerConfig(
            bundles=directory,
            devices=(device,),
            num_lanes=message.get("lanes") or (threads if device == "cpu" else 1),
            num_threads=threads,
            num_slots=message.get("slots", 32),
            max_length=message.get("max_length", 1024),
            **{
                "max_batched_tokens": BATCHED_TOKENS[kind],
                "max_padded_tokens": PADDED_TOKENS[kind],
                **options,
            },
        )
        self._static = Static(message.get("static", 0), message.get("padded", False))
        busy = BusyLanes()
        (backend,) = make_backends(config, busy)
        self._model = load_bundle(directory, backend, config.max_length)
        self._engine = build_engine(config, Unobserved(), busy, _die)
        workers = make_workers(self._model, config, Unobserved())
        self._engine.add(self._model.key, workers, capacity_of(self._model, config))
        await self._engine.prepared(self._model.key)
        return {"version": f"ONNX Runtime {backend.version}, ONNX {onnx.__version__}"}

    async def run(self, message: Message) -> Message:
        """Runs the inputs. Answers with when tokens came; of texts, with the end alone."""
        started = clock()
        results = await self._batches(message)
        seconds = clock() - started
        if not message["max_new_tokens"]:
            return {"seconds": seconds, "num_tokens": sum(map(len, message["inputs"]))}
        arrivals = [[moment - started for moment in result.token_times] for result in results]
        return {"arrivals": arrivals}

    async def clients(self, message: Message) -> Message:
        """As many ``clients``, each with its next input when the one before has ended.

        Answers with the tokens that came in ``seconds``, after ``warmup_seconds``; what has begun
        by then is cancelled. Inputs are taken in order, and must be enough.
        """
        waiting = iter(_rows(message))
        begin = clock() + message["warmup_seconds"]
        end = begin + message["seconds"]
        results: list[Result] = []
        tickets: dict[int, JobHandle] = {}

        async def client(number: int) -> None:
            while clock() < end:
                (tickets[number],) = self._submit([next(waiting)], message, NO_LOGPROBS)
                results.append(Result())
                await _follow(tickets[number], results[-1])

        tasks = [asyncio.create_task(client(number)) for number in range(message["clients"])]
        await asyncio.wait(tasks, timeout=end - clock())
        assert self._engine is not None
        self._engine.cancel(tickets.values())
        await asyncio.gather(*tasks, return_exceptions=True)
        count = sum(begin <= moment < end for result in results for moment in result.token_times)
        return {"num_tokens": count, "seconds": message["seconds"]}

    async def vectors(self, message: Message) -> Message:
        results = await self._results(_rows({**message, "max_new_tokens": 0}), message)
        return {"vectors": [result.vector for result in results]}

    async def tokens(self, message: Message) -> Message:
        """Greedy tokens after each input; with ``is_told``, the logarithm of each's probability."""
        logprob_options = TOLD if message["is_told"] else NO_LOGPROBS
        results = await self._results(_rows(message), message, logprob_options)
        return {
            "tokens": [result.tokens for result in results],
            "logprobs": [result.logprobs for result in results],
        }

    async def ceilings(self, message: Message) -> Message:
        return measure_ceilings(message["threads"])

    def close(self) -> None:
        if self._engine is not None:
            self._engine.stop()

    async def _batches(self, message: Message) -> list[Result]:
        """All rows at once; with static batches, each when the one before has ended."""
        rows = _rows(message)
        size = self._static.num_rows or len(rows)
        results: list[Result] = []
        for first in range(0, len(rows), size):
            batch = rows[first : first + size]
            longest = max(row.num_new_tokens for row in batch)
            run = [replace(row, num_new_tokens=longest) for row in batch]
            found = await self._results(run if self._static.padded else batch, message)
            for row, result in zip(batch, found, strict=True):
                del result.token_times[row.num_new_tokens :]
            results += found
        return results

    async def _results(
        self, rows: list[Row], message: Message, logprob_options: LogprobOptions = NO_LOGPROBS
    ) -> list[Result]:
        tickets = self._submit(rows, message, logprob_options)
        return await asyncio.gather(*(_follow(ticket, Result()) for ticket in tickets))

    def _submit(
        self, rows: list[Row], message: Message, logprob_options: LogprobOptions
    ) -> list[JobHandle]:
        if self._engine is None or self._model is None:
            raise ValueError("nothing is loaded")
        jobs = [self._job(row, message.get("beams", 1), logprob_options) for row in rows]
        return self._engine.submit(self._model.key, jobs)

    def _job(self, row: Row, beams: int, logprob_options: LogprobOptions) -> Job:
        if not row.num_new_tokens:
            return EncodingJob(row.ids)
        assert self._model is not None
        start = self._model.manifest.special_tokens.decoder_start
        search = None if beams == 1 else Beams(beams)
        # No end of sequence: the work is as long as was asked for.
        if start is None:
            return GenerationJob(
                row.ids, row.num_new_tokens, beams=search, logprob_options=logprob_options
            )
        return GenerationJob(
            (start,),
            row.num_new_tokens,
            source=row.ids,
            beams=search,
            logprob_options=logprob_options,
        )


def _rows(message: Message) -> list[Row]:
    """``max_new_tokens`` is one number for all rows, or a list."""
    inputs, new = message["inputs"], message["max_new_tokens"]
    numbers = new if isinstance(new, list) else [new] * len(inputs)
    return [Row(tuple(ids), number) for ids, number in zip(inputs, numbers, strict=True)]


def _die(error: BaseException) -> None:
    print(f"the engine died: {error}", file=sys.stderr)
    os._exit(1)


async def _follow(ticket: JobHandle, result: Result) -> Result:
    """All that came of one job, in ``result`` as it comes."""
    while True:
        update = await ticket.next()
        result.tokens += update.tokens
        result.token_times += [clock()] * len(update.tokens)
        result.logprobs += [told.logprob for told in update.logprobs]
        if update.vector is not None:
            result.vector = update.vector.tolist()
        if update.completion is not None and not update.completion.is_success:
            raise RuntimeError(
                f"a sequence ended as {update.completion.outcome}: {update.completion.failure}"
            )
        if update.is_last:
            return result


async def serve(questions: TextIO, answers: TextIO) -> None:
    """Answers until the input ends; what a question asks in vain is an answer too."""
    bench = Bench()
    handlers: dict[str, Callable[[Message], Awaitable[Message]]] = {
        "load": bench.load,
        "run": bench.run,
        "clients": bench.clients,
        "vectors": bench.vectors,
        "tokens": bench.tokens,
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
