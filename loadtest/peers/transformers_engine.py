"""``transformers`` on PyTorch: greedy decoding with its ``DynamicCache``, step by step."""

import time
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, DynamicCache

from loadtest.peers.devices import device_of, model_of, wait
from loadtest.peers.json_lines import Message, serve
from loadtest.peers.scoring import score_all


class Peer:
    _model: Any
    _device: str
    _caches: dict[tuple[int, int], Any]

    def load(self, message: Message) -> Message:
        self._device = device_of(message)
        self._model = model_of(AutoModelForCausalLM, message)
        self._caches = {}
        return {"version": f"transformers {transformers.__version__}, torch {torch.__version__}"}

    def run(self, message: Message) -> Message:
        """A decode continues prompts that were prefilled in the first run of its shape."""
        ids = torch.tensor(message["inputs"], device=self._device)
        rows, length = ids.shape
        is_decode = message["kind"] == "decode"
        cache: Any = DynamicCache()
        with torch.inference_mode():
            if is_decode:
                key = (rows, length)
                if key not in self._caches:
                    self._caches = {key: cache}
                    self._model(ids[:, :-1], past_key_values=cache, logits_to_keep=1)
                cache = self._caches[key]
                extra = cache.get_seq_length() - (length - 1)
                if extra:
                    cache.crop(-extra)
                ids = ids[:, -1:]
            moments: list[float] = []
            wait(self._device)
            started = time.perf_counter()
            for _ in range(message["max_new_tokens"]):
                logits = self._model(ids, past_key_values=cache, logits_to_keep=1).logits
                ids = logits[:, -1].argmax(-1, keepdim=True)
                wait(self._device)
                moments.append(time.perf_counter() - started)
        return {"arrivals": [moments] * rows}

    def score(self, message: Message) -> Message:
        def logits_of(ids: list[int]) -> Any:
            with torch.inference_mode():
                row = torch.tensor([ids], device=self._device)
                return self._model(row).logits[0].float().cpu().numpy()

        return score_all(message, logits_of)


if __name__ == "__main__":
    peer = Peer()
    serve({"load": peer.load, "run": peer.run, "score": peer.score})
