"""Graphs choose the host's token with the same uniform number, or say that they cannot."""

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from server.engine.decoding import sampling
from server.engine.decoding.logits import DeviceLogits, HostLogits
from server.engine.decoding.options import LogitsOptions, Sampling
from server.engine.gpu.device_sampler import bind_take
from server.engine.gpu.sampler_graph import (
    NO_TOP_P,
    UNDECIDED,
    SamplingMethod,
    Shape,
    Variant,
    build,
    build_take,
)
from server.engine.requests.sequence import GenerationJob
from server.runtime.contract import Array, Block
from tests.server.samplers import ask, chooser, load_model, on_the_host
from tests.server.test_sampling import chi_square_quantile

TYPES: dict[int, Any] = {
    TensorProto.FLOAT: np.float32,
    TensorProto.FLOAT16: np.float16,
    TensorProto.BFLOAT16: ml_dtypes.bfloat16,
}
# A search in two steps with and without padding; in one; every token a candidate.
SIZES = [(5_000, 32), (4_096, 32), (1_001, 128), (97, 256)]
NUM_ROWS = 6


def shapes() -> list[Shape]:
    return [Shape(size, type_, count) for size, count in SIZES for type_ in TYPES]


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
        bad_word_ids=tuple(draw(st.lists(st.tuples(ids), max_size=3, unique=True))),
    )


