"""sentence-transformers on PyTorch: its modules, its order by length, its batches of 32."""

import shutil
import tempfile
from typing import Any

import sentence_transformers
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel

from loadtest.peers.devices import device_of, dtype_of, has_weights, model_of, seconds_of
from loadtest.peers.json_lines import Message, serve

BATCH = 32  # default of ``encode``


class Peer:
    _model: Any
    _device: str

    def load(self, message: Message) -> Message:
        torch.set_num_threads(message["threads"])
        self._device = device_of(message)
        with tempfile.TemporaryDirectory() as folder:
            path = message["model"]
            if not has_weights(path):
                path = f"{folder}/model"
                shutil.copytree(message["model"], path)
                model_of(AutoModel, message).save_pretrained(path)
            model: Any = SentenceTransformer(path, device=self._device)
        self._model = model.to(dtype_of(message)).eval()
        return {
            "version": f"sentence-transformers {sentence_transformers.__version__}, "
            f"torch {torch.__version__}"
        }

    def run(self, message: Message) -> Message:
        seconds = seconds_of(lambda: self._vectors(message["inputs"]), self._device)
        return {"seconds": seconds, "num_tokens": sum(map(len, message["inputs"]))}

    def vectors(self, message: Message) -> Message:
        return {"vectors": self._vectors(message["inputs"]).tolist()}

    def _vectors(self, inputs: list[list[int]]) -> Any:
        """Same as ``encode`` without the tokenizer: longest first. Returns ``[N, H]``."""
        order = sorted(range(len(inputs)), key=lambda index: -len(inputs[index]))
        found: dict[int, Any] = {}
        with torch.inference_mode():
            for start in range(0, len(order), BATCH):
                batch = order[start : start + BATCH]
                rows = [torch.tensor(inputs[index], device=self._device) for index in batch]
                ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
                lengths = torch.tensor([len(row) for row in rows], device=self._device)
                positions = torch.arange(ids.shape[1], device=self._device)
                mask = (positions[None] < lengths[:, None]).long()
                features = {"input_ids": ids, "attention_mask": mask}
                found |= zip(batch, self._model(features)["sentence_embedding"], strict=True)
        return torch.stack([found[index] for index in range(len(inputs))])


if __name__ == "__main__":
    peer = Peer()
    serve({"load": peer.load, "run": peer.run, "vectors": peer.vectors})
