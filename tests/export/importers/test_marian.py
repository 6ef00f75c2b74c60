"""Marian import: random model files against the reference in ``tests.reference.marian``."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from tokenizers import Tokenizer

from export.checkpoint import Checkpoint
from export.errors import ExportError, SourceError, UnsupportedError, WeightsError
from export.sources import load_checkpoint
from model.bundle import Task
from model.kernels import Step
from tests.export.importers.marian_files import (
    CONFIG,
    SSRU,
    VOCABULARY_SIZE,
    Tensors,
    random_tensors,
    train_vocabulary,
    write_binary,
)
from tests.export.importers.support import eager
from tests.reference.marian import Reference

UNTIED = {**CONFIG, "tied-embeddings-all": False}
SOURCE, TARGET = [5, 9, 33, 12, 7, 0], [8, 44, 3, 59, 21, 6, 17]


def write(
    folder: Path, config: dict[str, object], tensors: Tensors | None = None, **options: bool
) -> Path:
    """Writes a model and its vocabulary to ``folder``. Returns the model's path."""
    train_vocabulary(folder / "vocabulary.spm")
    tensors = tensors or random_tensors(config)
    return write_binary(folder / "model.bin", tensors, config, **options)


@torch.no_grad()
def logits(checkpoint: Checkpoint) -> torch.Tensor:
    """Logits ``[1 + len(TARGET), vocabulary + 1]``, after the start and each of ``TARGET``."""
    model, start = eager(checkpoint), checkpoint.special_tokens.decoder_start
    lengths = torch.tensor([len(SOURCE)])
    states = model.encode_source(torch.tensor([SOURCE]), lengths)
    ids = torch.tensor([[start, *TARGET]])
    step = Step.whole(torch.tensor([ids.shape[1]]), lengths)
    return model.logits(model.decode(ids, step, states).hidden)[0]


def assert_equal_logits(path: Path) -> None:
    actual = logits(load_checkpoint(str(path)))
    expected = torch.from_numpy(Reference(path).logits(SOURCE, TARGET)).float()
    torch.testing.assert_close(actual[:, :-1], expected, rtol=0, atol=1e-4)
    assert (actual[:, -1] < -1e8).all()  # the start is never a target


def split_embedding() -> Tensors:
    tensors = random_tensors(UNTIED)
    tensors["encoder_Wemb"] = tensors["decoder_Wemb"] = tensors.pop("Wemb")
    return tensors


@pytest.mark.parametrize("config", [CONFIG, SSRU], ids=["self-attention", "ssru"])
@pytest.mark.parametrize("quantize", [False, True], ids=["fp32", "int8"])
def test_logits_match_the_reference(
    tmp_path: Path, config: dict[str, object], quantize: bool
) -> None:
    assert_equal_logits(write(tmp_path, config, quantize=quantize))


def test_swish_matches_the_reference(tmp_path: Path) -> None:
    assert_equal_logits(write(tmp_path, {**CONFIG, "transformer-ffn-activation": "swish"}))


def test_two_embedding_names_with_an_untied_output(tmp_path: Path) -> None:
    tensors = split_embedding()
    output = np.random.default_rng(1).normal(0, 0.3, tensors["encoder_Wemb"].T.shape)
    tensors["decoder_ff_logit_out_W"] = output.astype(np.float32)
    path = write(tmp_path, UNTIED, tensors)
    assert_equal_logits(path)
    assert not load_checkpoint(str(path)).config.head.tied


def test_two_embedding_names_with_a_tied_output(tmp_path: Path) -> None:
    assert_equal_logits(write(tmp_path, {**UNTIED, "tied-embeddings": True}, split_embedding()))


def test_model_without_output_bias_matches_the_reference(tmp_path: Path) -> None:
    config = {**CONFIG, "output-omit-bias": True}
    tensors = random_tensors(config)
    del tensors["decoder_ff_logit_out_b"]
    assert_equal_logits(write(tmp_path, config, tensors))


def test_special_tokens_and_languages(tmp_path: Path) -> None:
    folder = tmp_path / "students"
    folder.mkdir()
    write(folder, SSRU)
    (folder / "model_info.json").write_text(json.dumps({"shortName": "en-pt-tiny"}))
    checkpoint = load_checkpoint(str(folder))
    special, start = checkpoint.special_tokens, VOCABULARY_SIZE
    assert (special.eos, special.decoder_start, special.pad) == ((0,), start, start)
    assert special.suppressed == (1, start)
    assert checkpoint.config.vocabulary_size == start + 1
    assert (checkpoint.source_language, checkpoint.target_language) == ("en", "pt")
    assert checkpoint.name == "students"
    assert checkpoint.tasks == (Task.TRANSLATE,)
    assert Tokenizer.from_str(checkpoint.tokenizer_json).encode("The cat").ids[-1] == 0
    assert not checkpoint.weights["embedding.tokens.weight"][start].any()