@st.composite
def logits_of(draw: st.DrawFn, shape: Shape) -> Array:
    """``[NUM_ROWS, vocabulary]``: flat and steep ones, ties, -inf, and what is not finite."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    table = np.zeros((NUM_ROWS, shape.vocabulary), np.float32)
    for row in table:
        row[:] = rng.normal(0, draw(st.sampled_from([0.0, 0.5, 3.0, 12.0])), shape.vocabulary)
        step = draw(st.sampled_from([0.0, 0.0, 0.25, 4.0]))
        if step:
            row[:] = np.round(row / step) * step
        row[rng.random(shape.vocabulary) < draw(st.sampled_from([0, 0, 0.4, 1.0]))] = -np.inf
        bad = draw(st.sampled_from([None, None, None, np.nan, np.inf]))
        if bad is not None:
            row[rng.integers(shape.vocabulary)] = bad
    return table.astype(TYPES[shape.element_type])


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_the_graph_and_the_host_choose_the_same(data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from(shapes()))
    table = data.draw(logits_of(shape))
    indices = data.draw(st.lists(st.sampled_from(range(NUM_ROWS)), unique=True, min_size=1))
    asks = []
    for index in sorted(indices):
        job = GenerationJob(
            (1, 2, 1),
            1,
            eos=frozenset({0}),
            sampling=data.draw(samplings()),
            logits_options=data.draw(logits_options()),
        )
        tokens = data.draw(st.lists(st.integers(0, 96), max_size=40))
        asks.append(ask(index, job, tokens, data.draw(st.floats(0, 1, exclude_max=True))))
    found = chooser(shape).choose(HostLogits(table), asks)
    for wanted, token in zip(asks, found, strict=True):
        expected = on_the_host(table[wanted.index].astype(np.float32), wanted)
        assert token in (None, expected), wanted.row.job
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
def test_hardly_a_row_is_left_to_the_host(options: Sampling, type_: int) -> None:
    """1,000 draws each, half of them with penalties: steep logits, ties in half precision."""
    rng = np.random.default_rng(3)
    shape = Shape(5_000, type_, 32)
    adjusted = LogitsOptions(1.2, 0.5, 0.1, 2, logit_bias=((7, 3.0),))
    num_rows, num_undecided = 0, 0
    for _ in range(10):
        table = (rng.gumbel(0, 2.5, (100, shape.vocabulary))).astype(TYPES[type_])
        asks = []
        for index in range(100):
            changes = adjusted if index % 2 else LogitsOptions()
            job = GenerationJob((1,), 1, sampling=options, logits_options=changes)
            tokens = rng.integers(0, 5_000, 30).tolist()
            asks.append(ask(index, job, tokens, float(rng.random())))
        for wanted, token in zip(asks, chooser(shape).choose(HostLogits(table), asks), strict=True):
            expected = on_the_host(table[wanted.index].astype(np.float32), wanted)
            assert token in (None, expected)
            num_rows += 1
            num_undecided += token is None
    assert num_rows == 1_000
    assert num_undecided <= 10


@pytest.mark.parametrize(
    "options",
    [
        Sampling(1.0, top_k=32),  # as many as there are candidates
        Sampling(1.0, top_p=0.99),  # reaches beyond them
        Sampling(1.0, min_p=1e-6),
        Sampling(1.0, typical_p=0.9),
    ],
    ids=str,
)
def test_what_the_candidates_do_not_hold_is_left_to_the_host(options: Sampling) -> None:
    table = np.random.default_rng(1).normal(0, 1, (1, 5_000)).astype(np.float32)
    asks = [ask(0, GenerationJob((1,), 1, sampling=options), [], 0.5)]
    assert chooser(Shape(5_000, num_candidates=32)).choose(HostLogits(table), asks) == [None]


@pytest.mark.parametrize(
    ("options", "uniform"),
    [
        (Sampling(1.0), 0.25),
        (Sampling(1.0), 1 - 2**-53),
        (Sampling(1.0, top_k=4), 0.5),
        (Sampling(1.0, top_p=0.9), 0.75),
        (Sampling(1.0, top_p=0.5), 0.1),  # two of four tokens hold half, or nearly
        (Sampling(1.0, top_k=5, top_p=0.75), 0.1),
        (Sampling(1.0, min_p=1.0), 0.1),
    ],
    ids=str,
)
def test_what_rounding_could_decide_is_left_to_the_host(options: Sampling, uniform: float) -> None:
    """Four tokens share all: where one ends and the next begins is exact."""
    table = np.full((1, 5_000), -np.inf, np.float32)
    table[0, [4, 900, 901, 4_000]] = 2.0
    wanted = ask(0, GenerationJob((1,), 1, sampling=options), [], uniform)
    assert chooser(Shape(5_000, num_candidates=32)).choose(HostLogits(table), [wanted]) == [None]
    beside = ask(0, GenerationJob((1,), 1, sampling=Sampling(1.0, top_k=4)), [], 0.3)
    assert chooser(Shape(5_000, num_candidates=32)).choose(HostLogits(table), [beside]) == [900]


@pytest.mark.parametrize("way", SamplingMethod)
def test_a_bad_row_harms_no_other(way: SamplingMethod) -> None:
    rng = np.random.default_rng(2)
    table = rng.normal(0, 3, (4, 5_000)).astype(np.float32)
    table[1, 4_999] = np.nan
    table[2, 17] = np.inf
    options = {
        SamplingMethod.GREEDY: Sampling(),
        SamplingMethod.SPREAD: Sampling(1.0),
        SamplingMethod.TOP_K: Sampling(1.0, top_k=5),
        SamplingMethod.NUCLEUS: Sampling(1.0, top_p=0.1),
    }[way]
    # What is wrong may be a token that an option forbids.
    hidden = LogitsOptions(bad_word_ids=((4_999,), (17,)))
    for adjusted in (LogitsOptions(), hidden):
        job = GenerationJob((1,), 1, sampling=options, logits_options=adjusted)
        asks = [ask(index, job, [], 0.3) for index in range(4)]
        found = chooser(Shape(5_000, num_candidates=64)).choose(HostLogits(table), asks)
        assert found[1:3] == [None, None]
        assert found[0] == on_the_host(table[0], asks[0])
        assert found[3] == on_the_host(table[3], asks[3])


@pytest.mark.parametrize(
    "options",
    [Sampling(1.0), Sampling(0.7, top_k=40), Sampling(1.3, top_p=0.6), Sampling(1.0, min_p=0.05)],
    ids=str,
)
def test_draws_follow_the_distribution(options: Sampling) -> None:
    """A chi-square test of 20,000 draws in one run of the graph."""
    logits = np.random.default_rng(5).normal(0, 3, 500).astype(np.float32)
    shape = Shape(500, num_candidates=400)
    way = chooser(shape).way_of(ask(0, GenerationJob((1,), 1, sampling=options), [], 0.0).row)
    assert way is not None
    parameters = np.empty((20_000, 5))
    top_p = options.top_p if options.top_p < 1 else NO_TOP_P
    parameters[:, :4] = options.temperature, options.top_k, top_p, options.min_p
    parameters[:, 4] = np.random.default_rng(7).random(20_000)
    inputs: dict[str, Array | Block] = {
        "logits": logits[None],
        "rows": np.zeros(20_000, np.int64),
        "parameters": parameters,
    }
    graph = load_model(build(Variant(way, gathers=True), shape))
    draws = graph.bind({}).run(inputs)["tokens"]
    assert (draws != UNDECIDED).all()
    kept, weights = sampling.probabilities(logits, options)
    expected = np.zeros(len(logits))
    expected[kept] = weights
    counts = np.bincount(draws, minlength=len(logits))
    assert not counts[expected == 0].any()
    common = expected * len(draws) >= 5  # the rest share one class
    seen = np.append(counts[common], counts[~common].sum())
    wanted = np.append(expected[common], expected[~common].sum()) * len(draws)
    seen, wanted = seen[wanted > 0], wanted[wanted > 0]
    statistic = float(((seen - wanted) ** 2 / wanted).sum())
    # One false alarm in 10,000 seeds; this seed is fixed.
    assert statistic < chi_square_quantile(len(wanted) - 1)


@pytest.mark.parametrize("type_", TYPES)
def test_suppressed_tokens_are_never_chosen_and_rows_come_as_the_host_has_them(type_: int) -> None:
    shape = Shape(300, type_, suppressed=(3, 250))
    table = np.random.default_rng(4).normal(0, 1, (3, 300)).astype(TYPES[type_])
    table[:, [3, 250]] = 9
    expected = table.astype(np.float32)
    expected[:, [3, 250]] = -1e9
    taken = DeviceLogits(Block.of(table), bind_take(load_model, shape)).rows([0, 2])
    assert taken.dtype == np.float32
    np.testing.assert_array_equal(taken, expected[[0, 2]])
    asks = [ask(index, GenerationJob((1,), 1), [], 0.0) for index in range(3)]
    found = chooser(shape).choose(HostLogits(table), asks)
    assert found == expected.argmax(1).tolist()


# Operators of opset 18 and earlier, with the types of their first input, for which ONNX Runtime
# registers a CUDA kernel: docs/OperatorKernels.md of microsoft/onnxruntime.
_NUMBERS = {"FLOAT", "DOUBLE", "INT64"}
_ANY = {*_NUMBERS, "BOOL", "FLOAT16", "BFLOAT16"}
CUDA_KERNELS = {
    "Add": (14, _NUMBERS),
    "And": (7, {"BOOL"}),
    "Cast": (13, _ANY),
    "Concat": (13, _ANY),
    "CumSum": (14, {"DOUBLE", "INT64"}),
    "Div": (14, _NUMBERS),
    "Equal": (13, {*_NUMBERS, "BOOL"}),
    "Exp": (13, {"FLOAT", "DOUBLE"}),
    "Gather": (13, _ANY),
    "GatherElements": (13, _ANY),
    "GatherND": (13, {"DOUBLE", "FLOAT", "INT64"}),
    "Greater": (13, _NUMBERS),
    "GreaterOrEqual": (16, _NUMBERS),
    "Identity": (16, _ANY),
    "Less": (13, _NUMBERS),
    "LessOrEqual": (16, _NUMBERS),
    "Min": (13, _NUMBERS),
    "Mul": (14, _NUMBERS),
    "Or": (7, {"BOOL"}),
    "Pad": (18, {"FLOAT", "DOUBLE"}),
    "ReduceMax": (18, _NUMBERS),
    "ReduceMin": (18, {"FLOAT", "DOUBLE"}),
    "ReduceSum": (13, _NUMBERS),
    "Reshape": (14, _ANY),
    "ScatterElements": (18, _ANY),
    "Slice": (13, _ANY),
    "Sub": (14, _NUMBERS),
    "TopK": (11, _NUMBERS),
    "Unsqueeze": (13, _ANY),
    "Where": (16, {"BOOL"}),
}


@pytest.mark.parametrize("shape", shapes()[:6:2] + shapes()[-1:], ids=str)
def test_every_operator_has_a_cuda_kernel(shape: Shape) -> None:
    shape = Shape(shape.vocabulary, shape.element_type, shape.num_candidates, (3,))
    flags = [(edits, gathers) for edits in (False, True) for gathers in (False, True)]
    models = [build(Variant(way, *flag), shape) for way in SamplingMethod for flag in flags]
    for model in [*models, build_take(shape)]:
        onnx.checker.check_model(model, full_check=True)
        graph = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph
        types = {value.name: value.type.tensor_type.elem_type for value in graph.value_info}
        types |= {value.name: value.type.tensor_type.elem_type for value in graph.input}
        types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
        for node in graph.node:
            version, allowed = CUDA_KERNELS[node.op_type]
            schema = onnx.defs.get_schema(node.op_type, model.opset_import[0].version)
            assert schema.since_version == version, node.op_type
            assert TensorProto.DataType.Name(types[node.input[0]]) in allowed, node


def test_a_failing_graph_leaves_all_to_the_host() -> None:
    shape = Shape(50)
    asks = [ask(0, GenerationJob((1,), 1), [], 0.0)]
    logits = HostLogits(np.zeros((1, 50), np.float64))  # no such logits were said to come
    assert chooser(shape).choose(logits, asks) == [None]
