"""Quantized experts: ONNX Runtime's ``QMoE`` against its float ``MoE``."""

from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx_ir.tape import Tape

from export.experts import quantized_mixture
from export.precision_schemes import WeightFormat
from export.quantized_matmul import CONTRIB, constant

NUM_EXPERTS, NUM_TOKENS = 4, 9
Floats = NDArray[np.float32]


class Mixture:
    """A random MoE layer: hidden size ``size``, expert width ``inner``; no biases if gated."""

    def __init__(self, size: int, inner: int, *, gated: bool) -> None:
        rng = np.random.default_rng(0)

        def random(*shape: int) -> Floats:
            return rng.normal(0.1, 0.2, (NUM_EXPERTS, *shape)).astype(np.float32)

        width = inner * (2 if gated else 1)
        self.size = size
        self.arrays = [random(width, size), random(size, inner)]
        self.biases = [None, None] if gated else [random(width), random(size)]
        self.attributes: dict[str, Any] = {"k": 2, "normalize_routing_weights": 1}
        self.attributes["activation_type"] = "swiglu" if gated else "relu"
        if gated:
            swiglu_options = {"swiglu_fusion": 1, "activation_alpha": 1.0, "activation_beta": 0.0}
            self.attributes |= swiglu_options
        self.x = rng.normal(size=(1, NUM_TOKENS, size)).astype(np.float32)
        self.scores = rng.normal(size=(NUM_TOKENS, NUM_EXPERTS)).astype(np.float32)

    def session(self, form: WeightFormat | None) -> tuple[ort.InferenceSession, ir.Node]:
        """A session with experts in ``form`` (None: float), and the node that computes them."""
        tape = Tape()
        x = ir.val("x", ir.DataType.FLOAT, [1, "tokens", self.size])
        scores = ir.val("scores", ir.DataType.FLOAT, ["tokens", NUM_EXPERTS])
        inputs: list[ir.Value | None] = [x, scores]
        for index, (array, bias) in enumerate(zip(self.arrays, self.biases, strict=True)):
            inputs.append(constant(tape, f"w{index}", array))
            inputs.append(None if bias is None else constant(tape, f"b{index}", bias))
        y = tape.op("MoE", inputs, self.attributes, domain=CONTRIB)
        nodes, initializers = list(tape.nodes), list(tape.initializers)
        if form is not None:
            quantized_tape = Tape()
            y = quantized_mixture(quantized_tape, nodes[0], form)
            nodes = list(quantized_tape.nodes)
            initializers = [
                *(v for v in initializers if (v.name or "")[0] == "b"),
                *quantized_tape.initializers,
            ]
        y.name, y.dtype = "y", ir.DataType.FLOAT
        y.shape = ir.Shape([1, "tokens", self.size])
        opsets = {"": 23, CONTRIB: 1}
        graph = ir.Graph(
            [x, scores], [y], nodes=nodes, initializers=initializers, opset_imports=opsets
        )
        proto = ir.serde.serialize_model(ir.Model(graph, ir_version=10)).SerializeToString()
        session = ort.InferenceSession(proto, providers=["CPUExecutionProvider"])
        return session, nodes[0]

    def run(self, session: ort.InferenceSession, tokens: slice = slice(None)) -> Floats:
        feed = {"x": self.x[:, tokens], "scores": self.scores[tokens]}
        y: Floats = session.run(None, feed)[0][0]
        return y


# (hidden, inner) sizes divisible by blocks of 128 or 32, by 16, and by none.
SIZES = [(128, 256), (48, 80), (36, 52)]


@pytest.mark.parametrize("gated", [True, False], ids=["gated", "biased"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize(
    ("form", "bits", "error"),
    [(WeightFormat.BLOCK_INT8, 8, 0.02), (WeightFormat.BLOCK_INT4, 4, 0.15)],
    ids=["int8", "int4"],
)
def test_quantized_experts_match_float_experts(
    form: WeightFormat, bits: int, error: float, sizes: tuple[int, int], gated: bool
) -> None:
    mixture = Mixture(*sizes, gated=gated)
    expected = mixture.run(mixture.session(None)[0])
    session, node = mixture.session(form)
    has_blocks = sizes != SIZES[-1]
    assert node.attributes["expert_weight_bits"].value == (bits if has_blocks else 8)
    assert ("block_size" in node.attributes) == has_blocks
    y = mixture.run(session)
    difference = np.linalg.norm(y - expected) / np.linalg.norm(expected)
    assert 1e-4 < difference < error
    alone = [mixture.run(session, slice(index, index + 1))[0] for index in range(NUM_TOKENS)]
    np.testing.assert_allclose(np.stack(alone), y, rtol=0, atol=1e-4)
