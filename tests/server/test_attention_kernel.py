"""The attention kernel matches ``GroupQueryAttention`` and is batch-invariant."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.runtime.memory import Array
from tests.server.attention_graphs import (
    NEEDS_KERNEL,
    Case,
    add_int8_product,
    graph,
    native_session,
    run,
    session,
)

pytestmark = [NEEDS_KERNEL, pytest.mark.usefixtures("register_bits")]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    kind = draw(st.sampled_from(["decode", "prompt", "chunk", "encoder", "cross"]))
    kv_heads, group = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 3, 4, 7]))
    size = draw(st.sampled_from([8, 16, 24, 32, 48, 64, 72, 128, 160]))
    lengths = st.integers(1, draw(st.sampled_from([9, 70, 150, 300])))
    num_rows = 1 if kind == "chunk" else draw(st.integers(1, 4))
    rows = tuple(draw(lengths) for _ in range(num_rows))
    longest = max(rows)
    num_tokens = 1
    if kind in ("prompt", "encoder"):
        num_tokens = longest
    elif kind == "chunk" or (kind == "cross" and num_rows == 1):
        num_tokens = draw(st.integers(1, longest))
    attributes: dict[str, int | float] = {}
    if draw(st.booleans()):
        attributes["scale"] = draw(st.floats(0.1, 2.0)) * size**-0.5
    if draw(st.booleans()):
        attributes["softcap"] = draw(st.floats(0.5, 60.0))
    is_causal = kind in ("decode", "prompt", "chunk")
    if is_causal and draw(st.booleans()):
        attributes["local_window_size"] = draw(st.integers(1, longest + 5))
    has_sinks = draw(st.booleans())
    if has_sinks or draw(st.booleans()):
        attributes["smooth_softmax"] = 1
    angles = 0
    if kind != "cross" and size % 16 == 0 and draw(st.booleans()):
        angles = 8 * draw(st.integers(1, size // 16))
        attributes["rotary_interleaved"] = draw(st.integers(0, 1))
    has_past = is_causal or kind == "cross"
    return Case(
        kind=kind,
        num_tokens=num_tokens,
        lengths=rows,
        heads=(kv_heads * group, kv_heads),
        size=size,
        capacity=longest + draw(st.integers(0, 80)) if has_past else 0,
        packed=kind != "cross" and draw(st.booleans()),
        in_place=has_past and draw(st.booleans()),
        angles=angles,
        bias=draw(st.none() | st.tuples(st.booleans(), st.booleans())),
        has_sinks=has_sinks,
        attributes=attributes,
        seed=draw(st.integers(0, 2**32 - 1)),
    )


@settings(max_examples=150)
@given(case=cases(), num_threads=st.integers(1, 2))
def test_matches_the_standard_operator(
    tmp_path_factory: pytest.TempPathFactory, case: Case, num_threads: int
) -> None:
    inputs = case.inputs()
    file = tmp_path_factory.mktemp("any") / "graph.onnx"
    onnx.save(graph(inputs, case.all_attributes()), file)
    expected = run(session(str(file)), inputs, in_place=case.in_place)
    actual = run(native_session(file, num_threads), inputs, in_place=case.in_place)
    assert [output.shape for output in actual] == [output.shape for output in expected]
    for row, length in enumerate(case.lengths):
        tokens = slice(min(length, case.num_tokens) if case.is_fresh else None)
        np.testing.assert_allclose(actual[0][row, tokens], expected[0][row, tokens], atol=1e-5)
        for memory in (1, 2):
            valid = (row, slice(None), slice(length))
            np.testing.assert_allclose(actual[memory][valid], expected[memory][valid], atol=1e-5)


@pytest.fixture(
    params=[
        (32, {}, False),
        (64, {}, False),
        (64, {"local_window_size": 90}, False),
        (40, {"softcap": 5.0}, False),
        (128, {}, False),
        (32, {}, True),
        (64, {}, True),
        (96, {"local_window_size": 90}, True),
        (128, {}, True),
    ]
)
def decoder(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, int]:
    """A graph with 8 query and 2 KV heads, and its head size. Uses RoPE if the size allows.

    The last ones have a product in int8, so that attention may round to bfloat16.
    """
    size, attributes, has_int8_product = request.param
    names = ["query", "past_key", "past_value", "last", "total"]
    names += ["cos", "sin"] if size % 16 == 0 else []
    base_attributes = {"num_heads": 8, "kv_num_heads": 2, "do_rotary": int(size % 16 == 0)}
    file = tmp_path / "graph.onnx"
    model = graph(dict.fromkeys(names), base_attributes | attributes)
    if has_int8_product:
        add_int8_product(model)
    onnx.save(model, file)
    return file, size


class Decoder:
    """Runs the kernel on rows with a KV cache each, in chunks of any size."""

    def __init__(self, file: Path, size: int, num_rows: int, num_threads: int = 1) -> None:
        self._session, self._size = native_session(file, num_threads), size
        shape = (num_rows, 2, CAPACITY, size)
        self.keys, self.values = (np.full(shape, np.nan, np.float32) for _ in range(2))
        angles = np.random.default_rng(9).uniform(-4, 4, (CAPACITY, size // 2))
        self._angles = {"cos": np.cos(angles), "sin": np.sin(angles)} if size % 16 == 0 else {}

    def run(self, tokens: Array, lengths: list[int], total: int | None = None) -> Array:
        """Runs ``tokens [rows, tokens, width]``. ``lengths``: row lengths after this run."""
        inputs = {
            "query": tokens,
            "past_key": self.keys,
            "past_value": self.values,
            "last": np.array(lengths, np.int32) - 1,
            "total": np.array(max(lengths) if total is None else total, np.int32),
        } | {name: array.astype(np.float32) for name, array in self._angles.items()}
        return run(self._session, inputs, in_place=True)[0]


CAPACITY, LENGTH = 230, 201


def test_output_does_not_depend_on_chunking_or_other_rows(
    decoder: tuple[Path, int],
) -> None:
    file, size = decoder
    rng = np.random.default_rng(0)
    tokens = rng.normal(size=(3, LENGTH, 12 * size)).astype(np.float32)
    whole = Decoder(file, size, 1).run(tokens[:1], [LENGTH])[0]

    for num_threads, step in ((1, 1), (1, 2), (2, 7), (1, 64), (2, 130)):
        alone = Decoder(file, size, 1, num_threads)
        for start in range(0, LENGTH, step):
            stop = min(start + step, LENGTH)
            part = alone.run(tokens[:1, start:stop], [stop])[0]
            np.testing.assert_array_equal(part, whole[start:stop])

    for num_threads in (1, 2):
        batched = Decoder(file, size, 3, num_threads)
        lengths = [150, 3, 66]
        first = batched.run(tokens[:, :150], lengths)
        np.testing.assert_array_equal(first[0], whole[:150])
        for _ in range(20):
            new = np.stack([tokens[row, length] for row, length in enumerate(lengths)])[:, None]
            lengths = [length + 1 for length in lengths]
            np.testing.assert_array_equal(batched.run(new, lengths)[0, 0], whole[lengths[0] - 1])


def test_does_not_read_past_row_length(decoder: tuple[Path, int]) -> None:
    """Unused cache positions and padding hold NaN."""
    file, size = decoder
    rng = np.random.default_rng(0)
    tokens = rng.normal(size=(2, 70, 12 * size)).astype(np.float32)
    tokens[1, 5:] = np.nan
    batched = Decoder(file, size, 2)
    y = batched.run(tokens, [70, 5])
    assert np.isfinite(y[0]).all()
    assert np.isfinite(y[1, :5]).all()
    assert not y[1, 5:].any()  # zeros
    assert np.isnan(batched.keys[1, :, 5:]).all()
    assert np.isfinite(batched.keys[0, :, :70]).all()


def test_nan_row_does_not_affect_other_rows(decoder: tuple[Path, int]) -> None:
    file, size = decoder
    rng = np.random.default_rng(0)
    tokens = rng.normal(size=(2, 40, 12 * size)).astype(np.float32)
    expected = Decoder(file, size, 2).run(tokens, [40, 40])
    tokens[1, 39, 0] = np.nan
    actual = Decoder(file, size, 2).run(tokens, [40, 40])
    np.testing.assert_array_equal(actual[0], expected[0])
    np.testing.assert_array_equal(actual[1, :39], expected[1, :39])
    assert np.isnan(actual[1, 39, :size]).all()


def test_cross_attention_supports_several_rows_and_tokens(tmp_path: Path) -> None:
    """The standard operator supports only one token or one row."""
    case = Case("cross", 7, (30, 8, 19), (8, 8), 32, capacity=33, packed=False)
    inputs = case.inputs()
    file = tmp_path / "graph.onnx"
    onnx.save(graph(inputs, case.all_attributes()), file)
    together = run(native_session(file), inputs)[0]
    for row, length in enumerate(case.lengths):
        alone = {name: array[row : row + 1] for name, array in inputs.items() if array.ndim}
        alone["total"] = np.array(length, np.int32)
        expected = run(session(str(file)), alone)[0]
        np.testing.assert_allclose(together[row], expected[0], atol=1e-5)
        np.testing.assert_array_equal(run(native_session(file), alone)[0][0], together[row])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"last": np.array([-1, 3], np.int32)}, "1 to the capacity"),
        ({"last": np.array([3, 40], np.int32)}, "1 to the capacity"),
        ({"last": np.array([3], np.int32)}, "seqlens_k"),
        ({"query": np.zeros((2, 2, 256), np.float32)}, "only one row"),
        ({"query": np.zeros((2, 1, 8 * 20), np.float32)}, "multiple of 8"),
        ({"past_key": np.zeros((2, 2, 9, 32), np.float32)}, "past_key and past_value"),
        ({"cos": np.zeros((3, 16), np.float32)}, "not in cos_cache|cos_cache and sin_cache"),
        ({"cos": np.zeros((20, 24), np.float32)}, "cos_cache and sin_cache"),
        ({"bias": np.zeros((1, 3, 1, 9), np.float32)}, "attention_bias"),
        ({"bias": np.zeros((1, 1, 1, 8), np.float32)}, "1 to the capacity"),
        ({"sink": np.zeros(3, np.float32)}, "head_sink"),
    ],
)
def test_rejects_invalid_inputs(tmp_path: Path, change: dict[str, Array], message: str) -> None:
    case = Case("decode", 1, (4, 9), capacity=20, angles=16, bias=(False, False), has_sinks=True)
    inputs = case.inputs()
    file = tmp_path / "graph.onnx"
    onnx.save(graph(inputs, case.all_attributes()), file)
    native = native_session(file)
    run(native, inputs)
    with pytest.raises(Exception, match=message):
        run(native, inputs | change)
