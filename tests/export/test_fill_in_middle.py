"""The tokens that fill in the middle of a text, found in a tokenizer."""

import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models

from export.tokenization.fill_in_middle import fill_in_middle
from model.bundle import MANIFEST_FILE, BundleError
from model.bundle_files import read_manifest
from tests.export.importers.support import edit_json


def _tokenizer(*added: str) -> str:
    """The tokenizer's vocabulary has every name; only those of ``added`` are added tokens."""
    names = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<unk>")
    vocabulary = {name: id_ for id_, name in enumerate(names)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.add_tokens(list(added))
    return str(tokenizer.to_str())


@pytest.mark.parametrize(
    "names",
    [
        ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
        ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
        ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    ],
)
def test_the_prompt_is_that_of_the_maker(names: tuple[str, str, str]) -> None:
    found = fill_in_middle(_tokenizer(*names))
    assert found is not None
    prefix, suffix, middle = names
    assert found.render("a", "b") == f"{prefix}a{suffix}b{middle}"


@pytest.mark.parametrize("added", [(), ("<fim_prefix>", "<fim_suffix>")])
def test_other_tokenizers_have_none(added: tuple[str, ...]) -> None:
    assert fill_in_middle(_tokenizer(*added)) is None


def test_only_decoders_have_them(tiny_bundles: Path, tmp_path: Path) -> None:
    for name in ("tiny-decoder", "dates"):
        shutil.copytree(tiny_bundles / name, tmp_path / name)
        edit_json(
            tmp_path / name / "1" / MANIFEST_FILE,
            fill_in_middle={"prefix": "<", "suffix": "|", "middle": ">"},
        )
    assert read_manifest(tmp_path / "tiny-decoder" / "1").fill_in_middle
    with pytest.raises(BundleError, match="fill_in_middle: only a decoder has it"):
        read_manifest(tmp_path / "dates" / "1")
