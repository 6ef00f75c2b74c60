"""Loads on a server: the requests, the number of clients, and when they send. Pure."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from loadtest.prompts import LengthRange, Prompts, read_lines
from loadtest.tasks import Task


class ArrivalProcess(StrEnum):
    """When requests are sent."""

    CLOSED = "closed"
    """Closed loop: each client sends when it has its response."""
    FLOOD = "flood"
    """Poisson arrivals above every server's capacity, with at most ``clients`` in flight."""
    STEADY = "steady"
    """Poisson arrivals at ``STEADY_SHARE`` of the best peer's capacity."""


RESPONSES_PER_RUN = 2.0
"""A run lasts at least this many times the response time of the slowest server. Responses after
its end count for nothing."""
FLOOD_FACTOR = 2.0
STEADY_SHARE = 0.7
_NUM_WORDS = 31_999
"""Vocabulary of the random Transformer-base: all servers know ``w2`` to ``w31998``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """Requests of one kind.

    Args:
        lengths: input tokens, without special tokens.
        num_new_tokens: output tokens; ``None`` means as many as input tokens.
        seconds_per_response: approximate response time of the slowest server, to estimate the
            duration of the comparison.
    """

    task: Task
    label: str
    clients: int
    arrival_process: ArrivalProcess
    lengths: LengthRange
    num_new_tokens: LengthRange | None
    beams: int = 1
    seconds_per_response: float

    def run_seconds(self, min_seconds: float) -> float:
        """Duration of a run: at least ``min_seconds``, and long enough for the slowest server."""
        return max(min_seconds, RESPONSES_PER_RUN * self.seconds_per_response)


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One text, its token ids without special tokens, and the length of the output."""

    text: str
    ids: tuple[int, ...]
    num_new_tokens: int
    beams: int


_NO_TOKENS = LengthRange(0, 0)


def _generate() -> list[Load]:
    def load(label: str, clients: int, seconds: float, **more: Any) -> Load:
        usual = {"lengths": LengthRange(128, 128), "num_new_tokens": LengthRange(64, 64)}
        return Load(
            **{"task": Task.GENERATE, "arrival_process": ArrivalProcess.CLOSED, **usual, **more},
            label=label,
            clients=clients,
            seconds_per_response=seconds,
        )

    flood, steady = ArrivalProcess.FLOOD, ArrivalProcess.STEADY
    mixed = {"lengths": LengthRange(8, 256), "num_new_tokens": LengthRange(16, 112)}
    return [
        *(load("128 in, 64 out", n, s) for n, s in ((1, 3.5), (8, 7.0), (32, 22.0))),
        load("8–256 in, 16–112 out, flood", 32, 22.0, arrival_process=flood, **mixed),
        load("8–256 in, 16–112 out, steady", 32, 8.0, arrival_process=steady, **mixed),
    ]


def _translate() -> list[Load]:
    def load(label: str, clients: int, seconds: float, **more: Any) -> Load:
        usual = {"lengths": LengthRange(30, 30), "num_new_tokens": None}
        return Load(
            **{"task": Task.TRANSLATE, "arrival_process": ArrivalProcess.CLOSED, **usual, **more},
            label=label,
            clients=clients,
            seconds_per_response=seconds,
        )

    flood, steady = ArrivalProcess.FLOOD, ArrivalProcess.STEADY
    return [
        *(load("30 to 30, greedy", n, s) for n, s in ((1, 0.2), (8, 0.3), (32, 0.6))),
        *(load("30 to 30, beam 4", n, s, beams=4) for n, s in ((1, 0.3), (8, 0.5), (32, 1.2))),
        load("5–80, flood", 32, 1.0, arrival_process=flood, lengths=LengthRange(5, 80)),
        load("5–80, steady", 32, 0.6, arrival_process=steady, lengths=LengthRange(5, 80)),
    ]


