"""OpenAI's privacy filter against transformers."""

from pathlib import Path
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    OpenAIPrivacyFilterConfig,
    OpenAIPrivacyFilterForTokenClassification,
    OpenAIPrivacyFilterModel,
)

from export.sources import load_checkpoint
from model.bundle import Task
from tests.export.importers.support import pooled, random_ids, randomise, save
from tests.families.harness import check_eager, check_graphs
from tests.families.test_gpt_oss import SIZES, YARN

LENGTHS = (9, 4)


@settings(max_examples=10)
@given(
    st.fixed_dictionaries(
        {
            "attention_bias": st.booleans(),
            "head_dim": st.sampled_from((16, 24, 32)),
            "num_experts_per_tok": st.integers(1, 3),
            "num_key_value_heads": st.sampled_from((1, 2, 4)),
            "rope_parameters": st.sampled_from((None, YARN)),
            "sliding_window": st.sampled_from((1, 3, 20)),
            "swiglu_limit": st.sampled_from((0.2, 7.0)),
        }
    )
)
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(OpenAIPrivacyFilterModel(OpenAIPrivacyFilterConfig(**SIZES | changes)))


def test_graphs_match_transformers() -> None:
    config = OpenAIPrivacyFilterConfig(**SIZES, sliding_window=4)
    check_graphs("OpenAI privacy filter", OpenAIPrivacyFilterModel(config))


def test_tags_match_transformers(tmp_path: Path) -> None:
    labels = {"id2label": {index: f"L{index}" for index in range(5)}}
    config = OpenAIPrivacyFilterConfig(**SIZES | labels, sliding_window=3)
    model = OpenAIPrivacyFilterForTokenClassification(config)
    model.set_attn_implementation("eager")
    checkpoint = load_checkpoint(str(save(randomise(model), tmp_path)))
    assert checkpoint.tasks == (Task.TAG,)
    ids = random_ids(2, 9)
    batched = pooled(checkpoint, ids, torch.tensor(LENGTHS, dtype=torch.int32))
    for row, length, actual in zip(ids, LENGTHS, batched, strict=True):
        with torch.no_grad():
            expected = model(row[None, :length]).logits[0]
        torch.testing.assert_close(actual[:length], expected, rtol=0, atol=1e-4)
