"""Token types against transformers; other tests use type 0 only."""

from typing import Any

import pytest
import torch
import transformers

from model.transformer import from_weights
from tests.families.encoders import SMALL, with_fixed_sinusoids
from tests.families.harness import imported
from tests.families.test_deberta import V1, V3

CHANGES: dict[str, dict[str, Any]] = {
    "Albert": {"embedding_size": 24},
    "Bert": {},
    "BigBird": {"attention_type": "original_full"},
    "Deberta": V1,
    "DebertaV2": V3,
    "Electra": {},
    "Ernie": {"use_task_id": True},
    "Gte": {},
    "MegatronBert": {},
    "NomicBert": {},
    "RemBert": {"input_embedding_size": 24},
    "Roberta": {},
    "RoFormer": {},
}


@pytest.mark.parametrize("family", CHANGES)
def test_token_types_match_transformers(family: str) -> None:
    shape = {**SMALL, **CHANGES[family], "type_vocab_size": 3}
    model = getattr(transformers, f"{family}Model")(
        getattr(transformers, f"{family}Config")(**shape)
    )
    if family == "RoFormer":
        with_fixed_sinusoids(model)
    with imported(model) as checkpoint:
        ids, types = torch.randint(4, 61, (1, 9)), torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2, 0]])
        expected = model(ids, token_type_ids=types).last_hidden_state
        ours = from_weights(checkpoint.config, checkpoint.weights)
        hidden = ours.encode(ids, torch.tensor([9], dtype=torch.int32), types)
        torch.testing.assert_close(hidden, expected, rtol=0, atol=1e-4)
