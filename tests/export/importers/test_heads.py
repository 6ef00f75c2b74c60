"""Encoder heads: parity with transformers on random weights, and metadata."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import (
    BertForMaskedLM,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertTokenizer,
)

from export.bundle_writer import write_bundle
from export.checkpoint import Checkpoint
from export.errors import SourceError, UnsupportedError
from export.sources import load_checkpoint
from model.bundle import ScoreFunction, Task
from model.bundle_files import read_manifest, read_parity
from tests.export.importers.support import (
    WORDS,
    eager,
    edit_json,
    pooled,
    random_ids,
    randomise,
    save,
)
from tests.export.importers.test_bert import LENGTHS, config, mask


def load(model: Any, folder: Path, **settings: object) -> Checkpoint:
    save(randomise(model), folder)
    edit_json(folder / "tokenizer_config.json", mask_token="w7")
    edit_json(folder / "config.json", **settings)
    return load_checkpoint(str(folder))


@torch.no_grad()
def theirs(model: Any, ids: torch.Tensor, name: str = "logits") -> torch.Tensor:
    output: torch.Tensor = model(ids, attention_mask=mask())[name]
    return output


def assert_valid_equal(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Compares token outputs ``[batch, length, ...]``, ignoring padding."""
    valid = mask().bool()
    torch.testing.assert_close(actual[valid], expected[valid], rtol=0, atol=1e-4)


def test_token_classifier_matches_transformers(tmp_path: Path) -> None:
    model = BertForTokenClassification(config(num_labels=5))
    checkpoint = load(model, tmp_path)
    ids = random_ids(3, 7)
    assert_valid_equal(pooled(checkpoint, ids, LENGTHS), theirs(model, ids))
    assert checkpoint.tasks == (Task.TAG,)
    names = tuple(f"LABEL_{index}" for index in range(5))
    assert checkpoint.labels == names
    edit_json(tmp_path / "config.json", id2label=None, label2id=None, num_labels=5)
    assert load_checkpoint(str(tmp_path)).labels == names


def test_labels_are_as_many_as_num_labels_says(tmp_path: Path) -> None:
    """Old versions of transformers saved the default names of two labels beside num_labels."""
    folder = save(randomise(BertForSequenceClassification(config(num_labels=5))), tmp_path)
    names = {"0": "LABEL_0", "1": "LABEL_1"}
    edit_json(folder / "config.json", id2label=names, label2id=None, num_labels=5)
    checkpoint = load_checkpoint(str(folder))
    model = BertForSequenceClassification.from_pretrained(folder)
    labels = model.config.id2label
    assert labels is not None
    assert checkpoint.labels == tuple(labels.values())
    ids = random_ids(3, 7)
    torch.testing.assert_close(
        pooled(checkpoint, ids, LENGTHS), theirs(model, ids), rtol=0, atol=1e-4
    )


def test_question_answering_matches_transformers(tmp_path: Path) -> None:
    model = BertForQuestionAnswering(config())
    checkpoint = load(model, tmp_path)
    ids = random_ids(3, 7)
    ours = pooled(checkpoint, ids, LENGTHS)
    assert_valid_equal(ours[..., 0], theirs(model, ids, "start_logits"))
    assert_valid_equal(ours[..., 1], theirs(model, ids, "end_logits"))
    assert (checkpoint.tasks, checkpoint.labels) == ((Task.ANSWER,), ("start", "end"))


@pytest.mark.parametrize(
    ("kind", "changes", "name"),
    [
        (BertForMaskedLM, {}, "logits"),
        (BertForMaskedLM, {"tie_word_embeddings": False}, "logits"),
        (BertForMaskedLM, {"hidden_act": "relu"}, "logits"),
        (BertForPreTraining, {}, "prediction_logits"),
    ],
)
def test_masked_language_model_matches_transformers(
    tmp_path: Path, kind: Any, changes: Any, name: str
) -> None:
    model = kind(config(**changes))
    checkpoint = load(model, tmp_path)
    ids = random_ids(3, 7)
    transformer = eager(checkpoint)
    with torch.no_grad():
        ours = transformer.logits(transformer.encode(ids, LENGTHS, torch.zeros_like(ids)))
    assert_valid_equal(ours, theirs(model, ids, name))
    assert checkpoint.tasks == (Task.FILL_MASK,)
    assert checkpoint.special_tokens.mask == WORDS.index("w7")


