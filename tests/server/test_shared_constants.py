"""Equal constants of several nodes and graphs are in memory once, until no graph uses them."""

import gc
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from onnx_ir.tape import Tape

from export import block_matmul, quantized_matmul
from export.block_matmul import quantize_table
from export.quantized_matmul import Int8Rows, constant, pack_bits
from server.runtime.kernels.constants import shared
from server.runtime.kernels.library import Kernels, supported_kernels
from server.runtime.kernels.rewrite import RewrittenGraph, load_rewritten
from server.runtime.kernels.weights import WeightFormat
from server.runtime.memory import Array
from server.runtime.ort.backend import OrtBackend
from tests.server.matmul_graphs import save, standard_session, weight_formats

NEEDS_KERNELS = pytest.mark.skipif(
    Kernels.BLOCK_MATMUL | Kernels.EMBEDDING not in supported_kernels(),
    reason="this CPU cannot run the kernels",
)
NUM_TOKENS, SIZE = 1030, 160
FORMATS = {
    8: WeightFormat.INT8_BLOCKS,
    6: WeightFormat.INT6_BLOCKS,
    4: WeightFormat.SMALL_INT4_BLOCKS,
}


def table() -> Array:
    rng = np.random.default_rng(0)
    return rng.normal(size=(NUM_TOKENS, SIZE)).astype(np.float32)


def tied_graph(
    path: Path, rows: Array, bits: int, *, looks_up: bool = True, multiplies: bool = True
) -> Path:
    """Saves a graph that looks up ``rows`` in blocks, and multiplies by them."""
    blocks, tape = quantize_table(rows, bits), Tape()
    stored = constant(tape, "table", pack_bits(blocks.numbers, blocks.bits))
    inputs, outputs = [], []
    if multiplies:
        x = ir.val("x", ir.DataType.FLOAT, ["rows", SIZE])
        y = block_matmul.multiply(tape, x, "w", stored, blocks)
        y.name, y.dtype, y.shape = "y", ir.DataType.FLOAT, ir.Shape(["rows", NUM_TOKENS])
        inputs.append(x)
        outputs.append(y)
    if looks_up:
        ids = ir.val("token_ids", ir.DataType.INT64, ["batch", "length"])
        found = block_matmul.gather_rows(tape, ids, "table", stored, blocks)
        inputs.append(ids)
        outputs.append(_named(found))
    return save(path, inputs, outputs, tape)


def graph_of_rows(path: Path, rows: Array) -> Path:
    """Saves a graph that looks up ``rows`` with one scale each."""
    quantized, tape = Int8Rows.of("w", rows), Tape()
    ids = ir.val("token_ids", ir.DataType.INT64, ["batch", "length"])
    stored = constant(tape, "w.int8", quantized.around_128)
    found = quantized_matmul.gather_rows(tape, ids, quantized, stored)
    return save(path, [ids], [_named(found)], tape)


def _named(found: ir.Value) -> ir.Value:
    found.name, found.dtype = "found", ir.DataType.FLOAT
    found.shape = ir.Shape(["batch", "length", SIZE])
    return found


def loaded(file: Path) -> RewrittenGraph:
    graph = load_rewritten(file)
    assert graph is not None
    return graph


def inputs() -> dict[str, Array]:
    rng = np.random.default_rng(1)
    ids = np.array([[0, NUM_TOKENS - 1, 17], [16, 15, 512]])
    return {"x": rng.normal(size=(3, SIZE)).astype(np.float32), "token_ids": ids}


@NEEDS_KERNELS
@pytest.mark.parametrize("bits", FORMATS)
@pytest.mark.usefixtures("all_kernels")
def test_a_tied_matrix_is_packed_once(tmp_path: Path, bits: int) -> None:
    file = tied_graph(tmp_path / "1", table(), bits)
    rewritten = loaded(file)
    assert rewritten.kernel_nodes.num_native == {"block_matmul": 1, "embedding": 1}
    assert weight_formats(rewritten) == [FORMATS[bits]] * 2
    one, other = rewritten.packed.values()
    assert one is other
    # Each token is multiplied by the matrix, but only one row is looked up.
    assert rewritten.weight_bytes == one.nbytes
    assert rewritten.unpacked_bytes < SIZE


