"""The heads that align words with speech, in checkpoints of Whisper."""

from pathlib import Path
from typing import Any

import pytest

from tests import speech_models
from tests.export.importers.support import edit_json


def test_the_generation_config_names_the_heads(tmp_path: Path) -> None:
    tokens = speech_models.checkpoint(tmp_path).transcription
    assert tokens is not None
    assert tokens.alignment_heads == ((0, 3), (1, 0), (1, 2))


@pytest.mark.parametrize("value", [None, [], 3, [[0, 3], [2, 0]], [[0, 4]], [[0]], [[0, -1]]])
def test_heads_that_the_model_lacks_are_none(tmp_path: Path, value: Any) -> None:
    speech_models.save(tmp_path)
    edit_json(tmp_path / "generation_config.json", alignment_heads=value)
    tokens = speech_models.imported(tmp_path).transcription
    assert tokens is not None
    assert tokens.alignment_heads == ()
