"""The device code of CUDA, run by an emulator on the CPU, gives what its operators define."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from server.runtime.memory import Array
from server.runtime.rewriting.nodes import DOMAIN
from tests.server import cuda_operators
from tests.server.cuda_defects import library_with_defect
from tests.server.cuda_graphs import FLOAT, node, random, type_of, values
from tests.server.cuda_operators import NEEDS_LIBRARY

pytestmark = NEEDS_LIBRARY
UINT8, INT32, INT64 = TensorProto.UINT8, TensorProto.INT32, TensorProto.INT64
FLOATS = [
    pytest.param(np.float16, "Fp16", id="fp16"),
    pytest.param(ml_dtypes.bfloat16, "Bf16", id="bf16"),
]


def model_of(
    operator: str, inputs: Mapping[str, Array | None], types: Sequence[int], **attributes: Any
) -> onnx.ModelProto:
    """A model of one operator. 16-bit floats enter and leave in fp32, which bindings have."""
    given = {name: array for name, array in inputs.items() if array is not None}
    are_cast = {name: array.dtype.itemsize == 2 for name, array in given.items()}
    nodes = [
        node("Cast", [name], f"{name}.cast", to=type_of(given[name].dtype))
        for name, is_cast in are_cast.items()
        if is_cast
    ]
    names = [f"{name}.cast" if are_cast.get(name) else name * (name in given) for name in inputs]
    outputs = [f"y{index}" for index in range(len(types))]
    made = [
        f"{name}.made" if type_ == FLOAT else name
        for name, type_ in zip(outputs, types, strict=True)
    ]
    nodes.append(node(operator, names, *made, domain=DOMAIN, **attributes))
    nodes += [
        node("Cast", [source], name, to=FLOAT)
        for source, name in zip(made, outputs, strict=True)
        if source != name
    ]
    graph = helper.make_graph(
        nodes,
        "operator",
        [
            value
            for name, array in given.items()
            for value in values(
                FLOAT if are_cast[name] else type_of(array.dtype), **{name: array.shape}
            )
        ],
        [helper.make_tensor_value_info(*pair, None) for pair in zip(outputs, types, strict=True)],
    )
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def run(emulated: Path, model: onnx.ModelProto, inputs: Mapping[str, Array | None]) -> list[Array]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.register_custom_ops_library(str(emulated))
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    given = {
        name: array.astype(np.float32) if array.dtype.itemsize == 2 else array
        for name, array in inputs.items()
        if array is not None
    }
    outputs: list[Array] = session.run(None, given)
    return outputs


def assert_as_defined(
    emulated: Path,
    operator: str,
    inputs: Mapping[str, Array | None],
    types: Sequence[int] = (FLOAT,),
    error: float = 1 / 64,
    **attributes: Any,
) -> None:
    """Compares the operator with its definition in NumPy, to one unit in the last place.

    ``error``: in such units of 1, that small outputs may have too.
    """
    outputs = run(emulated, model_of(operator, inputs, types, **attributes), inputs)
    definition = getattr(cuda_operators, operator)._run
    expected = definition(None, *inputs.values(), **attributes)
    for output, wanted in zip(outputs, expected, strict=False):
        assert output.shape == wanted.shape
        ulp = 0.0 if wanted.dtype.kind == "i" else float(ml_dtypes.finfo(wanted.dtype).eps)
        np.testing.assert_allclose(output, wanted.astype(output.dtype), rtol=ulp, atol=ulp * error)


@pytest.mark.parametrize(("dtype", "suffix"), FLOATS)
@pytest.mark.parametrize("is_centered", [0, 1], ids=["RMS", "layer"])
@pytest.mark.parametrize(
    ("size", "added"),
    [
        pytest.param(8, (), id="one vector"),
        pytest.param(768, ("residual", "bias"), id="BERT"),
        pytest.param(2056, ("x_bias", "residual"), id="not a multiple of the block"),
        pytest.param(8200, ("x_bias",), id="several vectors of a thread"),
        pytest.param(32768, ("x_bias", "residual", "bias"), id="longest"),
    ],
)
def test_norm(
    emulated: Path, dtype: Any, suffix: str, is_centered: int, size: int, added: Sequence[str]
) -> None:
    shapes = {"x": (2, 3, size), "x_bias": (size,), "residual": (2, 3, size)}
    shapes |= {"scale": (size,), "bias": (size,)}
    inputs = {
        name: random(dtype, *shape, seed=seed) if name in ("x", "scale", *added) else None
        for seed, (name, shape) in enumerate(shapes.items())
    }
    assert_as_defined(
        emulated,
        f"Norm{suffix}",
        inputs,
        types=(FLOAT, FLOAT)[: 1 + ("residual" in added)],
        epsilon=1e-5,
        is_centered=is_centered,
    )


@pytest.mark.parametrize(("dtype", "suffix"), FLOATS)
@pytest.mark.parametrize("kind", range(4), ids=["SiLU", "ReLU", "GELU", "GELU of tanh"])
@pytest.mark.parametrize("is_gated", [0, 1])
@pytest.mark.parametrize("has_bias", [False, True])
def test_activation(
    emulated: Path, dtype: Any, suffix: str, kind: int, is_gated: int, has_bias: bool
) -> None:
    size = 1392  # of 5 rows: the last block has idle threads
    inputs = {"x": 4 * random(dtype, 5, size), "bias": random(dtype, size) if has_bias else None}
    assert_as_defined(emulated, f"Activation{suffix}", inputs, kind=kind, is_gated=is_gated)


@pytest.mark.parametrize(("dtype", "suffix"), FLOATS)
@pytest.mark.parametrize("size", [8, 48, 768, 8192])
@pytest.mark.parametrize("is_normalized", [0, 1])
def test_pool(emulated: Path, dtype: Any, suffix: str, size: int, is_normalized: int) -> None:
    lengths = np.array([1, 40, 7], np.int32)
    x = random(dtype, 3, 40, size)
    x[0, 1:], x[2, 7:] = np.nan, np.nan  # padding
    inputs: dict[str, Array | None] = {"x": x, "lengths": lengths}
    attributes = {"is_normalized": is_normalized, "min_norm": 1e-12}
    model = model_of(f"Pool{suffix}", inputs, (FLOAT,), **attributes)
    (found,) = run(emulated, model, inputs)
    definition: Any = cuda_operators.PoolFp16._run
    (expected,) = definition(None, x, lengths, **attributes)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_pool_divides_a_small_mean_by_the_least_norm(emulated: Path) -> None:
    x = np.zeros((1, 2, 8), np.float16)
    inputs: dict[str, Array | None] = {"x": x, "lengths": np.array([2], np.int32)}
    model = model_of("PoolFp16", inputs, (FLOAT,), is_normalized=1, min_norm=0.5)
    np.testing.assert_array_equal(run(emulated, model, inputs)[0], 0)
    x[..., 0] = 0.25
    np.testing.assert_array_equal(run(emulated, model, inputs)[0][0, 0], 0.5)


@pytest.mark.parametrize("num_texts", [1, 3, 100])
def test_key_ranges(emulated: Path, num_texts: int) -> None:
    lengths = np.arange(1, num_texts + 1, dtype=np.int32)
    x = random(np.float16, num_texts, num_texts, 8)
    inputs: dict[str, Array | None] = {"x": x, "lengths": lengths}
    found = run(emulated, model_of("KeyRangesFp16", inputs, (INT32,)), inputs)[0]
    starts = list(range(0, num_texts * num_texts + 1, num_texts))
    assert found.tolist() == [*lengths.tolist(), *starts, *starts]


def logits_of(vocabulary: int) -> Array:
    """Rows with equal largest logits, with NaN and infinities."""
    logits = random(np.float32, 8, vocabulary).round(1)
    logits[1, -1] = logits[1, 0] = 9
    logits[2, vocabulary // 2] = np.nan
    logits[3, vocabulary // 3] = np.inf
    logits[4] = -np.inf
    logits[5, :-1] = -np.inf
    logits[6] = 0
    return logits


@pytest.mark.parametrize("vocabulary", [1, 2, 31, 1024, 32000, 50257])
@pytest.mark.parametrize("suppresses", [False, True])
def test_best_token(emulated: Path, vocabulary: int, suppresses: bool) -> None:
    suppressed = np.zeros(vocabulary, np.uint8)
    suppressed[:: max(vocabulary // 3, 1)] = 1
    inputs = {"logits": logits_of(vocabulary), "suppressed": suppressed if suppresses else None}
    assert_as_defined(emulated, "BestToken", inputs, (INT64,))


@pytest.mark.parametrize("vocabulary", [1, 2, 31, 1024, 32000, 50257])
@pytest.mark.parametrize("count", [1, 10, 64])
@pytest.mark.parametrize("options", ["", "rows", "targets", "rows suppressed", "all"])
def test_top_tokens(emulated: Path, vocabulary: int, count: int, options: str) -> None:
    count = min(count, vocabulary)
    rows, suppressed = np.array([7, 0, 3, 1]), np.zeros(vocabulary, np.uint8)
    suppressed[:: max(vocabulary // 3, 1)] = 1
    has = {name: name in options or options == "all" for name in ("rows", "targets", "suppressed")}
    inputs: dict[str, Array | None] = {
        "logits": logits_of(vocabulary),
        "rows": rows if has["rows"] else None,
        "targets": np.arange(4 if has["rows"] else 8) * 7 % vocabulary if has["targets"] else None,
        "suppressed": suppressed if has["suppressed"] else None,
    }
    attributes = {"count": count, "suppressed_logit": -1e9}
    model = model_of("TopTokens", inputs, (FLOAT,), **attributes)
    (found,) = run(emulated, model, inputs)
    definition: Any = cuda_operators.TopTokens._run
    (expected,) = definition(None, *inputs.values(), **attributes)
    total = 2 * count
    np.testing.assert_array_equal(found[:, :total], expected[:, :total])
    np.testing.assert_allclose(found[:, total], expected[:, total], rtol=1e-5)
    np.testing.assert_array_equal(found[:, total + 1 :], expected[:, total + 1 :])


@pytest.mark.parametrize("is_min", [0, 1])
@pytest.mark.parametrize(
    ("shape", "is_last"), [((5, 1), 1), ((3, 32000), 1), ((2, 7, 300), 0), ((1, 1, 1), 0)]
)
def test_extreme(emulated: Path, is_min: int, shape: tuple[int, ...], is_last: int) -> None:
    x = random(np.float32, *shape)
    x.flat[x.size // 2] = np.nan
    assert_as_defined(emulated, "Extreme", {"x": x}, is_min=is_min, is_last=is_last)


@pytest.mark.parametrize("operator", ["Norm", "Activation"])
@pytest.mark.parametrize("size", [12, 0])
def test_rows_of_other_sizes_are_refused(emulated: Path, operator: str, size: int) -> None:
    x = random(np.float16, 2, size)
    inputs = {"x": x, "x_bias": None, "residual": None, "scale": x[0]}
    attributes: dict[str, dict[str, Any]] = {
        "Norm": {"epsilon": 1e-5, "is_centered": 0},
        "Activation": {"kind": 0, "is_gated": 0},
    }
    given = inputs if operator == "Norm" else {"x": x}
    model = model_of(f"{operator}Fp16", given, (FLOAT,), **attributes[operator])
    with pytest.raises(Exception, match="a row has an unsupported size"):
        run(emulated, model, given)


def check_norm(emulated: Path) -> None:
    test_norm(emulated, np.float16, "Fp16", 1, 776, ("residual",))


def check_best_token(emulated: Path) -> None:
    test_best_token(emulated, 32000, suppresses=False)


@pytest.mark.slow  # each compiles the emulator
@pytest.mark.parametrize(
    ("check", "file", "line", "instead", "failure"),
    [
        (
            check_norm,
            "thread.h",
            "  wait_for_block();\n  float sum = ",
            "  float sum = ",
            "Not equal",
        ),
        (check_best_token, "best_token.h", "  wait_for_block();\n", "", "Not equal"),
        (check_norm, "thread.h", "  wait_for_block();  // the sums", "  // the sums", "Not equal"),
        (
            check_norm,
            "norm.h",
            "if (column >= a.size) continue;\n    Wide<T> value",
            "if (column >= a.size) return;\n    Wide<T> value",
            "a lane does not take part",
        ),
    ],
    ids=["sums", "best of warps", "second sum", "lanes that left"],
)
def test_the_emulator_finds_defects(
    tmp_path: Path,
    check: Callable[[Path], None],
    file: str,
    line: str,
    instead: str,
    failure: str,
) -> None:
    """Defects that a device may hide: a missing barrier, lanes that take no part."""
    library = library_with_defect(tmp_path, file, line, instead)
    with pytest.raises(Exception, match=failure):
        check(library)
