"""``transformers`` on PyTorch: greedy decoding with its ``StaticCache`` and a compiled step.

The step is compiled for each number of sequences, with CUDA graphs on a GPU: see
https://huggingface.co/docs/transformers/llm_optims.
"""

import time
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, StaticCache

from loadtest.peers.devices import device_of, model_of, wait
from loadtest.peers.json_lines import Message, serve

_WARM_UP = 4  # steps: the first ones compile and record


class Peer:
    _model: Any
    _device: str
    _prepared: tuple[tuple[int, int, int], Any, Any] | None = None

    def load(self, message: Message) -> Message:
        self._device = device_of(message)
        self._model = model_of(AutoModelForCausalLM, message)
        return {"version": f"transformers {transformers.__version__}, torch {torch.__version__}"}

    def run(self, message: Message) -> Message:
        """Decodes after prompts that were prefilled in the first run of this shape."""
        if message["kind"] != "decode":
            raise ValueError("only decodes")
        ids = torch.tensor(message["inputs"], device=self._device)
        rows, length = ids.shape
        num_new = message["max_new_tokens"]
        with torch.inference_mode():
            cache, step = self._prepare(ids, num_new)
            for layer in cache.layers:
                layer.cumulative_length.fill_(length - 1)
            next_ids = _last(ids)
            moments: list[float] = []
            wait(self._device)
            started = time.perf_counter()
            for _ in range(num_new):
                next_ids = step(next_ids).clone()
                wait(self._device)
                moments.append(time.perf_counter() - started)
        return {"arrivals": [moments] * rows}

    def _prepare(self, ids: Any, num_new: int) -> tuple[Any, Any]:
        """The cache with all but the last token of each prompt, and the compiled step."""
        key = (*ids.shape, num_new)
        if self._prepared is not None and self._prepared[0] == key:
            return self._prepared[1:]
        torch.compiler.reset()
        rows, length = ids.shape
        cache: Any = StaticCache(self._model.config, max_cache_len=length + num_new)
        for first in range(0, rows, 64):  # all at once may not fit into memory
            _prefill(self._model, ids[first : first + 64, :-1], cache, first, rows)

        def step(next_ids: Any) -> Any:
            logits = self._model(next_ids, past_key_values=cache, logits_to_keep=1).logits
            return logits[:, -1].argmax(-1, keepdim=True)

        compiled = torch.compile(step, mode="reduce-overhead", fullgraph=True)
        next_ids = _last(ids)
        for _ in range(_WARM_UP):
            next_ids = compiled(next_ids).clone()
        self._prepared = (key, cache, compiled)
        return cache, compiled


def _last(ids: Any) -> Any:
    """The last token of each row, in memory of its own: other strides would compile again."""
    return ids.new_empty((len(ids), 1)).copy_(ids[:, -1:])


def _prefill(model: Any, ids: Any, cache: Any, first: int, rows: int) -> None:
    """Puts the keys and values of some rows into the cache of all."""
    part: Any = StaticCache(model.config, max_cache_len=cache.layers[0].max_cache_len)
    model(ids, past_key_values=part, logits_to_keep=1)
    for layer, source in zip(cache.layers, part.layers, strict=True):
        if not layer.is_initialized:
            shape = (rows, *source.keys.shape[1:])
            layer.lazy_initialization(source.keys.new_empty(shape), source.values.new_empty(shape))
        layer.keys[first : first + len(ids)] = source.keys
        layer.values[first : first + len(ids)] = source.values
        layer.cumulative_length.fill_(ids.shape[1])


if __name__ == "__main__":
    peer = Peer()
    serve({"load": peer.load, "run": peer.run})