def test_decoder_yml_selects_files_and_length_factor(tmp_path: Path) -> None:
    write(tmp_path, CONFIG).rename(tmp_path / "best.bin")
    write_binary(tmp_path / "other.bin", random_tensors(SSRU), SSRU)
    with pytest.raises(SourceError, match=r"several or no Marian models, \['best.bin', 'other"):
        load_checkpoint(str(tmp_path))
    assert load_checkpoint(str(tmp_path / "best.bin")).max_length_factor == 3.0
    vocabulary = "vocabulary.spm"
    values = {"models": ["best.bin"], "vocabs": [vocabulary] * 2, "max-length-factor": 2}
    (tmp_path / "decoder.yml").write_text(yaml.safe_dump(values))
    checkpoint = load_checkpoint(str(tmp_path))
    assert checkpoint.max_length_factor == 2.0
    assert checkpoint.config.decoder == load_checkpoint(str(tmp_path / "best.bin")).config.decoder


def test_decoder_yml_cannot_leave_the_folder(tmp_path: Path) -> None:
    write(tmp_path, CONFIG)
    values = {"models": ["../model.bin"], "vocabs": ["vocabulary.spm"]}
    (tmp_path / "decoder.yml").write_text(yaml.safe_dump(values))
    with pytest.raises(SourceError, match=r"\.\./model.bin is outside the folder"):
        load_checkpoint(str(tmp_path))


def test_all_missing_and_unexpected_weights_are_listed(tmp_path: Path) -> None:
    tensors = random_tensors(SSRU)
    missing = ("decoder_l2_rnn_Wf", "encoder_l1_self_bq")
    unexpected = ("decoder_l2_rnn_Wo", "encoder_l3_self_Wq")
    tensors = {name: x for name, x in tensors.items() if name not in missing}
    tensors |= {name: np.zeros((1, 2), np.float32) for name in unexpected}
    with pytest.raises(WeightsError) as caught:
        load_checkpoint(str(write(tmp_path, SSRU, tensors)))
    lines = str(caught.value).splitlines()[1:]
    assert sorted(lines) == sorted(
        [f"missing: {name}" for name in missing] + [f"unexpected: {name}" for name in unexpected]
    )


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        (
            {"type": "s2s"},
            UnsupportedError,
            "'s2s' is not supported; supported: 'transformer'",
        ),
        ({"transformer-preprocess": "n"}, UnsupportedError, "transformer-preprocess 'n'"),
        ({"transformer-postprocess": "da"}, UnsupportedError, "transformer-postprocess 'da'"),
        ({"transformer-ffn-depth": 3}, UnsupportedError, "transformer-ffn-depth 3"),
        (
            {"transformer-ffn-activation": "gelu"},
            UnsupportedError,
            "'gelu' is not supported; ",
        ),
        ({"transformer-tied-layers": [1, 1]}, UnsupportedError, "transformer-tied-layers [1, 1]"),
        ({"transformer-decoder-autoreg": "average-attention"}, UnsupportedError, "self-attention"),
        (
            {"transformer-decoder-autoreg": "rnn", "dec-cell": "gru"},
            UnsupportedError,
            "dec-cell 'gru' is not supported; supported: 'ssru'",
        ),
        ({"dim-emb": None}, SourceError, "dim-emb is missing"),
        ({"transformer-heads": 5}, SourceError, "5 heads do not divide the size 32"),
        ({"enc-depth": 10**8}, SourceError, "enc-depth is 100000000, not in 0 to 1024"),
        ({"dim-emb": 16}, WeightsError, "wrong shape: embedding.tokens.weight"),
    ],
)
def test_unsupported_or_invalid_configuration_is_rejected(
    tmp_path: Path, changes: dict[str, object], kind: type[ExportError], message: str
) -> None:
    path = write(tmp_path, {**CONFIG, **changes}, random_tensors(CONFIG))
    with pytest.raises(kind) as caught:
        load_checkpoint(str(path))
    assert message in str(caught.value)


def test_separate_vocabularies_and_embeddings_are_rejected(tmp_path: Path) -> None:
    tensors = split_embedding()
    tensors["decoder_Wemb"] = tensors["decoder_Wemb"] + 1
    path = write(tmp_path, {**UNTIED, "tied-embeddings": True}, tensors)
    with pytest.raises(UnsupportedError, match="encoder_Wemb and decoder_Wemb differ"):
        load_checkpoint(str(path))
    train_vocabulary(tmp_path / "target.spm", vocab_size=50)
    with pytest.raises(UnsupportedError, match=r"source and target: target.spm, vocabulary.spm"):
        load_checkpoint(str(path))


def test_missing_vocabulary_is_reported(tmp_path: Path) -> None:
    path = write(tmp_path, CONFIG)
    (tmp_path / "vocabulary.spm").unlink()
    with pytest.raises(SourceError, match="no SentencePiece vocabulary"):
        load_checkpoint(str(path))
