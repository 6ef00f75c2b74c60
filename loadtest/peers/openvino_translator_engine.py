"""OpenVINO on the graphs that optimum-intel exports from an encoder-decoder."""

import time
from typing import Any

import openvino as ov
import torch
from optimum.intel import OVModelForSeq2SeqLM

from loadtest.peers.json_lines import Message, serve
from loadtest.peers.openvino_properties import properties


class Peer:
    _model: Any

    def load(self, message: Message) -> Message:
        self._model = OVModelForSeq2SeqLM.from_pretrained(
            message["model"], device="CPU", ov_config=properties(message)
        )
        return {"version": f"openvino {ov.__version__.partition('-')[0]}, optimum-intel"}

    def run(self, message: Message) -> Message:
        """All sources have the same length, so there is no padding to mask."""
        ids = torch.tensor(message["inputs"])
        length = message["max_new_tokens"]
        started = time.perf_counter()
        found = self._model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            min_new_tokens=length,
            max_new_tokens=length,
            num_beams=message["beams"],
            do_sample=False,
            forced_eos_token_id=None,
        )
        seconds = time.perf_counter() - started
        # The first token of each output is the decoder's start.
        return {"seconds": seconds, "num_tokens": found[:, 1:].numel()}


if __name__ == "__main__":
    peer = Peer()
    serve({"load": peer.load, "run": peer.run})
