"""The linear layer for few rows, run by an emulator on the CPU, gives what it defines."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from server.runtime.memory import Array
from tests.server.cuda_defects import library_with_defect
from tests.server.cuda_graphs import FLOAT, INT32, random
from tests.server.cuda_operators import NEEDS_LIBRARY
from tests.server.test_cuda_kernels import FLOATS, assert_as_defined, model_of, run

pytestmark = NEEDS_LIBRARY
NONE, SILU, RELU = -1, 0, 1


def inputs_of(
    dtype: Any, num_rows: int, in_size: int, num_features: int, *optional: str
) -> dict[str, Array | None]:
    shapes = {
        "x": (1, num_rows, in_size),
        "weight": (num_features, in_size),
        "bias": (num_features,),
        "residual": (1, num_rows, in_size),
        "scale": (in_size,),
    }
    arrays: dict[str, Array | None] = {
        name: random(dtype, *shape, seed=seed) if name in ("x", "weight", *optional) else None
        for seed, (name, shape) in enumerate(shapes.items())
    }
    weight = arrays["weight"]
    assert weight is not None
    arrays["weight"] = (weight * in_size**-0.5).astype(dtype)
    return arrays


def check(
    emulated: Path,
    suffix: str,
    inputs: dict[str, Array | None],
    has_sum: bool = False,
    **given: Any,
) -> None:
    attributes = {"activation": NONE, "is_gated": 0, "epsilon": 1e-5} | given
    types = (FLOAT, FLOAT) if has_sum else (FLOAT,)
    assert_as_defined(emulated, f"Linear{suffix}", inputs, types, **attributes)


@pytest.mark.parametrize(("dtype", "suffix"), FLOATS)
@pytest.mark.parametrize("num_rows", [1, 3, 8, 9, 16])
@pytest.mark.parametrize("in_size", [32, 96, 288, 2048, 2304, 4128])
def test_sizes(emulated: Path, dtype: Any, suffix: str, num_rows: int, in_size: int) -> None:
    check(emulated, suffix, inputs_of(dtype, num_rows, in_size, 32))


@pytest.mark.parametrize(("dtype", "suffix"), FLOATS)
@pytest.mark.parametrize("num_rows", [2, 11])
@pytest.mark.parametrize("activation", [NONE, SILU, RELU], ids=["none", "SiLU", "ReLU"])
@pytest.mark.parametrize("is_gated", [0, 1])
@pytest.mark.parametrize("optional", [(), ("bias",)], ids=["no bias", "bias"])
def test_activations(
    emulated: Path,
    dtype: Any,
    suffix: str,
    num_rows: int,
    activation: int,
    is_gated: int,
    optional: tuple[str, ...],
) -> None:
    inputs = inputs_of(dtype, num_rows, 576, 48, *optional)
    check(emulated, suffix, inputs, activation=activation, is_gated=is_gated)


@pytest.mark.parametrize(("dtype", "suffix"), FLOATS)
@pytest.mark.parametrize("num_rows", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("in_size", [32, 576, 2304, 4128])
@pytest.mark.parametrize("has_residual", [False, True])
def test_norm_before(
    emulated: Path, dtype: Any, suffix: str, num_rows: int, in_size: int, has_residual: bool
) -> None:
    optional = ("bias", "scale", *["residual"] * has_residual)
    inputs = inputs_of(dtype, num_rows, in_size, 48, *optional)
    check(emulated, suffix, inputs, has_sum=has_residual, activation=SILU, is_gated=1)


def test_sum_without_residual_is_x(emulated: Path) -> None:
    check(emulated, "Fp16", inputs_of(np.float16, 3, 96, 16, "scale"), has_sum=True)


@pytest.mark.parametrize(
    ("num_rows", "in_size", "num_features", "optional", "has_sum", "failure"),
    [
        pytest.param(17, 32, 16, (), False, "too many rows", id="rows"),
        pytest.param(9, 32, 16, ("scale",), False, "too many rows", id="rows to normalize"),
        pytest.param(1, 48, 16, (), False, "unsupported size", id="in"),
        pytest.param(1, 32, 24, (), False, "unsupported size", id="features"),
        pytest.param(1, 32, 16, ("residual",), False, "before a norm only", id="residual"),
        pytest.param(1, 32, 16, (), True, "before a norm only", id="sum"),
    ],
)
def test_what_is_not_supported_is_refused(
    emulated: Path,
    num_rows: int,
    in_size: int,
    num_features: int,
    optional: tuple[str, ...],
    has_sum: bool,
    failure: str,
) -> None:
    inputs = inputs_of(np.float16, num_rows, in_size, num_features, *optional)
    with pytest.raises(Exception, match=failure):
        check(emulated, "Fp16", inputs, has_sum)


def test_weights_of_another_size_are_refused(emulated: Path) -> None:
    inputs = inputs_of(np.float16, 1, 64, 16)
    inputs["weight"] = random(np.float16, 16, 32)
    attributes = {"activation": NONE, "is_gated": 0, "epsilon": 1e-5}
    model = model_of("LinearFp16", inputs, (FLOAT,), **attributes)
    with pytest.raises(Exception, match="unsupported size"):
        run(emulated, model, inputs)


@pytest.mark.parametrize("num_rows", [1, 4, 300])
def test_advance(emulated: Path, num_rows: int) -> None:
    generator = np.random.default_rng(0)
    inputs: dict[str, Array | None] = {
        "best_tokens": generator.integers(-1, 3, num_rows),
        "num_cached_tokens": generator.integers(0, 99, num_rows).astype(np.int32),
        "is_live": generator.integers(0, 2, num_rows).astype(np.int32),
    }
    assert_as_defined(emulated, "Advance", inputs, (TensorProto.INT64, INT32))


@pytest.mark.slow  # each compiles the emulator
@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("    wait_for_block();\n    square = 0.f;", "    square = 0.f;"),
        ("  wait_for_block();\n  if (row >= a.num_rows)", "  if (row >= a.num_rows)"),
        ("      wait_for_block();  // for the scales, and for the reads of the last chunk\n", ""),
    ],
    ids=["squares", "partial sums", "chunks"],
)
def test_the_emulator_finds_missing_barriers(tmp_path: Path, line: str, instead: str) -> None:
    library = library_with_defect(tmp_path, "linear.h", line, instead)
    inputs = inputs_of(np.float16, 8, 4128, 16, "scale")
    with pytest.raises(AssertionError, match="Not equal"):
        check(library, "Fp16", inputs)
