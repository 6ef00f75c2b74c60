"""LFM2 from GGUF against transformers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import Lfm2Config, Lfm2ForCausalLM

from export.errors import SourceError
from tests.export.importers.gguf_files import RMS, SHAPE, check
from tests.export.importers.support import randomise
from tests.export.importers.test_llama_gguf import NUM_KV_HEADS, TOKENS

METADATA: dict[str, Any] = {
    RMS: 1e-5,
    "rope.freq_base": 1e6,
    "attention.head_count_kv": [0, NUM_KV_HEADS],
    "shortconv.l_cache": 3,
    "vocab_size": len(TOKENS),
}


def lfm2() -> Any:
    types = ["conv", "full_attention"]
    config = Lfm2Config(**SHAPE, layer_types=types, block_auto_adjust_ff_dim=False)
    return randomise(Lfm2ForCausalLM(config))


def squeezed(name: str, weight: np.ndarray) -> np.ndarray:
    """LFM2: kernels are ``[channels, tokens]``."""
    return weight.squeeze(1) if name.endswith("conv.conv.weight") else weight


def test_matches_transformers(tmp_path: Path) -> None:
    check(tmp_path / "model.gguf", lfm2(), "lfm2", METADATA, squeezed, tied=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention.head_count_kv": [0, 1, NUM_KV_HEADS]}, "not those of 2 layers"),
        ({"attention.head_count_kv": [1, NUM_KV_HEADS]}, "not those of 2 layers"),
        ({"shortconv.l_cache": 1}, "l_cache is 1"),
    ],
)
def test_other_sizes_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path, metadata = tmp_path / "model.gguf", METADATA | changes
    with pytest.raises(SourceError, match=message):
        check(path, lfm2(), "lfm2", metadata, squeezed, tied=True)
