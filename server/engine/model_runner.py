"""Runs one model's graphs over the slots: sequences in, logits out."""

import weakref
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from model.adapters import ADAPTERS
from model.bundle import GraphSpec
from server.engine.attention_runner import AttentionRunner
from server.engine.cache.slot_tensors import Capacity, SlotTensors
from server.engine.decoding.logits import HostLogits, Logits
from server.engine.encoder_attention import EncoderAttention
from server.engine.gpu.ahead import NOT_AHEAD, Ahead, SequencesAhead
from server.engine.gpu.buckets import Buckets
from server.engine.gpu.device_logits import DeviceLogits, LogitsReader
from server.engine.gpu.padded_decode import PaddedDecode
from server.engine.gpu.padded_prompts import PaddedPrompts
from server.engine.gpu.padded_sources import PaddedSources
from server.engine.gpu.sampler_inputs import LOGITS
from server.engine.graph_runs import GraphRuns
from server.engine.prompt_images import ImageEncoder, ImageInputs
from server.engine.recording import Recorder
from server.engine.requests.sequence import DecodingSequence
from server.engine.run_inputs import Chunk, ChunkLimits, RunInputs, encoder_inputs, split
from server.engine.watchdog import Progress
from server.runtime.contract import Graph, StepGraphs
from server.runtime.memory import MakeMemory


