"""BERT import: parity with transformers on random weights, and errors."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, BertModel

from export.errors import UnsupportedError, WeightsError
from export.sources import load_checkpoint
from model.bundle import Task
from model.config import HeadKind
from tests.export.importers.support import (
    WORDS,
    edit_json,
    edit_weights,
    pooled,
    random_ids,
    randomise,
    save,
)

LENGTHS = torch.tensor([7, 4, 1])


def config(**changes: Any) -> BertConfig:
    shape: dict[str, Any] = {
        "vocab_size": len(WORDS),
        "hidden_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 80,
        "max_position_embeddings": 16,
        "attn_implementation": "eager",
    }
    return BertConfig(**{**shape, **changes})


def mask() -> torch.Tensor:
    return (torch.arange(7) < LENGTHS[:, None]).long()


def hidden(model: Any, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = model(ids, attention_mask=mask()).last_hidden_state
    return result


def test_default_pooling_is_the_mean(tmp_path: Path) -> None:
    model = randomise(BertModel(config()))
    checkpoint = load_checkpoint(str(save(model, tmp_path)))
    ids = random_ids(3, 7)
    expected = (hidden(model, ids) * mask()[:, :, None]).sum(1) / LENGTHS[:, None]
    torch.testing.assert_close(pooled(checkpoint, ids, LENGTHS), expected, rtol=0, atol=1e-4)
    assert checkpoint.tasks == (Task.EMBED, Task.RERANK)
    assert not checkpoint.config.head.normalize


@pytest.mark.parametrize("num_labels", [2, 3])
def test_classifier_matches_transformers(tmp_path: Path, num_labels: int) -> None:
    model = randomise(BertForSequenceClassification(config(num_labels=num_labels)))
    checkpoint = load_checkpoint(str(save(model, tmp_path)))
    ids = random_ids(3, 7)
    with torch.no_grad():
        expected = model(ids, attention_mask=mask()).logits
    torch.testing.assert_close(pooled(checkpoint, ids, LENGTHS), expected, rtol=0, atol=1e-4)
    assert checkpoint.tasks == (Task.CLASSIFY,)
    assert checkpoint.labels == tuple(f"LABEL_{index}" for index in range(num_labels))
    assert checkpoint.config.head.kind == HeadKind.CLASSIFICATION


def test_folder_gives_name_and_license_and_padding_is_disabled(tmp_path: Path) -> None:
    folder = save(randomise(BertModel(config())), tmp_path / "My Model_v1.5")
    (folder / "README.md").write_text("---\nlanguage: en\nlicense: apache-2.0\n---\n# A model\n")
    checkpoint = load_checkpoint(str(folder))
    assert checkpoint.license == "apache-2.0"
    assert checkpoint.name == "my-model_v1.5"
    assert '"padding": null' in checkpoint.tokenizer_json
    assert '"truncation": null' in checkpoint.tokenizer_json


def test_all_missing_and_unexpected_weights_are_listed(tmp_path: Path) -> None:
    save(randomise(BertForSequenceClassification(config())), tmp_path)
    missing = ("classifier.bias", "bert.encoder.layer.1.attention.self.key.weight")
    unexpected = ("bert.encoder.layer.7.strange", "adapter.weight")
    edit_weights(tmp_path, remove=missing, add=unexpected)
    with pytest.raises(WeightsError) as caught:
        load_checkpoint(str(tmp_path))
    lines = str(caught.value).splitlines()[1:]
    assert sorted(lines) == sorted(
        [f"missing: {name}" for name in missing] + [f"unexpected: {name}" for name in unexpected]
    )


def test_weight_of_the_wrong_shape_is_named(tmp_path: Path) -> None:
    save(randomise(BertModel(config())), tmp_path)
    edit_json(tmp_path / "config.json", vocab_size=99)
    with pytest.raises(WeightsError, match=r"wrong shape: embedding.tokens.weight"):
        load_checkpoint(str(tmp_path))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key'"),
        ({"is_decoder": True}, "is_decoder True"),
        (
            {"hidden_act": "selu"},
            "hidden_act 'selu' is not supported; supported: relu, relu2, gelu",
        ),
        (
            {"architectures": ["BertForMultipleChoice"]},
            "'BertForMultipleChoice' is not supported; supported: BertModel, BertForSequenceClass",
        ),
        ({"model_type": "mamba"}, "model_type 'mamba' is not supported; supported: "),
        (
            {"problem_type": "ranking"},
            "problem_type 'ranking' is not supported; supported: sin",
        ),
    ],
)
def test_unsupported_configuration_is_rejected(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    save(randomise(BertForSequenceClassification(config())), tmp_path)
    edit_json(tmp_path / "config.json", **changes)
    with pytest.raises(UnsupportedError) as caught:
        load_checkpoint(str(tmp_path))
    assert message in str(caught.value)
