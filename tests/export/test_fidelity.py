"""Fidelity to fp32: known arrays, damaged matrices, limits and records."""

import dataclasses
from pathlib import Path

import msgspec
import numpy as np
import onnx_ir as ir
import pytest

from export.apply_scheme import apply_scheme
from export.bundle_writer import write_bundle
from export.errors import FidelityError
from export.fidelity.__main__ import compare_bundles
from export.fidelity.figures import (
    Floats,
    TokenVectors,
    chrf,
    compare_decisions,
    compare_logits,
    compare_token_vectors,
    compare_vectors,
)
from export.fidelity.limits import LIMITS, checked_fidelity, exceeded_limits, limits_of
from export.fidelity.measure import figures, measure_fidelity
from export.fidelity.subject import GraphFolder, Subject
from export.graph_files import copy_graphs, load_graph, save_graph
from export.precision_schemes import SCHEMES
from model.bundle import Device, Fidelity, KvCache, MatrixError, Precision
from model.bundle_files import to_json
from tests.architectures import checkpoint
from tests.export.exported import Exported
from tests.heads import NAMES as HEADS

pytestmark = pytest.mark.slow  # exports, or starts servers

LOGITS = np.log(np.array([[0.5, 0.25, 0.25], [0.2, 0.6, 0.2]], np.float32))
CHATML = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"


def test_logits_give_known_figures() -> None:
    other = np.log(np.array([[0.25, 0.5, 0.25], [0.2, 0.6, 0.2]], np.float32)) + 3  # unnormalised
    found = compare_logits(LOGITS, other)
    assert (found.num_tokens, found.top1_agreement) == (2, 0.5)
    divergence = 0.5 * np.log(2) + 0.25 * np.log(0.5)
    assert found.kl_divergence == pytest.approx(divergence / 2, abs=1e-6)
    assert found.rms_logprob_difference == pytest.approx(np.log(2) / np.sqrt(2), abs=1e-6)
    assert found.mean_probability == pytest.approx(0.55, abs=1e-6)


def test_given_tokens_and_suppressed_ones_are_respected() -> None:
    other = np.log(np.array([[0.2, 0.4, 0.4], [0.2, 0.6, 0.2]], np.float32))
    found = compare_logits(LOGITS, other, np.array([1, 1]), suppressed=[0])
    assert found.top1_agreement == 1.0  # without token 0, rows have equal proportions
    assert found.kl_divergence == pytest.approx(0, abs=1e-6)
    assert found.mean_probability == pytest.approx((0.5 + 0.75) / 2, abs=1e-6)


def test_masked_logits_do_not_count() -> None:
    masked = np.array([[0.0, 1.0, -np.inf]], np.float32)
    found = compare_logits(masked, np.array([[0.0, 1.0, -1e4]], np.float32))
    assert (found.kl_divergence, found.rms_logprob_difference) == (0, 0)


def test_different_shapes_are_an_error() -> None:
    with pytest.raises(ValueError, match="shapes"):
        compare_logits(LOGITS, LOGITS[:1])


def test_vectors_give_known_figures() -> None:
    reference = np.array([[1, 0], [1, 0.1], [0, 1], [0.1, 1]], np.float32)
    other = np.array([[2, 0], [1, 0.1], [0, 1], [1, 0]], np.float32)
    found = compare_vectors(reference, other)
    assert found.min_cosine == pytest.approx(0.1 / np.sqrt(1.01), abs=1e-6)
    assert found.mean_cosine == pytest.approx((3 + found.min_cosine) / 4, abs=1e-6)
    assert found.retrieval_agreement == 0.25  # only the second text keeps its nearest neighbour


def test_sparse_vectors_are_compared_by_their_dot_product() -> None:
    # By cosine the second text would be nearest to the first, by dot product the third is.
    reference = np.array([[1, 0, 0], [2, 0, 0], [9, 9, 0], [0, 0, 0]], np.float32)
    other = np.array([[1, 0, 0], [2, 0, 0], [1, 9, 0], [0, 0, 1]], np.float32)
    found = compare_vectors(reference, other, by_dot_product=True)
    cosines = [1, 1, 10 / np.sqrt(2 * 82)]  # the text without weights does not count
    assert found.min_cosine == pytest.approx(min(cosines), abs=1e-6)
    assert found.mean_cosine == pytest.approx(np.mean(cosines), abs=1e-6)
    # Only the last two keep their nearest text.
    assert found.retrieval_agreement == 0.5


