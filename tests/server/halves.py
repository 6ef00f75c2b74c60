"""An encoder at the runtime boundary, and the worker that serves it."""

from dataclasses import dataclass

import numpy as np

from model.bundle import Dtype, GraphSpec, TensorSpec
from server.engine.encoder import TOKEN_VECTORS, BatchLimits, Encoder
from server.engine.observer import Unobserved
from server.runtime.contract import Array, Block
from tests.server.company import FAIL, POISON


@dataclass
class Halves:
    """An encoder: half of each token id, its sum for the text."""

    num_runs: int = 0

    def bind(self, states, outputs=None) -> "Halves":
        del states, outputs
        return self

    def run(self, inputs) -> dict[str, Array]:
        self.num_runs += 1
        ids = inputs["token_ids"].astype(np.float32)
        if (ids == FAIL).any():
            raise RuntimeError("the run fails")
        tokens = np.where(ids == POISON, np.nan, ids / 2)[..., None]
        return {"vectors": np.nan_to_num(tokens.sum(1)), TOKEN_VECTORS: tokens}

    def run_kept(self, inputs) -> dict[str, Block]:
        return {name: Block.of(array) for name, array in self.run(inputs).items()}

    def run_into(self, inputs, outputs, *, repeats=False) -> bool:
        raise NotImplementedError


def encoder_of(graph: Halves, limits: BatchLimits) -> Encoder:
    """What serves ``graph``."""
    spec = GraphSpec(
        file="encode.onnx",
        inputs=(TensorSpec(name="token_ids", dtype=Dtype.INT64, shape=("batch", "length")),),
        outputs=tuple(
            TensorSpec(name=name, dtype=Dtype.FLOAT32, shape=shape)
            for name, shape in (("vectors", ("batch", 1)), (TOKEN_VECTORS, ("batch", "length", 1)))
        ),
    )
    return Encoder("fake", spec, graph, limits, lambda: 0.0, Unobserved())
