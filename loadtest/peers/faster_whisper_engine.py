"""faster-whisper, CTranslate2's Whisper.

``load`` has ``workers``: models that transcribe side by side, which share the ``threads``. ``run``
has ``files`` (paths of recordings) instead of ``inputs``, and ``batched``: whether the windows of a
recording run together. Reply: ``{"seconds", "texts"}``.
"""

import time
from concurrent.futures import ThreadPoolExecutor

import faster_whisper
from faster_whisper import BatchedInferencePipeline, WhisperModel

from loadtest.peers.json_lines import Message, serve


class Peer:
    _model: WhisperModel
    _workers: int

    def load(self, message: Message) -> Message:
        self._workers = message["workers"]
        self._model = WhisperModel(
            message["model"],
            device="cpu",
            compute_type="int8" if message["precision"] == "int8" else "float32",
            cpu_threads=message["threads"] // self._workers,
            num_workers=self._workers,
        )
        return {"version": f"faster-whisper {faster_whisper.__version__}"}

    def run(self, message: Message) -> Message:
        started = time.perf_counter()
        with ThreadPoolExecutor(self._workers) as pool:
            one = self._in_batches if message["batched"] else self._one
            texts = list(pool.map(one, message["files"]))
        return {"seconds": time.perf_counter() - started, "texts": texts}

    def _one(self, path: str) -> str:
        """With timestamps, window by window, as by default; but greedily."""
        segments, _ = self._model.transcribe(
            path, language="en", beam_size=1, condition_on_previous_text=False
        )
        return "".join(segment.text for segment in segments)

    def _in_batches(self, path: str) -> str:
        """Windows that a detector of speech cuts, several together."""
        pipeline = BatchedInferencePipeline(self._model)
        segments, _ = pipeline.transcribe(
            path, language="en", beam_size=1, batch_size=8, without_timestamps=False
        )
        return "".join(segment.text for segment in segments)


if __name__ == "__main__":
    peer = Peer()
    serve({"load": peer.load, "run": peer.run})
