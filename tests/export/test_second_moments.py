"""What calibrated rounding measures: of which matrices, and on which text."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec import structs
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from export.apply_scheme import apply_scheme
from export.blocks import between_extremes, in_blocks
from export.calibration_rows import calibration_rows
from export.calibration_texts import ENGLISH, PORTUGUESE, calibration_texts
from export.evaluation_texts import PASSAGES, SENTENCES
from export.fidelity.subject import GraphFolder
from export.fidelity.texts import PROMPTS, mixed_texts, sentences
from export.gptq import SecondMoments
from export.graph_files import load_graph
from export.importers.samples import ENGLISH_PROMPTS, ENGLISH_TEXTS, SOURCE_SENTENCES
from export.precision_schemes import scheme_for
from export.quantize import TRACED
from export.second_moments import measure_second_moments
from export.sources import load_checkpoint
from model.bundle import Device, Precision
from tests import tiny
from tests.architectures import checkpoint
from tests.export.exported import Exported


def rounded_matrices(exported: Exported, folder: Path) -> set[str]:
    """The names of the matrices of products that the int4 graphs hold in 4 bits."""
    shutil.copytree(exported.directory, folder)
    config = checkpoint(exported.name).config
    scheme = scheme_for(Precision.INT4, Device.CPU, config.kind)
    graphs = apply_scheme(config, scheme, exported.graphs, folder)
    names = {
        name
        for graph in graphs.values()
        for name in load_graph(folder / graph.file).graph.initializers
    }
    ending = ".int4"
    return {
        name.removeprefix(TRACED).removesuffix(ending) for name in names if name.endswith(ending)
    } - {"embedding.tokens.weight"}


@pytest.fixture(scope="module")
def moments_by_name() -> dict[str, SecondMoments]:
    return {}


@pytest.fixture
def found(exported: Exported, moments_by_name: dict[str, SecondMoments]) -> SecondMoments:
    """The moments for int4 of ``exported``, measured once."""
    name = exported.name
    if name not in moments_by_name:
        source = checkpoint(name)
        scheme = scheme_for(Precision.INT4, Device.CPU, source.config.kind)
        folder = GraphFolder(exported.directory, exported.graphs)
        moments_by_name[name] = measure_second_moments(source, source.weights, scheme, folder)
    return moments_by_name[name]


def test_every_4_bit_matrix_has_moments_of_its_inputs(
    exported: Exported, found: SecondMoments, tmp_path: Path
) -> None:
    source = checkpoint(exported.name)
    assert set(found) == rounded_matrices(exported, tmp_path / "int4")
    for name, moments in found.items():
        assert moments.shape == (source.weights[name].shape[0],) * 2
        np.testing.assert_allclose(moments, moments.T, rtol=1e-4, atol=1e-4 * moments.max())
        assert (moments.diagonal() >= 0).all()  # zero where a ReLU is never above it
        assert moments.any()


def test_the_largest_moments_are_left_out_if_all_take_too_much(
    exported: Exported, found: SecondMoments, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = checkpoint(exported.name)
    scheme = scheme_for(Precision.INT4, Device.CPU, source.config.kind)
    folder = GraphFolder(exported.directory, exported.graphs)
    by_size = sorted(found, key=lambda name: (found[name].nbytes, name))
    total = sum(moments.nbytes for moments in found.values())
    assert found[by_size[0]].nbytes < found[by_size[-1]].nbytes
    monkeypatch.setattr("export.second_moments.MAX_BYTES", total - 1)
    fewer = measure_second_moments(source, source.weights, scheme, folder)
    assert set(fewer) == set(by_size[:-1])


def test_matrices_in_4_bit_blocks_already_are_not_measured(
    exported: Exported, found: SecondMoments
) -> None:
    source = checkpoint(exported.name)
    scheme = scheme_for(Precision.INT4, Device.CPU, source.config.kind)
    folder = GraphFolder(exported.directory, exported.graphs)
    names = list(found)
    matrix = in_blocks(source.weights[names[0]].numpy())
    restored = between_extremes(matrix).restored().reshape(len(matrix), -1)
    exact = torch.from_numpy(restored.T.copy())
    changed = dataclasses.replace(source, weights={**source.weights, names[0]: exact})
    assert list(measure_second_moments(changed, changed.weights, scheme, folder)) == names[1:]


@pytest.mark.parametrize("precision", [Precision.INT8, Precision.FP16])
def test_other_precisions_measure_nothing(exported: Exported, precision: Precision) -> None:
    source = checkpoint(exported.name)
    scheme = scheme_for(precision, Device.CPU, source.config.kind)
    folder = GraphFolder(exported.directory, exported.graphs)
    assert not measure_second_moments(source, source.weights, scheme, folder)


@pytest.mark.parametrize("language", [None, "en", "pt"])
def test_no_text_is_also_measured_on(language: str | None) -> None:
    measured = {*PASSAGES, *PROMPTS, *mixed_texts(), *sentences("en"), *sentences("pt")}
    measured |= {
        text for texts in (*SENTENCES.values(), *SOURCE_SENTENCES.values()) for text in texts
    }
    measured |= {*ENGLISH_PROMPTS, *ENGLISH_TEXTS}
    texts = calibration_texts(language)
    assert len(texts) >= 20
    assert not measured & set(texts)
    joined = "\n".join(texts)
    assert not [text for text in measured if len(text.split()) > 4 and text in joined]


def test_few_tokens_have_texts_of_every_language() -> None:
    texts = calibration_texts(None)
    assert {texts[0], texts[1]} == {ENGLISH[0], PORTUGUESE[0]}
    assert set(texts) == {*ENGLISH, *PORTUGUESE}
    assert not calibration_texts("km"), "no text of another language stands in"


def test_rows_of_calibration_have_few_tokens() -> None:
    reader = load_checkpoint("debian-summaries")
    rows = calibration_rows(reader, 200)
    assert 100 < sum(map(len, rows)) <= 200
    assert rows == calibration_rows(reader)[: len(rows)]


def test_a_model_that_cannot_read_the_texts_has_no_rows() -> None:
    reader, _ = tiny.dates()
    assert calibration_rows(reader)
    digits = Tokenizer(WordLevel({"?": 0, "1": 1}, unk_token="?"))
    digits.pre_tokenizer = Whitespace()
    special_tokens = structs.replace(reader.special_tokens, unk=0)
    unable = dataclasses.replace(
        reader, tokenizer_json=digits.to_str(), special_tokens=special_tokens
    )
    assert not calibration_rows(unable)
