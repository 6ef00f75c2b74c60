"""Bundles of every architecture pass verification and the parity check."""

import dataclasses
import resource
from collections import Counter
from pathlib import Path

import msgspec
import onnx
import pytest
import torch
from tokenizers import Tokenizer
from typer.testing import CliRunner

from export.bundle_writer import write_bundle
from export.checkpoint import Checkpoint, check_weights
from export.errors import (
    BundleExistsError,
    ExportError,
    ParityError,
    SourceError,
    WeightsError,
)
from export.fidelity.__main__ import app as compare_app
from export.fidelity.__main__ import compare_bundles
from export.graphs import export_graphs
from export.parity import compare_fp32
from model.bundle import ATTEND, ATTEND_ENCODE, BundleError, Fidelity, Precision, StateRole
from model.bundle_files import read_manifest, read_parity, verify_files
from model.config import Kind
from tests.architectures import ARCHITECTURES, LLAMA, checkpoint, random_weights
from tests.export.exported import ALL_NAMES

pytestmark = pytest.mark.slow  # exports, or starts servers

# Products of attention, which have no weights and stay MatMul, in graphs of recurrent models.
RECURRENT_SCORES = {
    "gru-fixed": {},
    "gru-additive": {"decode": 1, ATTEND: 1},
    "gru-maxout": {"decode": 1, ATTEND: 1},
    "lstm-dot": {ATTEND: 1},
    "lstm-general": {ATTEND: 1},
}


