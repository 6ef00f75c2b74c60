"""A BERT of ``transformers`` on PyTorch: all texts in one padded batch, unsorted."""

from typing import Any

import torch
import transformers
from transformers import AutoModel

from loadtest.peers.devices import device_of, model_of, seconds_of
from loadtest.peers.json_lines import Message, serve


class Peer:
    _model: Any
    _device: str

    def load(self, message: Message) -> Message:
        self._device = device_of(message)
        self._model = model_of(AutoModel, message)
        return {"version": f"transformers {transformers.__version__}, torch {torch.__version__}"}

    def run(self, message: Message) -> Message:
        seconds = seconds_of(lambda: self._vectors(message["inputs"]), self._device)
        return {"seconds": seconds, "num_tokens": sum(map(len, message["inputs"]))}

    def vectors(self, message: Message) -> Message:
        return {"vectors": self._vectors(message["inputs"]).tolist()}

    def _vectors(self, inputs: list[list[int]]) -> Any:
        rows = [torch.tensor(row, device=self._device) for row in inputs]
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        lengths = torch.tensor([len(row) for row in rows], device=self._device)
        mask = (torch.arange(ids.shape[1], device=self._device)[None] < lengths[:, None]).long()
        with torch.inference_mode():
            hidden = self._model(input_ids=ids, attention_mask=mask).last_hidden_state
            mean = (hidden * mask[..., None]).sum(1) / lengths[:, None]
            return torch.nn.functional.normalize(mean.float())


if __name__ == "__main__":
    peer = Peer()
    serve({"load": peer.load, "run": peer.run, "vectors": peer.vectors})
