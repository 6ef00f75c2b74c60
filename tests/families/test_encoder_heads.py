"""Every head class of every encoder family against transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from export.checkpoint import Checkpoint
from export.sources import load_checkpoint
from model.bundle import Task
from model.transformer import from_weights
from tests.export.importers.support import edit_json, randomise, save
from tests.families.encoders import SMALL, with_fixed_sinusoids
from tests.families.test_deberta import V1, V3
from tests.families.test_distilbert import SMALL as DISTILBERT
from tests.families.test_eurobert import IDS as EUROBERT
from tests.families.test_modernbert import SPECIAL

TOLERANCE = 1e-4
LENGTHS = (9, 4)
CHANGES: dict[str, dict[str, Any]] = {
    "Albert": {"embedding_size": 24},
    "Bert": {},
    "BigBird": {"attention_type": "original_full", "hidden_act": "relu"},
    "Camembert": {},
    "ConvBert": {"embedding_size": 24, "hidden_act": "relu"},
    "Data2VecText": {},
    "Deberta": {**V1, "pooler_hidden_act": "relu"},
    "DebertaV2": {**V3, "pooler_hidden_act": "relu"},
    "DistilBert": DISTILBERT,
    "Electra": {"embedding_size": 24, "hidden_act": "relu"},
    "Ernie": {"use_task_id": True},
    "EuroBert": EUROBERT,
    "Gte": {},
    "JinaEmbeddingsV3": {},
    "Longformer": {"attention_window": 4},
    "MegatronBert": {},
    "ModernBert": {**SPECIAL, "local_attention": 6},
    "MPNet": {},
    "NomicBert": {"hidden_act": "gelu"},
    "RemBert": {"input_embedding_size": 24, "output_embedding_size": 40},
    "Roberta": {},
    "RobertaPreLayerNorm": {},
    "RoFormer": {"embedding_size": 24, "hidden_act": "relu"},
    "SqueezeBert": {"embedding_size": 64},
    "XLMRoberta": {},
    "XLMRobertaXL": {},
}
CLASSES = {
    "SequenceClassification": Task.CLASSIFY,
    "TokenClassification": Task.TAG,
    "QuestionAnswering": Task.ANSWER,
    "MaskedLM": Task.FILL_MASK,
}
# Longformer's question answering has global tokens of its own, BigBird's masks the question:
# tests/families/test_longformer.py and test_big_bird.py.
CLASS = "QuestionAnswering"
CASES = [
    (family, kind)
    for family in CHANGES
    for kind in CLASSES
    if (family, kind) not in (("BigBird", CLASS), ("Longformer", CLASS))
    and hasattr(transformers, f"{family}For{kind}")
]


def make(family: str, kind: str, **more: Any) -> Any:
    shape = DISTILBERT if family == "DistilBert" else SMALL
    labels = {"num_labels": 2 if kind == "QuestionAnswering" else 3}
    config = getattr(transformers, f"{family}Config")(**shape | CHANGES[family] | labels | more)
    model = getattr(transformers, f"{family}For{kind}")(config)
    if family == "RoFormer":
        with_fixed_sinusoids(model)
    model.set_attn_implementation("eager")
    return randomise(model)


def load(model: Any, folder: Path) -> Checkpoint:
    save(model, folder)
    edit_json(folder / "tokenizer_config.json", mask_token="w7")
    return load_checkpoint(str(folder))


@torch.no_grad()
def theirs(model: Any, ids: Tensor) -> Tensor:
    """Outputs of one row. Passes embeddings, since fairseq's models treat some ids as padding."""
    more = {}
    if model.config.model_type == "longformer":
        more["global_attention_mask"] = (torch.arange(ids.shape[1]) == 0).long()[None]
    output = model(inputs_embeds=model.get_input_embeddings()(ids), **more)
    if "logits" in output:
        logits: Tensor = output.logits
        return logits[0] if logits.ndim == 2 else logits[0, : ids.shape[1]]
    return torch.stack([output.start_logits[0], output.end_logits[0]], -1)


@torch.no_grad()
def ours(checkpoint: Checkpoint, ids: Tensor, lengths: Tensor) -> Tensor:
    model = from_weights(checkpoint.config, checkpoint.weights)
    segments = torch.zeros_like(ids) if checkpoint.config.embedding.num_segments else None
    hidden = model.encode(ids, lengths, segments)
    if checkpoint.tasks == (Task.FILL_MASK,):
        return model.logits(hidden)
    return model.pool(hidden, lengths)


def check(model: Any, folder: Path, task: Task) -> None:
    checkpoint = load(model, folder)
    assert checkpoint.tasks == (task,)
    ids = torch.randint(4, 61, (2, 9), generator=torch.Generator().manual_seed(0))
    batched = ours(checkpoint, ids, torch.tensor(LENGTHS, dtype=torch.int32))
    for row, length, actual in zip(ids, LENGTHS, batched, strict=True):
        expected = theirs(model, row[None, :length])
        valid = actual[:length] if actual.ndim == 2 else actual
        torch.testing.assert_close(valid, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(("family", "kind"), CASES, ids=lambda value: value)
def test_head_matches_transformers(family: str, kind: str, tmp_path: Path) -> None:
    check(make(family, kind), tmp_path, CLASSES[kind])


@pytest.mark.parametrize(
    ("family", "kind", "changes"),
    [
        ("Bert", "MaskedLM", {"tie_word_embeddings": False}),
        ("Roberta", "MaskedLM", {"tie_word_embeddings": False}),
        ("Deberta", "MaskedLM", {"legacy": False}),
        ("DebertaV2", "MaskedLM", {"legacy": False}),
        ("EuroBert", "MaskedLM", {"mlp_bias": True}),
        ("EuroBert", "MaskedLM", {"tie_word_embeddings": True}),
        ("EuroBert", "SequenceClassification", {"classifier_pooling": "bos"}),
        ("EuroBert", "SequenceClassification", {"classifier_pooling": "mean"}),
        ("ModernBert", "MaskedLM", {"decoder_bias": False, "norm_bias": True}),
        ("ModernBert", "SequenceClassification", {"classifier_pooling": "mean"}),
        ("ModernBert", "SequenceClassification", {"classifier_bias": True, "norm_bias": True}),
    ],
)
def test_head_variant_matches_transformers(
    family: str, kind: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    check(make(family, kind, **changes), tmp_path, CLASSES[kind])
