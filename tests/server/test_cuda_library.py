"""The library of CUDA operators: its device code, and what ONNX Runtime learns from it."""

import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest

from scripts import build_kernels
from scripts.build_kernels import CAPABILITIES, FOLDER, PTX_VERSION, SOURCES
from server.engine.gpu.sampler_nodes import Nodes
from server.runtime.cuda.rewrite import replace_operators
from server.runtime.kernels.library import CUDA_LIBRARY
from server.runtime.rewriting.graph_inputs import LOGIT_POSITIONS
from tests.server.cuda_graphs import (
    FLOAT,
    INT32,
    SIZE,
    attention,
    load,
    make_graph,
    node,
    random,
    rewrite,
    save,
    type_of,
    values,
)
from tests.server.cuda_operators import NEEDS_LIBRARY

pytestmark = NEEDS_LIBRARY


@pytest.fixture(scope="module")
def library() -> bytes:
    return CUDA_LIBRARY.read_bytes()


@pytest.fixture(scope="module")
def device_codes(library: bytes) -> list[str]:
    """The PTX in the library: a string of C for each compute capability."""
    texts = [text for text in library.split(b"\0") if b".visible .entry " in text]
    return [text[text.index(b".version ") :].decode() for text in texts]


@pytest.fixture(params=CAPABILITIES)
def device_code(device_codes: list[str], request: pytest.FixtureRequest) -> str:
    code: str = device_codes[CAPABILITIES.index(request.param)]
    return code


def test_the_build_writes_the_library_that_the_server_loads() -> None:
    assert FOLDER / build_kernels.CUDA_LIBRARY == CUDA_LIBRARY


def test_the_device_code_has_every_kernel_that_the_driver_asks_for(device_code: str) -> None:
    source = (SOURCES / "cuda" / "driver.h").read_text()
    names = re.search(r"FOR_EACH_KERNEL\(_\)(.*?)\n\n", source, re.DOTALL)
    assert names is not None
    expected = re.findall(r"_\((\w+)\)", names[1])
    assert len(expected) == len(set(expected)) > 0
    assert sorted(re.findall(r"\.visible \.entry (\w+)\(", device_code)) == sorted(expected)


def test_each_device_code_is_for_its_compute_capability(device_codes: list[str]) -> None:
    version = f".version {PTX_VERSION // 10}.{PTX_VERSION % 10}"
    expected = [f"{version}\n.target sm_{capability}\n" for capability in CAPABILITIES]
    assert [code[: len(start)] for code, start in zip(device_codes, expected, strict=True)] == (
        expected
    )


def test_each_kernel_waits_for_the_one_before_it(device_codes: list[str]) -> None:
    """With the code for 9.0, which lets kernels start early."""
    old, new = device_codes
    assert "griddepcontrol" not in old
    for kernel in new.split(".visible .entry ")[1:]:
        assert kernel.count("griddepcontrol.wait;") == 1, kernel.partition("(")[0]


def test_the_device_code_keeps_everything_in_registers(device_code: str) -> None:
    """Calls and local memory would slow it down."""
    assert not re.search(r"call\.uni|\.local\b", device_code)


def test_each_kernel_tells_how_many_threads_its_blocks_have(device_code: str) -> None:
    directives = r"entry (\w+)\([^{]*\n\.maxntid \d+\n\.minnctapersm \d+\n\{"
    kernels = re.findall(r"\.visible \.entry (\w+)\(", device_code)
    assert re.findall(directives, device_code) == kernels != []
    assert "// expect" not in device_code


def test_the_device_code_needs_no_other_code(device_code: str) -> None:
    """The driver links nothing to it."""
    assert ".extern" not in device_code


