"""A fake encoder graph and a worker that runs it."""

from dataclasses import dataclass

import numpy as np

from model.bundle import Dtype, GraphSpec, TensorSpec
from server.engine.encoder_batch import BatchLimits
from server.engine.encoder_runner import TOKEN_VECTORS, EncoderRunner
from server.engine.encoder_worker import EncoderWorker
from server.engine.observer import Unobserved
from server.runtime.contract import KernelNodes, RepeatedRun
from server.runtime.memory import Array, Tensor
from tests.server.mixed_batches import FAIL, POISON


@dataclass
class FakeEncoder:
    """A token's vector is half its id; a text's vector is the sum over its tokens."""

    num_runs: int = 0
    kernel_nodes = KernelNodes()
    outputs = ()

    def bind(self, states, outputs=None) -> "FakeEncoder":
        del states, outputs
        return self

    def run(self, inputs) -> dict[str, Array]:
        self.num_runs += 1
        ids = inputs["token_ids"].astype(np.float32)
        if (ids == FAIL).any():
            raise RuntimeError("the run fails")
        tokens = np.where(ids == POISON, np.nan, ids / 2)[..., None]
        return {"vectors": np.nan_to_num(tokens.sum(1)), TOKEN_VECTORS: tokens}

    def run_on_device(self, inputs, on_host=()) -> dict[str, Tensor]:
        del on_host  # all outputs are
        return {name: Tensor.of(array) for name, array in self.run(inputs).items()}

    def repeat_into(self, inputs, outputs, on_host=None, *, feeds_back=False) -> RepeatedRun:
        raise NotImplementedError


def make_encoder_worker(graph: FakeEncoder, limits: BatchLimits) -> EncoderWorker:
    """Makes an encoder worker that runs ``graph``."""
    spec = GraphSpec(
        file="encode.onnx",
        inputs=(TensorSpec(name="token_ids", dtype=Dtype.INT64, shape=("batch", "length")),),
        outputs=tuple(
            TensorSpec(name=name, dtype=Dtype.FLOAT32, shape=shape)
            for name, shape in (("vectors", ("batch", 1)), (TOKEN_VECTORS, ("batch", "length", 1)))
        ),
    )
    return EncoderWorker("fake", EncoderRunner(spec, graph), limits, lambda: 0.0, Unobserved())
