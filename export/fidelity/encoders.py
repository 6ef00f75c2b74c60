"""Fidelity of encoders: vectors, decisions of heads, predictions for masks, and transcripts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from export.encoding import EncoderInputs, encode_in_graph
from export.evaluation_texts import PASSAGES
from export.fidelity.figures import (
    DecisionComparison,
    Doubles,
    LogitComparison,
    TokenVectors,
    VectorComparison,
    compare_decisions,
    compare_logits,
    compare_token_vectors,
    compare_vectors,
    log_softmax,
)
from export.fidelity.subject import GraphFolder, Subject
from export.fidelity.texts import QUESTIONS, mixed_texts
from export.runtime import Floats, Session
from export.span_places import prompted_row
from model.bundle import Embedding, EmbeddingKind, MultiVector, ScoreFunction, Task
from model.ctc import token_runs
from model.graph_spec import MULTI_VECTORS, SPARSE_WEIGHTS
from model.late_interaction import document_ids, kept_tokens, query_ids

BATCH = 8
SPARSE_BATCH = 2  # small: the logits of all tokens are in memory
MIN_TEXTS = 3  # so that nearest neighbours can differ
MASK_EVERY = 6  # masks every sixth token of a text, for masked language models


@dataclass(frozen=True)
class EncoderComparison:
    """The figures for the model's task.

    ``inputs``: the first batch. ``other_vectors``: by kind, those beside ``vectors``.
    ``identical``: share of equal transcripts.
    """

    num_texts: int
    inputs: EncoderInputs
    vectors: VectorComparison | None = None
    other_vectors: Mapping[EmbeddingKind, VectorComparison] = field(default_factory=dict)
    decisions: DecisionComparison | None = None
    logits: LogitComparison | None = None
    identical: float | None = None


def compare_encoders(
    subject: Subject, reference: GraphFolder, other: GraphFolder
) -> EncoderComparison | None:
    """Compares ``other`` with ``reference``; None if the model takes too few of the texts."""
    compare = next((COMPARISONS[task] for task in COMPARISONS if task in subject.tasks), None)
    sessions = [folder.encoder() for folder in (reference, other)]
    return None if compare is None else compare(subject, sessions)


def _vectors(subject: Subject, sessions: list[Session]) -> EncoderComparison | None:
    inputs, embedding = _texts(subject, sessions[0]), subject.embedding
    if len(inputs) < MIN_TEXTS:
        return None
    if embedding is not None and embedding.multi_vector is not None:
        return _token_vectors(inputs, sessions, embedding.multi_vector)
    if embedding is not None and len(embedding.kinds) > 1:
        return _several_kinds(inputs, sessions, embedding, subject.vocabulary_size)
    is_sparse = embedding is not None and embedding.kind == EmbeddingKind.SPARSE
    batch = SPARSE_BATCH if is_sparse else BATCH
    expected, actual = (np.stack(_encode(session, inputs, batch)) for session in sessions)
    vectors = compare_vectors(expected, actual, by_dot_product=is_sparse)
    return EncoderComparison(len(inputs), inputs.part(0, batch), vectors=vectors)


def _several_kinds(
    texts: EncoderInputs, sessions: list[Session], embedding: Embedding, vocabulary_size: int
) -> EncoderComparison:
    """Compares each kind of vectors of the same runs."""
    runs = [_outputs(session, texts) for session in sessions]
    dense = compare_vectors(*(np.stack(run["embeddings"]) for run in runs))
    others = {}
    if embedding.token_weights:
        excluded = list(embedding.token_weights.excluded)
        whole = [np.zeros((len(texts), vocabulary_size), np.float32) for _ in runs]
        for run, vectors in zip(runs, whole, strict=True):
            for vector, ids, weights in zip(vectors, texts.rows, run[SPARSE_WEIGHTS], strict=True):
                np.maximum.at(vector, ids, weights)
            vectors[:, excluded] = 0
        others[EmbeddingKind.SPARSE] = compare_vectors(*whole, by_dot_product=True)
    if embedding.token_vectors:
        tokens = [[vectors[1:] for vectors in run[MULTI_VECTORS]] for run in runs]
        others[EmbeddingKind.MULTI_VECTOR] = compare_token_vectors(
            *(TokenVectors(vectors, vectors) for vectors in tokens)
        )
    return EncoderComparison(len(texts), texts.part(0, BATCH), dense, other_vectors=others)


def _token_vectors(
    texts: EncoderInputs, sessions: list[Session], spec: MultiVector
) -> EncoderComparison:
    """Compares the token vectors of each text as a query and as a document."""
    queries = [query_ids(row, spec) for row in texts.rows]
    rows = [document_ids(row, spec) for row in texts.rows]
    has_segments = texts.segments is not None
    query_rows = [row for row, _ in queries]
    query_inputs = EncoderInputs(
        query_rows,
        _zeros(query_rows) if has_segments else None,
        attended=[number for _, number in queries],
    )
    documents = EncoderInputs(rows, _zeros(rows) if has_segments else None)
    kept = [kept_tokens(row, spec) for row in rows]
    expected, actual = (
        TokenVectors(
            _encode(session, query_inputs),
            [x[at] for x, at in zip(_encode(session, documents), kept, strict=True)],
        )
        for session in sessions
    )
    vectors = compare_token_vectors(expected, actual)
    return EncoderComparison(len(rows), documents.part(0, BATCH), vectors=vectors)


def _labels(subject: Subject, sessions: list[Session]) -> EncoderComparison | None:
    """Compares labels of texts or of tokens: ``[labels]`` or ``[tokens, labels]`` per text."""
    score = subject.score_function or ScoreFunction.SOFTMAX
    return _decisions(
        _texts(subject, sessions[0]), sessions, SCORES[score], score == ScoreFunction.SIGMOID
    )


def _tags(subject: Subject, sessions: list[Session]) -> EncoderComparison | None:
    """Compares labels of tokens, or of each span of words whether each label fits it."""
    spec = subject.span_tagging
    if spec is None:
        return _labels(subject, sessions)
    texts = mixed_texts()[: subject.max_texts]
    found = [prompted_row(subject.tokenizer, spec, x, subject.max_positions) for x in texts]
    rows = [row for row in found if row is not None]
    ids = [row.ids for row in rows]
    segments = _zeros(ids) if _has_segments(sessions[0]) else None
    inputs = EncoderInputs(ids, segments, places=[row.places for row in rows])

    def scores(logits: Floats) -> Doubles:
        ends = np.arange(len(logits))[:, None] + np.arange(logits.shape[1])
        return SCORES[ScoreFunction.SIGMOID](logits[ends < len(logits)])

    return _decisions(inputs, sessions, scores, multiple=True)


def _answers(subject: Subject, sessions: list[Session]) -> EncoderComparison | None:
    """Compares the first and last token of each answer: ``[tokens, 2]`` per pair."""
    pairs = list(zip(QUESTIONS, PASSAGES, strict=True))
    inputs = _pairs(subject, sessions[0], pairs)
    return _decisions(inputs, sessions, lambda logits: np.exp(log_softmax(logits.T)), False)


def _ranks(subject: Subject, sessions: list[Session]) -> EncoderComparison | None:
    """Compares the best passage for each question."""
    passages = PASSAGES[: 4 if subject.num_parameters > LARGE_RERANKER else None]
    pairs = [(question, passage) for question in QUESTIONS for passage in passages]
    inputs = _pairs(subject, sessions[0], pairs)
    if len(inputs) < len(pairs):
        return None
    score = SCORES[subject.score_function or ScoreFunction.SIGMOID]
    scores = [
        score(np.stack(_encode(session, inputs))).reshape(len(QUESTIONS), -1)
        for session in sessions
    ]
    decisions = compare_decisions([scores[0]], [scores[1]])
    return EncoderComparison(len(pairs), inputs.part(0, BATCH), decisions=decisions)


def _masks(subject: Subject, sessions: list[Session]) -> EncoderComparison | None:
    """Compares predictions for masks; every :data:`MASK_EVERY`-th token is masked."""
    mask, inputs = subject.special_tokens.mask, _texts(subject, sessions[0])
    if mask is None or not inputs.rows:
        return None
    places = [list(range(1, max(2, len(row) - 1), MASK_EVERY)) for row in inputs.rows]
    kept = [(row, at) for row, at in zip(inputs.rows, places, strict=True) if len(row) > 1]
    rows = [[mask if index in at else id_ for index, id_ in enumerate(row)] for row, at in kept]
    masked = EncoderInputs(rows, None if inputs.segments is None else _zeros(rows))
    total = LogitComparison()
    for start in range(0, len(rows), BATCH):
        batch = masked.part(start, start + BATCH)
        expected, actual = (encode_in_graph(session, batch) for session in sessions)
        for index, (_, at) in enumerate(kept[start : start + BATCH]):
            total += compare_logits(expected[index][0][at], actual[index][0][at])
    return EncoderComparison(len(rows), masked.part(0, BATCH), logits=total) if rows else None


def _frames(subject: Subject, sessions: list[Session]) -> EncoderComparison | None:
    """Compares the tokens of each frame of speech, and the transcripts of windows."""
    inputs = _texts(subject, sessions[0])
    if not len(inputs) or subject.ctc is None:
        return None
    expected, actual = (_encode(session, inputs, batch=1) for session in sessions)
    total, num_identical = LogitComparison(), 0
    for one, other in zip(expected, actual, strict=True):
        total += compare_logits(one, other)
        texts = [token_runs(logits.argmax(-1), subject.ctc.blank) for logits in (one, other)]
        num_identical += [run.token for run in texts[0]] == [run.token for run in texts[1]]
    return EncoderComparison(
        len(inputs), inputs.part(0, 1), logits=total, identical=num_identical / len(inputs)
    )


LARGE_RERANKER = 200_000_000  # parameters
Comparison = Callable[[Subject, list[Session]], EncoderComparison | None]
COMPARISONS: dict[Task, Comparison] = {
    Task.EMBED: _vectors,
    Task.RERANK: _ranks,
    Task.CLASSIFY: _labels,
    Task.TAG: _tags,
    Task.CORRECT: _labels,
    Task.ANSWER: _answers,
    Task.FILL_MASK: _masks,
    Task.TRANSCRIBE: _frames,
}
SCORES: dict[ScoreFunction, Callable[[Floats], Doubles]] = {
    ScoreFunction.SOFTMAX: lambda logits: np.exp(log_softmax(logits)),
    ScoreFunction.SIGMOID: lambda logits: 1 / (1 + np.exp(-logits.astype(np.float64))),
    ScoreFunction.IDENTITY: lambda logits: logits.astype(np.float64),
}


def _decisions(
    inputs: EncoderInputs,
    sessions: list[Session],
    probabilities: Callable[[Floats], Doubles],
    multiple: bool,
) -> EncoderComparison | None:
    if not len(inputs):
        return None
    batch = 1 if inputs.speech else BATCH
    expected, actual = (
        [probabilities(logits) for logits in _encode(session, inputs, batch)]
        for session in sessions
    )
    decisions = compare_decisions(expected, actual, multiple=multiple)
    return EncoderComparison(len(inputs), inputs.part(0, batch), decisions=decisions)


def _outputs(session: Session, inputs: EncoderInputs) -> dict[str, list[Floats]]:
    """All outputs of each row, by name."""
    rows = [
        outputs
        for start in range(0, len(inputs), BATCH)
        for outputs in encode_in_graph(session, inputs.part(start, start + BATCH))
    ]
    names = (tensor.name for tensor in session.graph.outputs)
    return {name: [row[index] for row in rows] for index, name in enumerate(names)}


def _encode(session: Session, inputs: EncoderInputs, batch: int = BATCH) -> list[Floats]:
    """The first output of each row."""
    return [
        outputs[0]
        for start in range(0, len(inputs), batch)
        for outputs in encode_in_graph(session, inputs.part(start, start + batch))
    ]


def _texts(subject: Subject, session: Session) -> EncoderInputs:
    """Texts; images, recordings, or texts with images, if the model reads them."""
    images = subject.images
    if subject.audio is not None:
        return EncoderInputs([], None, speech=subject.speech)
    if images and not subject.vocabulary_size:
        return EncoderInputs([], None, images)
    rows = [subject.encode(text) for text in mixed_texts()[: subject.max_texts]]
    rows = [row for row in rows if row]
    if images:
        rows = rows[: len(images)]
    segments = _zeros(rows) if _has_segments(session) else None
    return EncoderInputs(rows, segments, images[: len(rows)])


def _pairs(subject: Subject, session: Session, pairs: list[tuple[str, str]]) -> EncoderInputs:
    found = [subject.encode_pair(*pair) for pair in pairs]
    rows = [one.ids[: subject.max_positions] for one in found]
    segments = [one.type_ids[: subject.max_positions] for one in found]
    if any(not row or max(row) >= subject.vocabulary_size for row in rows):
        return EncoderInputs([], None)
    return EncoderInputs(rows, segments if _has_segments(session) else None)


def _zeros(rows: list[list[int]]) -> list[list[int]]:
    return [[0] * len(row) for row in rows]


def _has_segments(session: Session) -> bool:
    return any(spec.name == "segment_ids" for spec in session.graph.inputs)
