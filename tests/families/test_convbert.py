"""ConvBERT against transformers."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import ConvBertConfig, ConvBertModel

from export.errors import SourceError, UnsupportedError
from export.sources import load_checkpoint
from tests.export.importers.support import edit_json, save
from tests.families.encoders import FACTORISED, SMALL
from tests.families.harness import check_eager, check_graphs


@settings(max_examples=10)
@given(
    st.fixed_dictionaries(
        FACTORISED
        | {
            "conv_kernel_size": st.sampled_from((1, 3, 9)),  # longer than some texts
            "head_ratio": st.sampled_from((1, 2, 16)),
            "num_attention_heads": st.sampled_from((1, 2, 4)),
            "num_groups": st.sampled_from((1, 2, 4)),
        }
    )
)
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(ConvBertModel(ConvBertConfig(**SMALL | changes)))


def test_graphs_match_transformers() -> None:
    changes = {"embedding_size": 24, "num_groups": 2, "conv_kernel_size": 5}
    check_graphs("ConvBERT", ConvBertModel(ConvBertConfig(**SMALL | changes)))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"conv_kernel_size": 4}, SourceError, "conv_kernel_size is 4, which is even"),
        ({"head_ratio": 1, "num_attention_heads": 8}, UnsupportedError, "heads of 4 dimensions"),
        ({"num_attention_heads": 6}, SourceError, "6 heads do not divide the size 64"),
    ],
)
def test_refuses_other_sizes(
    changes: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    save(ConvBertModel(ConvBertConfig(**SMALL)), tmp_path)
    edit_json(tmp_path / "config.json", **changes)
    with pytest.raises(error, match=message):
        load_checkpoint(str(tmp_path))