class Bundles(dict[str, Path]):
    """fp32 bundles by architecture, each written when it is first asked for."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._root = root

    def __missing__(self, name: str) -> Path:
        self[name] = write_bundle(checkpoint(name), self._root)
        return self[name]


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Bundles:
    return Bundles(tmp_path_factory.mktemp("bundles"))


@pytest.mark.parametrize("name", ALL_NAMES)
def test_bundle_verifies(bundles: Bundles, name: str) -> None:
    directory = bundles[name]
    manifest = read_manifest(directory)
    verify_files(directory, manifest)
    assert manifest.name == f"random-{name}"
    assert manifest.kind == ARCHITECTURES[name].kind
    assert {record.path for record in manifest.files} == {
        path.name for path in directory.iterdir()
    } - {"bundle.json"}
    assert [path.name for path in directory.parent.parent.iterdir() if path.name[0] == "."] == []
    has_encoder = manifest.kind != Kind.DECODER and ARCHITECTURES[name].recurrent is None
    assert (ATTEND_ENCODE in manifest.graphs) == has_encoder


@pytest.mark.parametrize("name", ALL_NAMES)
def test_bundle_matches_the_eager_module(bundles: Bundles, name: str) -> None:
    parity = read_parity(bundles[name])
    assert parity.max_absolute_error <= 1e-5
    assert parity.min_cosine > 0.999999
    assert parity.fidelity is None  # these are the fp32 graphs
    expected = 0 if ARCHITECTURES[name].kind == Kind.ENCODER else 32 * 7
    assert parity.greedy_tokens_compared == parity.greedy_tokens_equal == expected


@pytest.mark.parametrize("name", ALL_NAMES)
def test_manifest_signatures_match_the_graphs(bundles: Bundles, name: str) -> None:
    manifest = read_manifest(bundles[name])
    for graph in manifest.graphs.values():
        model = onnx.load(str(bundles[name] / graph.file), load_external_data=False)
        inputs = [spec.name for spec in graph.inputs] + [state.input for state in graph.states]
        outputs = [spec.name for spec in graph.outputs] + [state.output for state in graph.states]
        assert [value.name for value in model.graph.input] == inputs
        assert [value.name for value in model.graph.output] == outputs
        dimensions = {
            value.name: [d.dim_value or None for d in value.type.tensor_type.shape.dim]
            for value in model.graph.input
        }
        for spec in graph.inputs:
            expected = [d if isinstance(d, int) else None for d in spec.shape]
            assert dimensions[spec.name] == expected
        for state in graph.states:
            expected = [None, *(d if isinstance(d, int) else None for d in state.shape)]
            assert dimensions[state.input] == expected


def test_decode_graph_has_the_states_of_its_architecture(bundles: Bundles) -> None:
    roles = {
        name: Counter(state.role for state in read_manifest(bundles[name]).graphs["decode"].states)
        for name in ("llama", "ssru")
    }
    assert roles == {
        "llama": {StateRole.KV: 4},
        "ssru": {StateRole.RECURRENT: 2, StateRole.CROSS: 4},
    }


def test_decoder_layer_has_no_extra_operators(bundles: Bundles) -> None:
    """No transposes, casts or shape arithmetic per layer."""
    model = onnx.load(str(bundles["llama"] / "decode.onnx"), load_external_data=False)
    layer = model.graph.node[1:20]
    operators = Counter(node.op_type for node in model.graph.node)
    assert len(layer) == 19
    assert operators["Transpose"] == operators["Shape"] == 0
    assert operators["Reshape"] == 2  # in the whole graph, to select positions for logits
    assert operators["MatMul"] == 2 * 4
    assert operators["GroupQueryAttention"] == 2
    assert operators["RMSNormalization"] == 2 * 2 + 1
    assert operators["Gemm"] == 1  # the tied head: the embedding, stored once
    names = [tensor.name for tensor in model.graph.initializer]
    assert sum("embedding" in name for name in names) == 1


@pytest.mark.parametrize("name", ALL_NAMES)
def test_int8_bundle_passes_parity(bundles: Bundles, tmp_path: Path, name: str) -> None:
    directory = write_bundle(checkpoint(name), tmp_path, precision=Precision.INT8)
    assert read_manifest(directory).precision == Precision.INT8
    parity = read_parity(directory)
    assert parity.max_absolute_error <= 1e-5  # of the fp32 graph, with smoothed activations
    assert 0.99 < parity.min_cosine < 0.999999
    manifest = read_manifest(directory)
    for graph_name, graph in manifest.graphs.items():
        model = onnx.load(str(directory / graph.file), load_external_data=False)
        operators = Counter(node.op_type for node in model.graph.node)
        # Cross-attention scores have no weights, so their products stay MatMul.
        has_scores = graph_name == ATTEND and manifest.kind == Kind.ENCODER_DECODER
        num_matmuls = 2 if has_scores else 0
        if graph_name == ATTEND_ENCODE:  # combines each layer's heads
            num_matmuls = sum("attention" in output.name for output in graph.outputs)
            num_matmuls += operators["MultiHeadAttention"]  # scores in windows
        num_matmuls = RECURRENT_SCORES.get(name, {}).get(graph_name, num_matmuls)
        assert (operators["MatMul"], operators["Gemm"]) == (num_matmuls, 0)
        in_blocks = manifest.kind == Kind.DECODER
        num_quantized = operators["MatMulNBits" if in_blocks else "MatMulInteger"]
        if name in RECURRENT_SCORES:  # a layer of the encoder is one operator, which stays fp32
            assert operators["GRU"] + operators["LSTM"] > 0 or num_quantized >= 3
        else:
            assert num_quantized >= 6
    # Comparing the finished bundles gives the recorded figures, but for the rounding of fp32.
    recorded, compared = parity.fidelity, compare_bundles(bundles[name], directory)
    assert recorded is not None
    assert recorded.worst_matrices
    assert recorded.exceeded_limits == ()
    for field in ("kl_divergence", "rms_logprob_difference", "mean_cosine", "top1_agreement"):
        expected = getattr(recorded, field)
        assert getattr(compared, field) == (expected and pytest.approx(expected, rel=1e-2))


def test_bundles_are_compared_on_the_command_line(bundles: Bundles) -> None:
    run, same = CliRunner().invoke, [str(bundles["bert"])] * 2
    compared = msgspec.json.decode(run(compare_app, [*same, "--json"]).stdout, type=Fidelity)
    assert (compared.num_texts, compared.retrieval_agreement) == (24, 1)
    assert compared.min_cosine == pytest.approx(1)
    assert "retrieval agreement" in run(compare_app, same).stdout
    other = run(compare_app, [str(bundles["bert"]), str(bundles["llama"])])
    assert other.exit_code == 1
    assert "not of one model: kind" in other.stderr


def test_parity_check_detects_changed_weights(bundles: Bundles) -> None:
    other = checkpoint("llama")
    name = "decoder.layers.1.mixer.output.weight"
    weights = other.weights | {name: other.weights[name].clone()}
    weights[name][3, 5] += 0.01
    other = dataclasses.replace(other, weights=weights)
    with pytest.raises(ParityError, match="differs from the eager module"):
        compare_fp32(other, bundles["llama"], read_manifest(bundles["llama"]).graphs)


def test_parity_of_large_logits_is_in_proportion(bundles: Bundles, tmp_path: Path) -> None:
    """Their rounding in fp32 alone is larger than the tolerance for small ones."""
    other = checkpoint("llama")
    name = "decoder.final_norm.weight"
    other = dataclasses.replace(other, weights=other.weights | {name: 100 * other.weights[name]})
    parity = read_parity(write_bundle(other, tmp_path))
    small = read_parity(bundles["llama"])
    assert small.tolerance == 1e-4
    assert 1e-4 < parity.max_absolute_error <= parity.tolerance
    assert parity.tolerance == pytest.approx(
        100 * 1e-5 * largest_logit(checkpoint("llama"), bundles["llama"]), rel=0.1
    )


@pytest.mark.parametrize(("name", "factor"), [("llama", 30), ("bert", 100)])
def test_parity_allows_the_rounding_of_fp32_itself(name: str, factor: int, tmp_path: Path) -> None:
    """Sharp attention amplifies it, as activations of thousands do in published models."""
    source = checkpoint(name)
    (key,) = [key for key in source.weights if key.endswith("layers.0.mixer.qkv.weight")]
    weights = source.weights | {key: factor * source.weights[key]}
    source = dataclasses.replace(source, weights=weights)
    graphs = export_graphs(source.config, weights, tmp_path)
    reference = compare_fp32(source, tmp_path, graphs)
    assert 1e-4 < reference.max_absolute_error <= reference.tolerance
    assert reference.tolerance == 2 * reference.rounding

    weights[key] = weights[key].clone()
    weights[key][-1] += 0.1 * factor
    with pytest.raises(ParityError, match="differs from the eager module"):
        compare_fp32(source, tmp_path, graphs)


def largest_logit(source: Checkpoint, directory: Path) -> float:
    reference = compare_fp32(source, directory, read_manifest(directory).graphs)
    return float(max(abs(row).max() for row in reference.outputs))


def test_failed_parity_check_leaves_no_files(tmp_path: Path) -> None:
    broken = checkpoint("classifier")
    broken.weights["encoder.layers.0.mixer_norm.weight"][0] = torch.finfo(torch.float32).max
    with pytest.raises(ParityError, match="nan"):
        write_bundle(broken, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_existing_bundle_is_not_overwritten(bundles: Bundles) -> None:
    directory = bundles["bert"]
    before = (directory / "bundle.json").read_bytes()
    with pytest.raises(BundleExistsError, match="random-bert"):
        write_bundle(checkpoint("bert", seed=1), directory.parent.parent)
    assert (directory / "bundle.json").read_bytes() == before


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden"])
def test_unsafe_version_names_are_rejected(tmp_path: Path, name: str) -> None:
    with pytest.raises(ExportError, match=r"^--version: .* does not match"):
        write_bundle(checkpoint("bert"), tmp_path, version=name)


def test_all_weight_errors_are_reported_together(tmp_path: Path) -> None:
    weights = random_weights(LLAMA)
    for name in ("embedding.tokens.weight", "decoder.layers.1.mixer.qkv.weight"):
        del weights[name]
    weights["decoder.extra"] = torch.zeros(3)
    weights["other.extra"] = torch.zeros(3)
    weights["decoder.final_norm.weight"] = torch.zeros(5)
    with pytest.raises(WeightsError) as caught:
        check_weights(LLAMA, weights)
    message = str(caught.value)
    assert message.count("missing:") == message.count("unexpected:") == 2
    assert "wrong shape: decoder.final_norm.weight is [5], not [64]" in message
    broken = dataclasses.replace(checkpoint("llama"), weights=weights)
    with pytest.raises(WeightsError):
        write_bundle(broken, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_all_damaged_weights_are_named() -> None:
    weights = random_weights(LLAMA)
    names = ["decoder.final_norm.weight", "embedding.tokens.weight"]
    weights[names[0]][0], weights[names[1]][0, 0] = torch.nan, torch.inf
    with pytest.raises(WeightsError) as caught:
        check_weights(LLAMA, weights)
    lines = str(caught.value).splitlines()
    assert sorted(lines[1:]) == [f"NaN or infinite: {name}" for name in names]


def test_verification_detects_a_changed_file(tmp_path: Path) -> None:
    directory = write_bundle(checkpoint("classifier"), tmp_path)
    data = directory / "encode.onnx.data"
    data.write_bytes(data.read_bytes()[:-1] + b"\x01")
    with pytest.raises(BundleError, match="does not have the listed hash"):
        verify_files(directory, read_manifest(directory))


def test_an_output_folder_below_a_file_is_an_export_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match=r"cannot write to .*file/bundles: Not a directory"):
        write_bundle(checkpoint("bert"), tmp_path / "file" / "bundles")


def test_a_full_disk_is_an_export_error(tmp_path: Path) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, most))
    try:
        with pytest.raises(ExportError, match=r"cannot write to .*: File too large"):
            write_bundle(checkpoint("bert"), tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    assert list(tmp_path.iterdir()) == []


def test_rejects_a_tokenizer_with_more_tokens_than_embeddings(tmp_path: Path) -> None:
    model = checkpoint("bert")
    tokenizer = Tokenizer.from_str(model.tokenizer_json)
    tokenizer.add_tokens([f"<{number}>" for number in range(model.config.vocabulary_size)])
    model = dataclasses.replace(model, tokenizer_json=tokenizer.to_str())
    with pytest.raises(SourceError, match="tokens of the tokenizer are beyond the vocabulary"):
        write_bundle(model, tmp_path)


def test_a_model_without_finite_measurements_is_no_bundle(tmp_path: Path) -> None:
    """All of its outputs are 0, so no cosine is a number."""
    model = checkpoint("bert")
    weights = {name: torch.zeros_like(weight) for name, weight in model.weights.items()}
    with pytest.raises(ParityError, match="min_cosine is nan"):
        write_bundle(dataclasses.replace(model, weights=weights), tmp_path)
    assert list(tmp_path.iterdir()) == []
