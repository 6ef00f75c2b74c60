"""OpenVINO on the graphs that optimum-intel exports from an encoder-decoder.

Greedy decoding runs the graphs itself; beams are searched by ``generate``.
"""

import time
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import torch
from optimum.intel import OVModelForSeq2SeqLM

from loadtest.peers.json_lines import Message, serve
from loadtest.peers.openvino_properties import properties


class Peer:
    _model: Any
    _encoder: Any
    _decoder: Any

    def load(self, message: Message) -> Message:
        torch.set_num_threads(message["threads"])
        folder, options = Path(message["model"]), properties(message)
        self._model = OVModelForSeq2SeqLM.from_pretrained(folder, device="CPU", ov_config=options)
        self._encoder, self._decoder = (
            ov.Core()
            .compile_model(str(folder / f"openvino_{part}_model.xml"), "CPU", options)
            .create_infer_request()
            for part in ("encoder", "decoder")
        )
        return {"version": f"openvino {ov.__version__.partition('-')[0]}, optimum-intel"}

    def run(self, message: Message) -> Message:
        """All sources have the same length, so there is no padding to mask."""
        ids, length = np.array(message["inputs"]), message["max_new_tokens"]
        run = self._greedy if message["beams"] == 1 else self._search
        started = time.perf_counter()
        found = run(ids, length, message["beams"])
        return {"seconds": time.perf_counter() - started, "num_tokens": found.size}

    def _greedy(self, ids: Any, length: int, beams: int) -> Any:
        del beams
        mask = np.ones_like(ids)
        states = self._encoder.infer({"input_ids": ids, "attention_mask": mask})[0]
        self._decoder.reset_state()
        tokens = [np.full((len(ids), 1), self._model.config.decoder_start_token_id)]
        for _ in range(length):
            logits = self._decoder.infer(
                {
                    "input_ids": tokens[-1],
                    "encoder_hidden_states": states,
                    "encoder_attention_mask": mask,
                    "beam_idx": np.arange(len(ids), dtype=np.int32),
                }
            )[0]
            tokens.append(logits[:, -1].argmax(1)[:, None])
        return np.concatenate(tokens[1:], 1)

    def _search(self, ids: Any, length: int, beams: int) -> Any:
        found = self._model.generate(
            input_ids=torch.from_numpy(ids),
            attention_mask=torch.ones(ids.shape, dtype=torch.int64),
            min_new_tokens=length,
            max_new_tokens=length,
            num_beams=beams,
            do_sample=False,
            forced_eos_token_id=None,
        )
        # The first token of each output is the decoder's start.
        return found[:, 1:].numpy()


if __name__ == "__main__":
    peer = Peer()
    serve({"load": peer.load, "run": peer.run})
