"""The decoder of a comparison: of a GGUF file instead of SmolLM2."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from typer.testing import CliRunner

from loadtest.cli import app
from loadtest.compare.candidates import Level
from loadtest.compare.decoders import SMOLLM2, Decoder, decoder_of, size_of
from loadtest.compare.engines import engine_peers, our_engine
from loadtest.compare.models import build_steps
from loadtest.compare.roofline import roofline_rate
from loadtest.compare.workloads import MODEL_SIZES, WorkloadKind, workloads
from loadtest.tasks import Task

HIDDEN, INNER, VOCABULARY, LAYERS, KV_HEADS, HEAD_SIZE = 64, 96, 2048, 2, 1, 32
FIRST_SPECIAL = 2000


def write_gguf(path: Path, kind: gguf.GGMLQuantizationType) -> Path:
    """A file of ``LAYERS`` layers with a query map and a norm each; only the shapes count."""
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_block_count(LAYERS)
    writer.add_embedding_length(HIDDEN)
    writer.add_head_count(HIDDEN // HEAD_SIZE)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_token_types([1] * FIRST_SPECIAL + [3] * (VOCABULARY - FIRST_SPECIAL))
    tables = {"token_embd.weight": (VOCABULARY, HIDDEN)}
    tables |= {f"blk.{layer}.attn_q.weight": (INNER, HIDDEN) for layer in range(LAYERS)}
    for name, shape in tables.items():
        weight = gguf.quantize(np.ones(shape, np.float32), kind)
        writer.add_tensor(name, weight, raw_dtype=kind)
    for layer in range(LAYERS):
        writer.add_tensor(f"blk.{layer}.attn_norm.weight", np.ones(HIDDEN, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def decoder(tmp_path: Path) -> Decoder:
    return decoder_of(write_gguf(tmp_path / "Small-Q4.gguf", gguf.GGMLQuantizationType.Q4_1))


def test_the_size_of_a_file_counts_weights_and_ordinary_tokens(decoder: Decoder) -> None:
    size = size_of(decoder.file)
    assert size == decoder.size
    assert size.decoder == LAYERS * (INNER * HIDDEN + HIDDEN)
    assert size.head == VOCABULARY * HIDDEN  # tied
    assert size.cache_values_per_token == 2 * LAYERS * KV_HEADS * HEAD_SIZE
    assert size.lossless_bytes == 20 / 32  # blocks of Q4_1
    assert size.vocabulary == FIRST_SPECIAL
    (prefill, *_) = (
        each
        for each in workloads(Task.GENERATE, "int4", model=size)
        if each.kind == WorkloadKind.PREFILL
    )
    (prompt,) = prefill.message(0)["inputs"]
    assert len(prompt) == 128
    assert size.first_id <= min(prompt) <= max(prompt) < FIRST_SPECIAL


def test_the_size_of_smollm2_is_that_of_its_file() -> None:
    size, known = size_of(SMOLLM2.file), MODEL_SIZES[Task.GENERATE]
    for field in ("decoder", "head", "cache_values_per_token", "lossless_bytes", "vocabulary"):
        assert getattr(size, field) == pytest.approx(getattr(known, field), rel=1e-3)


def test_wider_weights_are_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "wide.gguf", gguf.GGMLQuantizationType.Q8_0)
    with pytest.raises(ValueError, match=r"wide\.gguf: weights have 8\.5 bits"):
        decoder_of(path)
    run = CliRunner().invoke(
        app, ["compare", "--task", "generate", "--model", str(path), "--prepare"]
    )
    assert run.exit_code == 2
    assert "weights have 8.5 bits" in " ".join(run.output.split())


def test_models_of_every_candidate_are_built_from_the_file(
    decoder: Decoder, tmp_path: Path
) -> None:
    precisions = ("int8", "int4")
    steps = build_steps(Task.GENERATE, Level.ENGINE, tmp_path, decoder, precisions)
    built = {step.out.relative_to(tmp_path / "compare").as_posix() for step in steps}
    candidates = [
        our_engine(Task.GENERATE, Level.ENGINE, decoder),
        *engine_peers(Task.GENERATE, Level.ENGINE, decoder),
    ]
    for each in candidates:
        assert {each.models[p] for p in precisions if p in each.models} <= built
    assert "gguf/small-q4-int4.gguf" in built
    assert not any("fp32" in path for path in built if not path.startswith("bundles-"))
    assert sum(str(decoder.file) in step.command for step in steps) == 6


def test_the_roofline_is_that_of_the_file(decoder: Decoder) -> None:
    ceilings = {
        "operations_per_second": {"int8": {"avx2": 1e12}},
        "bytes_per_second": {"1000": 1e9},
    }
    (small, *_) = workloads(Task.GENERATE, "int8", model=decoder.size)
    (large, *_) = workloads(Task.GENERATE, "int8")
    rates = [roofline_rate(each, ceilings) for each in (small, large)]
    assert rates[0] is not None
    assert rates[1] is not None
    assert rates[0] > 100 * rates[1]


def test_a_model_is_only_for_engines_that_generate(decoder: Decoder) -> None:
    run = CliRunner().invoke(
        app, ["compare", "--task", "embed", "--model", str(decoder.file), "--prepare"]
    )
    assert run.exit_code == 2
    assert "only for --task generate --level engine" in " ".join(run.output.split())