class ModelRunner:
    """Runs one model's graphs over one lane's slots.

    Args:
        spec: the manifest's ``decode`` graph.
        decode: the loaded ``decode`` graph.
        encode: the loaded encoder of an encoder-decoder; None for a decoder.
        capacity: the number and size of the slots.
        suppressed: tokens that are never generated.
        attend: the loaded ``attend`` graph, which also outputs attention weights.
        encoder_attention: runs the encoder's graph that also outputs attention weights.
        memory: allocates the tensors of the slots on the device that runs the graphs.
        buckets: sizes that :meth:`decode_padded` pads to; None if it is not called.
        reader: reads logits on the device on demand; None copies all rows after every run.
        model: the model's name.
        steps: the graphs that run decode steps; None uses ``decode``.

    Attributes:
        images: computes the vectors of images in prompts; None if the model reads none.
        attention: runs the graphs with attention weights.
        prompts: recorded runs of ``decode`` over whole prompts; None without any.
        sources: recorded runs of ``encode``; None without any.
    """

    images: ImageEncoder | None = None
    prompts: PaddedPrompts | None = None
    sources: PaddedSources | None = None

    def __init__(
        self,
        spec: GraphSpec,
        decode: Graph,
        encode: Graph | None,
        capacity: Capacity,
        suppressed: tuple[int, ...] = (),
        attend: Graph | None = None,
        encoder_attention: EncoderAttention | None = None,
        *,
        memory: MakeMemory,
        buckets: Buckets | None = None,
        reader: LogitsReader | None = None,
        model: str = "",
        steps: StepGraphs | None = None,
    ) -> None:
        self.progress = Progress(model)
        self.buckets = buckets
        self._padded: PaddedDecode | None = None
        self.cache = SlotTensors(
            spec.states, capacity.num_rows, capacity.max_length, capacity.max_source_length, memory
        )
        # A weak reference avoids a cycle, so that the device's memory is freed with the runner.
        wait = weakref.WeakMethod(self.wait)
        self.cache.before_change = lambda: None if (method := wait()) is None else method()
        self._max_length = capacity.max_length
        self._limits = ChunkLimits(spec.max_chunk, within_source=spec.chunk_within_source)
        self._encode = None if encode is None else encode.bind({})
        self._has_adapters = any(tensor.name == ADAPTERS for tensor in spec.inputs)
        size = spec.image_vector_size
        self._inputs = RunInputs(
            has_source=encode is not None,
            has_adapters=self._has_adapters,
            images=None if size is None else ImageInputs(size),
        )
        self._runs = GraphRuns(
            graph=decode,
            cache=self.cache,
            inputs=self._inputs,
            vocabulary_size=int(spec.output(LOGITS).shape[-1]),
            suppressed=suppressed,
            reader=reader,
            progress=self.progress,
        )
        if buckets is not None:
            self._padded = PaddedDecode(
                *(spec, decode, self.cache, capacity, buckets, memory, steps),
                has_source=encode is not None,
            )
        self.attention = AttentionRunner(
            *(attend, encoder_attention, self.cache, self._inputs, self._limits, self.progress),
            has_adapters=self._has_adapters,
        )
        self._reader = reader

    def encode(self, sequences: Sequence[DecodingSequence], slots: Sequence[int]) -> None:
        """Runs the encoder over the sources and stores the cross-attention cache in ``slots``."""
        if self._encode is None:
            raise ValueError("this model has no encoder")
        jobs = [sequence.job for sequence in sequences]
        lengths = [job.num_source_tokens for job in jobs]
        self.progress.begin(max(lengths) * len(lengths))
        if self.sources is not None and self.sources.run([job.source for job in jobs], slots):
            return
        encoded = self._encode.run_on_device(encoder_inputs(jobs, has_adapters=self._has_adapters))
        self.cache.write_cross(slots, encoded, lengths)

    def decode(self, chunks: Sequence[Chunk], first_slot: int) -> Logits:
        """Runs the decoder over the next tokens of sequences.

        Args:
            chunks: the next tokens of sequences in adjacent slots.
            first_slot: the slot of the first sequence.

        Returns:
            Logits ``[chunks, vocabulary]`` after the last token of each, valid until the next run.

        Raises:
            Exception: the run failed. The call can be repeated: recurrent states are restored.
        """
        self.cache.save(first_slot, len(chunks))
        try:
            return self._decode_chunks(chunks, first_slot)
        except Exception:
            # A repeated run overwrites the keys and values, but needs the old recurrent states.
            self.cache.restore(first_slot, len(chunks))
            raise

    def decode_greedily(
        self, chunks: Sequence[Chunk], first_slot: int
    ) -> Iterator[list[int | None]]:
        """Runs the decoder repeatedly: each run takes the likeliest tokens of the run before it.

        Args:
            chunks: one token of each sequence; the sequences have adjacent slots.
            first_slot: the slot of the first sequence.

        Yields:
            After each run, the likeliest next token of each sequence. It is None if the logits are
            not finite; no other run follows then.

        Raises:
            Exception: a run failed. All runs can be repeated: recurrent states are restored to
                those before the first.
        """
        rows = range(len(chunks))
        self.cache.save(first_slot, len(chunks))
        try:
            run = self._prepare_run(chunks, first_slot)
            while True:
                best = run().best(rows)
                yield best
                tokens = [token for token in best if token is not None]
                if len(tokens) < len(best):
                    return
                self._inputs.advance(tokens)
        except Exception:
            self.cache.restore(first_slot, len(chunks))
            raise

    @property
    def decodes_greedily(self) -> bool:
        """Whether :meth:`decode_greedily` works: logits are on the host, and runs not padded."""
        return self._reader is None and self.buckets is None

    def decode_padded(
        self,
        sequences: Sequence[DecodingSequence],
        padding: Sequence[int],
        may_continue: Callable[[], bool],
    ) -> Logits:
        """Runs the decoder as :meth:`decode` does, over one token of each, in a fixed-size run.

        Args:
            sequences: the sequences in slots ``0 … len(sequences)-1``.
            padding: for each padding slot after them, the position to write a dummy token to:
                ``buckets.rows_for(len(sequences)) - len(sequences)`` positions.
            may_continue: returns whether there is no other work. If so, the next step may start
                before it is asked for.
        """
        if self._padded is None:
            raise ValueError("there are no buckets")
        num_sequences = len(sequences)
        self.progress.begin(num_sequences)
        self.cache.save(0, num_sequences + len(padding))
        try:
            self._padded.run(sequences, padding, self._ahead(sequences, may_continue))
        except Exception:
            self.cache.restore(0, num_sequences + len(padding))
            raise
        # A padding slot may belong to a sequence that is still prefilling.
        self.cache.restore(num_sequences, len(padding))
        if self._reader is not None:
            logits, best = self._padded.logits(num_sequences), self._padded.best_tokens
            padded = self._padded.logits(num_sequences + len(padding))
            return DeviceLogits(logits, self._reader, best, padded)
        jobs = [sequence.job for sequence in sequences]
        return self._runs.wrap(self._padded.read_logits(num_sequences), jobs)

    def _ahead(
        self, sequences: Sequence[DecodingSequence], may_continue: Callable[[], bool]
    ) -> Ahead:
        """Decides whether the next step over these sequences may start before it is asked for."""
        if self._reader is None:
            return NOT_AHEAD  # the host reads the logits, which the next step overwrites
        if self.cache.has_recurrent_states:
            return NOT_AHEAD  # a dropped step would already have changed them
        longest = max(sequence.num_cached_tokens for sequence in sequences) + 1
        if longest >= self._max_length:
            return NOT_AHEAD
        return SequencesAhead(sequences, may_continue)

    def wait(self) -> None:
        """Waits for a step that :meth:`decode_padded` started early. Needed before slots change."""
        if self._padded is not None:
            self._padded.wait()

    @property
    def recorders(self) -> list[Recorder]:
        """What records the runs of decode steps, prompts and sources."""
        return [each for each in (self, self.prompts, self.sources) if each is not None]

    def record(self) -> int:
        """Runs each bucket until the device has recorded it. All slots must be free.

        Returns:
            The number of recorded buckets.
        """
        return 0 if self._padded is None else self._padded.record()

    @property
    def free_bytes(self) -> int | None:
        """Free memory of the device; None if the device does not report it."""
        return self.cache.free_bytes

    def stop_padding(self) -> None:
        """Makes ``buckets`` None: :meth:`decode_padded` must not be called any more."""
        self.buckets = None

    def decode_all(
        self, sequence: DecodingSequence, slot: int, size: int
    ) -> Iterator[tuple[Logits, int]]:
        """Runs the decoder over the next ``size`` tokens of a sequence.

        Yields:
            Logits ``[n, vocabulary]``, one row after each of the next ``n`` tokens, valid until
            the next iteration; and ``n``.
        """
        for chunk in self._limits.split_scored(sequence, size):
            yield self._run([chunk], slot, all_positions=True), chunk.size

    def _decode_chunks(self, chunks: Sequence[Chunk], first_slot: int) -> Logits:
        """Processes chunks in one run, or in several if the graph limits the tokens of a run."""
        are_whole = not any(chunk.start for chunk in chunks)
        sizes = [chunk.size for chunk in chunks]
        if self.prompts is not None and are_whole and self.prompts.holds(sizes):
            self.wait()
            self.progress.begin(sum(sizes))
            prompts = [sequence.tokens[:size] for sequence, _, size in chunks]
            found = self.prompts.run(prompts, first_slot)
            if found is not None:
                return found
        if all(chunk.size <= self._limits.max_together(chunk.size) for chunk in chunks):
            return self._run(chunks, first_slot)
        last = []
        for slot, (sequence, _, size) in enumerate(chunks, first_slot):
            for chunk in split(sequence, size, self._limits.max_size(sequence, size)):
                logits = self._run([chunk], slot)
            if len(chunks) == 1:
                return logits
            last.append(logits.rows([0]).copy())  # the next run overwrites them
        return HostLogits(np.concatenate(last))

    def _run(
        self, chunks: Sequence[Chunk], first_slot: int, *, all_positions: bool = False
    ) -> Logits:
        """Runs once. Returns logits after each chunk's last token, or every token of one chunk."""
        return self._prepare_run(chunks, first_slot, all_positions=all_positions)()

    def _prepare_run(
        self, chunks: Sequence[Chunk], first_slot: int, *, all_positions: bool = False
    ) -> Callable[[], Logits]:
        """Returns a function that runs chunks as :meth:`_run` does, valid until another run.

        It may be called again after :meth:`RunInputs.advance`.
        """
        self.wait()
        return self._runs.prepare(chunks, first_slot, all_positions=all_positions)
