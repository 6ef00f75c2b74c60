"""gpt-oss against transformers, also with experts in MXFP4."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GptOssConfig, GptOssForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from export.errors import WeightsError
from export.sources import load_checkpoint
from tests.export.importers.support import edit_json, edit_weights, randomise, save
from tests.families.gated import AXES, SMALL, WINDOWS, layer_types
from tests.families.harness import check_eager, check_graphs, imported

YARN = {
    "rope_type": "yarn",
    "rope_theta": 150_000.0,
    "factor": 4.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 24,
}
SIZES: dict[str, Any] = {
    **SMALL,
    "head_dim": 32,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "rope_parameters": YARN,
    "swiglu_limit": 0.2,  # random activations reach it
}
PREFIX = "model.layers.{}.mlp.experts.{}"


@settings(max_examples=12)
@given(
    st.fixed_dictionaries(
        AXES
        | {
            "attention_bias": st.booleans(),
            "head_dim": st.sampled_from((16, 24, 32)),
            "layer_types": st.none() | layer_types(),
            "num_experts_per_tok": st.integers(1, 3),
            "rope_parameters": st.sampled_from((None, YARN, {**YARN, "truncate": True})),
            "sliding_window": WINDOWS,
            "swiglu_alpha": st.sampled_from((1.0, 1.702)),
            "swiglu_limit": st.sampled_from((0.2, 7.0)),
        }
    )
)
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(GptOssForCausalLM(GptOssConfig(**SIZES | changes)))


def test_graphs_match_transformers() -> None:
    check_graphs("gpt-oss", GptOssForCausalLM(GptOssConfig(**SIZES, sliding_window=6)))


def _packed(seed: int = 0) -> dict[str, torch.Tensor]:
    """Random experts in MXFP4, by the names of the published checkpoints."""
    generator = torch.Generator().manual_seed(seed)
    packed = {}
    for layer in range(SIZES["num_hidden_layers"]):
        for name, rows, groups in (("gate_up_proj", 192, 2), ("down_proj", 64, 3)):
            start = PREFIX.format(layer, name)
            shape = (SIZES["num_local_experts"], rows, groups)
            packed[f"{start}_blocks"] = torch.randint(
                0, 256, (*shape, 16), generator=generator, dtype=torch.uint8
            )
            # Powers of two from 2 ** -7 to 2 ** -3.
            packed[f"{start}_scales"] = torch.randint(
                120, 125, shape, generator=generator, dtype=torch.uint8
            )
    return packed


def _quantized(folder: Path, **values: torch.Tensor) -> Path:
    """A folder with experts in MXFP4; ``values`` replaces weights."""
    save(randomise(GptOssForCausalLM(GptOssConfig(**SIZES))), folder)
    packed = {**_packed(), **values}
    names = {name.rpartition("_")[0] for name in packed}
    edit_weights(folder, remove=tuple(names), values=packed)
    edit_json(folder / "config.json", quantization_config={"quant_method": "mxfp4"})
    return folder


def test_mxfp4_is_read_as_transformers_reads_it(tmp_path: Path) -> None:
    checkpoint = load_checkpoint(str(_quantized(tmp_path)))
    for name, blocks in (item for item in _packed().items() if item[0].endswith("_blocks")):
        scales = _packed()[name.removesuffix("_blocks") + "_scales"]
        expected = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
        layer, part = name.split(".")[2], "input" if "gate_up" in name else "output"
        actual = checkpoint.weights[f"decoder.layers.{layer}.feed_forward.{part}.weight"]
        assert torch.equal(actual.transpose(1, 2), expected)


@pytest.mark.parametrize(
    "scales",
    [
        torch.zeros(4, 192, 3, dtype=torch.uint8),
        torch.zeros(4, 192, 2),
        torch.full((4, 192, 2), 255, dtype=torch.uint8),  # NaN
    ],
)
def test_damaged_scales_are_refused(scales: torch.Tensor, tmp_path: Path) -> None:
    name = PREFIX.format(0, "gate_up_proj")
    with pytest.raises(WeightsError, match=name):
        load_checkpoint(str(_quantized(tmp_path, **{f"{name}_scales": scales})))


def test_blocks_without_scales_are_refused(tmp_path: Path) -> None:
    folder, name = _quantized(tmp_path), PREFIX.format(0, "down_proj")
    edit_weights(folder, remove=(f"{name}_scales",))
    with pytest.raises(WeightsError, match=f"missing: {name}\nunexpected: {name}_blocks"):
        load_checkpoint(str(folder))


def test_the_defaults_are_those_of_transformers() -> None:
    """The positions, window and experts of a configuration that names none."""
    config = GptOssConfig(**SMALL)
    omitted = dict.fromkeys(("rope_parameters", "sliding_window", "layer_types"))
    omitted |= {"swiglu_alpha": None, "swiglu_limit": None, "attention_bias": None}

    def prepare(folder: Path) -> None:
        edit_json(folder / "config.json", **omitted)

    with (
        imported(GptOssForCausalLM(config)) as written,
        imported(GptOssForCausalLM(config), prepare=prepare) as read,
    ):
        assert read.config == written.config
