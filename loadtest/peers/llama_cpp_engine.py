"""llama.cpp: one context, a sequence per prompt, decoded in common steps."""

import time
from typing import Any

import llama_cpp
import numpy as np

from loadtest.peers.json_lines import Message, serve
from loadtest.peers.scoring import score_all

MAX_SEQUENCES = 32
TOKENS_PER_SEQUENCE = 640
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
        params.n_ctx = MAX_SEQUENCES * TOKENS_PER_SEQUENCE
        params.n_batch = params.n_ubatch = BATCH_TOKENS
        params.n_seq_max = MAX_SEQUENCES
        params.n_threads = params.n_threads_batch = message["threads"]
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        if not self._context:
            raise RuntimeError("llama.cpp could not create a context")
        vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        self._vocabulary = llama_cpp.llama_vocab_n_tokens(vocabulary)
        self._batch = llama_cpp.llama_batch_init(BATCH_TOKENS, 0, 1)
        self._cached = {}
        return {"version": f"llama-cpp-python {llama_cpp.__version__}"}

    def run(self, message: Message) -> Message:
        """Greedy. A decode continues prompts that were prefilled in the first run of its length."""
        rows, is_decode = message["inputs"], message["kind"] == "decode"
        if not is_decode:
            self._clear()
        for index, row in enumerate(rows):
            if is_decode and self._cached.get(index) == len(row):
                self._truncate(index, len(row) - 1)
            elif is_decode:
                self._prefill(index, row[:-1])
                self._cached[index] = len(row)
        started = time.perf_counter()
        if is_decode:
            # The last token of each prompt yields the first new one.
            tokens = [row[-1] for row in rows]
        else:
            tokens = [self._prefill(index, row) for index, row in enumerate(rows)]
        arrivals = [[] if is_decode else [time.perf_counter() - started] for _ in rows]
        for step in range(message["max_new_tokens"] - (0 if is_decode else 1)):
            starts = [len(row) - 1 + step if is_decode else len(row) + step for row in rows]
            tokens = self._step(list(zip(range(len(rows)), tokens, starts, strict=True)))
            now = time.perf_counter() - started
            for moments in arrivals:
                moments.append(now)
        return {"arrivals": arrivals}

    def _prefill(self, index: int, tokens: list[int]) -> int:
        self._truncate(index, 0)
        chosen = 0
        for start in range(0, len(tokens), BATCH_TOKENS):
            part = tokens[start : start + BATCH_TOKENS]
            last = start + len(part) == len(tokens)
            entries = [(index, token, start + offset) for offset, token in enumerate(part)]
            found = self._decode(entries, [len(entries) - 1] if last else [])
            chosen = found[0] if found else chosen
        return chosen

    def _step(self, entries: list[tuple[int, int, int]]) -> list[int]:
        return self._decode(entries, list(range(len(entries))))

    def _decode(self, entries: list[tuple[int, int, int]], wanted: list[int]) -> list[int]:
        """Decodes ``entries`` (sequence, token, position). Returns greedy tokens at ``wanted``."""
        self._compute(entries, wanted)
        return [int(self._logits(index).argmax()) for index in wanted]

    def _compute(self, entries: list[tuple[int, int, int]], wanted: list[int]) -> None:
        batch, with_logits = self._batch, set(wanted)
        batch.n_tokens = len(entries)
        for index, (sequence, token, position) in enumerate(entries):
            batch.token[index], batch.pos[index] = token, position
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, sequence
            batch.logits[index] = index in with_logits
        status = llama_cpp.llama_decode(self._context, batch)
        if status:
            raise RuntimeError(f"llama_decode returned {status}")

    def _logits(self, index: int) -> Any:
        """``[V]`` at an entry of the last batch; valid until the next."""
        logits = llama_cpp.llama_get_logits_ith(self._context, index)
        return np.ctypeslib.as_array(logits, (self._vocabulary,))

    def score(self, message: Message) -> Message:
        def logits_of(ids: list[int]) -> Any:
            self._clear()
            found: list[Any] = []
            for start in range(0, len(ids), BATCH_TOKENS):
                part = ids[start : start + BATCH_TOKENS]
                entries = [(0, token, start + offset) for offset, token in enumerate(part)]
                self._compute(entries, list(range(len(part))))
                found += [self._logits(index).copy() for index in range(len(part))]
            return np.stack(found)

        return score_all(message, logits_of)

    def _truncate(self, index: int, length: int) -> None:
        memory = llama_cpp.llama_get_memory(self._context)
        llama_cpp.llama_memory_seq_rm(memory, index, length, -1)

    def _clear(self) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)
        self._cached = {}


if __name__ == "__main__":
    peer = Peer()
    serve({"load": peer.load, "run": peer.run, "score": peer.score})
