"""Attention of encoders: the device code, in the emulator, beside its definition."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from server.runtime.memory import Array
from tests.server.cuda_defects import library_with_defect
from tests.server.cuda_graphs import FLOAT, random
from tests.server.cuda_operators import NEEDS_LIBRARY
from tests.server.test_cuda_kernels import FLOATS, assert_as_defined, model_of, run

pytestmark = NEEDS_LIBRARY
LENGTHS = np.array([70, 1, 33, 64], np.int32)


def inputs_of(
    dtype: Any = np.float16,
    heads: tuple[int, int] = (2, 2),
    size: int = 64,
    lengths: Array = LENGTHS,
    max_length: int = 70,
    *,
    has_bias: bool = False,
    is_packed: bool = True,
) -> dict[str, Array | None]:
    num_heads, num_kv_heads = heads
    rows = (len(lengths), max_length)
    width, kv_width = num_heads * size, num_kv_heads * size
    if not is_packed:
        return {
            "query": random(dtype, *rows, width),
            "lengths": lengths,
            "bias": None,
            "key": random(dtype, *rows, kv_width, seed=1),
            "value": random(dtype, *rows, kv_width, seed=2),
        }
    packed = width + 2 * kv_width
    bias = random(dtype, packed, seed=3) if has_bias else None
    return {"query": random(dtype, *rows, packed), "lengths": lengths, "bias": bias}


def check(
    emulated: Path,
    inputs: dict[str, Array | None],
    suffix: str = "Fp16",
    heads: tuple[int, int] = (2, 2),
    scale: float = 0.0,
) -> None:
    """Weights are rounded before they are multiplied with values of about 1."""
    assert_as_defined(
        *(emulated, f"EncoderAttention{suffix}", inputs),
        error=2.0,
        num_heads=heads[0],
        num_kv_heads=heads[1],
        scale=scale,
    )


@pytest.mark.parametrize(("dtype", "suffix"), FLOATS)
@pytest.mark.parametrize("size", [32, 64, 96, 128])
@pytest.mark.parametrize("is_packed", [True, False])
def test_sizes(emulated: Path, dtype: Any, suffix: str, size: int, is_packed: bool) -> None:
    inputs = inputs_of(dtype, (4, 2), size, is_packed=is_packed)
    check(emulated, inputs, suffix, (4, 2))


@pytest.mark.parametrize(("dtype", "suffix"), FLOATS)
@pytest.mark.parametrize("heads", [(2, 2), (6, 2), (3, 1)])
def test_biases_change_outputs_as_if_they_were_added_before(
    emulated: Path, dtype: Any, suffix: str, heads: tuple[int, int]
) -> None:
    check(emulated, inputs_of(dtype, heads, has_bias=True), suffix, heads)


@pytest.mark.parametrize("length", [2, 15, 16, 17, 31, 32, 33, 64, 65, 127, 128, 129, 200])
def test_lengths_around_what_warps_and_blocks_compute_at_once(length: int, emulated: Path) -> None:
    lengths = np.array([length, max(length - 1, 1)], np.int32)
    check(emulated, inputs_of(lengths=lengths, max_length=length))


def test_texts_with_padding_only_are_finite(emulated: Path) -> None:
    inputs = inputs_of(lengths=np.array([0, 5], np.int32), max_length=5)
    model = model_of(
        "EncoderAttentionFp16", inputs, (FLOAT,), num_heads=2, num_kv_heads=2, scale=0.0
    )
    (found,) = run(emulated, model, inputs)
    assert np.isfinite(found).all()


def test_a_scale(emulated: Path) -> None:
    check(emulated, inputs_of(), scale=0.5)
    with pytest.raises(Exception, match="the scale is negative"):
        check(emulated, inputs_of(), scale=-0.5)


def test_a_bias_is_as_long_as_a_row(emulated: Path) -> None:
    inputs = inputs_of() | {"bias": np.ones(128, np.float16)}
    with pytest.raises(Exception, match="a bias is as long as a row"):
        check(emulated, inputs)


def test_large_scores(emulated: Path) -> None:
    """Each query attends to one token nearly alone; the sums neither overflow nor vanish."""
    inputs = inputs_of()
    query = inputs["query"]
    assert query is not None
    query *= 8
    check(emulated, inputs, scale=1.0)


def test_what_is_not_finite_stays_in_its_text_and_head(emulated: Path) -> None:
    inputs = inputs_of()
    query = inputs["query"]
    assert query is not None
    query[0, 3, 128:192] = np.nan  # a key of the first head
    query[2, 40:] = np.nan  # nothing attends to these
    model = model_of(
        "EncoderAttentionFp16", inputs, (FLOAT,), num_heads=2, num_kv_heads=2, scale=0.0
    )
    (found,) = run(emulated, model, inputs)
    assert np.isnan(found[0, :, :64]).all()
    assert np.isfinite(found[0, :, 64:]).all()
    assert np.isfinite(found[2, :40]).all()


@pytest.mark.parametrize(
    ("changes", "heads", "message"),
    [
        ({"query": (2, 192)}, (1, 1), "texts have three axes"),
        ({}, (3, 2), "heads are not in equal groups"),
        ({}, (2, 0), "heads are not in equal groups"),
        ({"lengths": (3,)}, (2, 2), "there is a length for each text"),
        ({"query": (4, 70, 190)}, (1, 1), "a row has no whole heads"),
        ({"query": (4, 70, 240)}, (1, 1), "heads have an unsupported size"),
        ({"query": (4, 70, 768)}, (1, 1), "heads have an unsupported size"),
    ],
)
def test_other_shapes_are_refused(
    emulated: Path, changes: dict[str, tuple[int, ...]], heads: tuple[int, int], message: str
) -> None:
    inputs = inputs_of()
    for name, shape in changes.items():
        inputs[name] = np.ones(shape, np.int32 if name == "lengths" else np.float16)
    with pytest.raises(Exception, match=message):
        check(emulated, inputs, heads=heads)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("key", (4, 70, 64), "keys and values have other shapes"),
        ("value", (4, 69, 128), "keys and values have other shapes"),
        ("value", None, "a bias is of packed heads"),
        ("bias", (128,), "a bias is of packed heads"),
    ],
)
def test_other_parts_are_refused(
    emulated: Path, name: str, shape: tuple[int, ...] | None, message: str
) -> None:
    inputs = inputs_of(is_packed=False)
    inputs[name] = None if shape is None else np.ones(shape, np.float16)
    model = model_of(
        "EncoderAttentionFp16", inputs, (FLOAT,), num_heads=2, num_kv_heads=2, scale=0.0
    )
    with pytest.raises(Exception, match=message):
        run(emulated, model, inputs)


@pytest.mark.slow  # each compiles the emulator
@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("    wait_for_earlier_copies();  // of the tile before\n", ""),
        ("    wait_for_block();\n    if (first", "    if (first"),
        ("    wait_for_block();  // the next copies overwrite this tile\n", ""),
    ],
    ids=["copies", "tile", "overwritten tile"],
)
def test_the_emulator_finds_missing_waits(tmp_path: Path, line: str, instead: str) -> None:
    library = library_with_defect(tmp_path, "encoder_attention.h", line, instead)
    lengths = np.array([250, 200], np.int32)
    with pytest.raises(AssertionError, match="Not equal"):
        check(library, inputs_of(lengths=lengths, max_length=250))
