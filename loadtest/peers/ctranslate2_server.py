"""CTranslate2 behind grpc.aio with dynamic batching (5 ms), as its users typically deploy it.

Requests and replies are JSON: ``{"text", "max_new_tokens", "beams"}`` with words separated by
spaces, and ``{"text", "num_tokens"}``. Each of ``--workers`` workers translates a batch at a time
with ``--threads`` threads.
"""

import argparse
import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ctranslate2
import grpc.aio

WAIT_SECONDS = 0.005
MAX_BATCH = 64


@dataclass
class PendingRequest:
    words: list[str]
    length: int
    beams: int
    answer: "asyncio.Future[list[str]]" = field(default_factory=asyncio.Future)


class Translator:
    def __init__(self, model: Path, workers: int, threads: int) -> None:
        self._model = ctranslate2.Translator(
            str(model),
            device="cpu",
            compute_type="int8",
            inter_threads=workers,
            intra_threads=threads,
        )
        self._pool = ThreadPoolExecutor(workers)
        self._free = asyncio.Semaphore(workers)
        self._queue: asyncio.Queue[PendingRequest] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()

    async def translate(self, request: bytes, context: Any) -> bytes:
        del context
        message = json.loads(request)
        waiting = PendingRequest(
            message["text"].split(), message["max_new_tokens"], message["beams"]
        )
        self._queue.put_nowait(waiting)
        words = await waiting.answer
        return json.dumps({"text": " ".join(words), "num_tokens": len(words)}).encode()

    async def form_batches(self) -> None:
        """For each free worker, waits for a full batch, or 5 ms from its first request on."""
        loop = asyncio.get_running_loop()
        while True:
            await self._free.acquire()
            batch = [await self._queue.get()]
            end = loop.time() + WAIT_SECONDS
            while len(batch) < MAX_BATCH:
                if self._queue.empty() and loop.time() >= end:
                    break
                try:
                    async with asyncio.timeout_at(end):
                        batch.append(await self._queue.get())
                except TimeoutError:
                    break
            task = asyncio.create_task(self._run(batch))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self, batch: list[PendingRequest]) -> None:
        loop = asyncio.get_running_loop()
        try:
            results = await loop.run_in_executor(self._pool, self._work, batch)
            for waiting, words in zip(batch, results, strict=True):
                waiting.answer.set_result(words)
        except Exception as error:  # any error is passed on to the callers
            for waiting in batch:
                waiting.answer.set_exception(error)
        finally:
            self._free.release()

    def _work(self, batch: list[PendingRequest]) -> list[list[str]]:
        """Translates a batch. A sequence ends at its own length, as at end-of-sequence."""
        longest = max(waiting.length for waiting in batch)
        is_mixed = any(waiting.length != longest for waiting in batch)

        def ends(step: Any) -> bool:
            return bool(step.step + 1 >= batch[step.batch_id].length)

        results = self._model.translate_batch(
            [waiting.words for waiting in batch],
            beam_size=batch[0].beams,
            max_decoding_length=longest,
            min_decoding_length=longest,
            callback=ends if is_mixed else None,
        )
        return [result.hypotheses[0] for result in results]


async def main() -> None:
    """Serves until the process is terminated."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    for name in ("port", "workers", "threads"):
        parser.add_argument(f"--{name}", type=int, required=True)
    arguments = parser.parse_args()
    translator = Translator(arguments.model, arguments.workers, arguments.threads)
    server = grpc.aio.server()
    handler: Any = grpc.unary_unary_rpc_method_handler(translator.translate)
    service = grpc.method_handlers_generic_handler("peer.Translator", {"Translate": handler})
    server.add_generic_rpc_handlers((service,))
    server.add_insecure_port(f"127.0.0.1:{arguments.port}")
    await server.start()
    await translator.form_batches()


if __name__ == "__main__":
    asyncio.run(main())
