"""Whisper in CTranslate2's files against the same weights in a Hugging Face folder."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from export.checkpoint import Checkpoint
from export.errors import SourceError, UnsupportedError, WeightsError
from export.importers.registry import import_path
from model.bundle import Task
from tests.export.importers.ctranslate2_files import (
    FIRST_SPECIAL,
    NUM_TIMESTAMPS,
    SETTINGS,
    VOCABULARY_SIZE,
    quantized,
    variables_of,
    whisper,
    write_folder,
    write_tokenizer,
)
from tests.export.importers.support import edit_json

Variables = dict[str, Tensor]
LANGUAGES = ("en", "de", "yue")


@pytest.fixture(scope="module")
def model() -> Any:
    return whisper()


@pytest.fixture(scope="module")
def hugging_face(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("whisper")
    model.save_pretrained(folder)
    write_tokenizer(folder)
    edit_json(
        folder / "generation_config.json",
        suppress_tokens=[5, 7],
        begin_suppress_tokens=[4],
        alignment_heads=[[0, 1]],
    )
    return import_path(folder)


@pytest.fixture
def variables(model: Any) -> Variables:
    return variables_of(model)


def test_weights_are_those_of_the_hugging_face_folder(
    tmp_path: Path, variables: Variables, hugging_face: Checkpoint
) -> None:
    ours = import_path(write_folder(tmp_path / "Small Whisper", variables))
    assert ours.config == hugging_face.config
    assert ours.weights.keys() == hugging_face.weights.keys()
    for name, weight in ours.weights.items():
        assert torch.equal(weight, hugging_face.weights[name]), name
    assert ours.name == "small-whisper"
    assert ours.tasks == (Task.TRANSCRIBE,)
    assert ours.audio == hugging_face.audio
    assert ours.architecture == hugging_face.architecture


def test_tokens_are_those_of_the_hugging_face_folder(
    tmp_path: Path, variables: Variables, hugging_face: Checkpoint
) -> None:
    ours = import_path(write_folder(tmp_path, variables))
    assert ours.special_tokens == hugging_face.special_tokens
    assert ours.special_tokens.suppressed == (5, 7)
    assert ours.special_tokens.decoder_start == FIRST_SPECIAL + 1
    assert ours.transcription == hugging_face.transcription
    assert ours.transcription is not None
    assert ours.transcription.first_suppressed == (4,)
    assert ours.transcription.num_timestamps == NUM_TIMESTAMPS
    assert ours.transcription.first_timestamp == VOCABULARY_SIZE - NUM_TIMESTAMPS
    assert ours.languages == {name: FIRST_SPECIAL + 2 + i for i, name in enumerate(LANGUAGES)}
    assert ours.source_language is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_read(tmp_path: Path, variables: Variables, dtype: torch.dtype) -> None:
    rounded = {name: x if name in SETTINGS else x.to(dtype) for name, x in variables.items()}
    ours = import_path(write_folder(tmp_path, rounded)).weights
    expected = variables["encoder/layer_0/ffn/linear_0/weight"].to(dtype).float()
    assert torch.equal(ours["encoder.layers.0.feed_forward.input.weight"], expected.T)


def test_int8_is_read_with_its_scales(
    tmp_path: Path, variables: Variables, hugging_face: Checkpoint
) -> None:
    integers = quantized(variables)
    ours = import_path(write_folder(tmp_path, integers)).weights
    for name, weight in hugging_face.weights.items():
        step = weight.abs().max() / 127
        assert (ours[name] - weight).abs().max() <= 0.51 * step, name
    name = "decoder/layer_1/self_attention/linear_0/weight"
    expected = integers[name] / integers[f"{name}_scale"][:, None]
    assert torch.equal(ours["decoder.layers.1.mixer.qkv.weight"], expected.T)


def test_the_model_file_alone_names_its_folder(tmp_path: Path, variables: Variables) -> None:
    folder = write_folder(tmp_path / "speech", variables)
    assert import_path(folder / "model.bin").name == "speech"


def test_missing_and_unexpected_weights_are_all_listed(
    tmp_path: Path, variables: Variables
) -> None:
    del variables["decoder/layer_1/attention/linear_2/bias"]
    del variables["encoder/conv2/weight"]
    variables["encoder/layer_0/ffn/linear_2/weight"] = torch.zeros(2, 2)
    with pytest.raises(WeightsError) as caught:
        import_path(write_folder(tmp_path, variables))
    message = str(caught.value)
    assert "missing: decoder/layer_1/attention/linear_2/bias" in message
    assert "missing: encoder/conv2/weight" in message
    assert "unexpected: encoder/layer_0/ffn/linear_2/weight" in message


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("decoder/embeddings/weight", None, "decoder/embeddings/weight is missing"),
        ("encoder/conv1/weight", torch.zeros(4, 4), r"conv1/weight has the shape \[4, 4\]"),
        ("encoder/num_heads", None, "encoder/num_heads is missing"),
        ("encoder/num_heads", torch.tensor(5, dtype=torch.int16), "5 heads do not divide"),
        ("encoder/num_heads", torch.tensor(-1, dtype=torch.int16), "num_heads is -1"),
        ("encoder/position_encodings/encodings", torch.zeros(9001, 32), "2880320 samples"),
    ],
)
def test_inconsistent_sizes_are_named(
    tmp_path: Path, variables: Variables, name: str, value: Tensor | None, message: str
) -> None:
    if value is None:
        del variables[name]
    else:
        variables[name] = value
    with pytest.raises(SourceError, match=message):
        import_path(write_folder(tmp_path, variables, aliases={}))


def test_other_positions_and_projections_are_refused(tmp_path: Path, variables: Variables) -> None:
    positions = variables["encoder/position_encodings/encodings"]
    changed = {**variables, "encoder/position_encodings/encodings": positions + 0.1}
    with pytest.raises(WeightsError, match="encoder/position_encodings/encodings, which a formula"):
        import_path(write_folder(tmp_path, changed))
    own = {**variables, "decoder/projection/weight": variables["decoder/embeddings/weight"] + 1}
    with pytest.raises(WeightsError, match="decoder/projection/weight, which"):
        import_path(write_folder(tmp_path, own, aliases={}))


@pytest.mark.parametrize(
    ("name", "value"),
    [("decoder/activation", 0), ("decoder/pre_norm", 0), ("decoder/scale_embeddings", 1)],
)
def test_other_settings_are_refused(
    tmp_path: Path, variables: Variables, name: str, value: int
) -> None:
    variables[name] = torch.tensor(value, dtype=torch.int8)
    with pytest.raises(UnsupportedError, match=f"{name} {value} is not supported"):
        import_path(write_folder(tmp_path, variables))


def test_other_specifications_are_refused(tmp_path: Path, variables: Variables) -> None:
    folder = write_folder(tmp_path, variables, spec="TransformerSpec")
    message = "the specification 'TransformerSpec' is not supported; supported: WhisperSpec"
    with pytest.raises(UnsupportedError, match=message):
        import_path(folder)
    folder = write_folder(tmp_path, variables, revision=2)
    with pytest.raises(UnsupportedError, match="revision 2 of WhisperSpec is not supported"):
        import_path(folder)


def test_the_files_beside_the_model_are_checked(tmp_path: Path, variables: Variables) -> None:
    folder = write_folder(tmp_path, variables)
    (folder / "preprocessor_config.json").write_text(json.dumps({"hop_length": 320}))
    with pytest.raises(UnsupportedError, match="hop_length 320 is not supported; supported: 160"):
        import_path(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps({"hop_length": 160}))
    tokenizer = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(tokenizer.replace("<|endoftext|>", "<|end|>"))
    with pytest.raises(SourceError, match=r"the tokenizer has no token <\|endoftext\|>"):
        import_path(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(UnsupportedError, match=r"no tokenizer; supported: tokenizer\.json"):
        import_path(folder)
    (folder / "config.json").unlink()
    with pytest.raises(SourceError, match=r"config\.json"):
        import_path(folder)
