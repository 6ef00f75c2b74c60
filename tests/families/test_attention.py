"""Attention weights against transformers' ``cross_attentions`` and ``decoder_attentions``."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BloomConfig,
    BloomForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from export.attention_graph import add_attention_graph
from export.bundle_writer import write_bundle
from export.graphs import export_graphs
from model.bundle import ATTEND, AttentionKind, GraphSpec, Precision
from model.bundle_files import read_manifest
from server.engine.cache.slot_tensors import Capacity
from server.engine.decoding.options import AttentionSelection
from server.engine.model_runner import ModelRunner
from server.engine.requests.job import GenerationJob
from server.engine.requests.sequence import DecodingSequence
from server.runtime.host_memory import HostMemory
from server.runtime.ort.backend import OrtBackend
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


def loaded_runner(directory: Path, graphs: dict[str, GraphSpec]) -> ModelRunner:
    backend = OrtBackend("cpu", 1)
    loaded = {
        name: backend.load(directory / graph.file, graph.disabled_optimizers)
        for name, graph in graphs.items()
    }
    return ModelRunner(
        graphs["decode"],
        loaded["decode"],
        loaded.get("encode"),
        Capacity(2, 32, 32),
        attend=loaded[ATTEND],
        memory=HostMemory,
    )


def all_heads(graphs: dict[str, GraphSpec], kind: AttentionKind) -> AttentionSelection:
    (output,) = (output for output in graphs[ATTEND].outputs if output.name == kind)
    layers, heads = (tuple(range(int(size))) for size in output.shape[1:3])
    return AttentionSelection(kind, layers, heads, average=False)


def attention_of(
    directory: Path,
    graphs: dict[str, GraphSpec],
    start: int,
    kind: AttentionKind = AttentionKind.CROSS,
) -> Any:
    """``[target, layers, heads, source]`` of a sequence, batched with a longer one."""
    runner = loaded_runner(directory, graphs)
    longer = DecodingSequence.first_of(0, GenerationJob((start,), 1, source=(*SOURCE, *SOURCE)))
    sequence = DecodingSequence.first_of(1, GenerationJob((start, *TARGET), 0, source=SOURCE))
    runner.encode([longer, sequence], [0, 1])
    selection = all_heads(graphs, kind)
    return np.stack(list(runner.attention.of_prompt(sequence, 1, len(sequence.tokens), selection)))


@pytest.mark.parametrize(
    "model",
    [BartForConditionalGeneration(BART), T5ForConditionalGeneration(T5_SMALL)],
    ids=["bart", "t5"],
)
def test_attention_weights_match_transformers(model: Any) -> None:
    with imported(model) as checkpoint, tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        graphs = export_graphs(checkpoint.config, checkpoint.weights, directory)
        graphs = add_attention_graph(graphs, directory)
        start = checkpoint.special_tokens.decoder_start
        assert start is not None
        theirs = model(
            input_ids=torch.tensor([SOURCE]),
            decoder_input_ids=torch.tensor([[start, *TARGET]]),
            output_attentions=True,
        )
        actual = attention_of(directory, graphs, start)
        check(actual, theirs.cross_attentions, sums_to_1=True)
        actual = attention_of(directory, graphs, start, AttentionKind.SELF)
        check(actual, theirs.decoder_attentions, sums_to_1=True)


def check(actual: Any, theirs: tuple[torch.Tensor, ...], *, sums_to_1: bool) -> None:
    expected = torch.stack(theirs)[:, 0].permute(2, 0, 1, 3).detach().numpy()
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, atol=1e-5)
    if sums_to_1:
        np.testing.assert_allclose(actual.sum(-1), 1, atol=1e-5)
    else:
        assert actual.sum(-1).max() < 1 - 1e-3
    assert expected.std() > 1e-3, "a uniform attention would show nothing"


EAGER: dict[str, Any] = {"attn_implementation": "eager"}
SMALL: dict[str, Any] = {
    **EAGER,
    "vocab_size": VOCABULARY_SIZE,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
GATED = {**SMALL, "num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 96}
SINKS = "windows and sinks"
DECODERS: dict[str, Any] = {
    "rotary and grouped": lambda: LlamaForCausalLM(LlamaConfig(**GATED)),
    "learned positions": lambda: GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY_SIZE,
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=96,
            **EAGER,
        )
    ),
    "ALiBi": lambda: BloomForCausalLM(
        BloomConfig(
            vocab_size=VOCABULARY_SIZE,
            hidden_size=32,
            n_layer=2,
            n_head=4,
            **EAGER,
        )
    ),
    "windows and soft caps": lambda: Gemma2ForCausalLM(
        Gemma2Config(**GATED, head_dim=8, sliding_window=4, query_pre_attn_scalar=8)
    ),
    SINKS: lambda: GptOssForCausalLM(
        GptOssConfig(**GATED, head_dim=8, sliding_window=4, num_local_experts=4)
    ),
}


@pytest.mark.parametrize("kind", DECODERS)
def test_decoder_self_attention_matches_transformers(kind: str) -> None:
    """The prompt is prefilled in two chunks; the second attends to the cache."""
    torch.manual_seed(0)
    model = DECODERS[kind]().eval()
    tokens = (*SOURCE, *TARGET)
    with imported(model) as checkpoint, tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        graphs = export_graphs(checkpoint.config, checkpoint.weights, directory)
        graphs = add_attention_graph(graphs, directory)
        runner, selection = loaded_runner(directory, graphs), all_heads(graphs, AttentionKind.SELF)
        sequence = DecodingSequence.first_of(1, GenerationJob(tokens, 0))
        actual = list(runner.attention.of_prompt(sequence, 1, len(SOURCE), selection))
        sequence.num_cached_tokens = len(SOURCE)
        actual += list(runner.attention.of_prompt(sequence, 1, len(TARGET), selection))
        theirs = model(torch.tensor([tokens]), output_attentions=True).attentions
        check(np.stack(actual), theirs, sums_to_1=kind != SINKS)
        mean = replace(selection, layers=(1,), heads=(0, 2), average=True, from_token=9)
        averaged = list(runner.attention.of_prompt(sequence, 1, len(TARGET), mean))
    expected = np.stack(actual)[9:, 1:][:, :, [0, 2]].mean((1, 2), keepdims=True)
    np.testing.assert_allclose(averaged, expected, atol=1e-6)


def test_quantized_bundle_returns_attention(tmp_path: Path) -> None:
    with imported(BartForConditionalGeneration(BART)) as checkpoint:
        bundle = write_bundle(checkpoint, tmp_path, precision=Precision.INT8)
        start = checkpoint.special_tokens.decoder_start
        assert start is not None
        actual = attention_of(bundle, read_manifest(bundle).graphs, start)
        np.testing.assert_allclose(actual.sum(-1), 1, atol=1e-5)
        weights = (bundle / "attend.onnx").stat().st_size
        assert weights < (bundle / "decode.onnx").stat().st_size + 50_000, "weights are shared"
