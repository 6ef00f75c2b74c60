"""OpenVINO GenAI: continuous batching with a paged cache; greedy decoding."""

import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai

from loadtest.peers.json_lines import Message, serve
from loadtest.peers.openvino_properties import properties
from loadtest.peers.scoring import score_all

CACHE_GIGABYTES = 2


class Peer:
    _pipeline: Any
    _message: Message
    _ids: "itertools.count[int]"

    def load(self, message: Message) -> Message:
        scheduler: Any = openvino_genai.SchedulerConfig()
        scheduler.cache_size = CACHE_GIGABYTES
        scheduler.enable_prefix_caching = False
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            message["model"], scheduler, "CPU", properties(message)
        )
        self._message, self._ids = message, itertools.count()
        return {"version": f"openvino-genai {openvino_genai.__version__.partition('-')[0]}"}

    def run(self, message: Message) -> Message:
        """Records the arrival of each token."""
        config: Any = openvino_genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = message["max_new_tokens"]
        config.ignore_eos, config.do_sample = True, False
        started = time.perf_counter()
        handles = [
            self._pipeline.add_request(next(self._ids), ov.Tensor(np.array([row])), config)
            for row in message["inputs"]
        ]
        arrivals: list[list[float]] = [[] for _ in handles]
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            moment = time.perf_counter() - started
            for handle, moments in zip(handles, arrivals, strict=True):
                while handle.can_read():
                    (output,) = handle.read().values()
                    moments.extend([moment] * len(output.generated_ids))
        return {"arrivals": arrivals}

    def score(self, message: Message) -> Message:
        """From the same graph and properties, but with a cache that is not paged."""
        model: Any = ov.Core().compile_model(
            str(Path(self._message["model"]) / "openvino_model.xml"),
            "CPU",
            properties(self._message),
        )
        request = model.create_infer_request()
        names = {name for port in model.inputs for name in port.get_names()}

        def logits_of(ids: list[int]) -> Any:
            request.reset_state()
            row = np.array([ids])
            feeds = {
                "input_ids": row,
                "attention_mask": np.ones_like(row),
                "position_ids": np.arange(len(ids))[None],
                "beam_idx": np.zeros(1, np.int32),
            }
            request.infer({name: value for name, value in feeds.items() if name in names})
            return request.get_tensor("logits").data[0]

        return score_all(message, logits_of)


if __name__ == "__main__":
    peer = Peer()
    serve({"load": peer.load, "run": peer.run, "score": peer.score})
