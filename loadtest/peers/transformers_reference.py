"""``transformers`` in fp32: the reference of ``loadtest gpu``.

``{"op": "logprobs"}`` with ``inputs`` (token ids of prompts or sources), ``tokens`` (the output of
each), ``start`` (decoder start token; null for a decoder) and ``suppressed`` (tokens that are never
generated). Reply: ``logprobs`` of ``tokens``, and the ``best`` log-probability of any token at each
step; with ``beams`` of more than one also ``beam_logprobs``, those of the tokens that its own beam
search finds, as many of them. ``{"op": "vectors"}`` as in ``loadtest/peers/json_lines.py``:
normalised means over tokens, or what the class stands for: a causal model's last token, normalised;
the largest weight that a masked language model gives each token of the vocabulary (SPLADE).
"""

from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    GenerationConfig,
)

from loadtest.peers.devices import device_of
from loadtest.peers.json_lines import Message, serve


class Reference:
    _model: Any
    _device: str
    _class: str

    def load(self, message: Message) -> Message:
        if message.get("threads"):
            torch.set_num_threads(message["threads"])
        torch.backends.cuda.matmul.allow_tf32 = False
        config: Any = AutoConfig.from_pretrained(message["model"])
        loaders: dict[str, Any] = {
            "llama": AutoModelForCausalLM,
            "bloom": AutoModelForCausalLM,
            "bart": AutoModelForSeq2SeqLM,
        }
        (self._class,) = config.architectures
        loader = loaders.get(config.model_type, AutoModel)
        loader = {"LlamaModel": AutoModel, "BertForMaskedLM": AutoModelForMaskedLM}.get(
            self._class, loader
        )
        self._device = device_of(message)
        model: Any = loader.from_pretrained(
            message["model"], dtype=torch.float32, attn_implementation="eager"
        )
        self._model = model.eval().to(self._device)
        return {"version": torch.__version__}

    def logprobs(self, message: Message) -> Message:
        reply = self._logprobs(message)
        if message.get("beams", 1) > 1:
            found = [
                self._search(prompt, len(tokens), message)
                for prompt, tokens in zip(message["inputs"], message["tokens"], strict=True)
            ]
            reply["beam_logprobs"] = self._logprobs({**message, "tokens": found})["logprobs"]
        return reply

    def _search(self, prompt: list[int], length: int, message: Message) -> list[int]:
        """The tokens of a beam search without an end token."""
        config: Any = GenerationConfig(  # type: ignore[no-untyped-call]
            num_beams=message["beams"],
            do_sample=False,
            max_new_tokens=length,
            eos_token_id=None,
            pad_token_id=1,
            decoder_start_token_id=message["start"],
            suppress_tokens=message["suppressed"] or None,
        )
        self._model.generation_config = config  # defaults of the model's own would add an end
        ids = torch.tensor([prompt], device=self._device)
        with torch.inference_mode():
            row = self._model.generate(ids, attention_mask=torch.ones_like(ids))[0].tolist()
        return list(row[-length:])

    def _logprobs(self, message: Message) -> Message:
        found, best = [], []
        start = message["start"]
        for prompt, tokens in zip(message["inputs"], message["tokens"], strict=True):
            prefix = prompt if start is None else [start]
            ids = torch.tensor([[*prefix, *tokens[:-1]]], device=self._device)
            with torch.inference_mode():
                if start is None:
                    logits = self._model(input_ids=ids).logits
                else:
                    source = torch.tensor([prompt], device=self._device)
                    logits = self._model(input_ids=source, decoder_input_ids=ids).logits
                logits = logits[0, len(prefix) - 1 :].float()
                logits[:, message["suppressed"]] = -torch.inf
                logprobs_of_all = logits.log_softmax(-1)
            chosen = torch.tensor(tokens, device=self._device)[:, None]
            found.append(logprobs_of_all.gather(1, chosen)[:, 0].tolist())
            best.append(logprobs_of_all.amax(1).tolist())
        return {"logprobs": found, "best": best}

    def vectors(self, message: Message) -> Message:
        vectors = []
        for row in message["inputs"]:
            with torch.inference_mode():
                ids = torch.tensor([row], device=self._device)
                output = self._model(input_ids=ids)
            if self._class == "BertForMaskedLM":
                vectors.append(output.logits[0].relu().log1p().amax(0).tolist())
                continue
            hidden = output.last_hidden_state[0]
            pooled = hidden[-1] if self._class == "LlamaModel" else hidden.mean(0)
            vectors.append(torch.nn.functional.normalize(pooled, dim=0).tolist())
        return {"vectors": vectors}


if __name__ == "__main__":
    reference = Reference()
    serve(
        {
            "load": reference.load,
            "logprobs": reference.logprobs,
            "vectors": reference.vectors,
        }
    )
