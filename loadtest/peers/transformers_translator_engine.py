"""``transformers`` on PyTorch: an encoder-decoder's own ``generate``, greedy or with beams."""

from typing import Any

import torch
import transformers
from transformers import AutoModelForSeq2SeqLM

from loadtest.peers.devices import device_of, model_of, seconds_of
from loadtest.peers.json_lines import Message, serve


class Peer:
    _model: Any
    _device: str

    def load(self, message: Message) -> Message:
        self._device = device_of(message)
        self._model = model_of(AutoModelForSeq2SeqLM, message)
        return {"version": f"transformers {transformers.__version__}, torch {torch.__version__}"}

    def run(self, message: Message) -> Message:
        """All sources have the same length, so there is no padding to mask."""
        ids = torch.tensor(message["inputs"], device=self._device)
        length = message["max_new_tokens"]

        def generate() -> None:
            with torch.inference_mode():
                self._model.generate(
                    input_ids=ids,
                    attention_mask=torch.ones_like(ids),
                    min_new_tokens=length,
                    max_new_tokens=length,
                    num_beams=message["beams"],
                    do_sample=False,
                    forced_eos_token_id=None,
                )

        seconds = seconds_of(generate, self._device)
        return {"seconds": seconds, "num_tokens": ids.shape[0] * length}


if __name__ == "__main__":
    peer = Peer()
    serve({"load": peer.load, "run": peer.run})
