"""Small checkpoints on disk, and the eager module's outputs for imported ones."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor

from export.checkpoint import Checkpoint
from model.kernels import Step
from model.transformer import Transformer, from_weights

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{index}" for index in range(57)))


def save(model: Any, folder: Path, **options: Any) -> Path:
    """``model`` of transformers as a folder, with a tokenizer that pads and truncates."""
    model.save_pretrained(folder, **options)
    vocabulary = {word: index for index, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.enable_padding(length=8)
    tokenizer.enable_truncation(8)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def edit_json(path: Path, **values: object) -> None:
    """Sets ``values`` in the JSON object ``path``; None removes one."""
    content = json.loads(path.read_text()) if path.exists() else {}
    content.update(values)
    path.write_text(json.dumps({name: x for name, x in content.items() if x is not None}))


def edit_weights(
    folder: Path,
    *,
    remove: tuple[str, ...] = (),
    add: tuple[str, ...] = (),
    values: Mapping[str, Tensor] = MappingProxyType({}),
) -> None:
    """Removes weights from a folder's ``model.safetensors`` and adds others.

    Those of ``add`` are two zeros.
    """
    path = folder / "model.safetensors"
    weights = {name: x for name, x in load_file(path).items() if name not in remove}
    save_file({**weights, **{name: torch.zeros(2) for name in add}, **values}, path)


def eager(checkpoint: Checkpoint) -> Transformer:
    return from_weights(checkpoint.config, checkpoint.weights)


@torch.no_grad()
def pooled(checkpoint: Checkpoint, ids: Tensor, lengths: Tensor) -> Tensor:
    """The encoder head's outputs for ``ids [batch, length]``."""
    model = eager(checkpoint)
    return model.pool(model.encode(ids, lengths, torch.zeros_like(ids)), lengths)


@torch.no_grad()
def logits(checkpoint: Checkpoint, ids: Tensor) -> Tensor:
    """Logits of a decoder after each of ``ids [batch, length]``."""
    model = eager(checkpoint)
    step = Step.whole(torch.full((ids.shape[0],), ids.shape[1]))
    return model.logits(model.decode(ids, step).hidden)


def random_ids(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(4, len(WORDS), shape, generator=generator)


def randomise(model: Any, seed: int = 0) -> Any:
    """Sets all parameters of ``model`` to random values, norms and biases included."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:  # sinusoids
                continue
            noise = torch.randn(parameter.shape, generator=generator)
            is_norm = parameter.ndim == 1 and name.endswith("weight")
            parameter.copy_(1 + 0.1 * noise if is_norm else 0.2 * noise)
    return model.eval()
