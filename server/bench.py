"""Runs the engine as a process without a front end: ``python -m server.bench``.

Reads one JSON object per line and answers each with one line, in the protocol of the peers of
``python -m loadtest compare`` (documented in ``loadtest/peers/json_lines.py``). It runs the
server's own engine with its lanes and scheduler, from submission to the update of each token.
"""

import asyncio
import itertools
import os
import sys
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path

import onnx
import uvloop

from server.app import SWITCH_SECONDS, make_backends
from server.config import ServerConfig
from server.config_defaults import BATCHED_TOKENS, PADDED_TOKENS
from server.constraint import Floats
from server.engine.decoding.options import NO_LOGPROBS, Beams, LogprobOptions
from server.engine.decoding.sampling import TokenLogprob
from server.engine.engine import Engine
from server.engine.observer import Unobserved
from server.engine.requests.busy_lanes import BusyLanes
from server.engine.requests.job import Candidates, Delivery, EncodingJob, GenerationJob
from server.engine.requests.job_handle import JobHandle
from server.installation import check_installation
from server.json_lines import Message, serve
from server.models.garbage import freeze_loaded_objects
from server.models.registry import Model, load_bundle
from server.models.workers import admission_limits, build_engine, clock, make_workers
from server.runtime.devices import parse_device


@dataclass(slots=True)
class Result:
    """One input's generated tokens with times (seconds) and log-probabilities, or its vector.

    ``prompt_logprobs`` skips the input's first token; ``indices`` are a sparse vector's token ids.
    """

    tokens: list[int] = field(default_factory=list)
    token_times: list[float] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    vector: Floats | None = None
    indices: list[int] | None = None


WITH_LOGPROBS = LogprobOptions(top_logprobs=0)
SCORED = LogprobOptions(prompt_logprobs=1)


@dataclass(frozen=True, slots=True)
class Input:
    """Token ids, and the number of tokens to generate after them; 0 encodes the ids instead."""

    ids: tuple[int, ...]
    num_new_tokens: int


@dataclass(frozen=True, slots=True)
class StaticBatching:
    """Static batches of ``num_rows`` inputs, each run to its end; 0 means continuous batching.

    With ``padded``, every input generates as many tokens as the longest of its batch, as in a
    runtime that holds a batch in one array.
    """

    num_rows: int = 0
    padded: bool = False


