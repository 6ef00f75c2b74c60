"""Runs the service as a process without a front end: ``python -m server.service_bench``.

It translates texts with the server's own service layer: validation, tokenizer, engine and
detokenizer. The protocol is that of ``python -m server.bench``.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path

import uvloop

from server.app import SWITCH_SECONDS, make_backends
from server.config import ServerConfig
from server.engine.requests.busy_lanes import BusyLanes
from server.json_lines import Handler, Message, serve
from server.models.catalog import Catalog
from server.models.garbage import freeze_loaded_objects
from server.models.registry import Registry
from server.models.workers import build_engine, clock
from server.service.caller import Caller
from server.service.context import ServiceContext
from server.service.generation_request import TranslateRequest
from server.service.service import Service
from server.service.serving_state import ServingState
from server.service.threads import FairExecutor
from server.telemetry.metrics import Metrics


class ServiceBench:
    """Handles the requests of :func:`server.json_lines.serve`, one at a time, on one event loop."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._service: Service | None = None
        self._model = ""

    async def load(self, message: Message) -> Message:
        """Serves a bundle.

        Fields: ``model`` (its folder, ``DIR/NAME/VERSION``), ``threads``, and ``slots`` (per lane,
        by default 32).
        """
        folder, threads = Path(message["model"]), message["threads"]
        config = ServerConfig(
            bundles=folder.parents[1],
            num_lanes=threads,
            num_threads=threads,
            num_slots=message.get("slots", 32),
        )
        busy, metrics = BusyLanes(), Metrics()
        backends = make_backends(config, busy)
        engine = build_engine(config, metrics, busy, _exit)
        self._stack.callback(engine.stop)
        catalog = Catalog(config, backends, engine, metrics, _announce)
        self._stack.callback(catalog.close)
        self._model = folder.parent.name
        await catalog.load(self._model, folder.name)
        tokenizing = self._stack.enter_context(ThreadPoolExecutor(max_workers=threads))
        executor = FairExecutor(tokenizing, threads, config.max_tokenizing)
        state = ServingState(engine)
        context = ServiceContext(config, catalog, engine, metrics, executor, state)
        self._service = Service(context)
        freeze_loaded_objects()
        return {"version": f"ONNX Runtime {backends[0].version}"}

    async def run(self, message: Message) -> Message:
        """Translates the texts of each of ``requests``, one request after another.

        Answers with all translations as ``texts``, and with the duration.
        """
        if self._service is None:
            raise ValueError("nothing is loaded")
        caller, texts = Caller(client="", deadline=None), list[str]()
        started = clock()
        for inputs in message["requests"]:
            request = TranslateRequest(model=self._model, inputs=tuple(inputs))
            result = await self._service.translate(request, caller)
            texts += [output.hypotheses[0].text for output in result.outputs]
        return {"seconds": clock() - started, "texts": texts}

    async def close(self) -> None:
        await self._stack.aclose()


async def _announce(registry: Registry) -> None:
    """Does nothing: no front end needs the registry."""
    del registry


def _exit(error: BaseException) -> None:
    print(f"the engine stopped: {error}", file=sys.stderr)
    os._exit(1)


async def main() -> None:
    """Answers requests until the input ends."""
    sys.setswitchinterval(SWITCH_SECONDS)
    bench = ServiceBench()
    handlers: dict[str, Handler] = {"load": bench.load, "run": bench.run}
    try:
        await serve(sys.stdin, sys.stdout, handlers)
    finally:
        await bench.close()


if __name__ == "__main__":
    uvloop.run(main())