@pytest.mark.parametrize(
    ("num_labels", "settings", "expected"),
    [
        (3, {}, ScoreFunction.SOFTMAX),
        (3, {"problem_type": "single_label_classification"}, ScoreFunction.SOFTMAX),
        (3, {"problem_type": "multi_label_classification"}, ScoreFunction.SIGMOID),
        (3, {"problem_type": "regression"}, ScoreFunction.IDENTITY),
        (1, {}, ScoreFunction.SIGMOID),
        (
            1,
            {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}},
            ScoreFunction.IDENTITY,
        ),
        (
            1,
            {"sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid"},
            ScoreFunction.SIGMOID,
        ),
    ],
)
def test_score_function_follows_the_problem_type(
    tmp_path: Path, num_labels: int, settings: dict[str, object], expected: ScoreFunction
) -> None:
    model = BertForSequenceClassification(config(num_labels=num_labels))
    checkpoint = load(model, tmp_path, **settings)
    assert checkpoint.score_function == expected
    ids = random_ids(3, 7)
    torch.testing.assert_close(
        pooled(checkpoint, ids, LENGTHS), theirs(model, ids), rtol=0, atol=1e-4
    )
    assert (Task.RERANK in checkpoint.tasks) == (num_labels == 1)


def test_missing_labels_and_mask_token_are_named(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="3 labels; question answering has two"):
        load(BertForQuestionAnswering(config(num_labels=3)), tmp_path / "a")
    folder = save(randomise(BertForMaskedLM(config())), tmp_path / "b")
    with pytest.raises(SourceError, match="has a mask_token"):
        load_checkpoint(str(folder))
    edit_json(folder / "tokenizer_config.json", mask_token={"content": "nowhere"})
    with pytest.raises(SourceError, match="the tokenizer has no mask_token 'nowhere'"):
        load_checkpoint(str(folder))


def test_mask_token_is_that_of_the_class_if_no_file_names_it(tmp_path: Path) -> None:
    """As in Google's first folders of BERT, which have vocab.txt and no names of tokens."""
    folder = save(randomise(BertForMaskedLM(config())), tmp_path)
    (folder / "tokenizer.json").unlink()
    (folder / "special_tokens_map.json").unlink(missing_ok=True)
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat"]
    (folder / "vocab.txt").write_text("\n".join(tokens))
    checkpoint = load_checkpoint(str(folder))
    theirs = BertTokenizer.from_pretrained(folder)
    assert checkpoint.special_tokens.mask == theirs.mask_token_id
    ours = Tokenizer.from_str(checkpoint.tokenizer_json)
    assert ours.encode("the [MASK] cat").ids == theirs.encode("the [MASK] cat") == [2, 5, 4, 6, 3]


@pytest.mark.parametrize(
    ("model", "outputs"),
    [
        (BertForMaskedLM(config(num_attention_heads=6)), {"logits": ("chosen", len(WORDS))}),
        (
            BertForTokenClassification(config(num_labels=5, num_attention_heads=6)),
            {"logits": ("batch", "length", 5)},
        ),
    ],
)
def test_bundle_has_an_output_for_each_token(
    tmp_path: Path, model: Any, outputs: dict[str, object]
) -> None:
    """The export itself compares the graph with the eager module."""
    path = write_bundle(load(model, tmp_path / "source"), tmp_path)
    manifest = read_manifest(path)
    assert {spec.name: spec.shape for spec in manifest.graphs["encode"].outputs} == outputs
    assert read_parity(path).max_absolute_error < 1e-4
