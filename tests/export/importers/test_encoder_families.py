"""Unsupported configurations of BERT-like encoders."""

from pathlib import Path
from typing import Any

import pytest
from transformers import (
    AlbertConfig,
    AlbertModel,
    DebertaV2Config,
    DebertaV2Model,
    LongformerConfig,
    LongformerModel,
    ModernBertConfig,
    ModernBertModel,
    MPNetConfig,
    MPNetModel,
    RobertaConfig,
    RobertaModel,
    RoFormerConfig,
    RoFormerModel,
)

from export.errors import ExportError, SourceError, UnsupportedError, WeightsError
from export.sources import load_checkpoint
from tests.export.importers.support import edit_json, edit_weights, save
from tests.families.encoders import SMALL

TOKENS: dict[str, Any] = {f"{name}_token_id": 1 for name in ("pad", "bos", "eos", "cls", "sep")}
DEBERTA: dict[str, Any] = {
    "relative_attention": True,
    "pos_att_type": ["c2p"],
    "position_buckets": 8,
}


@pytest.mark.parametrize(
    ("model", "changes", "error", "message"),
    [
        (AlbertModel(AlbertConfig(**SMALL)), {"num_hidden_groups": 3}, SourceError, "over 2"),
        (
            AlbertModel(AlbertConfig(**SMALL)),
            {"inner_group_num": 2000},
            SourceError,
            "2000 distinct layers, at most 1024",
        ),
        (
            DebertaV2Model(DebertaV2Config(**SMALL, **DEBERTA)),
            {"conv_kernel_size": 3},
            UnsupportedError,
            "conv_kernel_size 3",
        ),
        (
            DebertaV2Model(DebertaV2Config(**SMALL, **DEBERTA)),
            {"pos_att_type": "c2p|p2p"},
            UnsupportedError,
            "pos_att_type 'p2p'",
        ),
        (
            DebertaV2Model(DebertaV2Config(**SMALL, **DEBERTA)),
            {"position_buckets": 64},
            UnsupportedError,
            "position_buckets 64 for distances up to 32",
        ),
        (
            DebertaV2Model(DebertaV2Config(**SMALL, **DEBERTA)),
            {"position_buckets": 12},
            SourceError,
            "16 rows, not 24",
        ),
        (
            LongformerModel(LongformerConfig(**SMALL, attention_window=4)),
            {"attention_window": [4, 4, 4]},
            SourceError,
            "3 attention_window for 2 layers",
        ),
        (
            LongformerModel(LongformerConfig(**SMALL, attention_window=4)),
            {"attention_window": 5},
            UnsupportedError,
            "not even",
        ),
        (
            ModernBertModel(ModernBertConfig(**SMALL | TOKENS)),
            {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}},
            UnsupportedError,
            "rope_type 'yarn'",
        ),
        (
            ModernBertModel(ModernBertConfig(**SMALL | TOKENS)),
            {"layer_types": ["full_attention"]},
            SourceError,
            "1 layer_types for 2 layers",
        ),
        (
            ModernBertModel(ModernBertConfig(**SMALL | TOKENS)),
            {"layer_types": ["full_attention", "strided"]},
            UnsupportedError,
            "layer_types 'strided'",
        ),
        (
            MPNetModel(MPNetConfig(**SMALL)),
            {"relative_attention_num_buckets": 16},
            UnsupportedError,
            "relative_attention_num_buckets 16",
        ),
        (
            RobertaModel(RobertaConfig(**SMALL)),
            {"max_position_embeddings": 2},
            SourceError,
            "max_position_embeddings is 2",
        ),
        (
            RoFormerModel(RoFormerConfig(**SMALL)),
            {"rotary_value": True},
            UnsupportedError,
            "rotary_value True",
        ),
    ],
    ids=lambda value: "" if isinstance(value, type) else type(value).__name__,
)
def test_unsupported_field_is_named(
    tmp_path: Path, model: Any, changes: dict[str, object], error: type[ExportError], message: str
) -> None:
    save(model, tmp_path)
    edit_json(tmp_path / "config.json", **changes)
    with pytest.raises(error) as caught:
        load_checkpoint(str(tmp_path))
    assert message in str(caught.value)


def test_weight_errors_use_the_checkpoint_names(tmp_path: Path) -> None:
    save(AlbertModel(AlbertConfig(**SMALL)), tmp_path)
    missing = "encoder.albert_layer_groups.0.albert_layers.0.attention.key.weight"
    edit_weights(tmp_path, remove=(missing,), add=("encoder.strange",))
    with pytest.raises(WeightsError) as caught:
        load_checkpoint(str(tmp_path))
    assert str(caught.value).splitlines()[1:] == [
        f"missing: {missing}",
        "unexpected: encoder.strange",
    ]
