"""GPT-J and CodeGen against transformers."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import CodeGenConfig, CodeGenForCausalLM, GPTJConfig, GPTJForCausalLM

from export.errors import SourceError
from export.sources import load_checkpoint
from tests.export.importers.support import edit_json, save
from tests.families.harness import check_eager, check_graphs
from tests.families.plain import AXES, SMALL

ROTATED = AXES | {"rotary_dim": st.sampled_from((4, 8, 16))}  # of heads of 16


@settings(max_examples=10)
@given(st.fixed_dictionaries(ROTATED))
def test_gptj_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(GPTJForCausalLM(GPTJConfig(**SMALL | changes)))


def test_gptj_graphs_match_transformers() -> None:
    check_graphs("GPT-J", GPTJForCausalLM(GPTJConfig(**SMALL, rotary_dim=8)))


@settings(max_examples=10)
@given(st.fixed_dictionaries(ROTATED | {"n_head": st.sampled_from((4, 8))}))
def test_codegen_eager_matches_transformers(changes: dict[str, Any]) -> None:
    changes["rotary_dim"] = min(changes["rotary_dim"], SMALL["n_embd"] // changes["n_head"])
    check_eager(CodeGenForCausalLM(CodeGenConfig(**SMALL | changes)))


def test_codegen_graphs_match_transformers() -> None:
    check_graphs("CodeGen", CodeGenForCausalLM(CodeGenConfig(**SMALL, rotary_dim=8)))


@pytest.mark.parametrize("size", [7, 18])
def test_rotary_dimensions_that_do_not_fit_are_refused(tmp_path: Path, size: int) -> None:
    save(GPTJForCausalLM(GPTJConfig(**SMALL, rotary_dim=8)), tmp_path)
    edit_json(tmp_path / "config.json", rotary_dim=size)
    with pytest.raises(SourceError, match=f"rotary_dim {size} does not fit 16"):
        load_checkpoint(str(tmp_path))
