"""Sampling graphs return the host's token for the same uniform number, or "undecided"."""

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from server.engine.decoding import sampling
from server.engine.decoding.bad_words import BadWordIds
from server.engine.decoding.logits import HostLogits
from server.engine.decoding.options import LogitsOptions, Sampling
from server.engine.gpu.device_logits import DeviceLogits, LogitsReader
from server.engine.gpu.sampler_graph import build
from server.engine.gpu.sampler_inputs import (
    NO_TOP_P,
    SUPPRESSED_LOGIT,
    UNDECIDED,
    LogitsSpec,
    SamplerVariant,
    SamplingMethod,
)
from server.engine.requests.job import GenerationJob
from server.runtime import host_ops
from server.runtime.memory import Array, Tensor
from tests.server.samplers import device_sampler, host_token, load_model, sample_request
from tests.server.test_sampling import chi_square_quantile

TYPES: dict[int, Any] = {
    TensorProto.FLOAT: np.float32,
    TensorProto.FLOAT16: np.float16,
    TensorProto.BFLOAT16: ml_dtypes.bfloat16,
}
# Top-k in two passes with and without padding, in one pass, and over the whole vocabulary.
SIZES = [(5_000, 32), (4_096, 32), (1_001, 128), (97, 256)]
NUM_ROWS = 6


def specs() -> list[LogitsSpec]:
    return [LogitsSpec(size, type_, count) for size, count in SIZES for type_ in TYPES]


@st.composite
def samplings(draw: st.DrawFn) -> Sampling:
    if draw(st.booleans()) and draw(st.booleans()):
        return Sampling()
    return Sampling(
        draw(st.sampled_from([0.01, 0.3, 0.8, 1.0, 1.7, 100.0])),
        top_k=draw(st.sampled_from([0, 0, 1, 2, 10, 31])),
        top_p=draw(st.sampled_from([1.0, 1.0, 0.9, 0.5, 0.25, 0.01, 0.9999])),
        min_p=draw(st.sampled_from([0.0, 0.0, 0.05, 0.5, 1.0])),
    )


@st.composite
def logits_options(draw: st.DrawFn) -> LogitsOptions:
    if draw(st.booleans()):
        return LogitsOptions()
    ids = st.integers(0, 96)
    bias = draw(st.dictionaries(ids, st.sampled_from([-100.0, -1.5, 0.1, 20.0]), max_size=20))
    return LogitsOptions(
        repetition_penalty=draw(st.sampled_from([1.0, 1.3, 0.7, 3.0])),
        presence_penalty=draw(st.sampled_from([0.0, 0.7, -1.1])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.3, -0.2])),
        no_repeat_ngram_size=draw(st.integers(0, 3)),
        min_new_tokens=draw(st.sampled_from([0, 9])),
        logit_bias=tuple(bias.items()),
        bad_word_ids=BadWordIds(draw(st.lists(st.tuples(ids), max_size=3, unique=True))),
    )


