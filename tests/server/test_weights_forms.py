"""Weights in fewer bits: every number comes back, and products are those of fp32, bit for bit."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.runtime.contract import Array
from server.runtime.kernels import rewrite as rewriting
from server.runtime.kernels import weights
from server.runtime.kernels.library import Kernels, runnable
from server.runtime.kernels.rewrite import rewrite
from server.runtime.kernels.weights import Form, smallest
from server.runtime.ort.backend import OrtBackend
from tests.server.test_matmul_kernel import graph

pytestmark = pytest.mark.skipif(
    Kernels.MATMUL not in runnable(), reason="no kernels for this processor"
)
BLOCK = 32


def halves(rng: np.random.Generator, shape: tuple[int, ...], scale: float) -> Array:
    return rng.normal(size=shape, scale=scale).astype(np.float16).astype(np.float32)


def in_form(form: Form, num_inputs: int, num_outputs: int, seed: int) -> Array:
    """A matrix ``[inputs, outputs]`` that the form holds, as a checkpoint of its kind has it."""
    rng = np.random.default_rng(seed)
    if form == Form.FLOAT:
        return rng.normal(size=(num_inputs, num_outputs)).astype(np.float32)
    if form == Form.HALF:
        return halves(rng, (num_inputs, num_outputs), 0.05)
    if form == Form.BRAIN:
        bits = rng.normal(size=(num_inputs, num_outputs)).astype(np.float32).view(np.uint32)
        return (bits & np.uint32(0xFFFF0000)).view(np.float32)
    values = rng.normal(size=(num_inputs // BLOCK, BLOCK, num_outputs), scale=0.05)
    if form == Form.BYTES:  # Q8_0
        scale = np.abs(values).max(1, keepdims=True) / 127
        scale = scale.astype(np.float16).astype(np.float32)
        blocks = np.rint(values / scale).clip(-128, 127).astype(np.float32) * scale
    elif seed % 2:  # Q4_1
        least = values.min(1, keepdims=True)
        scale = ((values.max(1, keepdims=True) - least) / 15).astype(np.float16).astype(np.float32)
        numbers = np.rint((values - least) / scale).clip(0, 15).astype(np.float32)
        blocks = numbers * scale + least.astype(np.float16).astype(np.float32)
    else:  # Q4_0
        places = np.abs(values).argmax(1, keepdims=True)
        scale = np.take_along_axis(values, places, 1) / -8
        scale = scale.astype(np.float16).astype(np.float32)
        blocks = (np.rint(values / scale + 8).clip(0, 15).astype(np.float32) - 8) * scale
    matrix: Array = blocks.reshape(num_inputs, num_outputs)
    return matrix


def run(file: Path, x: Array, num_threads: int = 1) -> Array:
    return OrtBackend("cpu", num_threads).load(file, ()).bind({}).run({"x": x})["y"].copy()


@pytest.fixture(autouse=True)
def _use_them_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a processor that has something better."""
    monkeypatch.setattr(rewriting, "worthwhile", runnable)


@pytest.mark.parametrize("form", list(Form))
@pytest.mark.parametrize(("num_inputs", "num_outputs"), [(32, 16), (448, 40), (800, 522)])
@pytest.mark.parametrize("seed", [0, 1])
def test_products_are_those_of_floats(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    form: Form,
    num_inputs: int,
    num_outputs: int,
    seed: int,
) -> None:
    matrix = in_form(form, num_inputs, num_outputs, seed)
    bias = np.random.default_rng(2).normal(size=num_outputs).astype(np.float32)
    held = graph(tmp_path / "held" / "1" / "g.onnx", matrix, bias, "Gelu")
    made = rewrite(held, Kernels.MATMUL)
    assert made is not None
    (packed,) = (array for name, array in made.packed.items() if name.endswith(".packed"))
    (told,) = (array for name, array in made.packed.items() if name.endswith(".settings"))
    assert told[2] == form
    bits = {Form.FLOAT: 32, Form.HALF: 16, Form.BRAIN: 16, Form.BYTES: 8.5, Form.NIBBLES: 5}[form]
    num_weights = num_inputs * -(-num_outputs // 16) * 16
    assert packed.nbytes * 8 == bits * num_weights

    rng = np.random.default_rng(3)
    tables = {n: rng.normal(size=(1, n, num_inputs)).astype(np.float32) for n in (1, 2, 6, 7, 130)}
    actual = {(n, t): run(held, x, t) for n, x in tables.items() for t in (1, 2)}
    monkeypatch.setattr(weights, "_SMALLEST_FIRST", ())
    floats = graph(tmp_path / "floats" / "1" / "g.onnx", matrix, bias, "Gelu")
    for (n, t), y in actual.items():
        np.testing.assert_array_equal(y, run(floats, tables[n], t))


def test_what_graphs_share_is_not_their_own(tmp_path: Path) -> None:
    matrix = in_form(Form.FLOAT, 32, 16, 0)
    file = graph(tmp_path / "1" / "g.onnx", matrix, np.zeros(16, np.float32), "Relu")
    backend = OrtBackend("cpu", 1)
    backend.load(file, ())
    assert backend.own_bytes(file) < matrix.nbytes


@settings(max_examples=60, deadline=None)
@given(
    form=st.sampled_from([Form.HALF, Form.BRAIN, Form.BYTES, Form.NIBBLES]),
    seed=st.integers(0, 2**32 - 1),
    place=st.tuples(st.integers(0, 63), st.integers(0, 15)),
    bit=st.integers(0, 31),
)
def test_a_number_that_a_form_cannot_hold_is_seen(
    tmp_path_factory: pytest.TempPathFactory,
    form: Form,
    seed: int,
    place: tuple[int, int],
    bit: int,
) -> None:
    """Any bit of any number may be another: they come back all the same."""
    matrix = in_form(form, 64, 16, seed)
    matrix.view(np.uint32)[place] ^= np.uint32(1 << bit)
    matrix[~np.isfinite(matrix)] = 1 / 3
    file = graph(tmp_path_factory.mktemp("any") / "1" / "g.onnx", matrix, None)
    np.testing.assert_array_equal(run(file, np.eye(64, dtype=np.float32)[None])[0], matrix)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 65536.0, 1e-30, -0.0])
@pytest.mark.parametrize("form", list(Form))
def test_any_number_comes_back(tmp_path: Path, form: Form, value: float) -> None:
    matrix = in_form(form, 32, 16, 5)
    matrix[7, 3] = value
    file = graph(tmp_path / "1" / "g.onnx", matrix, None)
    x = np.zeros((1, 1, 32), np.float32)
    x[0, 0, 7] = 1
    np.testing.assert_array_equal(run(file, x)[0, 0, 3], np.float32(value))


def test_what_is_no_number_is_held_as_it_is() -> None:
    matrix = np.full((1, 32, 16), np.nan, np.float32)
    matrix.view(np.uint32)[...] |= 1
    assert smallest(matrix)[0] == Form.FLOAT
