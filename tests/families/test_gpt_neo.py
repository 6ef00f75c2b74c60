"""GPT-Neo against transformers."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GPTNeoConfig, GPTNeoForCausalLM

from export.errors import SourceError
from export.sources import load_checkpoint
from tests.export.importers.support import edit_json, save
from tests.families.harness import VOCABULARY_SIZE, check_eager, check_graphs

SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY_SIZE,
    "hidden_size": 64,
    "num_layers": 2,
    "num_heads": 4,
    "attention_types": [[["global", "local"], 1]],
    "window_size": 5,
    "max_position_embeddings": 96,
    "bos_token_id": 1,
    "eos_token_id": 1,
}


@settings(max_examples=10)
@given(
    st.fixed_dictionaries(
        {
            "intermediate_size": st.sampled_from((None, 96)),
            "attention_types": st.sampled_from(
                ([[["local"], 2]], [[["global"], 2]], [[["local"], 1], [["global"], 1]])
            ),
            "window_size": st.sampled_from((2, 8)),
            "tie_word_embeddings": st.booleans(),
            "layer_norm_epsilon": st.sampled_from((1e-5, 1e-2)),
            "activation_function": st.sampled_from(("gelu_new", "gelu")),
        }
    )
)
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(GPTNeoForCausalLM(GPTNeoConfig(**SMALL | changes)))


def test_graphs_match_transformers() -> None:
    check_graphs("GPT-Neo", GPTNeoForCausalLM(GPTNeoConfig(**SMALL)))


@pytest.mark.parametrize(
    ("types", "message"),
    [
        ([[["global", "sparse"], 1]], "are not 2 of 'global' and 'local'"),
        ([[["global"], 3]], "are not 2 of 'global' and 'local'"),
        ([[["global"], 10**9]], "attention_types has"),
        (["global"], "attention_types has 'global'"),
    ],
)
def test_other_attention_types_are_refused(tmp_path: Path, types: Any, message: str) -> None:
    save(GPTNeoForCausalLM(GPTNeoConfig(**SMALL)), tmp_path)
    edit_json(tmp_path / "config.json", attention_types=types)
    with pytest.raises(SourceError, match=message):
        load_checkpoint(str(tmp_path))