def _embed() -> list[Load]:
    def load(
        label: str,
        clients: int,
        seconds: float,
        lengths: LengthRange,
        arrival_process: ArrivalProcess = ArrivalProcess.CLOSED,
    ) -> Load:
        return Load(
            task=Task.EMBED,
            label=label,
            clients=clients,
            arrival_process=arrival_process,
            lengths=lengths,
            num_new_tokens=_NO_TOKENS,
            seconds_per_response=seconds,
        )

    # The model adds two special tokens.
    short, long, mixed = LengthRange(30, 30), LengthRange(126, 126), LengthRange(6, 254)
    return [
        *(load("32 tokens", n, s, short) for n, s in ((1, 0.1), (16, 0.1), (64, 0.4))),
        *(load("128 tokens", n, s, long) for n, s in ((1, 0.1), (16, 0.4), (64, 1.2))),
        load("8–256 tokens, flood", 64, 1.2, mixed, ArrivalProcess.FLOOD),
        load("8–256 tokens, steady", 64, 0.4, mixed, ArrivalProcess.STEADY),
    ]


_LOADS = {Task.GENERATE: _generate, Task.TRANSLATE: _translate, Task.EMBED: _embed}


def loads(task: Task, *, quick: bool = False) -> list[Load]:
    """All loads of a task. ``quick``: at most 8 clients, to show that everything works."""
    chosen = _LOADS[task]()
    if not quick:
        return chosen
    reduced = [_with_at_most_8_clients(load) for load in chosen]
    return list({(load.label, load.clients): load for load in reduced}.values())


def _with_at_most_8_clients(load: Load) -> Load:
    clients = min(load.clients, 8)
    seconds = load.seconds_per_response * clients / load.clients
    return dataclasses.replace(load, clients=clients, seconds_per_response=seconds)


class Requests:
    """A load's requests by number; the same for all servers with the same seed.

    Each request is built once. :meth:`prepare` builds requests before the run that sends them.

    Args:
        tokenizer_file: of the model; texts are cut to the wanted number of tokens.
    """

    def __init__(self, load: Load, tokenizer_file: Path, seed: int) -> None:
        self._load = load
        self._seed = seed
        self._tokenizer = Tokenizer.from_file(str(tokenizer_file))
        self._tokenizer.no_truncation()
        # A word is at least one token, so this many words suffice.
        longest = LengthRange(load.lengths.longest, load.lengths.longest)
        self._prompts = Prompts(read_lines(None), longest, seed)
        self._built: list[Request] = []

    @property
    def prepared(self) -> Sequence[Request]:
        """The requests that are built."""
        return self._built

    def prepare(self, count: int) -> None:
        """Builds the first ``count`` requests."""
        self._built += [self._build(number) for number in range(len(self._built), count)]

    def __getitem__(self, number: int) -> Request:
        self.prepare(number + 1)
        return self._built[number]

    def _build(self, number: int) -> Request:
        load = self._load
        random = np.random.default_rng((self._seed, number, 1))
        length = _draw(random, load.lengths)
        new = load.num_new_tokens
        text, ids = self._text(number, length, random)
        return Request(
            text=text,
            ids=ids,
            num_new_tokens=length if new is None else _draw(random, new),
            beams=load.beams,
        )

    def _text(
        self, number: int, length: int, random: np.random.Generator
    ) -> tuple[str, tuple[int, ...]]:
        if self._load.task == Task.TRANSLATE:
            ids = tuple(random.integers(2, _NUM_WORDS, length).tolist())
            return " ".join(f"w{id_}" for id_ in ids), ids
        text = self._prompts.text(number)
        encoded = self._tokenizer.encode(text, add_special_tokens=False)
        return text[: encoded.offsets[length - 1][1]], tuple(encoded.ids[:length])


def _draw(random: np.random.Generator, lengths: LengthRange) -> int:
    return int(random.integers(lengths.shortest, lengths.longest + 1))
