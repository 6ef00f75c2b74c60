"""Apertus against transformers."""

from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import ApertusConfig, ApertusForCausalLM

from tests.export.importers.support import edit_json
from tests.families.gated import AXES, SMALL
from tests.families.harness import check_eager, check_graphs, imported

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 12_000_000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 24,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}


@settings(max_examples=10)
@given(
    st.fixed_dictionaries(
        AXES
        | {
            "attention_bias": st.booleans(),
            "rope_parameters": st.sampled_from((None, LLAMA3)),
        }
    )
)
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(ApertusForCausalLM(ApertusConfig(**SMALL | changes)))


def test_graphs_match_transformers() -> None:
    check_graphs("Apertus", ApertusForCausalLM(ApertusConfig(**SMALL, rope_parameters=LLAMA3)))


def test_the_default_positions_are_those_of_transformers() -> None:
    model = ApertusForCausalLM(ApertusConfig(**SMALL))

    def prepare(folder: Path) -> None:
        edit_json(folder / "config.json", rope_parameters=None)

    with imported(model) as written, imported(model, prepare=prepare) as read:
        assert read.config == written.config