def test_vectors_of_tokens_are_compared_by_maxsim() -> None:
    rng = np.random.default_rng(0)

    def vectors(*lengths: int) -> list[Floats]:
        drawn = [rng.normal(size=(length, 4)) for length in lengths]
        return [(x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32) for x in drawn]

    reference = TokenVectors(vectors(3, 3, 3), vectors(2, 5, 4))
    expected = [
        [
            sum(max(float(q @ d) for d in document) for q in query)
            for document in reference.documents
        ]
        for query in reference.queries
    ]
    np.testing.assert_allclose(reference.scores(), expected, rtol=1e-6)
    same = compare_token_vectors(reference, reference)
    assert same.min_cosine == pytest.approx(1)
    assert same.retrieval_agreement == 1
    changed = [reference.documents[0], -reference.documents[1], reference.documents[2]]
    found = compare_token_vectors(reference, TokenVectors(reference.queries, changed))
    assert found.min_cosine == pytest.approx(-1)
    assert found.mean_cosine == pytest.approx((20 - 2 * 5) / 20)
    assert found.retrieval_agreement < 1


def test_decisions_give_known_figures() -> None:
    reference, other = [np.array([0.6, 0.4]), np.array([0.1, 0.9])], [np.array([0.4, 0.6])] * 2
    found = compare_decisions(reference, other)
    assert (found.num_decisions, found.agreement) == (2, 0.5)
    assert found.max_difference == pytest.approx(0.3)
    several = compare_decisions([np.array([0.9, 0.4])], [np.array([0.6, 0.7])], multiple=True)
    assert (several.num_decisions, several.agreement) == (2, 0.5)


def test_chrf_is_that_of_sacrebleu() -> None:
    outputs = ["O museu abre às dez e fecha às seis.", "Não achamos a impressora", ""]
    references = ["O museu abre às dez horas e fecha às 6.", "Não encontramos a impressora", "ok"]
    assert chrf(outputs, references) == pytest.approx(CHRF_OF_SACREBLEU)
    assert chrf(references, references) == pytest.approx(100)
    assert chrf(["ab"], ["xy"]) == 0


CHRF_OF_SACREBLEU = 64.6474291561066  # CHRF().corpus_score of sacrebleu 2.6.0


def _converted(
    exported: Exported, folder: Path, precision: Precision = Precision.INT8
) -> tuple[GraphFolder, GraphFolder]:
    """The fp32 graphs of ``exported`` and their copies in ``precision``."""
    copy_graphs(exported.graphs, exported.directory, folder)
    config = checkpoint(exported.name).config
    graphs = apply_scheme(config, SCHEMES[precision, Device.CPU], exported.graphs, folder)
    return GraphFolder(exported.directory, exported.graphs), GraphFolder(folder, graphs)


def test_quantized_graphs_are_close(exported: Exported, tmp_path: Path) -> None:
    folders = _converted(exported, tmp_path / "int8")
    found = measure_fidelity(Subject.of(checkpoint(exported.name)), *folders, by_matrix=True)
    assert found is not None
    assert exceeded_limits(found, LIMITS[Precision.INT8]) == ()
    errors = [one.relative_error for one in found.worst_matrices]
    assert len(errors) == 5
    assert errors == sorted(errors, reverse=True)
    assert 0.003 < errors[-1] < errors[0] < 0.05
    assert {
        "mixer.output",
        "feed_forward.input",
        "feed_forward.output",
    } <= found.matrix_errors.keys()
    if exported.name == "bert":
        assert found.mean_cosine is not None
        assert 0.999 < found.mean_cosine < 1
        assert found.num_texts == 24
    else:
        assert found.top1_agreement is not None
        assert found.top1_agreement > 0.9
        assert 0 < (found.kl_divergence or 0) < 0.01
        assert 0 < (found.rms_logprob_difference or 0) < 0.1
    if exported.name == "ssru":
        assert found.identical_outputs == 1
        assert found.chrf == pytest.approx(100)
    assert not list((tmp_path / "int8").glob("recorded.*"))


def test_the_fp32_graphs_equal_themselves(exported: Exported) -> None:
    same = GraphFolder(exported.directory, exported.graphs)
    found = measure_fidelity(Subject.of(checkpoint(exported.name)), same, same, by_matrix=True)
    assert found is not None
    assert found.worst_matrices[0].relative_error < 1e-5
    assert found.kl_divergence in (None, 0)
    assert found.retrieval_agreement in (None, 1)


