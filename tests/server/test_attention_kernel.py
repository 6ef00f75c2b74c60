"""The attention kernel equals ``GroupQueryAttention``; a token does not depend on its batch."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from server.runtime.contract import SOURCE_ROWS, Array
from server.runtime.kernels import rewrite as rewriting
from server.runtime.kernels.library import LIBRARY, Kernels, supported_kernels
from server.runtime.kernels.rewrite import rewrite
from server.runtime.ort.backend import OrtBackend

pytestmark = [
    pytest.mark.skipif(
        Kernels.ATTENTION not in supported_kernels(),
        reason="this CPU cannot run the kernel",
    ),
    pytest.mark.usefixtures("register_bits"),
]

# The standard operator's inputs, with their ranks.
RANKS = {
    "query": 3,
    "key": 3,
    "value": 3,
    "past_key": 4,
    "past_value": 4,
    "last": 1,
    "total": 0,
    "cos": 2,
    "sin": 2,
    "positions": 2,
    "bias": 4,
    "sink": 1,
}
TYPES = {"last": TensorProto.INT32, "total": TensorProto.INT32, "positions": TensorProto.INT64}
OUTPUTS = ("y", "present_key", "present_value")


def graph(
    names: Mapping[str, Any],
    attributes: Mapping[str, Any],
    *,
    dtype: int = TensorProto.FLOAT,
    outputs: tuple[str, ...] = OUTPUTS,
    has_source: bool = False,
) -> onnx.ModelProto:
    """Makes a graph of one ``GroupQueryAttention`` with these inputs and ``outputs``.

    ``has_source``: its cache is that of an encoder source, which rows may share.
    """
    made = [*OUTPUTS, *outputs[len(OUTPUTS) :]]
    inputs = [name if name in names else "" for name in RANKS]
    node = helper.make_node(
        "GroupQueryAttention", inputs, made, domain="com.microsoft", **attributes
    )
    values = [
        helper.make_tensor_value_info(
            name, TYPES.get(name, dtype), [f"{name}.{axis}" for axis in range(rank)]
        )
        for name, rank in RANKS.items()
        if name in names
    ]
    for value in values if has_source else ():
        if value.name.startswith("past_"):
            value.type.tensor_type.shape.dim[2].dim_param = "source_length"
    told = [helper.make_tensor_value_info(name, dtype, None) for name in outputs]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(
        helper.make_graph([node], "g", values, told), opset_imports=opsets, ir_version=10
    )


def session(model: str | bytes, num_threads: int = 1) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = num_threads
    options.log_severity_level = 4
    options.register_custom_ops_library(str(LIBRARY))
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def native_session(file: Path, num_threads: int = 1) -> ort.InferenceSession:
    made = rewrite(file, Kernels.ATTENTION)
    assert made is not None
    return session(made.model, num_threads)


def run(
    made: ort.InferenceSession, inputs: Mapping[str, Array], *, in_place: bool = False
) -> list[Array]:
    """Returns all outputs; ``in_place`` binds the present to the memory of the past."""
    if not in_place:
        return [np.asarray(output) for output in made.run(None, dict(inputs))]
    binding = made.io_binding()
    kept = {name: np.ascontiguousarray(array) for name, array in inputs.items()}
    for name, array in kept.items():
        where = ("cpu", 0, array.dtype, array.shape, array.ctypes.data)
        binding.bind_input(name, *where)
        if name.startswith("past_"):
            binding.bind_output(name.replace("past_", "present_"), *where)
    binding.bind_output("y", "cpu")
    made.run_with_iobinding(binding)
    y = binding.get_outputs()[-1].numpy()
    return [y, kept["past_key"], kept["past_value"]]


@dataclass(frozen=True)
class Case:
    """One call of the operator. ``lengths``: of each row, with its new keys."""

    kind: str
    num_tokens: int
    lengths: tuple[int, ...]
    heads: tuple[int, int] = (4, 2)
    size: int = 32
    capacity: int = 0
    packed: bool = True
    in_place: bool = False
    angles: int = 0
    bias: tuple[bool, bool] | None = None
    has_sinks: bool = False
    attributes: dict[str, int | float] = field(default_factory=dict)
    seed: int = 0

    @property
    def is_fresh(self) -> bool:
        return self.kind in ("prompt", "encoder")

    def inputs(self) -> dict[str, Array]:
        rng = np.random.default_rng(self.seed)
        (heads, kv_heads), size = self.heads, self.size
        num_rows, num_tokens = len(self.lengths), self.num_tokens
        total = num_tokens if self.is_fresh else max(self.lengths)

        def normal(*shape: int) -> Array:
            return rng.normal(size=shape).astype(np.float32)

        made = {
            "last": np.array(self.lengths, np.int32) - 1,
            "total": np.array(total, np.int32),
        }
        width = heads * size if not self.packed else (heads + 2 * kv_heads) * size
        made["query"] = normal(num_rows, num_tokens, width)
        if not self.packed:
            num_new = 0 if self.kind == "cross" else num_tokens
            made["key"] = normal(num_rows, num_new, kv_heads * size)
            made["value"] = normal(num_rows, num_new, kv_heads * size)
        if self.capacity:
            made["past_key"] = normal(num_rows, kv_heads, self.capacity, size)
            made["past_value"] = normal(num_rows, kv_heads, self.capacity, size)
        if self.angles:
            angles = rng.uniform(-4, 4, (total + 3, self.angles))
            made["cos"] = np.cos(angles).astype(np.float32)
            made["sin"] = np.sin(angles).astype(np.float32)
        if self.bias is not None:
            rows, by_head = self.bias
            shape = (num_rows if rows else 1, heads if by_head else 1, num_tokens, total)
            made["bias"] = normal(*shape)
        if self.has_sinks:
            made["sink"] = normal(heads)
        return made

    def all_attributes(self) -> dict[str, int | float]:
        given: dict[str, int | float] = {
            "num_heads": self.heads[0],
            "kv_num_heads": self.heads[1],
            "causal": int(self.kind not in ("encoder", "cross")),
            "do_rotary": int(bool(self.angles)),
        }
        return given | self.attributes


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


@settings(max_examples=150, deadline=None)
@given(case=cases(), num_threads=st.integers(1, 2))
def test_equals_the_standard_operator(
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
    params=[(32, {}), (64, {}), (64, {"local_window_size": 90}), (40, {"softcap": 5.0})]
)
def decoder(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, int]:
    """A graph of 6 heads in 2 groups, and the head size; rotary if the size allows."""
    size, attributes = request.param
    names = ["query", "past_key", "past_value", "last", "total"]
    names += ["cos", "sin"] if size % 16 == 0 else []
    given = {"num_heads": 6, "kv_num_heads": 2, "do_rotary": int(size % 16 == 0)}
    file = tmp_path / "graph.onnx"
    onnx.save(graph(dict.fromkeys(names), given | attributes), file)
    return file, size


class Decoder:
    """Rows with a cache each, whose tokens come in chunks of any size."""

    def __init__(self, file: Path, size: int, num_rows: int, num_threads: int = 1) -> None:
        self._session, self._size = native_session(file, num_threads), size
        shape = (num_rows, 2, CAPACITY, size)
        self.keys, self.values = (np.full(shape, np.nan, np.float32) for _ in range(2))
        angles = np.random.default_rng(9).uniform(-4, 4, (CAPACITY, size // 2))
        self._angles = {"cos": np.cos(angles), "sin": np.sin(angles)} if size % 16 == 0 else {}

    def read(self, tokens: Array, lengths: list[int], total: int | None = None) -> Array:
        """Runs ``tokens [rows, tokens, width]``; ``lengths`` are those of the rows afterwards."""
        inputs = {
            "query": tokens,
            "past_key": self.keys,
            "past_value": self.values,
            "last": np.array(lengths, np.int32) - 1,
            "total": np.array(max(lengths) if total is None else total, np.int32),
        } | {name: array.astype(np.float32) for name, array in self._angles.items()}
        return run(self._session, inputs, in_place=True)[0]


CAPACITY, LENGTH = 230, 201


def test_a_token_depends_on_neither_chunks_nor_other_rows(
    decoder: tuple[Path, int],
) -> None:
    file, size = decoder
    rng = np.random.default_rng(0)
    tokens = rng.normal(size=(3, LENGTH, 10 * size)).astype(np.float32)
    whole = Decoder(file, size, 1).read(tokens[:1], [LENGTH])[0]

    for num_threads, step in ((1, 1), (2, 7), (1, 64), (2, 130)):
        alone = Decoder(file, size, 1, num_threads)
        for start in range(0, LENGTH, step):
            stop = min(start + step, LENGTH)
            part = alone.read(tokens[:1, start:stop], [stop])[0]
            np.testing.assert_array_equal(part, whole[start:stop])

    for num_threads in (1, 2):
        beside = Decoder(file, size, 3, num_threads)
        lengths = [150, 3, 66]
        first = beside.read(tokens[:, :150], lengths)
        np.testing.assert_array_equal(first[0], whole[:150])
        for _ in range(20):
            new = np.stack([tokens[row, length] for row, length in enumerate(lengths)])[:, None]
            lengths = [length + 1 for length in lengths]
            np.testing.assert_array_equal(beside.read(new, lengths)[0, 0], whole[lengths[0] - 1])


def test_nothing_behind_a_row_s_length_is_read(decoder: tuple[Path, int]) -> None:
    """The cache and the padding hold NaN."""
    file, size = decoder
    rng = np.random.default_rng(0)
    tokens = rng.normal(size=(2, 70, 10 * size)).astype(np.float32)
    tokens[1, 5:] = np.nan
    made = Decoder(file, size, 2)
    y = made.read(tokens, [70, 5])
    assert np.isfinite(y[0]).all()
    assert np.isfinite(y[1, :5]).all()
    assert not y[1, 5:].any()  # zeros
    assert np.isnan(made.keys[1, :, 5:]).all()
    assert np.isfinite(made.keys[0, :, :70]).all()


def test_a_row_of_nan_does_not_affect_others(decoder: tuple[Path, int]) -> None:
    file, size = decoder
    rng = np.random.default_rng(0)
    tokens = rng.normal(size=(2, 40, 10 * size)).astype(np.float32)
    expected = Decoder(file, size, 2).read(tokens, [40, 40])
    tokens[1, 39, 0] = np.nan
    actual = Decoder(file, size, 2).read(tokens, [40, 40])
    np.testing.assert_array_equal(actual[0], expected[0])
    np.testing.assert_array_equal(actual[1, :39], expected[1, :39])
    assert np.isnan(actual[1, 39, :size]).all()


def test_cross_attention_of_several_rows_and_tokens(tmp_path: Path) -> None:
    """The standard operator supports one token or one row only."""
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


SOURCES = Case("cross", 1, (30, 8, 70, 8, 8, 70), (4, 2), 32, capacity=75, packed=False)


@pytest.mark.parametrize("num_tokens", [1, 9])
@pytest.mark.parametrize("num_more", [0, 60])
@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("biased", [None, (True, True)])
def test_rows_of_one_source_share_its_cache(
    tmp_path: Path,
    num_tokens: int,
    num_more: int,
    num_threads: int,
    biased: tuple[bool, bool] | None,
) -> None:
    """Results equal those of separate caches, also for more rows than one block holds."""
    case = replace(
        SOURCES, num_tokens=num_tokens, lengths=SOURCES.lengths + (8,) * num_more, bias=biased
    )
    inputs = case.inputs()
    sources = np.array([0, 3, 2, 3, 4, 2] + [3] * num_more, np.int32)
    own = {name: inputs[name][sources] for name in ("past_key", "past_value")}
    file, alone = tmp_path / "graph.onnx", tmp_path / "alone.onnx"
    onnx.save(graph(inputs, case.all_attributes(), has_source=True), file)
    onnx.save(graph(inputs, case.all_attributes()), alone)
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
def test_invalid_cache_rows_are_rejected(tmp_path: Path, sources: list[int], message: str) -> None:
    file = tmp_path / "graph.onnx"
    onnx.save(graph(SOURCES.inputs(), SOURCES.all_attributes(), has_source=True), file)
    inputs = SOURCES.inputs() | {SOURCE_ROWS: np.array(sources, np.int32)}
    with pytest.raises(Exception, match=message):
        run(native_session(file), inputs)


def test_unused_outputs_are_dropped(tmp_path: Path) -> None:
    case = Case("encoder", 9, (9, 4))
    file = tmp_path / "graph.onnx"
    onnx.save(graph(case.inputs(), case.all_attributes(), outputs=("y",)), file)
    made = rewrite(file, Kernels.ATTENTION)
    assert made is not None
    (node,) = onnx.load_from_string(made.model).graph.node
    assert (node.op_type, list(node.output)) == ("Attention", ["y"])
    expected = run(session(str(file)), case.inputs())[0]
    np.testing.assert_allclose(
        run(native_session(file), case.inputs())[0][0], expected[0], atol=1e-5
    )


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
def test_invalid_inputs_are_rejected(
    tmp_path: Path, change: dict[str, Array], message: str
) -> None:
    case = Case("decode", 1, (4, 9), capacity=20, angles=16, bias=(False, False), has_sinks=True)
    inputs = case.inputs()
    file = tmp_path / "graph.onnx"
    onnx.save(graph(inputs, case.all_attributes()), file)
    ours = native_session(file)
    run(ours, inputs)
    with pytest.raises(Exception, match=message):
        run(ours, inputs | change)


def test_a_graph_with_attention_only_is_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no packed weights."""
    monkeypatch.setattr(rewriting, "preferred_kernels", lambda: Kernels.ATTENTION)
    case = Case("prompt", 20, (20, 3), capacity=30)
    file = tmp_path / "a" / "1" / "graph.onnx"
    file.parent.mkdir(parents=True)
    onnx.save(graph(case.inputs(), case.all_attributes()), file)
    actual = OrtBackend("cpu", 1).load(file, ()).session
    np.testing.assert_array_equal(
        run(actual, case.inputs())[0], run(native_session(file), case.inputs())[0]
    )


@pytest.mark.parametrize("what", ["weights", "positions", "half", "window", "unknown", "output"])
def test_unsupported_attention_is_not_replaced(tmp_path: Path, what: str) -> None:
    case = Case("decode", 1, (4, 9), capacity=20, angles=16)
    names: dict[str, Any] = dict.fromkeys(case.inputs())
    attributes, dtype = case.all_attributes(), TensorProto.FLOAT
    outputs: tuple[str, ...] = OUTPUTS
    if what == "weights":
        attributes["qk_output"], outputs = 2, (*OUTPUTS, "weights")
    elif what == "positions":
        names["positions"] = None
    elif what == "half":
        dtype = TensorProto.FLOAT16
    elif what == "window":
        attributes |= {"sliding_window_cache": 1, "local_window_size": 5}
    else:
        attributes["kv_cache_bit_width"] = 8
    file = tmp_path / "graph.onnx"
    model = graph(names, attributes, dtype=dtype, outputs=outputs)
    if what == "output":
        model.graph.node[0].output[2] = ""
        del model.graph.output[2]
    onnx.save(model, file)
    assert rewrite(file, Kernels.ATTENTION) is None
