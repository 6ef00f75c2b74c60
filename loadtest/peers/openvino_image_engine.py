"""OpenVINO: a classifier of images from ``transformers``.

``load`` has ``streams``: 1 for the lowest latency, as many as threads for throughput. ``run`` has
``num_images`` instead of ``inputs``: random pixels, ready as the model takes them.
"""

import time
from typing import Any

import numpy as np
import openvino as ov
import torch
from transformers import AutoModelForImageClassification

from loadtest.peers.json_lines import Message, serve
from loadtest.peers.openvino_properties import properties


class Peer:
    _queue: Any
    _rows: int
    _pixels: Any

    def load(self, message: Message) -> Message:
        streams, self._rows = message["streams"], message["rows"]
        module = AutoModelForImageClassification.from_pretrained(message["model"]).eval()
        side = module.config.image_size
        example = torch.zeros(1, module.config.num_channels, side, side)
        converted = ov.convert_model(module, example_input={"pixel_values": example})
        hint = "LATENCY" if streams == 1 else "THROUGHPUT"
        hints = {"PERFORMANCE_HINT": hint, "NUM_STREAMS": streams}
        model: Any = ov.Core().compile_model(converted, "CPU", properties(message) | hints)
        self._queue = ov.AsyncInferQueue(model, streams)
        self._pixels = np.random.default_rng(0).random(example.shape, np.float32)
        return {"version": f"openvino {ov.__version__.partition('-')[0]}"}

    def run(self, message: Message) -> Message:
        started = time.perf_counter()
        for start in range(0, message["num_images"], self._rows):
            rows = min(self._rows, message["num_images"] - start)
            self._queue.start_async({0: np.repeat(self._pixels, rows, 0)})
        self._queue.wait_all()
        return {"seconds": time.perf_counter() - started}


if __name__ == "__main__":
    peer = Peer()
    serve({"load": peer.load, "run": peer.run})