@NEEDS_KERNELS
@pytest.mark.parametrize("bits", FORMATS)
@pytest.mark.usefixtures("all_kernels", "register_bits")
def test_a_tied_matrix_is_looked_up_and_multiplied(tmp_path: Path, bits: int) -> None:
    file = tied_graph(tmp_path / "tied", table(), bits)
    product = tied_graph(tmp_path / "product", table(), bits, looks_up=False)
    given = inputs()
    y, found = OrtBackend("cpu", 2).load(file, ()).session.run(["y", "found"], given)
    (expected,) = standard_session(file).run(["found"], given)
    np.testing.assert_allclose(found, expected, rtol=0, atol=0 if bits == 4 else 1e-4)
    alone = OrtBackend("cpu", 2).load(product, ()).session.run(["y"], {"x": given["x"]})
    np.testing.assert_array_equal(y, alone[0])


@NEEDS_KERNELS
@pytest.mark.parametrize("bits", FORMATS)
@pytest.mark.usefixtures("all_kernels")
def test_graphs_share_a_table_in_blocks(tmp_path: Path, bits: int) -> None:
    """As the encoder and the decoder of a model with one embedding."""
    encode = loaded(tied_graph(tmp_path / "encode", table(), bits, multiplies=False))
    decode = loaded(tied_graph(tmp_path / "decode", table(), bits))
    (packed,) = encode.packed.values()
    assert packed.nbytes * 8 > bits * NUM_TOKENS * SIZE
    assert [array is packed for array in decode.packed.values()] == [True, True]


@NEEDS_KERNELS
@pytest.mark.usefixtures("all_kernels")
def test_graphs_share_a_table_of_rows(tmp_path: Path) -> None:
    one, other = (loaded(graph_of_rows(tmp_path / name, table())) for name in ("a", "b"))
    (packed,) = one.packed.values()
    assert packed.nbytes == NUM_TOKENS * SIZE
    assert [array is packed for array in other.packed.values()] == [True]


@NEEDS_KERNELS
@pytest.mark.usefixtures("all_kernels")
def test_graphs_of_similar_tables_do_not_share_them(tmp_path: Path) -> None:
    """One weight differs."""
    changed = table()
    changed[-1, -1] += 1
    files = [tied_graph(tmp_path / "a", table(), 4), tied_graph(tmp_path / "b", changed, 4)]
    graphs = [loaded(file) for file in files]
    one, other = (next(iter(graph.packed.values())) for graph in graphs)
    assert one.shape == other.shape
    assert (one != other).any()


@NEEDS_KERNELS
@pytest.mark.usefixtures("all_kernels")
def test_a_table_is_freed_with_the_last_of_its_graphs(tmp_path: Path) -> None:
    backend = OrtBackend("cpu", 1)
    files = [
        tied_graph(tmp_path / "encode", table(), 4, multiplies=False),
        tied_graph(tmp_path / "decode", table(), 4),
    ]
    graphs = [backend.load(file, ()) for file in files]
    (one,), two = (loaded(file).packed.values() for file in files)
    assert [array is one for array in two] == [True, True]
    is_in_use = weakref.ref(one)
    del one, two
    ids = {"token_ids": inputs()["token_ids"]}
    (expected,) = standard_session(files[0]).run(["found"], ids)
    del graphs[1]
    gc.collect()
    assert is_in_use() is not None
    np.testing.assert_array_equal(graphs[0].session.run(["found"], ids)[0], expected)
    graphs.clear()
    gc.collect()
    assert is_in_use() is None
    (found,) = backend.load(files[1], ()).session.run(["found"], inputs())
    np.testing.assert_array_equal(found, expected)


def bytes_of(size: int) -> Array:
    return np.random.default_rng(0).integers(0, 256, size).astype(np.uint8)


LARGE = 1 << 17


