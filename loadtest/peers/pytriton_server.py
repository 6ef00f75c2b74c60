"""Triton through pytriton: token ids in, normalised mean vectors out, ONNX Runtime inside."""

import argparse
import os
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

MAX_BATCH = 64


def main() -> None:
    """Serves until the process is terminated."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    for name in ("port", "threads"):
        parser.add_argument(f"--{name}", type=int, required=True)
    arguments = parser.parse_args()
    # Triton's Python stub loads libpython from this path: it must be ours.
    os.environ["LD_LIBRARY_PATH"] = str(sysconfig.get_config_var("LIBDIR"))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = arguments.threads
    # Spinning threads would take CPU time from Triton.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(
        str(next(arguments.model.rglob("model.onnx"))), options, ["CPUExecutionProvider"]
    )
    wanted = {one.name for one in session.get_inputs()}
    output = session.get_outputs()[0].name

    def encode(**inputs: Any) -> dict[str, Any]:
        """``ids``: ``[B, T]``, padded with 0. Returns ``vector``: ``[B, H]``."""
        ids = inputs["ids"]
        mask = (ids != 0).astype(np.int64)
        feed = {
            "input_ids": ids,
            "attention_mask": mask,
            "token_type_ids": np.zeros_like(ids),
        }
        (hidden,) = session.run([output], {k: v for k, v in feed.items() if k in wanted})
        mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
        vector = mean / np.linalg.norm(mean, axis=1, keepdims=True)
        return {"vector": vector.astype(np.float32)}

    config = TritonConfig(http_port=arguments.port, allow_grpc=False, allow_metrics=False)
    with Triton(config=config) as triton:
        triton.bind(
            model_name="model",
            infer_func=batch(encode),
            inputs=[Tensor(name="ids", dtype=np.int64, shape=(-1,))],
            outputs=[Tensor(name="vector", dtype=np.float32, shape=(-1,))],
            config=ModelConfig(
                max_batch_size=MAX_BATCH,
                batcher=DynamicBatcher(max_queue_delay_microseconds=0),
            ),
        )
        triton.serve()


if __name__ == "__main__":
    main()
