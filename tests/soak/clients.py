"""Clients of the soak test: ``python -m tests.soak.clients ROLE TARGET SEED``, until killed.

``mixed`` makes valid and invalid calls of all kinds, cancels some and lets some time out.
``staller`` opens streams and does not read them. ``crasher`` prints a line when its streams run,
and is then killed.
"""

import asyncio
import contextlib
import itertools
import random
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from client.aio import AsyncClient
from client.errors import TriuneError
from client.types import Lark, Regex

NUM_CALLERS = 3  # concurrent callers of a mixed client
NUM_STALLED = 6
NUM_GRAMMARS = 300  # more than the server caches
TEXTS = ("3 March 2021", "Monday, 5 May 1999", "12,", "The house is red.", "a1b2c3", "x" * 40)
LONG: Any = {"max_new_tokens": 200, "ignore_eos": True}

Action = Callable[["Caller"], Awaitable[object]]


class Caller:
    """One concurrent caller. ``short_timeout_client`` times out early. ``models``: by task."""

    def __init__(
        self,
        client: AsyncClient,
        short_timeout_client: AsyncClient,
        models: dict[str, list[str]],
        seed: int,
    ) -> None:
        self.client = client
        self.short_timeout_client = short_timeout_client
        self._models = models
        self.rng = random.Random(seed)

    def model(self, task: str) -> str:
        return self.rng.choice(self._models.get(task, ["nobody"]))

    @property
    def text(self) -> str:
        return self.rng.choice(TEXTS)

    async def forever(self) -> None:
        while True:
            try:
                await self.rng.choice(ACTIONS)(self)
            except TriuneError:
                continue


async def _read(pieces: AsyncGenerator[Any, None], count: int | None = None) -> None:
    """Reads all pieces, or ``count`` of them and then cancels the call."""
    async with aclosing(pieces):
        number = 0
        async for _ in pieces:
            number += 1
            if number == count:
                return


def _grammar(rng: random.Random) -> Regex:
    return Regex(f"[0-9]{{1,{1 + rng.randrange(NUM_GRAMMARS)}}}[a-z]")


ACTIONS: tuple[Action, ...] = (
    lambda c: c.client.generate(c.model("generate"), [c.text, c.text], max_new_tokens=12),
    lambda c: _read(
        c.client.generate_stream(
            c.model("generate"), c.text, max_new_tokens=24, temperature=0.8, logprobs=True
        )
    ),
    lambda c: _read(c.client.generate_stream(c.model("generate"), c.text, **LONG), 3),
    lambda c: c.short_timeout_client.generate(c.model("generate"), c.text, **LONG),
    lambda c: c.client.generate(
        c.model("generate"), c.text, max_new_tokens=8, grammar=_grammar(c.rng)
    ),
    lambda c: c.client.translate(c.model("translate"), [c.text], beam_size=3, num_hypotheses=2),
    lambda c: _read(c.client.translate_stream(c.model("translate"), c.text, stop_strings=["-0"])),
    lambda c: _read(c.client.translate_stream(c.model("translate"), c.text, **LONG), 1),
    lambda c: c.client.classify(c.model("classify"), [c.text, c.text]),
    lambda c: c.client.embed(c.model("embed"), [c.text, c.text]),
    lambda c: c.client.tag(c.model("tag"), [c.text]),
    lambda c: c.client.rerank(c.model("rerank"), c.text, ["a city", c.text]),
    lambda c: c.client.tokenize(c.model("generate"), [c.text]),
    lambda c: c.client.score(c.model("generate"), [("1", "2,")]),
    # Invalid calls.
    lambda c: c.client.generate("nobody", c.text),
    lambda c: c.client.generate(c.model("generate"), ""),
    lambda c: c.client.generate(c.model("generate"), c.text, temperature=-1.0),
    lambda c: c.client.generate(c.model("generate"), "9" * 5000),
    lambda c: c.client.translate(c.model("generate"), c.text),
    lambda c: c.client.generate(c.model("generate"), c.text, grammar=Lark("start: nothing")),
)


async def _models(client: AsyncClient) -> dict[str, list[str]]:
    models: dict[str, list[str]] = {}
    for model in await client.list_models():
        for task in model.tasks:
            models.setdefault(str(task), []).append(model.name)
    return models


async def mixed(target: str, seed: int) -> None:
    """Makes calls of all kinds until killed."""
    async with (
        AsyncClient(target, timeout_seconds=60) as client,
        AsyncClient(target, timeout_seconds=0.03) as short_timeout_client,
    ):
        models = await _models(client)
        callers = [
            Caller(client, short_timeout_client, models, seed * 100 + n) for n in range(NUM_CALLERS)
        ]
        await asyncio.gather(*(caller.forever() for caller in callers))


def _streams(client: AsyncClient, models: dict[str, list[str]]) -> list[AsyncGenerator[Any, None]]:
    names = itertools.cycle(models.get("generate", []))
    return [
        client.generate_stream(next(names), "1,", logprobs=True, top_logprobs=50, **LONG)
        for _ in range(NUM_STALLED)
    ]


async def staller(target: str, seed: int) -> None:
    """Opens streams, reads one piece of each, stalls, then drops them."""
    rng = random.Random(seed)
    while True:
        async with AsyncClient(target, timeout_seconds=60) as client:
            streams = _streams(client, await _models(client))
            try:
                await asyncio.gather(*(anext(stream) for stream in streams))
                await asyncio.sleep(rng.uniform(0.5, 3))
            except TriuneError:
                continue


async def crasher(target: str, seed: int) -> None:
    """Opens streams, prints a line when they run, and waits to be killed."""
    del seed
    async with AsyncClient(target, timeout_seconds=60) as client:
        streams = _streams(client, await _models(client))
        with contextlib.suppress(TriuneError):  # a full server refuses some
            await asyncio.gather(*(anext(stream) for stream in streams))
        print("streaming", flush=True)
        await asyncio.Event().wait()


ROLES = {"mixed": mixed, "staller": staller, "crasher": crasher}

if __name__ == "__main__":
    asyncio.run(ROLES[sys.argv[1]](sys.argv[2], int(sys.argv[3])))
