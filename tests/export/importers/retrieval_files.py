"""The files of models of sparse vectors and of vectors for each token, as libraries write them."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from torch import Tensor

from tests.export.importers.support import WORDS, edit_json

CLS, SEP, MASK = 2, 3, 11
POINT, COMMA = 12, 13  # words that are skipped
SKIPPED = (".", ",")


def add_tokenizer(folder: Path, *added: str) -> Tokenizer:
    """A tokenizer that frames texts, with a mask, two marks, and ``added`` special tokens."""
    vocabulary = {word: index for index, word in enumerate(WORDS)}
    for word, index in {".": POINT, ",": COMMA}.items():
        del vocabulary[WORDS[index]]
        vocabulary[word] = index
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)]
    )
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in added])
    tokenizer.save(str(folder / "tokenizer.json"))
    edit_json(folder / "tokenizer_config.json", mask_token=WORDS[MASK])
    return tokenizer


def add_modules(folder: Path, *modules: tuple[str, dict[str, Any]]) -> None:
    """``modules.json`` with these classes, and each module's configuration."""
    rows = []
    for index, (name, config) in enumerate(modules):
        kind = name.rpartition(".")[2]
        path = f"{index}_{kind}" if index else ""
        rows.append({"idx": index, "name": str(index), "path": path, "type": name})
        if index:
            (folder / path).mkdir(exist_ok=True)
            edit_json(folder / path / "config.json", **config)
    (folder / "modules.json").write_text(json.dumps(rows))


def add_matrices(folder: Path, index: int, **matrices: Tensor) -> None:
    """The weights of the dense layer that is module ``index``."""
    save_file(matrices, folder / f"{index}_Dense" / "model.safetensors")


def random_matrix(outputs: int, inputs: int, seed: int = 0) -> Tensor:
    return 0.3 * torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed))


def dense_config(inputs: int, outputs: int, **more: Any) -> dict[str, Any]:
    """The configuration of a linear map without a bias."""
    return {
        "in_features": inputs,
        "out_features": outputs,
        "bias": False,
        "activation_function": "torch.nn.modules.linear.Identity",
        **more,
    }
