"""Switch Transformers against transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import SwitchTransformersConfig, SwitchTransformersForConditionalGeneration
from transformers.models.switch_transformers.modeling_switch_transformers import (
    SwitchTransformersTop1Router,
)

from export.errors import UnsupportedError
from export.sources import load_checkpoint
from model.kernels import Step
from tests.export.importers.support import eager, edit_json, random_ids, randomise, save
from tests.families.harness import check_eager, check_graphs
from tests.families.test_t5 import SMALL

SPARSE: dict[str, Any] = {
    **SMALL,
    "num_decoder_layers": 2,
    "num_sparse_encoder_layers": 1,
    "num_sparse_decoder_layers": 1,
    "num_experts": 4,
    "expert_capacity": 2,
}


def model_of(**changes: Any) -> Any:
    """A model whose decoder's experts take all tokens, as in generation with a cache.

    The reference has none, and would count the tokens before the last.
    """
    config = SwitchTransformersConfig(**SPARSE | changes)
    model = SwitchTransformersForConditionalGeneration(config)
    for module in model.decoder.modules():
        if isinstance(module, SwitchTransformersTop1Router):
            module.expert_capacity = 1 << 20
    if not config.tie_word_embeddings:  # then nothing is tied; importers read one token table
        model.encoder.embed_tokens.weight = model.shared.weight
        model.decoder.embed_tokens.weight = model.shared.weight
    return model


@settings(max_examples=12)
@given(
    st.fixed_dictionaries(
        {
            "num_layers": st.integers(1, 4),
            "num_decoder_layers": st.integers(1, 4),
            "num_sparse_encoder_layers": st.integers(0, 4),
            "num_sparse_decoder_layers": st.integers(0, 4),
            "num_experts": st.integers(1, 5),
            "expert_capacity": st.sampled_from((1, 3, 64)),
            "router_bias": st.booleans(),
            "dense_act_fn": st.sampled_from(("relu", "gelu_new", "silu")),
            "tie_word_embeddings": st.booleans(),
        }
    )
)
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(model_of(**changes))


def test_graphs_match_transformers() -> None:
    check_graphs("Switch Transformers", model_of(router_bias=True))


def test_greedy_tokens_are_those_of_generate(tmp_path: Path) -> None:
    config = SwitchTransformersConfig(**SPARSE | {"expert_capacity": 1})
    model = randomise(SwitchTransformersForConditionalGeneration(config)).eval()
    module = eager(load_checkpoint(str(save(model, tmp_path))))
    ids, lengths = random_ids(1, 6), torch.tensor([6])
    options: Any = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None}
    tokens = torch.zeros(1, 1, dtype=torch.int64)
    with torch.no_grad():
        expected = model.generate(ids, **options)
        assert not torch.equal(model.generate(ids, use_cache=False, **options), expected)
        states = module.encode_source(ids, lengths)
        for length in range(1, 13):
            step = Step.whole(torch.tensor([length]), lengths)
            logits = module.logits(module.decode(tokens, step, states).hidden)
            tokens = torch.cat([tokens, logits[:, -1:].argmax(-1)], 1)
    assert torch.equal(tokens, expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"router_dtype": "bfloat16"}, "router_dtype 'bfloat16'"),
        ({"is_gated_act": True}, "is_gated_act True"),
        ({"dense_act_fn": "gelu"}, "dense_act_fn 'gelu'"),
        ({"architectures": ["SwitchTransformersEncoderModel"]}, "SwitchTransformersEncoderModel"),
    ],
)
def test_unsupported_configuration_is_rejected(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    save(model_of(), tmp_path)
    edit_json(tmp_path / "config.json", **changes)
    with pytest.raises(UnsupportedError, match=message):
        load_checkpoint(str(tmp_path))
