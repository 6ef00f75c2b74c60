"""Proof that the graphs compute what the eager module computes.

The fp32 graphs are held to an absolute tolerance, and to the same greedy tokens. The
graphs that the bundle holds, quantised perhaps, are held to a cosine.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from export.checkpoint import Checkpoint
from export.decoding import (
    LOWEST_LOGIT,
    Run,
    Work,
    best,
    decode_eagerly,
    decode_eagerly_together,
    decode_in_graph,
    remember_eagerly,
    remember_source,
    remembered,
)
from export.encoding import EncoderWork, encode_eagerly, encode_in_graph
from export.errors import ParityError
from export.float64_reference import in_double
from export.offload import LARGE_BYTES, num_bytes
from export.perplexity import Score
from export.runtime import DecodeSession, Floats, Session, onnxruntime_version
from model.bundle import Graph, Parity
from model.config import Kind
from model.transformer import Transformer

TOLERANCE = 1e-4  # of a logit or of a component of an embedding, absolute
TIE = 1e-3  # two logits this close may change places
NUM_STEPS = 32
# Of a large model, for which each step, and each row of the eager module, reads gigabytes.
NUM_LARGE_STEPS = 8
NUM_LARGE_ROWS = 6
NUM_LARGE_CHUNKED_ROWS = 2
NUM_CHUNKED_STEPS = 4  # decoded after a prefill in chunks
RANDOM_LENGTHS = (13, 1, 7, 4)
SEED = 20170612


@dataclass(frozen=True)
class Reference:
    """What the eager module gave for some inputs, and how the fp32 graphs compared.

    ``texts`` is what an encoder read; ``work`` and ``tokens`` what was decoded. ``cosine`` is the
    worst row's, of the fp32 graphs.
    """

    # Of each row: [size], or of tokens [length, labels] or [steps, vocabulary].
    outputs: Sequence[Floats]
    max_absolute_error: float
    tokens_compared: int
    tokens_equal: int
    cosine: float = 1.0
    texts: EncoderWork | None = None
    work: Work | None = None
    tokens: NDArray[np.int64] | None = None


def parity_rows(checkpoint: Checkpoint) -> list[list[int]]:
    """Random rows of several lengths, then the tokenised sample inputs."""
    rng = np.random.default_rng(SEED)
    limit = checkpoint.config.position.max_positions
    vocabulary_size = checkpoint.config.vocabulary_size
    rows = [
        rng.integers(0, vocabulary_size, min(length, max(1, limit // 2))).tolist()
        for length in RANDOM_LENGTHS
    ]
    return rows + tokenized_samples(checkpoint)


def tokenized_samples(checkpoint: Checkpoint) -> list[list[int]]:
    """The sample inputs as rows of ids, as long as the model takes."""
    tokenizer = Tokenizer.from_str(checkpoint.tokenizer_json)
    limit = checkpoint.config.position.max_positions
    rows = [tokenizer.encode(text).ids[:limit] for text in checkpoint.sample_inputs]
    return [row for row in rows if row]


def compare_fp32(
    checkpoint: Checkpoint,
    directory: Path,
    graphs: dict[str, Graph],
    weights: Mapping[str, Tensor] | None = None,
) -> Reference:
    """Compares the fp32 graphs in ``directory`` with the eager module.

    Args:
        weights: default: the checkpoint's.

    Raises:
        ParityError: an error over :data:`TOLERANCE`, or a greedy token that differs.
    """
    held = checkpoint.weights if weights is None else weights

    def make_model() -> Transformer:
        # In double precision, so that only the graph's own rounding is measured.
        return in_double(checkpoint.config, held)

    is_large = num_bytes(held) >= LARGE_BYTES
    with torch.inference_mode():
        if checkpoint.config.kind == Kind.ENCODER:
            rows = parity_rows(checkpoint)
            reference = _compare_encoder(make_model(), rows, directory, graphs)
        else:
            work = _work(checkpoint, is_large=is_large)
            reference = _compare_decoder(make_model, work, directory, graphs, is_large=is_large)
    if not reference.max_absolute_error <= TOLERANCE:
        raise ParityError(
            f"the graph differs from the eager module by {reference.max_absolute_error:.2e}, "
            f"more than {TOLERANCE:.0e}"
        )
    if reference.tokens_equal != reference.tokens_compared:
        raise ParityError(
            f"only {reference.tokens_equal} of {reference.tokens_compared} greedy tokens "
            "are those of the eager module"
        )
    return reference


def min_cosine(
    reference: Reference, directory: Path, graphs: dict[str, Graph], floor: float
) -> float:
    """The worst row's cosine between the graphs in ``directory`` and ``reference``.

    Raises:
        ParityError: it is below ``floor``.
    """
    outputs: Sequence[Floats] = ()
    if reference.texts is not None:
        rows = encode_in_graph(Session(directory, graphs["encode"]), reference.texts)
        outputs = [row[0] for row in rows]
    elif reference.work is not None:
        sessions = _sessions(reference.work, directory, graphs)
        outputs = list(_run(sessions, reference.work, reference.tokens).logits)
    worst = _worst_cosine(outputs, reference.outputs)
    if not worst >= floor:
        raise ParityError(
            f"the worst cosine of the bundle's graphs to the eager module is {worst:.4f}, "
            f"below {floor}"
        )
    return worst


def certificate(
    reference: Reference,
    cosine: float,
    before: Score | None = None,
    after: Score | None = None,
    float_cache: Score | None = None,
) -> Parity:
    """``parity.json`` of a bundle that passed.

    Args:
        before: how well the fp32 graphs predict text.
        after: the same of the bundle's.
        float_cache: the same of the bundle's before its cache was held in eight bits.
    """
    return Parity(
        max_absolute_error=reference.max_absolute_error,
        greedy_tokens_compared=reference.tokens_compared,
        greedy_tokens_equal=reference.tokens_equal,
        min_cosine=cosine,
        tolerance=TOLERANCE,
        onnxruntime=onnxruntime_version(),
        torch=str(torch.__version__),
        evaluation_tokens=0 if after is None else after.num_tokens,
        perplexity=None if after is None else after.perplexity,
        fp32_perplexity=None if before is None else before.perplexity,
        float_cache_perplexity=None if float_cache is None else float_cache.perplexity,
    )


def _work(checkpoint: Checkpoint, *, is_large: bool) -> Work:
    rows, special = parity_rows(checkpoint), checkpoint.special_tokens
    num_steps = NUM_STEPS
    if is_large:
        rows, num_steps = rows[:NUM_LARGE_ROWS], NUM_LARGE_STEPS
    limit = checkpoint.config.position.max_positions
    suppressed = special.suppressed
    if checkpoint.config.kind == Kind.DECODER:
        num_steps = max(1, min(num_steps, limit - max(map(len, rows))))
        return Work(prompts=rows, num_steps=num_steps, suppressed=suppressed)
    if special.decoder_start is None:
        raise ParityError("an encoder-decoder needs special_tokens.decoder_start")
    start = special.decoder_start
    # The random rows' targets begin with some random tokens as well: a forced prefix.
    prefixes = [[start, *rows[index][:index]] for index in range(len(RANDOM_LENGTHS))]
    prompts = prefixes + [[start]] * (len(rows) - len(prefixes))
    num_steps = max(1, min(num_steps, limit - max(map(len, prompts))))
    return Work(prompts=prompts, num_steps=num_steps, sources=rows, suppressed=suppressed)


@dataclass(frozen=True)
class _Sessions:
    decoder: DecodeSession
    encoder: Session | None


def _sessions(
    work: Work, directory: Path, graphs: dict[str, Graph], *, is_large: bool = False
) -> _Sessions:
    decoder = DecodeSession(
        directory,
        graphs["decode"],
        num_slots=len(work.prompts),
        capacity=work.capacity,
        source_capacity=work.source_capacity,
        is_large=is_large,
    )
    encoder = None
    if "encode" in graphs:
        encoder = Session(directory, graphs["encode"], is_large=is_large)
    return _Sessions(decoder, encoder)


def _run(sessions: _Sessions, work: Work, tokens: NDArray[np.int64] | None, chunks: int = 1) -> Run:
    sessions.decoder.clear()
    if sessions.encoder is not None and work.sources is not None:
        remember_source(sessions.encoder, sessions.decoder, work.sources)
    return decode_in_graph(sessions.decoder, work, tokens, chunks)


def _compare_decoder(
    make_model: Callable[[], Transformer],
    work: Work,
    directory: Path,
    graphs: dict[str, Graph],
    *,
    is_large: bool,
) -> Reference:
    sessions = _sessions(work, directory, graphs, is_large=is_large)
    run = _run(sessions, work, None)
    # A longer chunk over a cache: the same prompts in three pieces give the same logits.
    is_large_decoder = is_large and work.sources is None
    num_chunked = NUM_LARGE_CHUNKED_ROWS if is_large_decoder else len(work.prompts)
    num_steps = min(NUM_CHUNKED_STEPS, work.num_steps)
    short = dataclasses.replace(work, num_steps=num_steps, prompts=work.prompts[:num_chunked])
    chunked = _run(sessions, short, run.tokens[:num_chunked], chunks=3)
    theirs = None
    if work.sources is not None:
        lengths = [len(source) for source in work.sources]
        theirs = [remembered(sessions.decoder, row, n) for row, n in enumerate(lengths)]
    del sessions  # a large model is in memory once: as a session, or as a module
    model = make_model()
    memories = None
    error = 0.0
    if work.sources is not None and theirs is not None:
        memories = [remember_eagerly(model, source) for source in work.sources]
        error = max(
            _error(actual[kind].numpy(), expected[kind].numpy())
            for row, row_theirs in zip(memories, theirs, strict=True)
            for expected, actual in zip(row, row_theirs, strict=True)
            for kind in expected
        )
    # Each graph is held to the tolerance on its own: ``decode`` over what ``encode`` gave it.
    if is_large_decoder:
        over_theirs = decode_eagerly_together(model, work, run.tokens)
    else:
        over_theirs = decode_eagerly(model, work, run.tokens, theirs)
    error = max(error, _error(run.logits, over_theirs))
    error = max(error, _error(chunked.logits, over_theirs[:num_chunked, : short.num_steps]))
    # The tokens are held to the eager module from end to end.
    expected = over_theirs
    if memories is not None:
        expected = decode_eagerly(model, work, run.tokens, memories)
    # The graph fed itself its own tokens, so if each is the eager module's best after the
    # same tokens, greedy decoding in the eager module gives the same sequence.
    best_logits = np.take_along_axis(expected, best(expected, work.suppressed)[..., None], -1)
    chosen_logits = np.take_along_axis(expected, run.tokens[..., None], -1)
    equal = (best_logits - chosen_logits)[..., 0] <= TIE
    return Reference(
        outputs=list(expected),
        max_absolute_error=error,
        tokens_compared=int(equal.size),
        tokens_equal=int(equal.sum()),
        cosine=_worst_cosine(run.logits, expected),
        work=work,
        tokens=run.tokens,
    )


def _compare_encoder(
    model: Transformer, rows: list[list[int]], directory: Path, graphs: dict[str, Graph]
) -> Reference:
    work = EncoderWork.of(model.config, rows)
    expected = encode_eagerly(model, work)
    actual = encode_in_graph(Session(directory, graphs["encode"]), work)
    error = max(
        _error(*pair)
        for theirs, ours in zip(actual, expected, strict=True)
        for pair in zip(theirs, ours, strict=True)
    )
    return Reference(
        outputs=[outputs[0] for outputs in expected],
        max_absolute_error=error,
        tokens_compared=0,
        tokens_equal=0,
        cosine=_worst_cosine([row[0] for row in actual], [row[0] for row in expected]),
        texts=work,
    )


def _error(actual: Floats, expected: Floats) -> float:
    """The largest absolute difference; NaN if there is one anywhere."""
    clipped = (np.maximum(x, LOWEST_LOGIT) for x in (actual, expected))
    return float(np.abs(np.subtract(*clipped)).max())


def _worst_cosine(actual: Sequence[Floats] | Floats, expected: Sequence[Floats] | Floats) -> float:
    """Of a row, which is a whole sequence: all of its tokens' or steps' outputs."""
    return min(_cosine(*pair) for pair in zip(actual, expected, strict=True))


def _cosine(actual: Floats, expected: Floats) -> float:
    masked = expected <= LOWEST_LOGIT
    x, y = (np.where(masked, 0, values).astype(np.float64).ravel() for values in (actual, expected))
    return float(x @ y / (np.linalg.norm(x) * np.linalg.norm(y)))
