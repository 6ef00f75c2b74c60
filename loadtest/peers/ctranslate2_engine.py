"""CTranslate2: decoders, encoder-decoders and encoders.

A batch is divided among ``workers``, each with an equal share of the threads. By default
there is one worker with all threads.
"""

import json
import math
import threading
import time
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
from ctranslate2.converters import TransformersConverter

from loadtest.peers.json_lines import Message, serve
from loadtest.peers.scoring import score_all

_COMPUTE = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "int8": "int8"}
_MAX_ENCODED_TOKENS = 4096


class Peer:
    _model: Any
    _words: list[str]
    _workers: int
    _cached: list[str]

    def load(self, message: Message) -> Message:
        path = Path(message["model"])
        makers = {
            "generate": ctranslate2.Generator,
            "translate": ctranslate2.Translator,
            "embed": ctranslate2.Encoder,
        }
        self._cached = []
        self._workers = message.get("workers", 1)
        self._model = makers[message["task"]](
            str(path),
            device=message.get("device", "cpu").partition(":")[0],
            compute_type=_COMPUTE[message["precision"]],
            inter_threads=self._workers,
            intra_threads=message["threads"] // self._workers,
        )
        names = ("vocabulary.json", "shared_vocabulary.json", "source_vocabulary.json")
        file = next(path / name for name in names if (path / name).exists())
        self._words = json.loads(file.read_text(encoding="utf-8"))
        return {"version": ctranslate2.__version__}

    def convert(self, message: Message) -> Message:
        """Converts the Hugging Face folder ``model`` to ``out``, atomically.

        ``precision``: of the file; by default fp32.
        """
        out = Path(message["out"])
        out.parent.mkdir(parents=True, exist_ok=True)
        partial = out.with_name(f"{out.name}.partial")
        quantization = _COMPUTE[message.get("precision", "fp32")]
        converter = TransformersConverter(message["model"])
        converter.convert(str(partial), quantization=quantization, force=True)
        partial.rename(out)
        return {}

    def run(self, message: Message) -> Message:
        return {"generate": self._generate, "translate": self._translate, "embed": self._embed}[
            message["task"]
        ](message)

    def _rows(self, message: Message) -> list[list[str]]:
        return [[self._words[id_] for id_ in row] for row in message["inputs"]]

    def _share(self, num_rows: int) -> int:
        """Batch size of one worker."""
        return math.ceil(num_rows / self._workers)

    def _generate(self, message: Message) -> Message:
        """Records the arrival of each token.

        For a decode, all sequences continue one prompt that was prefilled before. Its state is
        copied to each, so that attention costs as much as with prompts of their own.
        """
        rows, length = self._rows(message), message["max_new_tokens"]
        if message["kind"] == "decode":
            self._cached = self._cached or rows[0][:-1]
            rows = [row[-1:] for row in rows]
        arrivals: list[list[float]] = [[] for _ in rows]
        lock = threading.Lock()
        started = time.perf_counter()

        def on_token(step: Any) -> bool:
            with lock:
                arrivals[step.batch_id].append(time.perf_counter() - started)
            return False

        self._model.generate_batch(
            rows,
            beam_size=1,
            max_length=length,
            min_length=length,
            include_prompt_in_result=False,
            static_prompt=self._cached if message["kind"] == "decode" else None,
            max_batch_size=self._share(len(rows)),
            callback=on_token,
        )
        return {"arrivals": arrivals}

    def _translate(self, message: Message) -> Message:
        rows, length = self._rows(message), message["max_new_tokens"]
        started = time.perf_counter()
        results = self._model.translate_batch(
            rows,
            beam_size=message["beams"],
            max_decoding_length=length,
            min_decoding_length=length,
            max_batch_size=self._share(len(rows)),
        )
        seconds = time.perf_counter() - started
        return {"seconds": seconds, "num_tokens": sum(len(r.hypotheses[0]) for r in results)}

    def _embed(self, message: Message) -> Message:
        started = time.perf_counter()
        self._vectors(message["inputs"])
        return {
            "seconds": time.perf_counter() - started,
            "num_tokens": sum(map(len, message["inputs"])),
        }

    def score(self, message: Message) -> Message:
        def logits_of(ids: list[int]) -> Any:
            words = [self._words[id_] for id_ in ids]
            return np.array(self._model.forward_batch([words]))[0]

        return score_all(message, logits_of)

    def vectors(self, message: Message) -> Message:
        return {"vectors": self._vectors(message["inputs"]).tolist()}

    def _vectors(self, inputs: list[list[int]]) -> Any:
        """Normalized mean vectors, ``[N, H]``, in batches by length with a thread per worker."""
        order = sorted(range(len(inputs)), key=lambda index: len(inputs[index]))
        batches: list[list[int]] = []
        largest = max(1, _MAX_ENCODED_TOKENS // max(map(len, inputs)))
        size = min(largest, self._share(len(order)))
        batches = [order[start : start + size] for start in range(0, len(order), size)]
        found: dict[int, Any] = {}

        def work(mine: list[list[int]]) -> None:
            for batch in mine:
                hidden = np.array(
                    self._model.forward_batch([inputs[index] for index in batch]).last_hidden_state
                )
                for index, states in zip(batch, hidden, strict=True):
                    mean = states[: len(inputs[index])].mean(0)
                    found[index] = mean / np.linalg.norm(mean)

        threads = [
            threading.Thread(target=work, args=(batches[first :: self._workers],))
            for first in range(self._workers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return np.stack([found[index] for index in range(len(inputs))])


if __name__ == "__main__":
    peer = Peer()
    serve(
        {
            "load": peer.load,
            "convert": peer.convert,
            "run": peer.run,
            "vectors": peer.vectors,
            "score": peer.score,
        }
    )
