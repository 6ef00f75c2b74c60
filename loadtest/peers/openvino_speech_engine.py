"""OpenVINO GenAI's Whisper, of a folder that ``optimum-cli export openvino`` wrote.

``run`` has ``files`` (paths of recordings, 16 kHz and mono) instead of ``inputs``. Reply:
``{"seconds", "texts"}``.
"""

import time
import wave

import numpy as np
import openvino_genai

from loadtest.peers.json_lines import Message, serve
from loadtest.peers.openvino_properties import properties


class Peer:
    _pipeline: openvino_genai.WhisperPipeline

    def load(self, message: Message) -> Message:
        hints = {"PERFORMANCE_HINT": "LATENCY"}
        self._pipeline = openvino_genai.WhisperPipeline(
            message["model"], "CPU", **(properties(message) | hints)
        )
        return {"version": f"openvino-genai {openvino_genai.__version__}"}

    def run(self, message: Message) -> Message:
        started = time.perf_counter()
        texts = [self._one(path) for path in message["files"]]
        return {"seconds": time.perf_counter() - started, "texts": texts}

    def _one(self, path: str) -> str:
        with wave.open(path) as file:
            samples = np.frombuffer(file.readframes(file.getnframes()), np.int16)
        sound = (samples / 2**15).astype(np.float32).tolist()
        found = self._pipeline.generate(
            sound, language="<|en|>", task="transcribe", return_timestamps=True
        )
        return str(found.texts[0])


if __name__ == "__main__":
    peer = Peer()
    serve({"load": peer.load, "run": peer.run})
