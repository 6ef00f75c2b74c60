"""A queue of texts for an encoder. Operations take about the same time however many texts wait."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from server.engine.requests.job import EncodingJob
from server.engine.requests.lifecycle import Event, Outcome, Phase, advance
from server.engine.requests.update import JobTimes

MAX_OVERTAKEN = 3
# The most texts from which a batch is chosen.
MAX_CANDIDATES = 1024


@dataclass(slots=True, eq=False)
class QueuedText:
    """A text that waits or runs."""

    id: int
    job: EncodingJob
    times: JobTimes
    phase: Phase = Phase.WAITING

    def on(self, event: Event) -> None:
        self.phase = advance(self.phase, event)


class EncoderQueue:
    """Chooses the texts of the next batch: the oldest interactive one, and others that join it.

    If :data:`MAX_OVERTAKEN` batches in a row did not begin with the oldest text, which is bulk
    work, the next batch does.
    """

    def __init__(self) -> None:
        self.num_tokens = 0  # of all waiting texts
        self._texts: dict[int, QueuedText] = {}  # in the order of arrival
        self._interactive: dict[int, QueuedText] = {}
        self._num_overtaken = 0
        self._cancelled: list[int] = []
        # A heap of (deadline, id). Texts that have ended stay in it for a while.
        self._deadlines: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._texts)

    def add(self, text: QueuedText) -> None:
        """Adds ``text`` to the end of the queue."""
        self._texts[text.id] = text
        self.num_tokens += text.job.num_tokens
        if not text.job.is_bulk:
            self._interactive[text.id] = text
        if text.job.deadline is not None:
            heapq.heappush(self._deadlines, (text.job.deadline, text.id))

    def remove(self, text: QueuedText) -> None:
        """Removes a text that ends or runs."""
        del self._texts[text.id]
        self.num_tokens -= text.job.num_tokens
        self._interactive.pop(text.id, None)
        if len(self._deadlines) > 2 * len(self._texts) + MAX_CANDIDATES:
            self._deadlines = [each for each in self._deadlines if each[1] in self._texts]
            heapq.heapify(self._deadlines)

    def cancel(self, id_: int) -> None:
        """Marks a text for :meth:`due`; ignores one that runs or has ended."""
        text = self._texts.get(id_)
        if text is not None:
            text.on(Event.CANCEL)
            self._cancelled.append(id_)

    def due(self, now: float) -> Iterator[tuple[QueuedText, Outcome]]:
        """Yields texts that are cancelled or past their deadline; the caller removes each."""
        cancelled, self._cancelled = self._cancelled, []
        for id_ in cancelled:
            if id_ in self._texts:
                yield self._texts[id_], Outcome.CANCELLED
        while self._deadlines and self._deadlines[0][0] <= now:
            _, id_ = heapq.heappop(self._deadlines)
            if id_ in self._texts:
                yield self._texts[id_], Outcome.DEADLINE

    def next_candidates(self) -> list[QueuedText]:
        """Returns the text that the next batch must contain, then those that may join it.

        The others are the oldest :data:`MAX_CANDIDATES`, so that a long queue does not make a step
        longer. A text whose attention weights are wanted runs alone. Empty if no text waits.
        """
        if not self._texts:
            return []
        first = oldest = next(iter(self._texts.values()))
        if self._num_overtaken < MAX_OVERTAKEN:
            first = next(iter(self._interactive.values()), oldest)
        self._num_overtaken = 0 if first is oldest else self._num_overtaken + 1
        if first.job.attention is not None:
            return [first]
        others = islice(self._texts.values(), MAX_CANDIDATES)
        return [first, *(x for x in others if x.job.attention is None and x is not first)]
