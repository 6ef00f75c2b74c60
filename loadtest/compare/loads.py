"""What clients ask of a server, and how many of them there are. Pure."""

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
    """Each client waits for its answer."""
    FLOOD = "flood"
    """At random times, faster than anybody answers; so many are let in as there are clients."""
    STEADY = "steady"
    """At random times, at ``STEADY_SHARE`` of what the best peer can do."""


RESPONSES_PER_RUN = 2.0
"""A run lasts as long as so many answers of the slowest, one after the other: in less, who
answers later than the run ends would count for nothing."""
FLOOD_FACTOR = 2.0
STEADY_SHARE = 0.7
_NUM_WORDS = 31_999
"""Of the random Transformer-base: ``w2`` to ``w31998`` are words of everybody's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """Requests of one kind.

    Args:
        lengths: of inputs, in tokens of the model without special ones.
        num_new_tokens: of outputs; ``None`` is as many as the input has, 0 none at all.
        seconds_to_answer: about how long the slowest server takes, which says in advance how long
            all takes.
    """

    task: Task
    label: str
    clients: int
    arrival_process: ArrivalProcess
    lengths: LengthRange
    num_new_tokens: LengthRange | None
    beams: int = 1
    seconds_per_response: float

    def run_seconds(self, least: float) -> float:
        """How long a run lasts that is to last so long at least."""
        return max(least, RESPONSES_PER_RUN * self.seconds_per_response)


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One text, its token ids without special ones, and what is asked of it."""

    text: str
    ids: tuple[int, ...]
    num_new_tokens: int
    beams: int


_NO_TOKENS = LengthRange(0, 0)


def _generate() -> list[Load]:
    def load(label: str, clients: int, seconds: float, **more: Any) -> Load:
        usual = {"lengths": LengthRange(128, 128), "num_new_tokens": LengthRange(64, 64)}
        return Load(
            **{"task": Task.GENERATE, "pace": ArrivalProcess.CLOSED, **usual, **more},
            label=label,
            clients=clients,
            seconds_per_response=seconds,
        )

    mixed = {"lengths": LengthRange(8, 256), "num_new_tokens": LengthRange(16, 112)}
    return [
        *(load("128 in, 64 out", n, s) for n, s in ((1, 3.5), (8, 7.0), (32, 22.0))),
        load(
            "8–256 in, 16–112 out, flood", 32, 22.0, arrival_process=ArrivalProcess.FLOOD, **mixed
        ),
        load(
            "8–256 in, 16–112 out, steady", 32, 8.0, arrival_process=ArrivalProcess.STEADY, **mixed
        ),
    ]


def _translate() -> list[Load]:
    def load(label: str, clients: int, seconds: float, **more: Any) -> Load:
        usual = {"lengths": LengthRange(30, 30), "num_new_tokens": None}
        return Load(
            **{"task": Task.TRANSLATE, "pace": ArrivalProcess.CLOSED, **usual, **more},
            label=label,
            clients=clients,
            seconds_per_response=seconds,
        )

    return [
        *(load("30 to 30, greedy", n, s) for n, s in ((1, 0.2), (8, 0.3), (32, 0.6))),
        *(load("30 to 30, beam 4", n, s, beams=4) for n, s in ((1, 0.3), (8, 0.5), (32, 1.2))),
        load(
            "5–80, flood", 32, 1.0, arrival_process=ArrivalProcess.FLOOD, lengths=LengthRange(5, 80)
        ),
        load(
            "5–80, steady",
            32,
            0.6,
            arrival_process=ArrivalProcess.STEADY,
            lengths=LengthRange(5, 80),
        ),
    ]


def _embed() -> list[Load]:
    def load(
        label: str,
        clients: int,
        seconds: float,
        lengths: LengthRange,
        arrival_process: ArrivalProcess,
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

    # The model's own two tokens belong to what is read.
    short, long, mixed = LengthRange(30, 30), LengthRange(126, 126), LengthRange(6, 254)
    return [
        *(
            load("32 tokens", n, s, short, ArrivalProcess.CLOSED)
            for n, s in ((1, 0.1), (16, 0.1), (64, 0.4))
        ),
        *(
            load("128 tokens", n, s, long, ArrivalProcess.CLOSED)
            for n, s in ((1, 0.1), (16, 0.4), (64, 1.2))
        ),
        load("8–256 tokens, flood", 64, 1.2, mixed, ArrivalProcess.FLOOD),
        load("8–256 tokens, steady", 64, 0.4, mixed, ArrivalProcess.STEADY),
    ]


_LOADS = {Task.GENERATE: _generate, Task.TRANSLATE: _translate, Task.EMBED: _embed}


def loads(task: Task, *, quick: bool = False) -> list[Load]:
    """All of a task. ``quick``: at most 8 clients, to see that everything runs."""
    chosen = _LOADS[task]()
    if not quick:
        return chosen
    few = [_with_few_clients(load) for load in chosen]
    return list({(load.label, load.clients): load for load in few}.values())


def _with_few_clients(load: Load) -> Load:
    clients = min(load.clients, 8)
    seconds = load.seconds_per_response * clients / load.clients
    return dataclasses.replace(load, clients=clients, seconds_per_response=seconds)


class Requests:
    """A load's requests by number: the same for everybody with the same seed.

    Each is made once: what :meth:`prepare` made costs the run that sends it nothing.

    Args:
        tokenizer_file: of the model; texts are cut so that it makes as many tokens as wanted.
    """

    def __init__(self, load: Load, tokenizer_file: Path, seed: int) -> None:
        self._load = load
        self._seed = seed
        self._tokenizer = Tokenizer.from_file(str(tokenizer_file))
        self._tokenizer.no_truncation()
        # A word is at least one token, so there are always enough.
        longest = LengthRange(load.lengths.longest, load.lengths.longest)
        self._prompts = Prompts(read_lines(None), longest, seed)
        self._made: list[Request] = []

    @property
    def prepared(self) -> Sequence[Request]:
        """Those that were made."""
        return self._made

    def prepare(self, count: int) -> None:
        """Makes the first so many."""
        self._made += [self._make(number) for number in range(len(self._made), count)]

    def __getitem__(self, number: int) -> Request:
        self.prepare(number + 1)
        return self._made[number]

    def _make(self, number: int) -> Request:
        load = self._load
        random = np.random.default_rng((self._seed, number, 1))
        length = _drawn(random, load.lengths)
        new = load.num_new_tokens
        text, ids = self._text(number, length, random)
        return Request(
            text=text,
            ids=ids,
            num_new_tokens=length if new is None else _drawn(random, new),
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


def _drawn(random: np.random.Generator, lengths: LengthRange) -> int:
    return int(random.integers(lengths.shortest, lengths.longest + 1))
