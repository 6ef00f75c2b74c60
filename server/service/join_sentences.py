"""Joins the outputs of a text's sentences into the output of the text."""

import contextlib
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from msgspec import structs

from server.engine.requests.update import Completion
from server.service.generation_request import (
    Alignment,
    Attention,
    AttentionMatrix,
    Finish,
    FinishReason,
    TextChunk,
)
from server.service.sentences import SentencePlan
from server.service.usage import Timing, Usage
from server.text.sentences import SplitText

# The finish reason of a text is the first of these that any of its sentences has.
_REASONS = (
    FinishReason.CANCELLED,
    FinishReason.DEADLINE,
    FinishReason.LENGTH,
    FinishReason.STOP_STRING,
    FinishReason.STOP,
)


async def join_sentences(
    chunks: AsyncGenerator[TextChunk, None], plan: SentencePlan
) -> AsyncGenerator[TextChunk, None]:
    """Joins the chunks of sentences to chunks of texts, in the order of the text.

    The chunks of a sentence wait until the sentences before it are complete. Hypothesis ``k`` of a
    text joins hypothesis ``k`` of each sentence; a sentence with fewer repeats its last one.

    Args:
        chunks: the chunks of the request's jobs. Their ``index`` is the sentence's in ``plan``.
        plan: the sentences of the texts.

    Raises:
        ServeError: an error of ``chunks``.
    """
    texts = [_JoinedText(index, split) for index, split in enumerate(plan.texts)]
    async with contextlib.aclosing(chunks):
        async for chunk in chunks:
            place = plan.places[chunk.index]
            for joined in texts[place.text].push(place.sentence, chunk):
                yield joined
    for text in texts:
        for joined in text.finish():
            yield joined


class _JoinedText:
    """The hypotheses of one text."""

    def __init__(self, index: int, split: SplitText) -> None:
        self._index = index
        self._split = split
        self._outputs: dict[int, _JoinedOutput] = {}

    def push(self, sentence: int, chunk: TextChunk) -> Iterator[TextChunk]:
        if chunk.hypothesis not in self._outputs:
            self._outputs[chunk.hypothesis] = _JoinedOutput(self._index, self._split)
        return self._outputs[chunk.hypothesis].push(sentence, chunk)

    def finish(self) -> Iterator[TextChunk]:
        """Completes hypotheses that some sentences lack. Call this after the end of all jobs."""
        numbers = sorted(self._outputs)
        for number, before in zip(numbers[1:], numbers, strict=False):
            output = self._outputs[number]
            for sentence in range(len(self._split.spans)):
                if sentence not in output.received:
                    for chunk in self._outputs[before].received[sentence]:
                        yield from output.push(sentence, _copied(chunk, number))


def _copied(chunk: TextChunk, hypothesis: int) -> TextChunk:
    """Copies a chunk to another hypothesis, without its usage, which is already counted."""
    finish = None if chunk.finish is None else replace(chunk.finish, usage=Usage())
    return replace(chunk, hypothesis=hypothesis, finish=finish)


class _JoinedOutput:
    """One hypothesis of one text. ``received`` holds the chunks of each sentence."""

    def __init__(self, index: int, split: SplitText) -> None:
        self.received: dict[int, list[TextChunk]] = {}
        self._index = index
        self._split = split
        self._current = 0  # the sentence whose chunks are being sent
        self._num_sent = 0  # chunks of that sentence that were sent
        self._finishes: list[Finish] = []
        self._starts: list[int] = []  # start of each sentence in the output, in characters
        self._num_characters = 0

    def push(self, sentence: int, chunk: TextChunk) -> Iterator[TextChunk]:
        """Adds ``chunk``; yields the chunks that now come next in the text."""
        self.received.setdefault(sentence, []).append(chunk)
        while self._num_sent < len(self.received.get(self._current, ())):
            chunk = self.received[self._current][self._num_sent]
            joined = self._join(chunk)
            if joined.text or joined.token_ids or joined.logprobs or joined.finish is not None:
                yield joined

    def _join(self, chunk: TextChunk) -> TextChunk:
        text, separators = chunk.text, self._split.separators
        if self._num_sent == 0:
            text = separators[self._current] + text
            self._starts.append(self._num_characters + len(separators[self._current]))
        self._num_sent += 1
        finish = None
        if chunk.finish is not None:
            self._finishes.append(chunk.finish)
            self._current, self._num_sent = self._current + 1, 0
            if self._current == len(self._split.spans):
                text += separators[self._current]
                finish = self._finish()
        self._num_characters += len(text)
        return replace(chunk, index=self._index, text=text, finish=finish)

    def _finish(self) -> Finish:
        finishes = self._finishes
        if not self._split.is_split:
            return finishes[0]
        reasons = [finish.reason for finish in finishes]
        reason = next(known for known in _REASONS if known in reasons)
        scores = [finish.score for finish in finishes if finish.score is not None]
        return Finish(
            reason=reason,
            usage=Usage.total(finish.usage for finish in finishes),
            timing=Timing.longest(finish.timing for finish in finishes),
            completion=_completion(
                [finish.completion for finish in finishes], reasons.index(reason)
            ),
            score=sum(scores) if len(scores) == len(finishes) else None,
            attention=_attention(finishes, [start for start, _ in self._split.spans], self._starts),
        )


def _completion(completions: Sequence[Completion], deciding: int) -> Completion:
    """Combines completions: the longest phases, and the outcome of sentence ``deciding``."""
    return structs.replace(
        completions[deciding],
        queue_seconds=max(done.queue_seconds for done in completions),
        prefill_seconds=max(done.prefill_seconds for done in completions),
        decode_seconds=max(done.decode_seconds for done in completions),
        num_reused_tokens=sum(done.num_reused_tokens for done in completions),
    )


def _attention(
    finishes: Iterable[Finish], source_starts: Sequence[int], target_starts: Sequence[int]
) -> Attention | None:
    """Joins tokens and alignments of all sentences. Matrices are block-diagonal: weights between
    tokens of different sentences are 0.
    """
    parts = [
        (finish.attention, source, target)
        for finish, source, target in zip(finishes, source_starts, target_starts, strict=True)
        if finish.attention is not None
    ]
    if not parts:
        return None
    return Attention(
        source_tokens=tuple(token for part, _, _ in parts for token in part.source_tokens),
        target_tokens=tuple(token for part, _, _ in parts for token in part.target_tokens),
        matrices=tuple(
            _block_diagonal(matrices)
            for matrices in zip(*(part.matrices for part, _, _ in parts), strict=True)
        ),
        alignments=tuple(
            Alignment(
                source + alignment.source_start,
                source + alignment.source_end,
                target + alignment.target_start,
                target + alignment.target_end,
            )
            for part, source, target in parts
            for alignment in part.alignments
        ),
    )


def _block_diagonal(blocks: Sequence[AttentionMatrix]) -> AttentionMatrix:
    """Joins ``blocks``, which have the same layer and head, to one block-diagonal matrix."""
    shapes = [block.weights.shape for block in blocks]
    rows, columns = (sum(sizes) for sizes in zip(*shapes, strict=True))
    weights = np.zeros((rows, columns), np.float32)
    row = column = 0
    for block, (height, width) in zip(blocks, shapes, strict=True):
        weights[row : row + height, column : column + width] = block.weights
        row, column = row + height, column + width
    return replace(blocks[0], weights=weights)
