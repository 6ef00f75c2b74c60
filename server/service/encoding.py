"""What all calls to encoders share: texts are read, run, and accounted for."""

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from model.bundle import Task
from protos.triune.v1 import common_pb2
from protos.triune.v1 import encoding_pb2 as pb
from server.engine.requests.job_handle import JobHandle
from server.engine.requests.sequence import Completion, EncodingJob, Floats
from server.errors import InternalError, InvalidArgumentError
from server.models.registry import Model
from server.service import validation
from server.service.accounting import end_of, timing
from server.service.caller import Caller
from server.service.context import Services
from server.text.windows import LengthLimit, TokenizedText, TooLongError, Window


@dataclass(frozen=True, slots=True)
class EncoderOutput:
    """What the model gave for one window; as in :class:`Progress`."""

    vector: Floats
    token_vectors: Floats | None


@dataclass(slots=True)
class EncoderCall:
    """One request to an encoder, from its arrival to its response.

    ``is_bulk``: others may overtake its texts. ``started`` in seconds of ``time.monotonic``. One
    coroutine owns it.
    """

    model: Model
    services: Services
    caller: Caller
    is_bulk: bool = False
    started: float = field(default_factory=time.monotonic)
    _tokenize_seconds: float = 0.0
    _ends: list[Completion] = field(default_factory=list)
    _num_tokens: int = 0

    @classmethod
    def open(
        cls,
        name: str,
        version: str,
        task: Task,
        services: Services,
        caller: Caller,
        *,
        is_bulk: bool = False,
    ) -> "EncoderCall":
        """Raises ``ModelNotFoundError``, and ``InvalidArgumentError`` for a model without it."""
        model = services.registry.get(name, version)
        validation.check_task(model, task)
        return cls(model, services, caller, is_bulk)

    async def read(
        self,
        texts: Sequence[str],
        limit: LengthLimit,
        *,
        pairs: Sequence[str] | None = None,
        spans: bool = False,
        path: str = "inputs[{}]",
    ) -> list[TokenizedText]:
        """Tokenizes. A text that cannot be read is refused by ``path``."""
        started = time.monotonic()
        tokenizer = self.model.tokenizer
        self.services.engine.check(self.model.key, len(texts), is_bulk=self.is_bulk)
        try:
            readings = await self.services.tokenized(
                itertools.chain(texts, pairs or ()),
                lambda: tokenizer.tokenize_windows(texts, pairs, limit, spans=spans),
                self.caller,
            )
        except TooLongError as error:
            raise InvalidArgumentError(path.format(error.index), str(error)) from error
        for index, reading in enumerate(readings):
            if not reading.windows[0].token_ids:
                raise InvalidArgumentError(path.format(index), "has no tokens")
        self._tokenize_seconds += time.monotonic() - started
        return readings

    async def run(self, jobs: Sequence[Sequence[EncodingJob]]) -> list[list[EncoderOutput]]:
        """Runs all jobs of each input; if one fails, or the caller leaves, none goes on.

        Raises:
            ServeError: what the first failure was.
        """
        engine = self.services.engine
        tickets = engine.submit(
            self.model.key, [job for group in jobs for job in group], self.caller.client
        )
        try:
            results = [await _result(ticket) for ticket in tickets]
        finally:
            engine.cancel(tickets)
        self._ends += [end for _, end in results]
        self._num_tokens += sum(len(job.token_ids) for group in jobs for job in group)
        outputs = iter(output for output, _ in results)
        return [[next(outputs) for _ in group] for group in jobs]

    def job(
        self, window: Window, *, logit_positions: tuple[int, ...] = (), wants_tokens: bool = False
    ) -> EncodingJob:
        """The job for one window; see :class:`EncodingJob`."""
        return EncodingJob(
            token_ids=window.token_ids,
            segment_ids=window.segment_ids,
            logit_positions=logit_positions,
            wants_tokens=wants_tokens,
            is_bulk=self.is_bulk,
            deadline=self.caller.deadline,
        )

    def jobs(self, readings: Sequence[TokenizedText]) -> list[list[EncodingJob]]:
        """Those of readings that need nothing else."""
        return [[self.job(window) for window in reading.windows] for reading in readings]

    def finish(self) -> tuple[common_pb2.Usage, common_pb2.Timing]:
        """Counts what was done. Once, at the end."""
        metrics, name = self.services.metrics, self.model.manifest.name
        for end in self._ends:
            metrics.on_phases(name, end.queue_seconds, end.prefill_seconds, end.decode_seconds)
        metrics.on_tokens(name, self._num_tokens, 0)
        usage = common_pb2.Usage(input_tokens=self._num_tokens)
        return usage, timing(self._ends, self._tokenize_seconds, self.started)


async def _result(ticket: JobHandle) -> tuple[EncoderOutput, Completion]:
    progress = await ticket.next()
    end = end_of(progress)
    if progress.vector is None:
        raise InternalError
    return EncoderOutput(progress.vector, progress.token_vectors), end


def usage_of(reading: TokenizedText) -> common_pb2.Usage:
    """Of one input."""
    return common_pb2.Usage(input_tokens=reading.num_tokens)


def report_of(reading: TokenizedText) -> pb.Reading:
    """What was done to one input because of its length."""
    return pb.Reading(truncated_tokens=reading.num_truncated, windows=len(reading.windows))
