"""nomic-bert, GTE and Jina v3 against transformers: BERTs with rotary positions."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from export.errors import UnsupportedError
from export.sources import load_checkpoint
from model.transformer import from_weights
from tests.export.importers.support import edit_json, randomise, save
from tests.families.encoders import AXES, SMALL
from tests.families.harness import check_eager, check_graphs

ROWS = {"NomicBert": "nomic-bert", "Gte": "GTE", "JinaEmbeddingsV3": "Jina v3"}
LINEAR = {"rope_type": "linear", "rope_theta": 500.0, "factor": 1.5}
ROTARY_AXES = {
    **AXES,
    "type_vocab_size": st.integers(1, 3),
    "rope_parameters": st.sampled_from((None, LINEAR)),
}


def rotary_bert(family: str, **changes: Any) -> Any:
    config = getattr(transformers, f"{family}Config")(**SMALL | changes)
    return getattr(transformers, f"{family}Model")(config)


@pytest.mark.parametrize("family", ROWS)
@settings(max_examples=5)
@given(st.fixed_dictionaries(ROTARY_AXES))
def test_eager_matches_transformers(family: str, changes: dict[str, Any]) -> None:
    check_eager(rotary_bert(family, **changes))


@pytest.mark.parametrize("family", ROWS)
def test_graphs_match_transformers(family: str) -> None:
    check_graphs(ROWS[family], rotary_bert(family))


@pytest.mark.parametrize("family", ROWS)
def test_names_of_transformers_are_read(family: str) -> None:
    check_eager(rotary_bert(family), save_original_format=False)


def test_gte_may_have_no_token_types() -> None:
    check_eager(rotary_bert("Gte", type_vocab_size=0))


def hidden_of(folder: Path, ids: torch.Tensor) -> torch.Tensor:
    checkpoint = load_checkpoint(str(folder))
    segments = torch.zeros_like(ids) if checkpoint.config.embedding.num_segments else None
    lengths = torch.full((len(ids),), ids.shape[1], dtype=torch.int32)
    return from_weights(checkpoint.config, checkpoint.weights).encode(ids, lengths, segments)


IDS = torch.arange(4, 17)[None]
# The configuration of nomic-embed-text-v1.5, with other sizes.
PUBLISHED_NOMIC: dict[str, Any] = {
    "activation_function": "swiglu",
    "architectures": ["NomicBertModel"],
    "causal": False,
    "layer_norm_epsilon": 1e-12,
    "max_trained_positions": 20,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "model_type": "nomic_bert",
    "n_embd": 64,
    "n_head": 4,
    "n_inner": 80,
    "n_layer": 2,
    "n_positions": 32,
    "parallel_block": False,
    "prenorm": False,
    "qkv_proj_bias": False,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "type_vocab_size": 2,
    "use_rms_norm": False,
    "vocab_size": 61,
}


@torch.no_grad()
@pytest.mark.parametrize(("scaling", "max_positions"), [(None, 32), (2, 20)])
def test_published_nomic_bert(tmp_path: Path, scaling: int | None, max_positions: int) -> None:
    model = randomise(rotary_bert("NomicBert"))
    save(model, tmp_path)
    (tmp_path / "config.json").unlink()
    edit_json(tmp_path / "config.json", **PUBLISHED_NOMIC, rotary_scaling_factor=scaling)
    assert load_checkpoint(str(tmp_path)).config.position.max_positions == max_positions
    expected = model(IDS).last_hidden_state
    torch.testing.assert_close(hidden_of(tmp_path, IDS), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"activation_function": "gelu"}, "activation_function 'gelu'"),
        ({"num_experts": 8, "moe_every_n_layers": 2}, "moe_every_n_layers 2 .*; num_experts 8"),
        ({"prenorm": True}, "prenorm True"),
        ({"qkv_proj_bias": True}, "qkv_proj_bias True"),
        ({"rotary_emb_fraction": 0.0}, "rotary_emb_fraction 0.0"),
    ],
)
def test_other_published_nomic_bert_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    save(rotary_bert("NomicBert"), tmp_path)
    (tmp_path / "config.json").unlink()
    edit_json(tmp_path / "config.json", **PUBLISHED_NOMIC | changes)
    with pytest.raises(UnsupportedError, match=message):
        load_checkpoint(str(tmp_path))


FACTOR, BASE = 8.0, 20_000.0


def publish_gte(model: Any, folder: Path, **changes: Any) -> None:
    """Saves ``model`` as Alibaba published GTE, with the token weights of sparse vectors."""
    save(model, folder)
    config: dict[str, Any] = {
        "architectures": ["NewModel", "NewForTokenClassification"],
        "layer_norm_type": "layer_norm",
        "logn_attention_scale": False,
        "model_type": "new",
        "pack_qkv": True,
        "position_embedding_type": "rope",
        "rope_parameters": None,
        "rope_scaling": {"factor": FACTOR, "type": "ntk"},
        "rope_theta": BASE,
    }
    edit_json(folder / "config.json", **config | changes)
    path = folder / "model.safetensors"
    weights = {f"new.{name}": weight for name, weight in load_file(path).items()}
    heads = {"classifier.weight": torch.zeros(1, 64), "classifier.bias": torch.zeros(1)}
    save_file({**weights, **heads}, path)


@torch.no_grad()
def test_published_gte(tmp_path: Path) -> None:
    model = randomise(rotary_bert("Gte"))
    publish_gte(model, tmp_path)
    pairs = torch.arange(8) / 8  # of a head of 16 dimensions
    frequencies = (FACTOR * BASE) ** -pairs / FACTOR ** (1 / 8)
    model.rotary_emb.inv_freq.copy_(frequencies)
    expected = model(IDS).last_hidden_state
    torch.testing.assert_close(hidden_of(tmp_path, IDS), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"logn_attention_scale": True}, "logn_attention_scale True"),
        ({"layer_norm_type": "rms_norm"}, "layer_norm_type 'rms_norm'"),
        ({"position_embedding_type": "absolute"}, "position_embedding_type 'absolute'"),
        ({"rope_scaling": {"factor": 8.0, "type": "ntk", "mixed_b": 0.6}}, "mixed_b"),
        ({"rope_scaling": {"factor": 8.0, "type": "other"}}, "rope_type 'other'"),
    ],
)
def test_other_published_gte_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    publish_gte(rotary_bert("Gte"), tmp_path, **changes)
    with pytest.raises(UnsupportedError, match=message):
        load_checkpoint(str(tmp_path))


def test_adapters_must_be_merged(tmp_path: Path) -> None:
    save(rotary_bert("JinaEmbeddingsV3"), tmp_path)
    for task in ("text_matching", "separation"):
        (tmp_path / task).mkdir()
        edit_json(tmp_path / task / "adapter_config.json", r=4)
    with pytest.raises(UnsupportedError, match=r"not supported: separation, text_matching"):
        load_checkpoint(str(tmp_path))
