"""CTranslate2 behind grpc.aio with a queue that waits 5 ms, as its users build it.

Requests and answers are JSON: ``{"text", "max_new_tokens", "beams"}`` of words that blanks
separate, and ``{"text", "num_tokens"}``. ``--workers`` threads take batches from the queue,
each with ``--threads`` of its own inside CTranslate2.
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
class Waiting:
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
        self._queue: asyncio.Queue[Waiting] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()

    async def translate(self, request: bytes, context: Any) -> bytes:
        del context
        message = json.loads(request)
        one = Waiting(message["text"].split(), message["max_new_tokens"], message["beams"])
        self._queue.put_nowait(one)
        words = await one.answer
        return json.dumps({"text": " ".join(words), "num_tokens": len(words)}).encode()

    async def form_batches(self) -> None:
        """Waits for a worker, then for 5 ms from the first request on, or for a full batch."""
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

    async def _run(self, batch: list[Waiting]) -> None:
        loop = asyncio.get_running_loop()
        try:
            results = await loop.run_in_executor(self._pool, self._work, batch)
            for one, words in zip(batch, results, strict=True):
                one.answer.set_result(words)
        except Exception as error:  # whatever it is, those who wait are told
            for one in batch:
                one.answer.set_exception(error)
        finally:
            self._free.release()

    def _work(self, batch: list[Waiting]) -> list[list[str]]:
        """Rows of other lengths than the longest leave as they would at their end."""
        longest = max(one.length for one in batch)
        mixed = any(one.length != longest for one in batch)

        def ends(step: Any) -> bool:
            return bool(step.step + 1 >= batch[step.batch_id].length)

        results = self._model.translate_batch(
            [one.words for one in batch],
            beam_size=batch[0].beams,
            max_decoding_length=longest,
            min_decoding_length=longest,
            callback=ends if mixed else None,
        )
        return [result.hypotheses[0] for result in results]


async def main() -> None:
    """Serves until it is ended."""
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
