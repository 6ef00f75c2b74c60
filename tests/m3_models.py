"""M3-Embedding with random weights: dense, sparse and token vectors from one encoder."""

import shutil
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import XLMRobertaConfig, XLMRobertaModel

from export.bundle_writer import write_bundle
from export.sources import load_checkpoint
from model.bundle import Precision
from tests import heads
from tests.export.importers.retrieval_files import add_modules
from tests.export.importers.support import edit_json, randomise

M3, M3_INT8 = "m3", "m3-int8"
NAMES = (M3, M3_INT8)
SIZE, TOKEN_SIZE = 32, 24
SPECIAL = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "eos": "[SEP]"}
KINDS = ("dense", "sparse", "multi_vector")


class Reference(NamedTuple):
    """A text's dense vector, weights of the vocabulary's tokens, and a vector for each token."""

    dense: Any
    weights: Any
    vectors: Any


@cache
def model() -> XLMRobertaModel:
    config = XLMRobertaConfig(
        vocab_size=30_522,
        hidden_size=SIZE,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=heads.MAX_LENGTH + 1,
        pad_token_id=0,
        type_vocab_size=1,
    )
    made: XLMRobertaModel = randomise(XLMRobertaModel(config), seed=3)
    with torch.no_grad():
        made.get_input_embeddings().weight.mul_(8)
    return made


@cache
def maps() -> tuple[nn.Linear, nn.Linear]:
    """The maps to weights and to vectors of tokens; most weights are above 0."""
    to_weight = randomise(nn.Linear(SIZE, 1), seed=4)
    with torch.no_grad():
        to_weight.bias.fill_(1.0)
    return to_weight, randomise(nn.Linear(SIZE, TOKEN_SIZE), seed=5)


def save_source(folder: Path) -> Path:
    """The files that FlagEmbedding publishes, with PyTorch's files of both maps."""
    model().save_pretrained(folder)
    shutil.copy(heads.tokenizer_folder() / "tokenizer.json", folder)
    edit_json(
        folder / "tokenizer_config.json",
        tokenizer_class="PreTrainedTokenizerFast",
        model_max_length=heads.MAX_LENGTH,
        **{f"{name}_token": token for name, token in SPECIAL.items()},
    )
    add_modules(
        folder,
        ("sentence_transformers.models.Transformer", {}),
        ("sentence_transformers.models.Pooling", {"pooling_mode_cls_token": True}),
        ("sentence_transformers.models.Normalize", {}),
    )
    for name, linear in zip(("sparse", "colbert"), maps(), strict=True):
        torch.save(linear.state_dict(), folder / f"{name}_linear.pt")
    return folder


def write_bundle_of(root: Path, name: str) -> None:
    """Writes the bundle ``root / name`` of one of :data:`NAMES`, unless it exists."""
    if (root / name).exists():
        return
    folder = save_source(root / f".source-{name}")
    precision = Precision.INT8 if name == M3_INT8 else Precision.FP32
    write_bundle(load_checkpoint(str(folder)), root, name=name, precision=precision)
    shutil.rmtree(folder)


def ids_of(text: str) -> list[int]:
    tokenizer: Any = heads.tokenizer()
    ids: list[int] = tokenizer(text, truncation=True, max_length=heads.MAX_LENGTH)["input_ids"]
    return ids


@torch.no_grad()
def reference(text: str) -> Reference:
    """Chen et al. 2024, section 3.2, as FlagEmbedding's ``BGEM3FlagModel`` computes it."""
    ids = ids_of(text)
    to_weight, to_vector = maps()
    hidden = model()(torch.tensor([ids])).last_hidden_state[0]
    weights = torch.zeros(model().config.vocab_size)
    of_tokens = torch.relu(to_weight(hidden))[:, 0]
    for id_, weight in zip(ids, of_tokens, strict=True):
        weights[id_] = torch.maximum(weights[id_], weight)
    weights[heads.tokenizer().convert_tokens_to_ids(list(SPECIAL.values()))] = 0
    return Reference(
        nn.functional.normalize(hidden[0], dim=-1).numpy(),
        weights.numpy(),
        nn.functional.normalize(to_vector(hidden[1:]), dim=-1).numpy(),
    )


def scores(query: str, document: str) -> dict[str, float]:
    """The similarities by kind (section 3.2): that of token vectors is a mean."""
    one, other = reference(query), reference(document)
    return {
        "dense": float(one.dense @ other.dense),
        "sparse": float(one.weights @ other.weights),
        "multi_vector": float((one.vectors @ other.vectors.T).max(1).mean()),
    }