class Bench:
    """Handles the requests of :func:`server.json_lines.serve`, one at a time, on one event loop."""

    def __init__(self) -> None:
        self._engine: Engine | None = None
        self._model: Model | None = None
        self._static = StaticBatching()
        self._uses_shortlist = True

    async def load(self, message: Message) -> Message:
        """Loads a bundle.

        Fields: ``model`` (a bundle's folder) and ``threads``; optional ``device``, ``lanes``,
        ``slots``, ``max_length``, ``static`` and ``padded`` (see :class:`StaticBatching`),
        ``shortlist`` (false: the whole vocabulary), and ``config`` (other fields of
        :class:`server.config.ServerConfig`, by name). Without ``allows_drafts``, no tokens are
        drafted: after random inputs, outputs repeat themselves more than those of users.
        """
        options = message.get("config", {})
        if unknown := options.keys() - {field_.name for field_ in fields(ServerConfig)}:
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
                "allows_drafts": False,
                **options,
            },
        )
        self._uses_shortlist = message.get("shortlist", True)
        self._static = StaticBatching(message.get("static", 0), message.get("padded", False))
        busy = BusyLanes()
        (backend,) = make_backends(config, busy)
        self._model = load_bundle(directory, backend, config.max_length)
        if not self._model.manifest.reads_texts:
            raise ValueError(f"{directory}: takes images or speech, not texts")
        self._engine = build_engine(config, Unobserved(), busy, _exit)
        workers = make_workers(self._model, config, Unobserved())
        self._engine.add(self._model.key, workers, admission_limits(self._model, config))
        await self._engine.wait_until_ready(self._model.key)
        freeze_loaded_objects()
        return {"version": f"ONNX Runtime {backend.version}, ONNX {onnx.__version__}"}

    async def run(self, message: Message) -> Message:
        """Runs the inputs. Answers with each token's arrival time; for texts, with the duration."""
        started = clock()
        results = await self._batches(message)
        seconds = clock() - started
        if not message["max_new_tokens"]:
            return {"seconds": seconds, "num_tokens": sum(map(len, message["inputs"]))}
        arrivals = [[moment - started for moment in result.token_times] for result in results]
        return {"arrivals": arrivals}

    async def clients(self, message: Message) -> Message:
        """Runs a closed loop: each of ``clients`` sends its next input when the last one is done.

        Answers with the number of tokens that arrived in the ``seconds`` after
        ``warmup_seconds``, and cancels the jobs that still run. Inputs are used once, in order;
        there must be enough of them.
        """
        inputs = iter(_inputs(message))
        begin = clock() + message["warmup_seconds"]
        end = begin + message["seconds"]
        results: list[Result] = []
        handles: dict[int, JobHandle] = {}

        async def client(number: int) -> None:
            while clock() < end:
                (handles[number],) = self._submit([next(inputs)], message, NO_LOGPROBS)
                results.append(Result())
                await _follow(handles[number], results[-1:])

        tasks = [asyncio.create_task(client(number)) for number in range(message["clients"])]
        await asyncio.wait(tasks, timeout=end - clock())
        assert self._engine is not None
        self._engine.cancel(handles.values())
        await asyncio.gather(*tasks, return_exceptions=True)
        count = sum(begin <= moment < end for result in results for moment in result.token_times)
        return {"num_tokens": count, "seconds": message["seconds"]}

    async def vectors(self, message: Message) -> Message:
        """Answers with each input's vector; sparse vectors as weights and their ``indices``."""
        results = await self._results(_inputs({**message, "max_new_tokens": 0}), message)
        vectors = [result.vector for result in results if result.vector is not None]
        return {
            "vectors": [vector.tolist() for vector in vectors],
            "indices": [result.indices for result in results if result.indices is not None],
        }

    async def tokens(self, message: Message) -> Message:
        """Answers with greedy tokens; with ``with_logprobs``, their log-probabilities too."""
        logprob_options = WITH_LOGPROBS if message["with_logprobs"] else NO_LOGPROBS
        results = await self._results(_inputs(message), message, logprob_options)
        return {
            "tokens": [result.tokens for result in results],
            "logprobs": [result.logprobs for result in results],
        }

    async def score(self, message: Message) -> Message:
        """Scores the tokens of each input from index ``starts`` on, each given those before it.

        Answers with their ``logprobs`` and, as ``top``, the most likely token at each position.
        """
        inputs, starts = _inputs({**message, "max_new_tokens": 1}), message["starts"]
        results = await self._results(inputs, message, SCORED)
        # The first token of a prompt has no score.
        scored = [
            result.prompt_logprobs[start - 1 :]
            for result, start in zip(results, starts, strict=True)
        ]
        return {
            "logprobs": [[token.logprob for token in row] for row in scored],
            "top": [[token.top[0][0] for token in row] for row in scored],
        }

    def close(self) -> None:
        if self._engine is not None:
            self._engine.stop()

    async def _batches(self, message: Message) -> list[Result]:
        """Runs all inputs at once, or one static batch after another."""
        inputs = _inputs(message)
        size = self._static.num_rows or len(inputs)
        results: list[Result] = []
        for first in range(0, len(inputs), size):
            batch = inputs[first : first + size]
            longest = max(input_.num_new_tokens for input_ in batch)
            padded = [replace(input_, num_new_tokens=longest) for input_ in batch]
            found = await self._results(padded if self._static.padded else batch, message)
            for input_, result in zip(batch, found, strict=True):
                del result.token_times[input_.num_new_tokens :]
            results += found
        return results

    async def _results(
        self, inputs: list[Input], message: Message, logprob_options: LogprobOptions = NO_LOGPROBS
    ) -> list[Result]:
        handles = self._submit(inputs, message, logprob_options)
        parts = [_follow(handle, [Result() for _ in handle.ids]) for handle in handles]
        return list(itertools.chain.from_iterable(await asyncio.gather(*parts)))

    def _submit(
        self, inputs: list[Input], message: Message, logprob_options: LogprobOptions
    ) -> list[JobHandle]:
        if self._engine is None or self._model is None:
            raise ValueError("nothing is loaded")
        if not inputs[0].num_new_tokens:
            texts = [EncodingJob(input_.ids, num_texts=len(inputs)) for input_ in inputs]
            parts = self._engine.submit_texts(self._model.key, texts, client="")
            return list(itertools.chain.from_iterable(parts))
        jobs = [self._job(input_, message.get("beams", 1), logprob_options) for input_ in inputs]
        return self._engine.submit(self._model.key, jobs)

    def _job(self, input_: Input, beams: int, logprob_options: LogprobOptions) -> GenerationJob:
        assert self._model is not None
        start = self._model.manifest.special_tokens.decoder_start
        search = None if beams == 1 else Beams(beams)
        # Without EOS ids, so that each input generates exactly the requested number of tokens.
        if start is None:
            return GenerationJob(
                input_.ids,
                input_.num_new_tokens,
                beams=search,
                logprob_options=logprob_options,
                delivery=Delivery.STREAM,
            )
        shortlist = self._model.shortlist if self._uses_shortlist else None
        return GenerationJob(
            (start,),
            input_.num_new_tokens,
            source=input_.ids,
            beams=search,
            candidates=None
            if shortlist is None
            else Candidates(partial(shortlist.candidates, input_.ids, [start])),
            logprob_options=logprob_options,
            delivery=Delivery.STREAM,
        )