@st.composite
def logits_of(draw: st.DrawFn, spec: LogitsSpec) -> Array:
    """Logits ``[NUM_ROWS, vocabulary]``: flat and steep rows, ties, -inf, NaN, infinity."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    table = np.zeros((NUM_ROWS, spec.vocabulary), np.float32)
    for row in table:
        row[:] = rng.normal(0, draw(st.sampled_from([0.0, 0.5, 3.0, 12.0])), spec.vocabulary)
        step = draw(st.sampled_from([0.0, 0.0, 0.25, 4.0]))
        if step:
            row[:] = np.round(row / step) * step
        row[rng.random(spec.vocabulary) < draw(st.sampled_from([0, 0, 0.4, 1.0]))] = -np.inf
        bad = draw(st.sampled_from([None, None, None, np.nan, np.inf]))
        if bad is not None:
            row[rng.integers(spec.vocabulary)] = bad
    return table.astype(TYPES[spec.element_type])


@settings(max_examples=150)
@given(data=st.data())
def test_graph_samples_the_same_token_as_the_host(data: st.DataObject) -> None:
    spec = data.draw(st.sampled_from(specs()))
    table = data.draw(logits_of(spec))
    indices = data.draw(st.lists(st.sampled_from(range(NUM_ROWS)), unique=True, min_size=1))
    requests = []
    for index in sorted(indices):
        job = GenerationJob(
            (1, 2, 1),
            1,
            eos=frozenset({0}),
            sampling=data.draw(samplings()),
            logits_options=data.draw(logits_options()),
        )
        tokens = data.draw(st.lists(st.integers(0, 96), max_size=40))
        requests.append(
            sample_request(index, job, tokens, data.draw(st.floats(0, 1, exclude_max=True)))
        )
    sampled = device_sampler(spec).sample(HostLogits(table), requests)
    for request, token in zip(requests, sampled, strict=True):
        expected = host_token(table[request.index].astype(np.float32), request)
        assert token in (None, expected), request.sequence.job
        assert token is None or expected is not None


DECIDED = [
    Sampling(),
    Sampling(0.7),
    Sampling(1.3, top_k=20),
    Sampling(0.9, top_k=25, top_p=0.7, min_p=0.02),
    Sampling(0.6, top_p=0.4),
    Sampling(0.8, min_p=0.1),
]


@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("options", DECIDED, ids=str)
def test_few_rows_fall_back_to_the_host(options: Sampling, type_: int) -> None:
    """Of 1,000 draws, half with penalties, at most 10 stay undecided. 16-bit rows have ties."""
    rng = np.random.default_rng(3)
    spec = LogitsSpec(5_000, type_, 32)
    penalties = LogitsOptions(1.2, 0.5, 0.1, 2, logit_bias=((7, 3.0),))
    num_rows, num_undecided = 0, 0
    for _ in range(10):
        table = (rng.gumbel(0, 2.5, (100, spec.vocabulary))).astype(TYPES[type_])
        requests = []
        for index in range(100):
            options_of_row = penalties if index % 2 else LogitsOptions()
            job = GenerationJob((1,), 1, sampling=options, logits_options=options_of_row)
            tokens = rng.integers(0, 5_000, 30).tolist()
            requests.append(sample_request(index, job, tokens, float(rng.random())))
        sampled = device_sampler(spec).sample(HostLogits(table), requests)
        for request, token in zip(requests, sampled, strict=True):
            expected = host_token(table[request.index].astype(np.float32), request)
            assert token in (None, expected)
            num_rows += 1
            num_undecided += token is None
    assert num_rows == 1_000
    assert num_undecided <= 10


@pytest.mark.parametrize(
    "options",
    [
        Sampling(1.0, top_k=32),  # k equals the number of candidates
        Sampling(1.0, top_p=0.99),  # the nucleus exceeds the candidates
        Sampling(1.0, min_p=1e-6),
        Sampling(1.0, typical_p=0.9),
    ],
    ids=str,
)
def test_sampling_beyond_the_candidates_falls_back_to_the_host(options: Sampling) -> None:
    table = np.random.default_rng(1).normal(0, 1, (1, 5_000)).astype(np.float32)
    requests = [sample_request(0, GenerationJob((1,), 1, sampling=options), [], 0.5)]
    sampler = device_sampler(LogitsSpec(5_000, max_candidates=32))
    assert sampler.sample(HostLogits(table), requests) == [None]


@pytest.mark.parametrize(
    ("options", "uniform"),
    [
        (Sampling(1.0), 0.25),
        (Sampling(1.0), 1 - 2**-53),
        (Sampling(1.0, top_k=4), 0.5),
        (Sampling(1.0, top_p=0.9), 0.75),
        (Sampling(1.0, top_p=0.5), 0.1),  # two of four tokens have exactly half the mass
        (Sampling(1.0, top_k=5, top_p=0.75), 0.1),
        (Sampling(1.0, min_p=1.0), 0.1),
    ],
    ids=str,
)
def test_draws_within_rounding_error_fall_back_to_the_host(
    options: Sampling, uniform: float
) -> None:
    """Four equally probable tokens; the draw is exactly on the boundary between two."""
    table = np.full((1, 5_000), -np.inf, np.float32)
    table[0, [4, 900, 901, 4_000]] = 2.0
    on_boundary = sample_request(0, GenerationJob((1,), 1, sampling=options), [], uniform)
    sampler = device_sampler(LogitsSpec(5_000, max_candidates=32))
    assert sampler.sample(HostLogits(table), [on_boundary]) == [None]
    off_boundary = sample_request(
        0, GenerationJob((1,), 1, sampling=Sampling(1.0, top_k=4)), [], 0.3
    )
    assert sampler.sample(HostLogits(table), [off_boundary]) == [900]


@pytest.mark.parametrize("method", SamplingMethod)
def test_non_finite_row_does_not_affect_other_rows(method: SamplingMethod) -> None:
    rng = np.random.default_rng(2)
    table = rng.normal(0, 3, (4, 5_000)).astype(np.float32)
    table[1, 4_999] = np.nan
    table[2, 17] = np.inf
    options = {
        SamplingMethod.GREEDY: Sampling(),
        SamplingMethod.MULTINOMIAL: Sampling(1.0),
        SamplingMethod.TOP_K: Sampling(1.0, top_k=5),
        SamplingMethod.NUCLEUS: Sampling(1.0, top_p=0.1),
    }[method]
    # The non-finite logits may belong to suppressed tokens.
    suppressed = LogitsOptions(bad_word_ids=BadWordIds([(4_999,), (17,)]))
    for options_of_row in (LogitsOptions(), suppressed):
        job = GenerationJob((1,), 1, sampling=options, logits_options=options_of_row)
        requests = [sample_request(index, job, [], 0.3) for index in range(4)]
        sampled = device_sampler(LogitsSpec(5_000, max_candidates=64)).sample(
            HostLogits(table), requests
        )
        assert sampled[1:3] == [None, None]
        assert sampled[0] == host_token(table[0], requests[0])
        assert sampled[3] == host_token(table[3], requests[3])


@pytest.mark.parametrize(
    "options",
    [Sampling(1.0), Sampling(0.7, top_k=40), Sampling(1.3, top_p=0.6), Sampling(1.0, min_p=0.05)],
    ids=str,
)
def test_samples_follow_the_distribution(options: Sampling) -> None:
    """Chi-square test of 20,000 draws in one run."""
    logits = np.random.default_rng(5).normal(0, 3, 500).astype(np.float32)
    spec = LogitsSpec(500, max_candidates=400)
    method = device_sampler(spec).method_of(
        sample_request(0, GenerationJob((1,), 1, sampling=options), [], 0.0).sequence
    )
    assert method is not None
    parameters = np.empty((20_000, 5))
    top_p = options.top_p if options.top_p < 1 else NO_TOP_P
    parameters[:, :4] = options.temperature, options.top_k, top_p, options.min_p
    parameters[:, 4] = np.random.default_rng(7).random(20_000)
    inputs: dict[str, Array | Tensor] = {
        "logits": logits[None],
        "rows": np.zeros(20_000, np.int64),
        "parameters": parameters,
    }
    graph = load_model(build(SamplerVariant(method, gathers_rows=True), spec))
    draws = graph.bind({}).run(inputs)["tokens"]
    assert (draws != UNDECIDED).all()
    candidate_ids, weights = sampling.probabilities(logits, options)
    expected = np.zeros(len(logits))
    expected[candidate_ids] = weights
    counts = np.bincount(draws, minlength=len(logits))
    assert not counts[expected == 0].any()
    common = expected * len(draws) >= 5  # pool rare tokens into one class
    observed = np.append(counts[common], counts[~common].sum())
    expected_counts = np.append(expected[common], expected[~common].sum()) * len(draws)
    observed, expected_counts = observed[expected_counts > 0], expected_counts[expected_counts > 0]
    statistic = float(((observed - expected_counts) ** 2 / expected_counts).sum())
    # False positive rate 1e-4; the seed is fixed.
    assert statistic < chi_square_quantile(len(expected_counts) - 1)


@pytest.mark.parametrize("type_", TYPES)
def test_never_samples_suppressed_tokens_and_gathers_rows_exactly(type_: int) -> None:
    spec = LogitsSpec(300, type_, suppressed=(3, 250))
    table = np.random.default_rng(4).normal(0, 1, (3, 300)).astype(TYPES[type_])
    table[:, [3, 250]] = 9
    expected = table.astype(np.float32)
    expected[:, [3, 250]] = SUPPRESSED_LOGIT
    gathered = DeviceLogits(Tensor.of(table), LogitsReader(load_model, spec)).rows([0, 2])
    assert gathered.dtype == np.float32
    np.testing.assert_array_equal(gathered, expected[[0, 2]])
    requests = [sample_request(index, GenerationJob((1,), 1), [], 0.0) for index in range(3)]
    sampled = device_sampler(spec).sample(HostLogits(table), requests)
    assert sampled == expected.argmax(1).tolist()


@pytest.mark.parametrize("type_", TYPES)
def test_finds_the_tokens_that_the_host_finds(type_: int) -> None:
    spec = LogitsSpec(300, type_, suppressed=(3, 250))
    table = np.random.default_rng(5).normal(0, 1, (5, 300)).astype(TYPES[type_])
    table[1, 7] = -np.inf
    table[3, 7] = np.nan
    table[4] = np.inf
    logits = DeviceLogits(Tensor.of(table), LogitsReader(load_model, spec))
    for indices in ([0, 1, 2], [0, 1, 2, 3, 4], [1]):
        rows = logits.rows(indices)
        for count, targets in ((1, None), (8, [5, 3, 9, 0, 1][: len(indices)]), (13, None)):
            top = logits.top(indices, count, targets)
            assert top is not None
            for place, (index, row, found) in enumerate(zip(indices, rows, top, strict=True)):
                if index > 2:
                    assert not math.isfinite(found.total)
                    continue
                expected = host_ops.top_tokens_of([row], count)[0]
                if targets is None:
                    assert found.target == found.logprobs[0]
                else:
                    logit = float(row[targets[place]])
                    assert found.target == pytest.approx(logit - expected.total, abs=1e-5)
                assert found.tokens[:count] == expected.tokens
                assert found.logprobs[:count] == pytest.approx(expected.logprobs, abs=1e-5)
                assert found.total == pytest.approx(expected.total, abs=1e-5)
    assert logits.top([0], 65) is None


def test_impossible_tokens_are_left_out() -> None:
    table = np.full((1, 9), -np.inf, np.float32)
    table[0, [4, 6]] = 1
    found = DeviceLogits(Tensor.of(table), LogitsReader(load_model, LogitsSpec(9))).top([0], 9)
    assert found is not None
    (top,) = found
    assert top.tokens == [4, 6]
    assert top.logprobs == pytest.approx([-math.log(2)] * 2)


def test_failing_graph_falls_back_to_the_host() -> None:
    spec = LogitsSpec(50)
    requests = [sample_request(0, GenerationJob((1,), 1), [], 0.0)]
    logits = HostLogits(np.zeros((1, 50), np.float64))  # the graph expects float32
    assert device_sampler(spec).sample(logits, requests) == [None]