@pytest.mark.parametrize(
    "copy",
    [
        np.copy,
        lambda array: np.array(array.tolist(), np.uint8),
        lambda array: np.repeat(array, 2)[::2],
        lambda array: np.frombuffer(array.tobytes(), np.uint8),
    ],
    ids=["copied", "made anew", "not contiguous", "read-only"],
)
def test_equal_arrays_become_one(copy: Callable[[Array], Array]) -> None:
    first = shared(bytes_of(LARGE))
    np.testing.assert_array_equal(first, bytes_of(LARGE))
    assert shared(copy(first)) is first
    assert shared(first) is first


def test_transposed_arrays_are_shared_as_their_values_stand() -> None:
    matrix = shared(bytes_of(LARGE).reshape(512, -1))
    transposed = shared(matrix.T)
    np.testing.assert_array_equal(transposed, matrix.T)
    assert transposed.shape == matrix.T.shape
    assert shared(np.asfortranarray(matrix)) is matrix


@pytest.mark.parametrize("index", [0, LARGE // 2, LARGE - 1])
def test_one_byte_keeps_arrays_apart(index: int) -> None:
    first, changed = shared(bytes_of(LARGE)), bytes_of(LARGE)
    changed[index] ^= 1
    expected = changed.copy()
    second = shared(changed)
    assert second is not first
    np.testing.assert_array_equal(second, expected)


@pytest.mark.parametrize(
    "change",
    [
        lambda array: array.view(np.int8),
        lambda array: array.view(np.float32),
        lambda array: array.reshape(2, -1),
        lambda array: array.reshape(1, -1),
        lambda array: array[:-1],
    ],
    ids=["int8", "float32", "two rows", "one row", "shorter"],
)
def test_type_and_shape_keep_arrays_apart(change: Callable[[Array], Array]) -> None:
    first = shared(bytes_of(LARGE))
    changed = change(bytes_of(LARGE))
    second = shared(changed)
    assert second is not first
    assert (second.dtype, second.shape) == (changed.dtype, changed.shape)
    assert second.tobytes() == changed.tobytes()


def test_arrays_are_freed() -> None:
    first = shared(bytes_of(LARGE))
    is_in_use = weakref.ref(first)
    del first
    gc.collect()
    assert is_in_use() is None
    np.testing.assert_array_equal(shared(bytes_of(LARGE)), bytes_of(LARGE))


@NEEDS_KERNELS
@pytest.mark.usefixtures("all_kernels")
def test_sessions_read_packed_weights_in_place(tmp_path: Path) -> None:
    """A change of the memory changes what every session computes, so none has a copy."""
    file = tied_graph(tmp_path / "1", table(), 8)
    sessions = [OrtBackend("cpu", count).load(file, ()) for count in (1, 2)]
    before = [graph.session.run(["y", "found"], inputs()) for graph in sessions]
    (packed, _) = loaded(file).packed.values()
    assert packed.ctypes.data % 64 == 0
    packed.flags.writeable = True
    packed[:] = 0
    for graph, (y, found) in zip(sessions, before, strict=True):
        assert y.all()
        assert found.any()
        for zeros in graph.session.run(["y", "found"], inputs()):
            assert not zeros.any()


@NEEDS_KERNELS
@pytest.mark.usefixtures("all_kernels")
def test_weights_live_as_long_as_their_session(tmp_path: Path) -> None:
    file = tied_graph(tmp_path / "1", table(), 8, looks_up=False)
    x = {"x": inputs()["x"]}
    bound = OrtBackend("cpu", 1).load(file, ()).bind({})  # the graph has no other reference
    session = OrtBackend("cpu", 1).load(file, ()).session
    expected = bound.run(x)["y"].copy()
    gc.collect()
    others = [np.full(NUM_TOKENS * SIZE * 2, 255, np.uint8) for _ in range(20)]
    np.testing.assert_array_equal(bound.run(x)["y"], expected)
    np.testing.assert_array_equal(session.run(["y"], x)[0], expected)
    assert all(other[0] == 255 for other in others)
