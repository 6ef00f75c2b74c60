"""The attention kernel with tokens that attend to others, but are not attended to."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from server.runtime.memory import Array
from server.runtime.rewriting.graph_inputs import ATTENDED_LENGTHS
from tests.server.attention_graphs import (
    NEEDS_KERNEL,
    Case,
    add_int8_product,
    graph,
    native_session,
    session,
)

pytestmark = [NEEDS_KERNEL, pytest.mark.usefixtures("register_bits")]

LENGTHS = (40, 200, 17, 200, 1)
ATTENDED = (9, 40, 17, 150, 1)


def save(case: Case, file: Path, *, is_int8: bool) -> dict[str, Array]:
    """Saves a graph with lengths as an export writes them; returns its inputs."""
    arrays = case.inputs()
    made = graph(arrays, case.all_attributes(), outputs=("y",))
    for value in made.graph.input:
        if value.name == "last":
            value.name = ATTENDED_LENGTHS
    made.graph.input.append(
        helper.make_tensor_value_info("lengths", TensorProto.INT32, [f"{ATTENDED_LENGTHS}.0"])
    )
    made.graph.initializer.append(numpy_helper.from_array(np.array(1, np.int32), "one"))
    made.graph.node.insert(0, helper.make_node("Sub", [ATTENDED_LENGTHS, "one"], ["last"]))
    if is_int8:
        add_int8_product(made)
    onnx.save(made, file)
    del arrays["last"]
    return arrays | {
        "lengths": np.array(LENGTHS, np.int32),
        ATTENDED_LENGTHS: np.array(ATTENDED, np.int32),
    }


@pytest.mark.parametrize("is_int8", [False, True], ids=["fp32", "beside_int8"])
@pytest.mark.parametrize(
    "more",
    [{}, {"angles": 16}, {"size": 64, "heads": (3, 3)}, {"bias": (False, True)}],
    ids=["grouped", "rotary", "large", "bias"],
)
def test_matches_the_standard_operator(
    tmp_path: Path, more: dict[str, object], is_int8: bool
) -> None:
    case = Case(kind="encoder", num_tokens=max(LENGTHS), lengths=LENGTHS, **more)  # type: ignore[arg-type]
    file = tmp_path / "graph.onnx"
    inputs = save(case, file, is_int8=is_int8)
    (expected,) = session(str(file)).run(["y"], inputs)
    (actual,) = native_session(file, 2).run(["y"], inputs)
    tolerance = 2e-2 if is_int8 else 1e-5  # beside int8, factors may round to bfloat16
    for row, length in enumerate(LENGTHS):
        np.testing.assert_allclose(actual[row, :length], expected[row, :length], atol=tolerance)
        assert not actual[row, length:].any(), "padding is computed"


def test_a_row_does_not_depend_on_its_batch(tmp_path: Path) -> None:
    case = Case(kind="encoder", num_tokens=max(LENGTHS), lengths=LENGTHS)
    file = tmp_path / "graph.onnx"
    inputs = save(case, file, is_int8=False)
    loaded = native_session(file)
    (batched,) = loaded.run(["y"], inputs)
    for row, length in enumerate(LENGTHS):
        alone = {
            "query": inputs["query"][row : row + 1, :length],
            "total": np.array(length, np.int32),
            "lengths": inputs["lengths"][row : row + 1],
            ATTENDED_LENGTHS: inputs[ATTENDED_LENGTHS][row : row + 1],
        }
        np.testing.assert_array_equal(loaded.run(["y"], alone)[0][0], batched[row, :length])


@pytest.mark.parametrize("length", [0, max(LENGTHS) + 1])
def test_impossible_lengths_are_an_error(tmp_path: Path, length: int) -> None:
    case = Case(kind="encoder", num_tokens=max(LENGTHS), lengths=LENGTHS)
    file = tmp_path / "graph.onnx"
    inputs = save(case, file, is_int8=False)
    inputs["lengths"] = np.array([length, *LENGTHS[1:]], np.int32)
    with pytest.raises(Exception, match="lengths must be 1 to the number of tokens"):
        native_session(file).run(["y"], inputs)
