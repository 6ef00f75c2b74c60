"""The encoders of T5 and mT5 against transformers, with the files of sentence-transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    MT5Config,
    MT5EncoderModel,
    T5Config,
    T5EncoderModel,
    UMT5Config,
    UMT5EncoderModel,
)

from export.errors import WeightsError
from export.sources import load_checkpoint
from model.bundle import Task
from tests.export.importers.support import pooled, random_ids, randomise, save
from tests.families.harness import check_eager, check_graphs
from tests.families.test_t5 import SMALL

LENGTHS = torch.tensor([9, 4], dtype=torch.int32)


def hidden(model: Any, ids: Tensor) -> Tensor:
    result: Tensor = model(ids).last_hidden_state
    return result


def mean(model: Any, ids: Tensor) -> Tensor:
    return hidden(model, ids).mean(1)


@settings(max_examples=8)
@given(
    st.fixed_dictionaries(
        {
            "d_kv": st.sampled_from((8, 24)),
            "num_heads": st.sampled_from((1, 3)),
            "num_layers": st.integers(1, 3),
            "feed_forward_proj": st.sampled_from(("relu", "gated-gelu", "gated-silu")),
            "relative_attention_num_buckets": st.sampled_from((4, 32)),
            "layer_norm_epsilon": st.sampled_from((1e-6, 1e-2)),
        }
    )
)
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(T5EncoderModel(T5Config(**SMALL | changes)), expected=hidden)


def test_mt5_eager_matches_transformers() -> None:
    check_eager(MT5EncoderModel(MT5Config(**SMALL)), expected=hidden)


def test_umt5_eager_matches_transformers() -> None:
    check_eager(UMT5EncoderModel(UMT5Config(**SMALL)), expected=hidden)


def test_graphs_match_transformers() -> None:
    check_graphs("T5 (encoder)", T5EncoderModel(T5Config(**SMALL)), expected=mean)


@torch.no_grad()
def test_sentence_t5_matches_its_modules(tmp_path: Path) -> None:
    """Mean, a map without bias, and a norm, as sentence-t5-base has them."""
    model = randomise(T5EncoderModel(T5Config(**SMALL)))
    save(model, tmp_path)
    kinds = ("Transformer", "Pooling", "Dense", "Normalize")
    modules = [
        {"type": f"sentence_transformers.models.{kind}", "path": f"{index}_{kind}"}
        for index, kind in enumerate(kinds)
    ]
    configs: dict[str, Any] = {
        "1_Pooling": {"word_embedding_dimension": 64, "pooling_mode_mean_tokens": True},
        "2_Dense": {
            "in_features": 64,
            "out_features": 48,
            "bias": False,
            "activation_function": "torch.nn.modules.linear.Identity",
        },
    }
    weight = torch.randn(48, 64, generator=torch.Generator().manual_seed(1))
    for name, content in configs.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(content))
    save_file({"linear.weight": weight}, tmp_path / "2_Dense" / "model.safetensors")
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 24}))
    checkpoint = load_checkpoint(str(tmp_path))
    assert checkpoint.tasks == (Task.EMBED, Task.RERANK)
    assert checkpoint.max_input_tokens == 24
    assert checkpoint.embedding is not None
    assert checkpoint.embedding.size == 48
    ids = random_ids(2, 9)
    actual = pooled(checkpoint, ids, LENGTHS)
    for row, length, vector in zip(ids, LENGTHS, actual, strict=True):
        expected = torch.nn.functional.normalize(mean(model, row[None, :length]) @ weight.T)
        torch.testing.assert_close(vector[None], expected, rtol=0, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("family", ["T5", "MT5", "UMT5"])
def test_token_classifier_matches_transformers(tmp_path: Path, family: str) -> None:
    config = getattr(transformers, f"{family}Config")(**SMALL | {"num_labels": 5})
    model = randomise(getattr(transformers, f"{family}ForTokenClassification")(config))
    save(model, tmp_path)
    checkpoint = load_checkpoint(str(tmp_path))
    assert checkpoint.tasks == (Task.TAG,)
    ids = random_ids(2, 9)
    actual = pooled(checkpoint, ids, LENGTHS)
    for row, length, logits in zip(ids, LENGTHS, actual, strict=True):
        expected = model(row[None, :length]).logits[0]
        torch.testing.assert_close(logits[:length], expected, rtol=0, atol=1e-4)


def test_both_names_of_the_token_table_are_read(tmp_path: Path) -> None:
    save(randomise(T5EncoderModel(T5Config(**SMALL))), tmp_path)
    path = tmp_path / "model.safetensors"
    weights = load_file(path)
    table = weights.pop("shared.weight")
    copy = "encoder.embed_tokens.weight"
    save_file({**weights, copy: table}, path)
    assert torch.equal(load_checkpoint(str(tmp_path)).weights["embedding.tokens.weight"], table)
    save_file({**weights, "shared.weight": table, copy: table + 1}, path)
    with pytest.raises(WeightsError, match=f"{copy}, which shared.weight replaces"):
        load_checkpoint(str(tmp_path))