def of_rows(dtype: Any) -> onnx.ModelProto:
    """A graph to rewrite to operators with all of their inputs and outputs."""
    rows = ("rows", SIZE)
    nodes = [
        node("Add", ["x", "x_bias"], "biased"),
        node("Add", ["biased", "residual"], "sum"),
        node("LayerNormalization", ["sum", "scale", "bias"], "normal"),
        node("Add", ["normal", "sum"], "again"),
        node("Add", ["again", "bias"], "again_biased"),
        node("Relu", ["again_biased"], "positive"),
        node("Gather", ["positive", LOGIT_POSITIONS], "last"),
        node("Cast", ["last"], "logits", to=FLOAT),
    ]
    weights = {name: random(dtype, SIZE) for name in ("x_bias", "scale", "bias")}
    inputs = values(type_of(dtype), x=rows, residual=rows)
    inputs += values(INT32, **{LOGIT_POSITIONS: ["positions"]})
    outputs = values(FLOAT, logits=("positions", SIZE))
    return make_graph(nodes, inputs, outputs, weights)


def rewritten(model: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    data = rewrite(save(model, folder), suppressed=(3,))
    assert data is not None
    return load(data, folder)


def load_on_cpu(model: onnx.ModelProto, *, has_library: bool = True) -> None:
    options = onnxruntime.SessionOptions()
    if has_library:
        options.register_custom_ops_library(str(CUDA_LIBRARY))
    data, providers = model.SerializeToString(), ["CPUExecutionProvider"]
    onnxruntime.InferenceSession(data, options, providers=providers)


# What ONNX Runtime says once it has accepted all nodes and their types: a CPU has no such kernels.
# It tries to replace fp16 by fp32.
REFUSALS = [
    pytest.param(ml_dtypes.bfloat16, "Bf16", "Could not find an implementation for", id="bf16"),
    pytest.param(np.float16, "Fp16", "input parameter .InsertedPrecisionFreeCast", id="fp16"),
]


@pytest.mark.parametrize(("dtype", "suffix", "message"), REFUSALS)
def test_onnx_runtime_takes_the_operators_of_rows(
    tmp_path: Path, dtype: Any, suffix: str, message: str
) -> None:
    model = rewritten(of_rows(dtype), tmp_path)
    operators = [made.op_type for made in model.graph.node]
    ours = [f"Norm{suffix}", "Add", f"Activation{suffix}"]
    assert operators == [*ours, "Gather", "Cast", "BestToken"]
    with pytest.raises(Exception, match="is not a registered function/op"):
        load_on_cpu(model, has_library=False)
    with pytest.raises(Exception, match=message):
        load_on_cpu(model)


@pytest.mark.parametrize(("dtype", "suffix", "message"), REFUSALS)
def test_onnx_runtime_takes_the_operators_of_attention(
    tmp_path: Path, dtype: Any, suffix: str, message: str
) -> None:
    weights = {"bias": random(dtype, 3 * SIZE)}
    model = rewritten(attention(weights, type_=type_of(dtype)), tmp_path)
    operators = [made.op_type for made in model.graph.node]
    ranges = [f"KeyRanges{suffix}"] if suffix == "Fp16" else []
    assert operators == [f"Split{suffix}", *ranges, "MultiHeadAttention", "Neg"]
    with pytest.raises(Exception, match=message):
        load_on_cpu(model)
    weights = {"bias": random(dtype, 3 * 64)}
    model = rewritten(attention(weights, 64, type_of(dtype)), tmp_path)
    assert [made.op_type for made in model.graph.node] == [f"EncoderAttention{suffix}", "Neg"]
    with pytest.raises(Exception, match=message):
        load_on_cpu(model)


def test_onnx_runtime_takes_the_operator_of_reductions() -> None:
    nodes = Nodes()
    nodes.reduce("ReduceMax", "x")
    x, name = values(FLOAT, x=("rows", SIZE)), nodes.nodes[0].output[0]
    model = nodes.model(x, name, FLOAT, ("rows", 1))
    load_on_cpu(model)
    with pytest.raises(Exception, match="Could not find an implementation for Extreme"):
        load_on_cpu(replace_operators(model))
