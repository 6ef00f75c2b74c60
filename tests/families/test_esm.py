"""ESM-2 and ESM-1b against transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor
from transformers import (
    EsmConfig,
    EsmForMaskedLM,
    EsmForSequenceClassification,
    EsmForTokenClassification,
    EsmModel,
)

from export.calibration_rows import calibration_rows
from export.errors import SourceError, UnsupportedError
from export.sources import load_checkpoint
from model.bundle import Task
from model.transformer import from_weights
from tests.export.importers.support import edit_json, edit_weights, randomise, save
from tests.families.encoders import SMALL
from tests.families.harness import check_eager, check_graphs

MASK = 5
ESM_2: dict[str, Any] = {
    **{name: value for name, value in SMALL.items() if name != "hidden_act"},
    "pad_token_id": 1,
    "mask_token_id": MASK,
    "position_embedding_type": "rotary",
    "token_dropout": True,
    "layer_norm_eps": 1e-5,
}
AXES = {
    "num_hidden_layers": st.integers(1, 3),
    "num_attention_heads": st.sampled_from((1, 2, 8)),
    "intermediate_size": st.sampled_from((48, 96)),
    "layer_norm_eps": st.sampled_from((1e-5, 1e-2)),
    "position_embedding_type": st.sampled_from(("rotary", "absolute")),
    "emb_layer_norm_before": st.sampled_from((None, False, True)),
    "token_dropout": st.booleans(),
    "rope_theta": st.sampled_from((10_000.0, 100.0)),
    "pad_token_id": st.integers(0, 2),
    # Random texts have this token as often as any other.
    "mask_token_id": st.integers(3, 60),
}


@settings(max_examples=12)
@given(st.fixed_dictionaries(AXES))
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(EsmModel(EsmConfig(**ESM_2 | changes)))


def test_graphs_match_transformers() -> None:
    check_graphs("ESM-2", EsmModel(EsmConfig(**ESM_2)))


def test_esm_1b_graphs_match_transformers() -> None:
    changes = {"position_embedding_type": "absolute", "emb_layer_norm_before": True}
    check_graphs("ESM-1b", EsmModel(EsmConfig(**ESM_2 | changes)))


# One, several and no masks; padding after the second and the third.
ROWS = ((8, 9, MASK, 10, 11, 12, 13), (MASK, 20, MASK, 21), (30, 31))


def padded() -> tuple[Tensor, Tensor]:
    width = max(map(len, ROWS))
    ids = torch.tensor([[*row, *[1] * (width - len(row))] for row in ROWS])
    return ids, torch.tensor([len(row) for row in ROWS], dtype=torch.int32)


@torch.no_grad()
@pytest.mark.parametrize("dropout", [True, False])
@pytest.mark.parametrize(
    ("model_class", "task"),
    [
        (EsmForMaskedLM, Task.FILL_MASK),
        (EsmForSequenceClassification, Task.CLASSIFY),
        (EsmForTokenClassification, Task.TAG),
    ],
)
def test_heads_match_transformers(
    tmp_path: Path, model_class: Any, task: Task, dropout: bool
) -> None:
    check_head(tmp_path, model_class, task, token_dropout=dropout)


@torch.no_grad()
def test_untied_output_has_the_heads_bias(tmp_path: Path) -> None:
    check_head(tmp_path, EsmForMaskedLM, Task.FILL_MASK, tie_word_embeddings=False)


def check_head(folder: Path, model_class: Any, task: Task, **changes: Any) -> None:
    model = randomise(model_class(EsmConfig(**ESM_2 | changes | {"num_labels": 3})))
    save(model, folder)
    edit_json(folder / "tokenizer_config.json", mask_token=f"w{MASK - 4}")
    checkpoint = load_checkpoint(str(folder))
    assert checkpoint.tasks == (task,)
    ids, lengths = padded()
    ours = from_weights(checkpoint.config, checkpoint.weights)
    hidden = ours.encode(ids, lengths)
    outputs = ours.logits(hidden) if task == Task.FILL_MASK else ours.pool(hidden, lengths)
    for row, output in zip(ROWS, outputs, strict=True):
        expected = model(torch.tensor([row])).logits[0]
        actual = output[: len(row)] if expected.ndim == 2 else output
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4)


# As transformers 5 saves them.
FREQUENCIES = "encoder.layer.*.attention.self.rotary_embeddings.inv_freq"


def frequencies(folder: Path) -> Tensor:
    return load_file(folder / "model.safetensors")[FREQUENCIES]


@torch.no_grad()
def test_saved_frequencies_are_kept(tmp_path: Path) -> None:
    """As transformers keeps them: the first checkpoints rounded them to fp16."""
    model = randomise(EsmModel(EsmConfig(**ESM_2)))
    save(model, tmp_path)
    rounded = frequencies(tmp_path).half().float()
    names = [
        f"encoder.layer.{n}.attention.self.rotary_embeddings.inv_freq" for n in range(2)
    ]  # as older versions saved them
    edit_weights(
        tmp_path,
        remove=(FREQUENCIES,),
        values={name: rounded.clone() for name in names},
    )
    theirs: Any = EsmModel.from_pretrained(tmp_path, attn_implementation="eager")
    torch.testing.assert_close(theirs.rotary_embeddings.inv_freq, rounded)
    checkpoint = load_checkpoint(str(tmp_path))
    ids = torch.arange(6, 36)[None]
    hidden = from_weights(checkpoint.config, checkpoint.weights).encode(
        ids, torch.tensor([30], dtype=torch.int32)
    )
    torch.testing.assert_close(hidden, theirs(ids).last_hidden_state, rtol=0, atol=1e-5)


def test_frequencies_of_another_base_are_refused(tmp_path: Path) -> None:
    save(EsmModel(EsmConfig(**ESM_2)), tmp_path)
    edit_weights(tmp_path, values={FREQUENCIES: frequencies(tmp_path) * 2})
    with pytest.raises(SourceError, match=r"inv_freq differs from the base 10000\.0"):
        load_checkpoint(str(tmp_path))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"is_folding_model": True}, "is_folding_model True"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key'"),
        ({"is_decoder": True}, "is_decoder True"),
    ],
)
def test_unsupported_field_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    save(EsmModel(EsmConfig(**ESM_2)), tmp_path)
    edit_json(tmp_path / "config.json", **changes)
    with pytest.raises(UnsupportedError, match=message):
        load_checkpoint(str(tmp_path))


def test_exports_do_not_calibrate_on_unknown_words(tmp_path: Path) -> None:
    tokens = ("<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWCXBUZO.-", "<mask>")
    config = EsmConfig(**ESM_2 | {"vocab_size": len(tokens), "mask_token_id": len(tokens) - 1})
    EsmModel(config).save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(tokens))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "EsmTokenizer"}')
    checkpoint = load_checkpoint(str(tmp_path))
    assert calibration_rows(checkpoint) == []
    tokenizer = Tokenizer.from_str(checkpoint.tokenizer_json)
    samples = [tokenizer.encode(text).ids for text in checkpoint.sample_inputs]
    unknown = checkpoint.special_tokens.unk
    assert unknown == tokens.index("<unk>")
    assert samples
    assert all(unknown not in row for row in samples)


def test_token_dropout_needs_a_mask(tmp_path: Path) -> None:
    save(EsmModel(EsmConfig(**ESM_2)), tmp_path)
    edit_json(tmp_path / "config.json", mask_token_id=None)
    with pytest.raises(SourceError, match="mask_token_id is missing"):
        load_checkpoint(str(tmp_path))
