"""What tokens attended to in the source, against transformers' ``cross_attentions``."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
)

from export.attention import add_attention_graph
from export.bundle_writer import write_bundle
from export.graphs import export_graphs
from model.bundle import ATTEND, Precision, read_manifest
from server.backend.ort import OrtBackend
from server.engine.runner import Capacity, Runner
from server.engine.sequence import GenerationJob, Sequence
from tests.families.harness import VOCABULARY_SIZE, imported

BART = BartConfig(
    vocab_size=VOCABULARY_SIZE,
    d_model=32,
    encoder_layers=1,
    decoder_layers=2,
    encoder_attention_heads=2,
    decoder_attention_heads=4,
    encoder_ffn_dim=48,
    decoder_ffn_dim=48,
    max_position_embeddings=96,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    decoder_start_token_id=2,
    forced_eos_token_id=None,
)
T5_OPTIONS: dict[str, Any] = {
    "vocab_size": VOCABULARY_SIZE,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
    "eos_token_id": 1,
}
T5_SMALL = T5Config(**T5_OPTIONS)
SOURCE, TARGET = (5, 9, 13, 6, 21, 8, 4), (7, 11, 5, 5, 30)


def attention_of(directory: Path, graphs: Any, start: int) -> Any:
    """``[target, layers, heads, source]`` of a row, beside another that is longer."""
    backend = OrtBackend("cpu", 1)
    loaded = {
        name: backend.load(directory / graph.file, graph.disabled_optimizers)
        for name, graph in graphs.items()
    }
    runner = Runner(
        graphs["decode"],
        loaded["decode"],
        loaded["encode"],
        Capacity(2, 32, 32),
        attend=loaded[ATTEND],
    )
    longer = Sequence.first_of(0, GenerationJob((start,), 1, source=(*SOURCE, *SOURCE)))
    row = Sequence.first_of(1, GenerationJob((start, *TARGET), 0, source=SOURCE))
    runner.encode([longer, row], [0, 1])
    return np.stack(list(runner.decode_attention(row, 1, len(row.tokens))))


@pytest.mark.parametrize(
    "model",
    [BartForConditionalGeneration(BART), T5ForConditionalGeneration(T5_SMALL)],
    ids=["bart", "t5"],
)
def test_weights_are_those_of_the_reference(model: Any) -> None:
    with imported(model) as checkpoint, tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        graphs = export_graphs(checkpoint.config, checkpoint.weights, directory)
        graphs = add_attention_graph(graphs, directory)
        start = checkpoint.special_tokens.decoder_start
        assert start is not None
        told = attention_of(directory, graphs, start)
        theirs = model(
            input_ids=torch.tensor([SOURCE]),
            decoder_input_ids=torch.tensor([[start, *TARGET]]),
            output_attentions=True,
        ).cross_attentions
        expected = torch.stack(theirs)[:, 0].permute(2, 0, 1, 3).numpy()
        assert told.shape == expected.shape
        np.testing.assert_allclose(told, expected, atol=1e-5)
        np.testing.assert_allclose(told.sum(-1), 1, atol=1e-5)
        assert expected.std() > 1e-3, "a uniform attention would show nothing"


def test_a_quantised_bundle_has_it_too(tmp_path: Path) -> None:
    with imported(BartForConditionalGeneration(BART)) as checkpoint:
        bundle = write_bundle(checkpoint, tmp_path, precision=Precision.INT8)
        start = checkpoint.special_tokens.decoder_start
        assert start is not None
        told = attention_of(bundle, read_manifest(bundle).graphs, start)
        np.testing.assert_allclose(told.sum(-1), 1, atol=1e-5)
        weights = (bundle / "attend.onnx").stat().st_size
        assert weights < (bundle / "decode.onnx").stat().st_size + 50_000, "weights are shared"
