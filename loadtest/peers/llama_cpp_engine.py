"""llama.cpp: one context, every row a sequence of its own, stepped together."""

import time
from typing import Any

import llama_cpp
import numpy as np

from loadtest.peers.json_lines import Message, serve

MAX_ROWS = 32
ROW_TOKENS = 640
BATCH_TOKENS = 512


class Peer:
    _context: Any
    _model: Any
    _vocabulary: int
    _cached: dict[int, int]

    def load(self, message: Message) -> Message:
        llama_cpp.llama_backend_init()
        options = llama_cpp.llama_model_default_params()
        self._model = llama_cpp.llama_model_load_from_file(message["model"].encode(), options)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = MAX_ROWS * ROW_TOKENS
        params.n_batch = params.n_ubatch = BATCH_TOKENS
        params.n_seq_max = MAX_ROWS
        params.n_threads = params.n_threads_batch = message["threads"]
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        if not self._context:
            raise RuntimeError("llama.cpp made no context")
        vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        self._vocabulary = llama_cpp.llama_vocab_n_tokens(vocabulary)
        self._batch = llama_cpp.llama_batch_init(BATCH_TOKENS, 0, 1)
        self._cached = {}
        return {"version": f"llama-cpp-python {llama_cpp.__version__}"}

    def run(self, message: Message) -> Message:
        """Greedy. A decode continues the rows that were read in the first run of its length."""
        rows, decodes = message["inputs"], message["kind"] == "decode"
        if not decodes:
            self._forget()
        for index, row in enumerate(rows):
            if decodes and self._cached.get(index) == len(row):
                self._rewind(index, len(row) - 1)
            elif decodes:
                self._read(index, row[:-1])
                self._cached[index] = len(row)
        started = time.perf_counter()
        if decodes:
            # The last token of each prompt gives the first new one.
            tokens = [row[-1] for row in rows]
        else:
            tokens = [self._read(index, row) for index, row in enumerate(rows)]
        arrivals = [[] if decodes else [time.perf_counter() - started] for _ in rows]
        for step in range(message["max_new_tokens"] - (0 if decodes else 1)):
            starts = [len(row) - 1 + step if decodes else len(row) + step for row in rows]
            tokens = self._step(list(zip(range(len(rows)), tokens, starts, strict=True)))
            now = time.perf_counter() - started
            for moments in arrivals:
                moments.append(now)
        return {"arrivals": arrivals}

    def _read(self, index: int, tokens: list[int]) -> int:
        self._rewind(index, 0)
        chosen = 0
        for start in range(0, len(tokens), BATCH_TOKENS):
            part = tokens[start : start + BATCH_TOKENS]
            last = start + len(part) == len(tokens)
            entries = [(index, token, start + place) for place, token in enumerate(part)]
            found = self._decode(entries, [len(entries) - 1] if last else [])
            chosen = found[0] if found else chosen
        return chosen

    def _step(self, entries: list[tuple[int, int, int]]) -> list[int]:
        return self._decode(entries, list(range(len(entries))))

    def _decode(self, entries: list[tuple[int, int, int]], wanted: list[int]) -> list[int]:
        """``entries``: (sequence, token, position). Greedy tokens after the ``wanted`` ones."""
        batch, asked = self._batch, set(wanted)
        batch.n_tokens = len(entries)
        for place, (sequence, token, position) in enumerate(entries):
            batch.token[place], batch.pos[place] = token, position
            batch.n_seq_id[place], batch.seq_id[place][0] = 1, sequence
            batch.logits[place] = place in asked
        status = llama_cpp.llama_decode(self._context, batch)
        if status:
            raise RuntimeError(f"llama_decode returned {status}")
        return [self._best(place) for place in wanted]

    def _best(self, place: int) -> int:
        logits = llama_cpp.llama_get_logits_ith(self._context, place)
        return int(np.ctypeslib.as_array(logits, (self._vocabulary,)).argmax())

    def _rewind(self, index: int, length: int) -> None:
        memory = llama_cpp.llama_get_memory(self._context)
        llama_cpp.llama_memory_seq_rm(memory, index, length, -1)

    def _forget(self) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)
        self._cached = {}


if __name__ == "__main__":
    peer = Peer()
    serve({"load": peer.load, "run": peer.run})
