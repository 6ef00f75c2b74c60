"""Measures the perplexity of a bundle's graphs on texts of this repository: a precision's cost.

Teacher forcing: the graphs, as they are served, predict every token from those before it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from export.checkpoint import Checkpoint
from export.decoding import DecodingInputs, decode_in_graph, prefill_source
from export.evaluation_texts import PASSAGES, SENTENCES
from export.image_sources import ImageReader
from export.runtime import DecodeSession, Floats, Session
from export.signatures import Signatures
from export.speech import SENTENCES as SPOKEN
from export.speech import Source, SpeechReader
from model.config import Kind

MAX_TOKENS = 96  # per text
IMAGE_SEED = 20130710
NUM_LARGE_TEXTS = 3  # for a large model, which needs a GMAC or more per token


@dataclass(frozen=True)
class PerplexityScore:
    """``perplexity``: the exponential of the mean negative log-probability per token."""

    num_tokens: int
    perplexity: float


@dataclass(frozen=True)
class EvaluationSet:
    """Rows of token ids, with the source of each row for an encoder-decoder.

    Every token of a row except the first is predicted.
    """

    rows: list[list[int]]
    sources: Sequence[Source] | None = None

    @classmethod
    def of(cls, checkpoint: Checkpoint, num_texts: int | None = None) -> "EvaluationSet | None":
        """The repository's texts, tokenized; None if the model does not generate text.

        Args:
            num_texts: number of texts or sentences; default: all.
        """
        reader = SpeechReader.of(checkpoint)
        if reader is not None:
            windows = reader.windows(SPOKEN, num_texts or len(SPOKEN))
            return cls([window.target for window in windows], windows)
        images = ImageReader.of(checkpoint, checkpoint.config.position.max_positions)
        if images is not None:
            texts = SENTENCES["en"][:num_texts]
            sources = images.sources(texts, len(texts), IMAGE_SEED)
            return cls([source.target for source in sources], sources)
        tokenizer = Tokenizer.from_str(checkpoint.tokenizer_json)
        limit = min(MAX_TOKENS, checkpoint.config.position.max_positions)
        vocabulary_size = checkpoint.config.vocabulary_size

        def encode(texts: tuple[str, ...]) -> list[list[int]]:
            rows = [tokenizer.encode(text).ids[:limit] for text in texts]
            return [[index for index in row if index < vocabulary_size] for row in rows]

        if checkpoint.config.kind == Kind.DECODER:
            rows = [row for row in encode(PASSAGES[:num_texts]) if len(row) > 1]
            return cls(rows) if rows else None
        start = checkpoint.special_tokens.decoder_start
        if checkpoint.config.kind == Kind.ENCODER or start is None:
            return None
        source = SENTENCES.get(checkpoint.source_language or "en", SENTENCES["en"])
        target = SENTENCES.get(checkpoint.target_language or "", source)
        pairs = zip(encode(source[:num_texts]), encode(target[:num_texts]), strict=True)
        kept = [(s, [start, *t][:limit]) for s, t in pairs if s and t]
        return cls([t for _, t in kept], [s for s, _ in kept]) if kept else None


@dataclass(frozen=True)
class TeacherForcedRun:
    """``losses`` of each row's tokens except the first, and the ``decoder`` with its cache.

    The decoder has one slot per row, which holds all of the row's tokens except the last.
    """

    losses: list[Floats]
    decoder: DecodeSession


def measure_perplexity(
    evaluation: EvaluationSet, directory: Path, graphs: Signatures, *, is_large: bool = False
) -> PerplexityScore:
    """The perplexity of the graphs in ``directory`` on the rows of ``evaluation``."""
    run = run_teacher_forced(evaluation, directory, graphs, is_large=is_large)
    losses = np.concatenate(run.losses)
    return PerplexityScore(len(losses), math.exp(float(losses.mean())))


def run_teacher_forced(
    evaluation: EvaluationSet, directory: Path, graphs: Signatures, *, is_large: bool = False
) -> TeacherForcedRun:
    """Runs the graphs in ``directory`` over the rows of ``evaluation``."""
    rows = evaluation.rows
    longest = max(map(len, rows))
    decoder = DecodeSession(
        directory,
        graphs["decode"],
        num_slots=len(rows),
        capacity=longest,
        source_capacity=max(map(len, evaluation.sources or [[0]])),
        is_large=is_large,
    )
    if graphs["decode"].max_chunk is None and evaluation.sources is None:
        losses = [_losses(_prefill(decoder, slot, row), row[1:]) for slot, row in enumerate(rows)]
    else:
        losses = _step_by_step(decoder, evaluation, directory, graphs)
    return TeacherForcedRun(losses, decoder)


def _prefill(decoder: DecodeSession, slot: int, row: list[int]) -> Floats:
    """Logits ``[length - 1, vocabulary]`` after each token of ``row`` except the last."""
    ids, length = np.array([row[:-1]]), len(row) - 1
    return decoder.step(
        slot,
        token_ids=ids,
        logit_positions=np.arange(length),
        num_cached_tokens=np.zeros(1, np.int32),
        num_new_tokens=np.array([length], np.int32),
        max_total_length=np.array(length),
    )


def _step_by_step(
    decoder: DecodeSession, evaluation: EvaluationSet, directory: Path, graphs: Signatures
) -> list[Floats]:
    rows, sources = evaluation.rows, evaluation.sources
    if sources is not None:
        prefill_source(Session(directory, graphs["encode"]), decoder, sources)
    num_steps = max(map(len, rows)) - 1
    inputs = DecodingInputs(prompts=[row[:1] for row in rows], num_steps=num_steps, sources=sources)
    tokens = np.zeros((len(rows), num_steps), np.int64)
    for index, row in enumerate(rows):
        tokens[index, : len(row) - 1] = row[1:]
    logits = decode_in_graph(decoder, inputs, tokens).logits
    return [_losses(logits[index], row[1:]) for index, row in enumerate(rows)]


def _losses(logits: Floats, tokens: list[int]) -> Floats:
    """Negative log-probabilities of ``tokens``; ``logits [steps, vocabulary]`` may be longer."""
    x: NDArray[np.float64] = logits[: len(tokens)].astype(np.float64)
    x -= x.max(-1, keepdims=True)
    log_sums = np.log(np.exp(x).sum(-1))
    result: Floats = log_sums - x[np.arange(len(tokens)), tokens]
    return result
