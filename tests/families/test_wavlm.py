"""WavLM against transformers: CTC and labels of recordings, with gated position biases."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import WavLMConfig, WavLMForCTC, WavLMForSequenceClassification

from export.errors import UnsupportedError
from export.sources import load_checkpoint
from tests.audio_models import CLASSES
from tests.ctc_models import BASE, LARGE, SMALL, save_processor
from tests.export.importers.support import edit_json
from tests.families import test_audio_classifiers
from tests.families.test_audio_classifiers import SUM
from tests.families.test_wav2vec2 import check_eager, check_graphs

# Distances beyond the exact ones, and beyond the last bucket.
BUCKETS: dict[str, Any] = {"num_buckets": 16, "max_bucket_distance": 40}


def randomized(model: Any) -> Any:
    """``model`` with biases and gates that count: at first they are near 0 and the same."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "rel_attn_embed" in name or "gru_rel_pos" in name:
                parameter.normal_()
    return model.eval()


def network(**changes: Any) -> Any:
    return randomized(WavLMForCTC(WavLMConfig(**SMALL | changes)))


AXES: dict[str, st.SearchStrategy[Any]] = {
    "num_hidden_layers": st.integers(1, 3),
    "num_attention_heads": st.sampled_from((1, 4)),
    "feat_extract_norm": st.sampled_from(("group", "layer")),
    "do_stable_layer_norm": st.booleans(),
    "num_buckets": st.sampled_from((16, 32)),
    "max_bucket_distance": st.sampled_from((30, 50)),
}


@settings(max_examples=6, deadline=None)
@given(st.fixed_dictionaries(AXES))
def test_eager_wavlm_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(network(**changes))


@pytest.mark.parametrize("changes", [BASE | BUCKETS, LARGE | BUCKETS, BASE])
def test_graphs_match_transformers(changes: dict[str, Any]) -> None:
    check_graphs("WavLM", network(**changes))


@pytest.mark.parametrize("changes", [BASE, LARGE | SUM])
def test_classifiers_match_transformers(changes: dict[str, Any]) -> None:
    config = WavLMConfig(**SMALL | CLASSES | BUCKETS | changes)
    test_audio_classifiers.check_eager(randomized(WavLMForSequenceClassification(config)))


@pytest.mark.parametrize(
    "change", [{"add_adapter": True}, {"num_buckets": 15}, {"max_bucket_distance": 80}]
)
def test_what_changes_outputs_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    network().save_pretrained(tmp_path)
    save_processor(tmp_path)
    assert load_checkpoint(str(tmp_path)).config.encoder is not None
    edit_json(tmp_path / "config.json", **change)
    with pytest.raises(UnsupportedError, match=next(iter(change))):
        load_checkpoint(str(tmp_path))
