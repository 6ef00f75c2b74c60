"""onnxruntime-genai: one generator per batch. A decode is timed after the prefill."""

import json
import time
from typing import Any

import numpy as np
import onnxruntime_genai as og

from loadtest.peers.json_lines import Message, serve
from loadtest.peers.scoring import score_all


class Peer:
    _model: Any

    def load(self, message: Message) -> Message:
        config: Any = og.Config(message["model"])
        options = {"intra_op_num_threads": message["threads"]}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
        self._model = og.Model(config)
        return {"version": f"onnxruntime-genai {og.__version__}"}

    def run(self, message: Message) -> Message:
        """Greedy. All prompts have the same length."""
        rows, new = message["inputs"], message["max_new_tokens"]
        is_decode = message["kind"] == "decode"
        parameters: Any = og.GeneratorParams(self._model)
        length = len(rows[0]) + new
        parameters.set_search_options(
            do_sample=False, batch_size=len(rows), min_length=length, max_length=length
        )
        generator: Any = og.Generator(self._model, parameters)
        started = time.perf_counter()
        generator.append_tokens(np.array(rows, np.int32))
        if is_decode:
            started = time.perf_counter()
        moments: list[float] = []
        for _ in range(new):
            generator.generate_next_token()
            moments.append(time.perf_counter() - started)
        return {"arrivals": [moments] * len(rows)}

    def score(self, message: Message) -> Message:
        def logits_of(ids: list[int]) -> Any:
            parameters: Any = og.GeneratorParams(self._model)
            parameters.set_search_options(do_sample=False, batch_size=1, max_length=len(ids) + 1)
            generator: Any = og.Generator(self._model, parameters)
            generator.append_tokens(np.array([ids], np.int32))
            return generator.get_output("logits")[0]

        return score_all(message, logits_of)


if __name__ == "__main__":
    peer = Peer()
    serve({"load": peer.load, "run": peer.run, "score": peer.score})