def _inputs(message: Message) -> list[Input]:
    """Parses the inputs. ``max_new_tokens`` is one number for all of them, or a list."""
    ids_of_inputs, new = message["inputs"], message["max_new_tokens"]
    numbers = new if isinstance(new, list) else [new] * len(ids_of_inputs)
    return [Input(tuple(ids), number) for ids, number in zip(ids_of_inputs, numbers, strict=True)]


def _exit(error: BaseException) -> None:
    print(f"the engine stopped: {error}", file=sys.stderr)
    os._exit(1)


async def _follow(handle: JobHandle, results: list[Result]) -> list[Result]:
    """Collects the updates of a handle's jobs in ``results``, one for each, until all end."""
    num_ended = 0
    while num_ended < handle.num_jobs:
        update = await handle.next()
        result = results[update.id - handle.id]
        result.tokens += update.tokens
        result.token_times += update.token_times
        result.logprobs += [token.logprob for token in update.logprobs]
        result.prompt_logprobs += update.prompt.logprobs
        if update.encoded is not None:
            result.vector = update.encoded.vector
            if update.encoded.indices is not None:
                result.indices = update.encoded.indices.tolist()
        if update.completion is not None and not update.completion.is_success:
            raise RuntimeError(
                f"a job ended with outcome {update.completion.outcome}: {update.completion.failure}"
            )
        num_ended += update.is_last
    return results


async def main() -> None:
    """Answers the requests on standard input with an engine."""
    sys.setswitchinterval(SWITCH_SECONDS)
    bench = Bench()
    handlers = {
        "load": bench.load,
        "run": bench.run,
        "clients": bench.clients,
        "vectors": bench.vectors,
        "tokens": bench.tokens,
        "score": bench.score,
    }
    await serve(sys.stdin, sys.stdout, handlers)
    bench.close()


if __name__ == "__main__":
    uvloop.run(main())
