"""The kernel that splits heads, adds a bias and rotates, in the emulator."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.server.cuda_graphs import FLOAT, random
from tests.server.cuda_operators import NEEDS_LIBRARY
from tests.server.test_cuda_kernels import FLOATS, assert_as_defined, model_of, run

pytestmark = NEEDS_LIBRARY


@pytest.mark.parametrize(("dtype", "suffix"), FLOATS)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "size"), [(12, 12, 64), (8, 2, 64), (4, 1, 128), (1, 1, 32)]
)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("rotary", ["", "halves", "half of the halves", "neighbours"])
def test_split(
    emulated: Path,
    dtype: Any,
    suffix: str,
    heads: int,
    kv_heads: int,
    size: int,
    has_bias: bool,
    rotary: str,
) -> None:
    width = (heads + 2 * kv_heads) * size
    half = size // 4 if rotary == "half of the halves" else size // 2
    angles = np.random.default_rng(1).uniform(0, 6, (9, half)) if rotary else None
    inputs = {
        "x": random(dtype, 2, 7, width),
        "bias": random(dtype, width) if has_bias else None,
        "cosines": None if angles is None else np.cos(angles).astype(dtype),
        "sines": None if angles is None else np.sin(angles).astype(dtype),
    }
    assert_as_defined(
        *(emulated, f"Split{suffix}", inputs, (FLOAT,) * 3),
        num_heads=heads,
        num_kv_heads=kv_heads,
        is_interleaved=int(rotary == "neighbours"),
    )


@pytest.mark.parametrize(
    ("shape", "angles", "numbers", "message"),
    [
        ((2, 24), None, (1, 1, 0), "texts have three axes"),
        ((1, 2, 48), None, (2, 0, 0), "heads are not in equal groups"),
        ((1, 2, 48), None, (3, 2, 0), "heads are not in equal groups"),
        ((1, 2, 40), None, (1, 1, 0), "a row has no whole heads"),
        ((1, 2, 36), None, (1, 1, 0), "a row has an unsupported size"),
        ((1, 2, 48), (2, 4), (1, 1, 0), "the angles have an unsupported size"),
        ((1, 2, 48), (1, 8), (1, 1, 0), "the angles have an unsupported size"),
        ((1, 2, 48), (2, 16), (1, 1, 1), "the angles have an unsupported size"),
        ((1, 2, 48), (16,), (1, 1, 0), "angles have two axes"),
    ],
)
def test_split_refuses_other_sizes(
    emulated: Path,
    shape: tuple[int, ...],
    angles: tuple[int, ...] | None,
    numbers: tuple[int, int, int],
    message: str,
) -> None:
    given = None if angles is None else np.zeros(angles, np.float16)
    x = np.zeros(shape, np.float16)
    inputs = {"x": x, "bias": None, "cosines": given, "sines": given}
    heads, kv_heads, is_interleaved = numbers
    model = model_of(
        *("SplitFp16", inputs, (FLOAT,) * 3),
        num_heads=heads,
        num_kv_heads=kv_heads,
        is_interleaved=is_interleaved,
    )
    with pytest.raises(Exception, match=message):
        run(emulated, model, inputs)
