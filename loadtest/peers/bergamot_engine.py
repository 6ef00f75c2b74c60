"""Bergamot: Firefox's translator on the model's own files, text to text.

The sentences of a batch are divided among ``workers`` threads, at most ``batch_words`` words at a
time. ``shortlist``: only the likeliest words of each batch's source are candidates, which is its
default.
"""

import importlib.util
import json
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from loadtest.peers.json_lines import Message, serve

BATCH_WORDS = 384


class Peer:
    _native: Any
    _service: Any
    _model: Any

    def load(self, message: Message) -> Message:
        self._native = _native_module()
        workers = min(message.get("workers", message["threads"]), message["threads"])
        self._service = self._native.Service(self._native.ServiceConfig(numWorkers=workers))
        config = model_config(Path(message["model"]), shortlist=message["shortlist"])
        # YAML contains JSON.
        self._model = self._service.modelFromConfig(json.dumps(config))
        return {"version": f"bergamot {metadata.version('bergamot')}"}

    def run(self, message: Message) -> Message:
        options = self._native.ResponseOptions(qualityScores=False, sentenceMappings=False)
        translated: list[str] = []
        started = time.perf_counter()
        for texts in message["requests"]:
            inputs = self._native.VectorString(texts)
            responses = self._service.translate(self._model, inputs, options)
            translated += [response.target.text for response in responses]
        return {"seconds": time.perf_counter() - started, "texts": translated}


def model_config(folder: Path, *, shortlist: bool) -> dict[str, Any]:
    """The configuration of a folder with a model, a vocabulary and a shortlist of Firefox."""
    vocabulary = str(next(folder.glob("vocab.*.spm")))
    config: dict[str, Any] = {
        "models": [str(next(folder.glob("model.*.bin")))],
        "vocabs": [vocabulary, vocabulary],
        "beam-size": 1,
        "normalize": 1.0,
        "word-penalty": 0,
        "mini-batch-words": BATCH_WORDS,
        "workspace": 128,
        "max-length-factor": 2.5,
        "max-length-break": 128,
        "gemm-precision": "int8shiftAlphaAll",
        "ssplit-mode": "sentence",
        "skip-cost": True,
    }
    if shortlist:
        config["shortlist"] = [str(next(folder.glob("lex.*.bin"))), False]
    return config


def _native_module() -> Any:
    """The extension alone: importing the package would download a list of models."""
    spec = importlib.util.find_spec("bergamot")
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError("bergamot is not installed")
    file = next(Path(next(iter(spec.submodule_search_locations))).glob("_bergamot*.so"))
    native = importlib.util.spec_from_file_location("_bergamot", file)
    assert native is not None
    assert native.loader is not None
    module = importlib.util.module_from_spec(native)
    native.loader.exec_module(module)
    return module


if __name__ == "__main__":
    peer = Peer()
    serve({"load": peer.load, "run": peer.run})
