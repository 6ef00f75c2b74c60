"""Inputs of the decoder's runs, whose arrays are kept from step to step."""

from collections.abc import Sequence

import numpy as np

from server.engine.candidates import CandidateBatches
from server.engine.requests.job import Candidates, GenerationJob
from server.engine.requests.sequence import DecodingSequence
from server.engine.run_inputs import Chunk, RunInputs
from server.runtime.contract import SOURCE_ROWS

VOCABULARY_SIZE = 1000


def sequence(id_: int, source_length: int = 3) -> DecodingSequence:
    """A sequence with token ``100 + id_`` at place ``id_``, the next one to run."""
    job = GenerationJob(prompt=(100 + id_,), max_new_tokens=5, source=(7,) * source_length)
    made = DecodingSequence.first_of(id_, job)
    made.tokens = [0] * id_ + [100 + id_]
    made.num_cached_tokens = id_
    return made


def step(inputs: RunInputs, sequences: Sequence[DecodingSequence]) -> dict[str, object]:
    """The inputs of a run over the next token of each sequence, as lists."""
    given = inputs.of([Chunk(each, each.num_cached_tokens, 1) for each in sequences])
    return {name: np.asarray(array).tolist() for name, array in given.items()}


def expected(sequences: Sequence[DecodingSequence], source_rows: list[int]) -> dict[str, object]:
    starts = [each.num_cached_tokens for each in sequences]
    lengths = [len(each.job.source) for each in sequences]
    return {
        "token_ids": [[100 + each.id] for each in sequences],
        "num_cached_tokens": starts,
        "max_total_length": max(starts) + 1,
        "logit_positions": list(range(len(sequences))),
        "num_new_tokens": [1] * len(sequences),
        "source_lengths": lengths,
        "max_source_length": max(lengths),
        SOURCE_ROWS: source_rows,
    }


def test_a_step_describes_its_own_sequences() -> None:
    """Whatever the steps before were: as many, fewer, the same in another order, or forks."""
    a, b, c = sequence(1, 4), sequence(2, 9), sequence(3, 2)
    fork = a.fork(4, output=1)
    fork.tokens, fork.num_cached_tokens = [0] * 4 + [104], 4
    inputs = RunInputs(has_source=True)
    for sequences, rows in (
        ([a, b], [0, 1]),
        ([a], [0]),
        ([b, a], [0, 1]),
        ([a, fork], [0, 0]),
        ([c], [0]),
        ([fork, b, a], [0, 1, 0]),
        ([a, b, c], [0, 1, 2]),
        ([a, b], [0, 1]),
    ):
        assert step(inputs, sequences) == expected(sequences, rows)


def test_steps_of_the_same_sequences_give_the_same_arrays() -> None:
    """So that they stay bound."""
    a, b = sequence(1), sequence(2)
    inputs = RunInputs(has_source=True)
    chunks = [Chunk(each, each.num_cached_tokens, 1) for each in (a, b)]
    first, second = inputs.of(chunks), inputs.of(chunks)
    assert all(second[name] is array for name, array in first.items())


def test_inputs_advance_by_a_token_of_each_sequence() -> None:
    a, b = sequence(1, 4), sequence(2, 9)
    inputs = RunInputs(has_source=True)
    given = inputs.of([Chunk(each, each.num_cached_tokens, 1) for each in (a, b)])
    for _ in range(3):
        tokens = [5 * len(a.tokens), 7 * len(b.tokens)]
        inputs.advance(tokens)
        for each, token in zip((a, b), tokens, strict=True):
            each.tokens.append(token)
            each.num_cached_tokens += 1
        found = {name: np.asarray(array).tolist() for name, array in given.items()}
        assert found == step(RunInputs(has_source=True), [a, b])


def test_a_decoder_has_no_source() -> None:
    found = step(RunInputs(has_source=False), [sequence(1, 0)])
    assert not {"source_lengths", "max_source_length", SOURCE_ROWS} & found.keys()


def test_candidates_are_those_of_the_jobs_of_a_run() -> None:
    """Also if a run needs all logits in between, or another job takes a row."""

    def job(*ids: int) -> GenerationJob:
        candidates = Candidates(lambda: np.array(ids, np.int32))
        return GenerationJob(prompt=(1,), max_new_tokens=1, candidates=candidates)

    a, b = job(3, 5, 8), job(2, 5)
    all_tokens = GenerationJob(prompt=(1,), max_new_tokens=1)
    batches = CandidateBatches(VOCABULARY_SIZE)
    for run in ([a], [b], [a, b], [a, b], [all_tokens, b], [a, b], [b, a], [a]):
        found = batches.of(run)
        if any(each.candidates is None for each in run):
            assert found is None
            continue
        assert found is not None
        rows = [[id_ for id_ in row if id_ >= 0] for row in found.ids.tolist()]
        lists = [each.candidates.ids.tolist() for each in run if each.candidates is not None]
        assert rows == lists
        assert batches.of(list(run)) is found
