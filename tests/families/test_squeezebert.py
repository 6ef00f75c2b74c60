"""SqueezeBERT against transformers."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import SqueezeBertConfig, SqueezeBertModel

from export.errors import UnsupportedError, WeightsError
from export.sources import load_checkpoint
from tests.export.importers.support import edit_json, edit_weights, random_ids, save
from tests.families.encoders import SEGMENTED
from tests.families.encoders import SMALL as BERT
from tests.families.harness import check_eager, check_graphs

SMALL: dict[str, Any] = {**BERT, "embedding_size": 64}
MAPS = ("q", "k", "v", "post_attention", "intermediate", "output")
GROUPS = {f"{name}_groups": st.sampled_from((1, 2, 4)) for name in MAPS}


@settings(max_examples=12)
@given(st.fixed_dictionaries({**SEGMENTED, **GROUPS}))
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(SqueezeBertModel(SqueezeBertConfig(**SMALL | changes)))


def test_graphs_match_transformers() -> None:
    check_graphs("SqueezeBERT", SqueezeBertModel(SqueezeBertConfig(**SMALL)))


def test_embeddings_of_another_size_are_refused(tmp_path: Path) -> None:
    save(SqueezeBertModel(SqueezeBertConfig(**SMALL)), tmp_path)
    edit_json(tmp_path / "config.json", embedding_size=32)
    with pytest.raises(UnsupportedError, match="embedding_size 32 is not supported"):
        load_checkpoint(str(tmp_path))


def test_groups_that_do_not_divide_the_size_are_refused(tmp_path: Path) -> None:
    save(SqueezeBertModel(SqueezeBertConfig(**SMALL)), tmp_path)
    weight = random_ids(64, 24, 1).float()
    edit_weights(tmp_path, values={"encoder.layers.0.attention.query.weight": weight})
    with pytest.raises(WeightsError, match="wrong shapes"):
        load_checkpoint(str(tmp_path))
