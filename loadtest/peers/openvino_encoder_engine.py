"""OpenVINO: an encoder with mean pooling, in as many streams as threads.

Texts are sorted by length and divided into requests of ``rows`` texts.
"""

import time
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from loadtest.peers.json_lines import Message, serve
from loadtest.peers.openvino_properties import properties


class Peer:
    _queue: Any
    _names: set[str]
    _rows: int

    def load(self, message: Message) -> Message:
        streams = message["threads"]
        hints = {"PERFORMANCE_HINT": "THROUGHPUT", "NUM_STREAMS": streams}
        model: Any = ov.Core().compile_model(
            str(Path(message["model"]) / "model.xml"), "CPU", properties(message) | hints
        )
        self._names = {name for port in model.inputs for name in port.get_names()}
        self._queue = ov.AsyncInferQueue(model, streams)
        self._rows = message["rows"]
        return {"version": f"openvino {ov.__version__.partition('-')[0]}"}

    def run(self, message: Message) -> Message:
        started = time.perf_counter()
        self._vectors(message["inputs"])
        return {
            "seconds": time.perf_counter() - started,
            "num_tokens": sum(map(len, message["inputs"])),
        }

    def vectors(self, message: Message) -> Message:
        return {"vectors": self._vectors(message["inputs"]).tolist()}

    def _vectors(self, inputs: list[list[int]]) -> Any:
        """Normalized mean vectors, ``[N, H]``."""
        order = sorted(range(len(inputs)), key=lambda index: -len(inputs[index]))
        found: dict[int, Any] = {}

        def collect(request: Any, batch: list[int]) -> None:
            found.update(zip(batch, request.get_output_tensor(0).data.copy(), strict=True))

        self._queue.set_callback(collect)
        for start in range(0, len(order), self._rows):
            batch = order[start : start + self._rows]
            ids = np.zeros((len(batch), len(inputs[batch[0]])), np.int64)
            mask = np.zeros_like(ids)
            for row, index in enumerate(batch):
                ids[row, : len(inputs[index])] = inputs[index]
                mask[row, : len(inputs[index])] = 1
            feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
            self._queue.start_async({k: v for k, v in feeds.items() if k in self._names}, batch)
        self._queue.wait_all()
        return np.stack([found[index] for index in range(len(inputs))])


if __name__ == "__main__":
    peer = Peer()
    serve({"load": peer.load, "run": peer.run, "vectors": peer.vectors})
