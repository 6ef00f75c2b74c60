"""Models with random weights, as folders that ``transformers`` and our export read.

It speaks the protocol of ``loadtest/peers/json_lines.py``: ``{"op": "make", "family", "config",
"out"}`` creates the folder ``out`` atomically. ``config``: fields of the family's configuration.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    BertModel,
    BloomConfig,
    BloomForCausalLM,
    EuroBertConfig,
    EuroBertModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
)

from loadtest.peers.json_lines import Message, serve

_FAMILIES: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "bart": (BartConfig, BartForConditionalGeneration),
    "bert": (BertConfig, BertModel),
    "llama-encoder": (LlamaConfig, LlamaModel),
    "splade": (BertConfig, BertForMaskedLM),
    "eurobert": (EuroBertConfig, EuroBertModel),
    "bloom": (BloomConfig, BloomForCausalLM),
}
_MEAN: dict[str, dict[str, Any]] = {
    "Pooling": {"pooling_mode_mean_tokens": True},
    "Normalize": {},
}
# The modules of sentence-transformers after the network: their names and settings.
_POOLINGS: dict[str, dict[str, dict[str, Any]]] = {
    "bert": _MEAN,
    "eurobert": _MEAN,
    "llama-encoder": {"Pooling": {"pooling_mode_lasttoken": True}, "Normalize": {}},
    "splade": {"SpladePooling": {"pooling_strategy": "max", "activation_function": "relu"}},
}
# Special tokens; all other words are "w" and a number.
_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
_ROLES = ("bos_token", "pad_token", "eos_token", "unk_token", "mask_token")


def make(message: Message) -> Message:
    """Writes a model with the family's initial weights."""
    out = Path(message["out"])
    configuration, model_class = _FAMILIES[message["family"]]
    config = configuration(**message["config"], bos_token_id=0, pad_token_id=1, eos_token_id=2)
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = model_class(config).eval()
    partial = out.with_name(f"{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    model.cpu().save_pretrained(partial)
    _write_tokenizer(config.vocab_size, partial)
    if message["family"] in _POOLINGS:
        _write_modules(_POOLINGS[message["family"]], config.hidden_size, partial)
    partial.rename(out)
    return {"parameters": sum(each.numel() for each in model.parameters())}


def _write_tokenizer(size: int, folder: Path) -> None:
    words = [*_SPECIAL, *(f"w{index}" for index in range(len(_SPECIAL), size))]
    vocabulary = {word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **dict(zip(_ROLES, _SPECIAL, strict=True)),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(about))


def _write_modules(poolings: dict[str, dict[str, Any]], size: int, folder: Path) -> None:
    """The modules of sentence-transformers: the network, and what follows it."""
    package = "sentence_transformers.models"
    if "SpladePooling" in poolings:
        package = "sentence_transformers.sparse_encoder.models"
    first = "MLMTransformer" if "SpladePooling" in poolings else "Transformer"
    modules = [{"idx": 0, "name": "0", "path": "", "type": f"{package}.{first}"}]
    for index, (kind, settings) in enumerate(poolings.items(), 1):
        path = f"{index}_{kind}"
        kinds = {"idx": index, "name": str(index), "path": path, "type": f"{package}.{kind}"}
        modules.append(kinds)
        (folder / path).mkdir()
        if settings:
            about = {"word_embedding_dimension": size, **settings}
            (folder / path / "config.json").write_text(json.dumps(about))
    (folder / "modules.json").write_text(json.dumps(modules))


if __name__ == "__main__":
    serve({"make": make})