def test_a_damaged_matrix_is_named_and_refused(exported: Exported, tmp_path: Path) -> None:
    folders = _converted(exported, tmp_path / "int8")
    stack = "encoder" if exported.name == "bert" else "decoder"
    name = f"{stack}.layers.1.feed_forward.output"
    path = folders[1].directory / folders[1].graphs[stack[:-1]].file
    model = load_graph(path)
    scales = model.graph.initializers[f"model.{name}.weight.scales"]
    assert scales.const_value is not None
    scales.const_value = ir.tensor(scales.const_value.numpy() / 2, name=scales.name)
    save_graph(model, path)
    found = measure_fidelity(Subject.of(checkpoint(exported.name)), *folders, by_matrix=True)
    assert found is not None
    assert found.worst_matrices[0].name == name
    assert found.worst_matrices[0].relative_error == pytest.approx(0.5, abs=0.01)
    assert found.worst_matrices[1].relative_error < 0.05
    with pytest.raises(FidelityError, match=rf"relative error of {name} is 0\.\d+, above 0.15"):
        checked_fidelity(found, Precision.INT8, KvCache.FLOAT, accept_loss=False)
    accepted = checked_fidelity(found, Precision.INT8, KvCache.FLOAT, accept_loss=True)
    assert accepted is not None
    assert any(name in sentence for sentence in accepted.exceeded_limits)


def test_figures_over_their_limits_are_named() -> None:
    bad = Fidelity(
        num_texts=1,
        mean_probability=0.9,
        top1_agreement=0.5,
        kl_divergence=2.0,
        rms_logprob_difference=float("nan"),
        mean_cosine=0.5,
        max_probability_difference=0.9,
        worst_matrices=(MatrixError(name="m", relative_error=float("nan")),),
    )
    sentences = exceeded_limits(bad, limits_of(Precision.FP32, KvCache.INT8))
    assert sentences == (
        "mean_cosine is 0.5000, below 0.98",
        "top1_agreement is 0.5000, below 0.85",
        "kl_divergence is 2.0000, above 0.1",
        "rms_logprob_difference is nan, above 0.4",
        "max_probability_difference is 0.9000, above 0.3",
        "the relative error of m is nan, above 0.15",
    )
    # Nearly tied tokens swap places in any precision.
    flat = Fidelity(num_texts=1, mean_probability=0.1, top1_agreement=0.5)
    assert exceeded_limits(flat, LIMITS[Precision.INT8]) == ()


def test_an_export_over_its_limits_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strict = dataclasses.replace(LIMITS[Precision.INT8], rms_logprob_difference=1e-6)
    monkeypatch.setitem(LIMITS, Precision.INT8, strict)
    with pytest.raises(FidelityError, match=r"int8 loses too much: .* --accept-loss"):
        write_bundle(checkpoint("llama"), tmp_path, precision=Precision.INT8)
    assert list(tmp_path.iterdir()) == []


def test_the_record_is_the_same_after_writing_and_reading() -> None:
    found = Fidelity(
        num_texts=40,
        num_tokens=1509,
        top1_agreement=0.924,
        worst_matrices=(MatrixError(name="m", relative_error=0.04),),
        matrix_errors={"mixer.qkv": 0.01},
        exceeded_limits=("kl_divergence is 2.0000, above 0.1",),
    )
    assert msgspec.json.decode(to_json(found), type=Fidelity) == found
    assert figures(found) == {
        "num_texts": "40",
        "num_tokens": "1509",
        "top1_agreement": "0.9240",
    }


@pytest.mark.parametrize("name", HEADS)
def test_each_head_equals_itself(head_bundles: Path, name: str) -> None:
    found = compare_bundles(*[head_bundles / name / "1"] * 2)
    assert found.num_texts == {"answerer": 8, "judge": 64}.get(name, 24)
    if name == "embedder":
        assert found.min_cosine == pytest.approx(1)
        assert (found.retrieval_agreement, found.top1_agreement) == (1, None)
    else:
        assert (found.top1_agreement, found.min_cosine) == (1, None)
    if name == "filler":
        assert found.num_tokens > 24
        assert (found.kl_divergence, found.max_probability_difference) == (0, None)


def test_prompts_are_chat_messages() -> None:
    source = checkpoint("llama")
    plain, chat = (
        Subject.of(dataclasses.replace(source, chat_template=template)).prompts(16)
        for template in (None, CHATML)
    )
    tokenizer = Subject.of(source).tokenizer
    assert chat[0][:6] == tokenizer.encode("<user>").ids
    assert chat[0][6:] == plain[0][: len(chat[0]) - 6]


@pytest.mark.parametrize(
    ("num_parameters", "rows", "tokens", "texts"),
    [(10**5, 8, 16, 24), (135 * 10**6, 40, 40, 81), (10**9, 5, 40, 32), (7 * 10**9, 4, 8, 32)],
)
def test_large_models_are_compared_over_fewer_tokens(
    num_parameters: int, rows: int, tokens: int, texts: int
) -> None:
    subject = dataclasses.replace(Subject.of(checkpoint("bert")), num_parameters=num_parameters)
    assert (subject.max_rows, subject.max_new_tokens, subject.max_texts) == (rows, tokens, texts)
