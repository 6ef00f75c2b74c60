"""generation_config.json, against what ``generate`` of transformers does with the same folder."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
)

from export.errors import UnsupportedError
from export.sources import load_checkpoint
from model.bundle import SpecialTokens
from tests.export.importers.support import edit_json, randomise, save
from tests.families.test_bart import SMALL
from tests.families.test_t5 import SMALL as SMALL_T5

EOS = 2


def bart() -> Any:
    return randomise(BartForConditionalGeneration(BartConfig(**SMALL)))


def special_tokens(folder: Path) -> SpecialTokens:
    return load_checkpoint(str(folder)).special_tokens


def greedy(folder: Path, num_tokens: int = 4) -> list[int]:
    """What transformers generates, with the first token."""
    model = BartForConditionalGeneration.from_pretrained(folder).eval()
    options: Any = {"max_new_tokens": num_tokens, "do_sample": False, "num_beams": 1}
    ids: list[int] = model.generate(torch.tensor([[5, 6, 7, EOS]]), **options)[0].tolist()
    return ids


@pytest.mark.parametrize("has_file", [True, False])
def test_config_counts_only_without_a_generation_config(tmp_path: Path, has_file: bool) -> None:
    save(bart(), tmp_path)
    bad = greedy(tmp_path)[-1]
    if not has_file:
        (tmp_path / "generation_config.json").unlink()
    edit_json(tmp_path / "config.json", forced_bos_token_id=9, bad_words_ids=[[bad]])
    tokens, special = greedy(tmp_path), special_tokens(tmp_path)
    assert (bad in tokens) is (bad not in special.suppressed) is has_file
    assert (tokens[1] == 9) is (special.forced_first == 9) is not has_file


@pytest.mark.parametrize("value", [None, [4], 4])
def test_the_first_token_of_a_target(tmp_path: Path, value: object) -> None:
    save(bart(), tmp_path)
    edit_json(tmp_path / "generation_config.json", decoder_start_token_id=value)
    assert greedy(tmp_path)[0] == special_tokens(tmp_path).decoder_start == (4 if value else 0)


def test_a_t5_without_a_first_token_starts_with_its_padding(tmp_path: Path) -> None:
    save(T5ForConditionalGeneration(T5Config(**SMALL_T5)), tmp_path)
    for name in ("config.json", "generation_config.json"):
        edit_json(tmp_path / name, decoder_start_token_id=None, pad_token_id=3)
    assert special_tokens(tmp_path).decoder_start == 3


def test_an_end_token_is_no_bad_word(tmp_path: Path) -> None:
    model = bart()
    model.final_logits_bias[0, EOS] = 1000
    save(model, tmp_path)
    edit_json(tmp_path / "generation_config.json", bad_words_ids=[[EOS], [9]])
    assert greedy(tmp_path)[1] == EOS
    assert special_tokens(tmp_path).suppressed == (1, 9)


@pytest.mark.parametrize(
    ("field", "value", "harmless"),
    [
        ("begin_suppress_tokens", [9], []),
        ("bad_words_ids", [[8, 9]], [[8]]),
        ("decoder_start_token_id", [4, 5], [4]),
        ("forced_bos_token_id", [4, 5], [4]),
        ("sequence_bias", [[[8, 9], -1.0]], []),
        ("exponential_decay_length_penalty", [5, 1.1], None),
        ("encoder_repetition_penalty", 1.5, 1.0),
        ("guidance_scale", 1.5, 1.0),
    ],
)
def test_fields_that_change_outputs_are_refused(
    tmp_path: Path, field: str, value: object, harmless: object
) -> None:
    save(bart(), tmp_path)
    path = tmp_path / "generation_config.json"
    edit_json(path, **{field: harmless})
    assert special_tokens(tmp_path).eos == (EOS,)
    edit_json(path, **{field: value})
    with pytest.raises(UnsupportedError, match=rf"generation_config\.json: {field} "):
        special_tokens(tmp_path)
