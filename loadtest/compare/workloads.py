"""Workloads of engines, their inputs, and the sizes of the models that run them."""

import itertools
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from loadtest.compare.candidates import Level
from loadtest.prompts import sentences
from loadtest.tasks import Task


class WorkloadKind(StrEnum):
    """Which tokens of a run count."""

    DECODE = "decode"  # output tokens while all sequences decode
    PREFILL = "prefill"  # prompt tokens until the first output token
    TRANSLATE = "translate"  # output tokens, encoder and decoder together
    EMBED = "embed"  # input tokens
    TEXT = "text"  # sentences, from text to text
    MIXED = "mixed"  # output tokens of sequences that start and end at different times


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSize:
    """Numbers of parameters by how often they are used.

    ``encoder``: once per source token (or per token of an encoder). ``decoder``: once per target
    token, without the output projection, which is ``head``. Token and position embeddings are
    looked up and do not count. ``cache_values_per_token``: elements of the key/value cache.
    ``lossless_bytes``: of a weight in fp32, in the smallest format that restores it exactly.
    """

    encoder: int = 0
    decoder: int = 0
    head: int = 0
    cache_values_per_token: int = 0
    lossless_bytes: float = 4.0
    first_id: int
    """Lower token ids are special."""
    vocabulary: int


MODEL_SIZES = {
    # 30 layers of 576: attention 576·(576+2·192)+576², gated feed-forward 3·576·1536.
    # The file has blocks of 32 weights: 20 bytes in the layers (Q4_1), 34 in the head (Q8_0).
    Task.GENERATE: ModelSize(
        decoder=30 * (576 * 960 + 576 * 576 + 3 * 576 * 1536),
        head=576 * 49152,
        cache_values_per_token=30 * 2 * 192,
        lossless_bytes=(106.2 * 20 + 28.3 * 34) / 32 / 134.5,
        first_id=1000,
        vocabulary=49152,
    ),
    # 6 + 6 layers of 512. Keys and values of the cross-attention are made per source token.
    Task.TRANSLATE: ModelSize(
        encoder=6 * (12 + 2) * 512 * 512,
        decoder=6 * (16 - 2) * 512 * 512,
        head=512 * 32000,
        cache_values_per_token=6 * 2 * 512,
        first_id=10,
        vocabulary=31999,  # the last is padding, which CTranslate2's vocabulary lacks
    ),
    # 6 layers of 384.
    Task.EMBED: ModelSize(encoder=6 * 12 * 384 * 384, first_id=2000, vocabulary=30522),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """A batch of sequences. ``lengths``: input tokens of each sequence; none if they are texts."""

    task: Task
    kind: WorkloadKind
    label: str
    precision: str
    lengths: tuple[int, ...]
    num_new_tokens: int = 0
    beams: int = 1
    new_tokens: tuple[int, ...] = ()
    """Output tokens of each sequence, if they differ; else ``num_new_tokens`` applies."""
    num_texts: int = 0
    """Sequences that are texts."""
    other_model: ModelSize | None = None
    """The size of the model, if it is not the task's own."""

    @property
    def model(self) -> ModelSize:
        return self.other_model or MODEL_SIZES[self.task]

    @property
    def num_requests(self) -> int:
        """Requests with texts in one run, one after another: a single one would be too short."""
        return max(1, TEXTS_PER_RUN // self.num_texts) if self.num_texts else 1

    @property
    def num_outputs(self) -> int:
        """Output tokens of all sequences."""
        return sum(self.new_tokens) or self.batch * self.num_new_tokens

    @property
    def batch(self) -> int:
        return self.num_texts or len(self.lengths)

    @property
    def metric(self) -> str:
        return "sentences/s" if self.kind == WorkloadKind.TEXT else "tokens/s"

    def message(self, seed: int) -> dict[str, Any]:
        """The ``run`` message to a worker. Ids are random, so that prompts share no prefix."""
        if self.num_texts:
            texts = itertools.cycle(sentences())
            first = seed * self.num_texts * self.num_requests
            chosen = itertools.islice(texts, first, None)
            requests = [
                list(itertools.islice(chosen, self.num_texts)) for _ in range(self.num_requests)
            ]
            return {"op": "run", "task": self.task.value, "requests": requests}
        sizes = self.model
        random = np.random.default_rng((seed, self.batch, sum(self.lengths), self.beams))
        rows = [random.integers(sizes.first_id, sizes.vocabulary, n).tolist() for n in self.lengths]
        return {
            "op": "run",
            "task": self.task.value,
            "kind": self.kind.value,
            "inputs": rows,
            "max_new_tokens": list(self.new_tokens) or self.num_new_tokens,
            "beams": self.beams,
        }


BATCHES = (1, 4, 8, 16, 32)
CACHED_TOKENS = 128
PREFILLS = (128, 512)
TRANSLATED = (1, 8, 32, 64)
TRANSLATED_TEXTS = (1, 8, 64, 200)
TEXTS_PER_RUN = 400
SENTENCE_TOKENS = 30
MIXED_TEXTS = 64


def _generate(precision: str) -> list[Workload]:
    def workload(kind: WorkloadKind, label: str, lengths: tuple[int, ...], new: int) -> Workload:
        return Workload(
            task=Task.GENERATE,
            kind=kind,
            label=label,
            precision=precision,
            lengths=lengths,
            num_new_tokens=new,
        )

    # Sequences join one by one while earlier ones decode: large batches need more common steps.
    return [
        workload(
            WorkloadKind.DECODE, "decode, 128 cached", (CACHED_TOKENS,) * batch, 96 + batch // 2
        )
        for batch in BATCHES
    ] + [workload(WorkloadKind.PREFILL, f"prefill of {size}", (size,), 1) for size in PREFILLS]


def _translate(precision: str) -> list[Workload]:
    return [
        Workload(
            task=Task.TRANSLATE,
            kind=WorkloadKind.TRANSLATE,
            label=f"30 to 30, {'greedy' if beams == 1 else f'beam {beams}'}",
            precision=precision,
            lengths=(SENTENCE_TOKENS,) * batch,
            num_new_tokens=SENTENCE_TOKENS,
            beams=beams,
        )
        for beams in (1, 4)
        for batch in TRANSLATED
    ]


def _texts(precision: str) -> list[Workload]:
    return [
        Workload(
            task=Task.TRANSLATE,
            kind=WorkloadKind.TEXT,
            label="en-pt, text to text",
            precision=precision,
            lengths=(),
            num_texts=count,
        )
        for count in TRANSLATED_TEXTS
    ]


def _embed(precision: str) -> list[Workload]:
    mixed = np.random.default_rng(0).integers(8, 257, MIXED_TEXTS).tolist()
    batches = {"16×32": (32,) * 16, "32×128": (128,) * 32, "64 of 8–256": tuple(mixed)}
    return [
        Workload(
            task=Task.EMBED,
            kind=WorkloadKind.EMBED,
            label=label,
            precision=precision,
            lengths=lengths,
        )
        for label, lengths in batches.items()
    ]


MIXED_SEQUENCES = {Task.GENERATE: 128, Task.TRANSLATE: 512}
"""Sequences of a mixed workload: more than run at once, so that they start at different times."""


def _mixed(task: Task, precision: str) -> list[Workload]:
    """Output lengths are log-uniform."""
    random, count = np.random.default_rng(1), MIXED_SEQUENCES[task]
    if task == Task.GENERATE:
        lengths = random.integers(8, 129, count)
        new = _log_uniform(random, 8, 129, count)
    else:
        lengths = new = _log_uniform(random, 5, 81, count)
    return [
        Workload(
            task=task,
            kind=WorkloadKind.MIXED,
            label=f"{lengths.min()}–{lengths.max()} in, {new.min()}–{new.max()} out",
            precision=precision,
            lengths=tuple(lengths.tolist()),
            new_tokens=tuple(new.tolist()),
        )
    ]


def _log_uniform(
    random: np.random.Generator, low: int, high: int, count: int
) -> npt.NDArray[np.int64]:
    return np.exp(random.uniform(np.log(low), np.log(high), count)).astype(int)


_WORKLOADS = {Task.GENERATE: _generate, Task.TRANSLATE: _translate, Task.EMBED: _embed}
PRECISIONS: dict[Level, dict[Task, tuple[str, ...]]] = {
    Level.ENGINE: {
        Task.GENERATE: ("int8", "int4", "fp32"),
        Task.TRANSLATE: ("int8",),
        Task.EMBED: ("fp32", "int8"),
    },
    Level.TEXT: {Task.GENERATE: (), Task.TRANSLATE: ("int8",), Task.EMBED: ()},
    Level.SERVER: {
        Task.GENERATE: ("int8",),
        Task.TRANSLATE: ("int8",),
        Task.EMBED: ("fp32", "int8"),
    },
    Level.STATIC: {Task.GENERATE: ("int8",), Task.TRANSLATE: ("int8",), Task.EMBED: ()},
}


def workloads(
    task: Task,
    precision: str,
    level: Level = Level.ENGINE,
    *,
    quick: bool = False,
    model: ModelSize | None = None,
) -> list[Workload]:
    """All workloads of a task.

    Args:
        quick: batches of at most 8, to show that everything works.
        model: the size of the model, if it is not the task's own.
    """
    if level == Level.STATIC:
        return _mixed(task, precision)
    chosen = (_texts if level == Level.TEXT else _WORKLOADS[task])(precision)
    if model is not None:
        chosen = [replace(workload, other_model=model) for workload in chosen]
    if not quick:
        return chosen
    return [workload for workload in chosen if workload.batch <= 8 or task == Task.EMBED]
