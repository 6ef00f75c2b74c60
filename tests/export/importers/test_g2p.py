"""The importer of g2p-en against ``torch.nn.GRU`` with the package's own arrays."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from torch import nn

from export.checkpoint import Checkpoint
from export.errors import SourceError
from export.importers.g2p import PHONEMES
from export.importers.registry import import_path
from export.sources import DEFAULT_SOURCES, load_checkpoint
from model.kernels import Step
from model.transformer import from_weights

WORDS = ("attention", "translate", "recurrent", "a", "through", "activationist", "zyzzyva")
MAX_PHONEMES = 20


def _gru(arrays: dict[str, torch.Tensor], side: str) -> nn.GRU:
    gru = nn.GRU(*arrays[f"{side}_w_ih"].T.shape[:1], 256, batch_first=True)
    for name, suffix in (("weight", "w"), ("bias", "b")):
        for kind in ("ih", "hh"):
            getattr(gru, f"{name}_{kind}_l0").data = arrays[f"{side}_{suffix}_{kind}"]
    return gru


@torch.no_grad()
def reference(word: str) -> list[str]:
    """Greedy phonemes; ids as in the package: 2 begins and 3 ends a target, 4 is ``AA0``."""
    with np.load(DEFAULT_SOURCES["g2p"].locate(), allow_pickle=False) as archive:
        arrays = {name: torch.from_numpy(archive[name]) for name in archive.files}
    ids = [3 + ord(letter) - ord("a") for letter in word] + [2]
    _, state = _gru(arrays, "enc")(arrays["enc_emb"][ids][None])
    decoder, token, phonemes = _gru(arrays, "dec"), 2, []
    for _ in range(MAX_PHONEMES):
        output, state = decoder(arrays["dec_emb"][token][None, None], state)
        token = int((arrays["fc_w"] @ output[0, 0] + arrays["fc_b"]).argmax())
        if token == 3:
            break
        phonemes.append(PHONEMES[token - 4])
    return phonemes


@torch.no_grad()
def ours(checkpoint: Checkpoint, word: str) -> str:
    """Greedy text, step by step."""
    tokenizer, special = Tokenizer.from_str(checkpoint.tokenizer_json), checkpoint.special_tokens
    model = from_weights(checkpoint.config, checkpoint.weights)
    source = tokenizer.encode(word).ids
    lengths = torch.tensor([len(source)], dtype=torch.int32)
    states = model.encode_source(torch.tensor([source]), lengths)
    token, tokens = special.decoder_start, []
    for _ in range(MAX_PHONEMES):
        step = Step.whole(torch.tensor([1]), lengths)
        hidden, states = model.decode(torch.tensor([[token]]), step, states)
        logits = model.logits(hidden)[0, 0]
        logits[list(special.suppressed)] = -torch.inf
        token = int(logits.argmax())
        if token in special.eos:
            break
        tokens.append(token)
    return tokenizer.decode(tokens)


def test_phonemes_equal_those_of_torch() -> None:
    checkpoint = load_checkpoint("g2p")
    for word in WORDS:
        assert ours(checkpoint, word) == " ".join(reference(word))
    assert ours(checkpoint, "Atténtion") == "AH0 T EH1 N SH AH0 N"


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("fc_b", np.array([None]), "Object arrays cannot be loaded"),
        ("enc_emb", np.zeros((28, 256), np.float32), r"enc_emb: \[28, 256\], not 29 rows"),
        ("dec_w_hh", np.zeros(4, np.int64), "dec_w_hh: not a vector or matrix of fp32"),
    ],
)
def test_refuses_damaged_archives(
    tmp_path: Path,
    name: str,
    array: np.ndarray[tuple[int, ...], np.dtype[np.generic]],
    message: str,
) -> None:
    with np.load(DEFAULT_SOURCES["g2p"].locate(), allow_pickle=False) as archive:
        arrays = {**archive, name: array}
    np.savez(tmp_path / "model.npz", **arrays)
    with pytest.raises(SourceError, match=message):
        import_path(tmp_path / "model.npz")
