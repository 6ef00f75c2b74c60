"""Mistral and Ministral 3 against transformers."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    Ministral3Config,
    Ministral3ForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

from export.errors import SourceError
from export.sources import load_checkpoint
from tests.export.importers.support import edit_json, save
from tests.families.gated import AXES, SMALL, WINDOWS
from tests.families.harness import check_eager, check_graphs

# At least the 77 positions that the tests read; beyond them, queries are scaled.
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 80,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
MINISTRAL3: dict[str, Any] = {**SMALL, "head_dim": 16, "max_position_embeddings": 320}


@settings(max_examples=10)
@given(
    st.fixed_dictionaries(
        AXES | {"sliding_window": st.none() | WINDOWS, "head_dim": st.sampled_from((None, 16, 32))}
    )
)
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(MistralForCausalLM(MistralConfig(**SMALL | changes)))


def test_graphs_match_transformers() -> None:
    check_graphs("Mistral", MistralForCausalLM(MistralConfig(**SMALL, sliding_window=5)))


@settings(max_examples=12)
@given(
    st.fixed_dictionaries(
        AXES
        | {
            "head_dim": st.sampled_from((16, 24)),
            "rope_parameters": st.sampled_from(
                (None, YARN, {**YARN, "mscale_all_dim": 0.0}, {**YARN, "llama_4_scaling_beta": 0})
            ),
            "sliding_window": st.none() | WINDOWS,
        }
    )
)
def test_ministral3_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(Ministral3ForCausalLM(Ministral3Config(**MINISTRAL3 | changes)))


def test_ministral3_graphs_match_transformers() -> None:
    model = Ministral3ForCausalLM(Ministral3Config(**MINISTRAL3, rope_parameters=YARN))
    check_graphs("Ministral 3", model)


@pytest.mark.parametrize(("beta", "limit"), [(0.1, 80), (0.0, 320)])
def test_queries_are_not_scaled_up_to_the_limit(tmp_path: Path, beta: float, limit: int) -> None:
    parameters = {**YARN, "llama_4_scaling_beta": beta}
    model = Ministral3ForCausalLM(Ministral3Config(**MINISTRAL3, rope_parameters=parameters))
    save(model, tmp_path)
    assert load_checkpoint(str(tmp_path)).config.position.max_positions == limit


def test_a_missing_scale_of_queries_is_an_error(tmp_path: Path) -> None:
    """It cannot run in transformers."""
    save(Ministral3ForCausalLM(Ministral3Config(**MINISTRAL3, rope_parameters=YARN)), tmp_path)
    edit_json(tmp_path / "config.json", rope_parameters={"rope_type": "default"})
    with pytest.raises(SourceError, match="llama_4_scaling_beta"):
        load_checkpoint(str(tmp_path))
