"""Runs the encoder over sources, and the encoder of images over those of prompts."""

from collections.abc import Sequence

from server.engine.cache.slot_store import SlotStore
from server.engine.clock import Clock
from server.engine.failures import run_with_isolation
from server.engine.job_table import JobTable
from server.engine.model_runner import ModelRunner
from server.engine.observer import Observer, RunReport
from server.engine.requests.lifecycle import Event
from server.engine.requests.sequence import DecodingSequence


class EncoderRuns:
    """Runs one model's encoders. The sequences of a failed run end.

    Args:
        model: the model's name, for reports.
        runner: runs the model's graphs.
        slots: the cache of the running sequences.
        jobs: the table of all jobs.
        clock: returns seconds.
        observer: receives a report of every run.
    """

    def __init__(
        self,
        model: str,
        runner: ModelRunner,
        slots: SlotStore,
        jobs: JobTable,
        clock: Clock,
        observer: Observer,
    ) -> None:
        self._model, self._runner, self._slots, self._jobs = model, runner, slots, jobs
        self._clock, self._observer = clock, observer

    def encode(self, sequences: Sequence[DecodingSequence]) -> None:
        """Encodes the sources of running sequences in one batch."""

        def encode(batch: Sequence[DecodingSequence]) -> None:
            started = self._clock()
            self._runner.encode(batch, [self._slots.slot_of(sequence) for sequence in batch])
            num_tokens = sum(sequence.num_source_tokens for sequence in batch)
            self._report(len(batch), num_tokens, started)

        label = f"encoding by {self._model}"
        for batch, failure in run_with_isolation(sequences, encode, label, _is_live):
            if failure is not None:
                self._jobs.end_all(batch, failure, self._clock())
                continue
            for sequence in batch:
                sequence.on(Event.PREFILL)

    def encode_image(self, sequence: DecodingSequence, index: int) -> None:
        """Computes the vectors of the image at ``index`` of a waiting sequence's job."""
        image, images = sequence.job.images[index], self._runner.images

        def encode(_: Sequence[DecodingSequence]) -> None:
            if images is None:
                raise ValueError("this model reads no images in prompts")
            started = self._clock()
            sequence.image_vectors[index] = images.encode(image)
            self._report(1, image.num_tokens, started)

        label = f"encoding an image by {self._model}"
        for batch, failure in run_with_isolation([sequence], encode, label):
            if failure is not None:
                self._jobs.end_all(batch, failure, self._clock())

    def _report(self, num_sequences: int, num_tokens: int, started: float) -> None:
        seconds = self._clock() - started
        report = RunReport("encode", num_sequences, num_tokens, (seconds,))
        self._observer.on_run(self._model, report)


def _is_live(sequence: DecodingSequence) -> bool:
    return sequence.is_live
