"""Rows that share one encoder source's KV cache in the attention kernel."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from server.runtime.contract import SOURCE_ROWS
from server.runtime.kernels.library import Kernels
from server.runtime.kernels.rewrite import rewrite
from tests.server.attention_graphs import (
    NEEDS_KERNEL,
    Case,
    add_int8_product,
    graph,
    native_session,
    run,
)

pytestmark = [NEEDS_KERNEL, pytest.mark.usefixtures("register_bits")]

SOURCES = Case("cross", 1, (30, 8, 70, 8, 8, 70), (4, 2), 32, capacity=75, packed=False)


@pytest.mark.parametrize("num_tokens", [1, 9])
@pytest.mark.parametrize("num_more", [0, 60])
@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("biased", [None, (True, True)])
@pytest.mark.parametrize("beside_int8", [False, True])
def test_rows_of_one_source_share_its_cache(
    tmp_path: Path,
    num_tokens: int,
    num_more: int,
    num_threads: int,
    biased: tuple[bool, bool] | None,
    beside_int8: bool,
) -> None:
    """Equals separate caches, also for more rows than fit into one block.

    ``beside_int8``: beside a product in int8, attention may round to bfloat16.
    """
    case = replace(
        SOURCES, num_tokens=num_tokens, lengths=SOURCES.lengths + (8,) * num_more, bias=biased
    )
    inputs = case.inputs()
    sources = np.array([0, 3, 2, 3, 4, 2] + [3] * num_more, np.int32)
    own = {name: inputs[name][sources] for name in ("past_key", "past_value")}
    file, alone = tmp_path / "graph.onnx", tmp_path / "alone.onnx"
    for path, has_source in ((file, True), (alone, False)):
        model = graph(inputs, case.all_attributes(), has_source=has_source)
        if beside_int8:
            add_int8_product(model)
        onnx.save(model, path)
    expected = run(native_session(alone), inputs | own)[0]
    for name in ("past_key", "past_value"):
        inputs[name][[row for row in range(len(sources)) if row not in sources]] = np.nan
    actual = run(native_session(file, num_threads), inputs | {SOURCE_ROWS: sources})[0]
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ([0, 1, 2, 3, 4], r"cache_rows must be \[rows\]"),
        ([0, 1, 2, 3, 4, -1], "rows of equal length"),
        ([0, 1, 2, 3, 4, 6], "rows of equal length"),
        ([0, 1, 0, 3, 4, 5], "rows of equal length"),
    ],
)
def test_rejects_invalid_cache_rows(tmp_path: Path, sources: list[int], message: str) -> None:
    file = tmp_path / "graph.onnx"
    onnx.save(graph(SOURCES.inputs(), SOURCES.all_attributes(), has_source=True), file)
    inputs = SOURCES.inputs() | {SOURCE_ROWS: np.array(sources, np.int32)}
    with pytest.raises(Exception, match=message):
        run(native_session(file), inputs)


def test_exported_cross_attention_reads_shared_sources(tiny_bundles: Path) -> None:
    """Each cross-attention node of a bundle takes the rows of its sources, and no new keys."""
    rewritten = rewrite(tiny_bundles / "dates" / "1" / "decode.onnx", Kernels.ATTENTION)
    assert rewritten is not None
    graph = onnx.ModelProto.FromString(rewritten.model).graph
    readers = [node for node in graph.node if SOURCE_ROWS in node.input]
    pasts = {value.name for value in graph.input if value.name.startswith("past.cross_key")}
    assert pasts
    assert {node.input[3] for node in readers} == pasts
    assert all(list(node.input[1:3]) == ["", ""] for node in readers)


def test_a_window_that_ends_before_all_keys(tmp_path: Path) -> None:
    """Such a token sees no key, and the length is that of a block of keys: the output is zero."""
    window: dict[str, int | float] = {"local_window_size": 1}
    case = Case("cross", 3, (64,), capacity=64, packed=False, size=64, attributes=window)
    file = tmp_path / "graph.onnx"
    onnx.save(graph(case.inputs(), case.all_attributes(), has_source=True), file)
    inputs = case.inputs() | {SOURCE_ROWS: np.zeros(1, np.int32)}
    assert not run(native_session(file), inputs)[0].any()
