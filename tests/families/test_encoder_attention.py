"""An encoder's attention weights against transformers' ``attentions``, for every family."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AlbertConfig,
    AlbertModel,
    BertConfig,
    BertForTokenClassification,
    BertModel,
    CLIPTextConfig,
    CLIPTextModel,
    DebertaV2Config,
    DebertaV2Model,
    DistilBertConfig,
    DistilBertModel,
    ElectraConfig,
    ElectraModel,
    Gemma3TextConfig,
    Gemma3TextModel,
    LlamaConfig,
    LlamaModel,
    LongformerConfig,
    LongformerModel,
    MistralConfig,
    MistralModel,
    ModernBertConfig,
    ModernBertModel,
    MPNetConfig,
    MPNetModel,
    OpenAIPrivacyFilterConfig,
    OpenAIPrivacyFilterModel,
    RobertaConfig,
    RobertaForSequenceClassification,
    RoFormerConfig,
    RoFormerModel,
    T5ForConditionalGeneration,
)

from export.bundle_writer import write_bundle
from export.decoding import lengths_of, padded
from export.encoder_attention_graph import add_encoder_attention_graph
from export.graphs import export_graphs
from export.runtime import Array, Floats, Session
from model.bundle import ATTEND_ENCODE, AttentionKind, GraphSpec, Precision
from model.bundle_files import read_manifest
from tests.families import (
    gated,
    test_bart_heads,
    test_clip,
    test_deberta,
    test_distilbert,
    test_modernbert,
)
from tests.families.encoders import SMALL, with_fixed_sinusoids
from tests.families.harness import imported
from tests.families.test_attention import T5_SMALL

ROWS = [
    [5, 9, 13, 6, 21, 8, 4, 11, 30, 17, 12, 6, 28],
    [7],
    [10, 5, 19, 8, 15, 22, 9],
]
CLASSIFIER: dict[str, Any] = {**SMALL, "num_labels": 3}
MODERN: dict[str, Any] = {
    **SMALL,
    **test_modernbert.SPECIAL,
    "num_hidden_layers": 3,
    "local_attention": 4,
    "global_attn_every_n_layers": 2,
}
SINKS = "OpenAI privacy filter"
WINDOWED: dict[str, Any] = {**gated.SMALL, "sliding_window": 4}
LONG: dict[str, Any] = {**SMALL, "max_position_embeddings": 80, "attention_window": [4, 32]}


def inputs_of(graph: GraphSpec, rows: list[list[int]], head_weights: Floats) -> dict[str, Array]:
    feed: dict[str, Array] = {
        "token_ids": padded(rows),
        "lengths": lengths_of(rows),
        "segment_ids": np.zeros_like(padded(rows)),
        "logit_positions": np.zeros(1, np.int32),
        "head_weights": head_weights,
    }
    return {spec.name: feed[spec.name] for spec in graph.inputs}


def attention_of(directory: Path, graphs: dict[str, GraphSpec]) -> list[Floats]:
    """``[layers, heads, length, length]`` of each row of a padded batch."""
    graph = graphs[ATTEND_ENCODE]
    (num_heads,) = {int(spec.shape[1]) for spec in graph.inputs if spec.name == "head_weights"}
    feed = inputs_of(graph, ROWS, np.eye(num_heads, dtype=np.float32))
    outputs = Session(directory, graph).run(**feed)
    names = [spec.name for spec in graph.outputs if spec.name.startswith(AttentionKind.ENCODER)]
    layers = np.stack([outputs[name] for name in names], 1)
    return [layers[i, :, :, : len(row), : len(row)] for i, row in enumerate(ROWS)]


def attentions(model: Any, ids: torch.Tensor) -> Sequence[torch.Tensor]:
    weights: Sequence[torch.Tensor] = model(ids, output_attentions=True).attentions
    return weights


def with_consecutive_positions(model: Any, ids: torch.Tensor) -> Sequence[torch.Tensor]:
    embeddings = model.get_input_embeddings()(ids)
    result = model(inputs_embeds=embeddings, output_attentions=True)
    weights: Sequence[torch.Tensor] = result.attentions
    return weights


def encoder_attentions(model: Any, ids: torch.Tensor) -> Sequence[torch.Tensor]:
    weights: Sequence[torch.Tensor] = model.encoder(ids, output_attentions=True).attentions
    return weights


def bart_attentions(model: Any, ids: torch.Tensor) -> Sequence[torch.Tensor]:
    return encoder_attentions(model.model, ids)


def longformer_attentions(model: Any, ids: torch.Tensor) -> list[torch.Tensor]:
    """Longformer's windows, put at their places; its first token is global.

    Its weights are ``[1, heads, length, 1 + window + 1]``: of the global token, then of the keys
    around the query. Those of the global token are apart, one column for each global query.
    """
    is_global = torch.zeros_like(ids)
    is_global[:, 0] = 1
    embeddings = model.get_input_embeddings()(ids)
    result = model(
        inputs_embeds=embeddings, global_attention_mask=is_global, output_attentions=True
    )
    length, layers = ids.shape[1], []
    for local, of_global in zip(result.attentions, result.global_attentions, strict=True):
        window = local.shape[3] - 2
        whole = torch.zeros(1, local.shape[1], length, length)
        for query in range(length):
            for offset in range(window + 1):
                key = query + offset - window // 2
                if 0 < key < length:
                    whole[:, :, query, key] = local[:, :, query, 1 + offset]
        whole[..., 0] = local[:, :, :length, 0]
        whole[:, :, 0] = of_global[:, :, :length, 0]
        layers.append(whole)
    return layers


FAMILIES: dict[str, tuple[Callable[[], Any], Callable[..., Sequence[torch.Tensor]]]] = {
    "BERT": (lambda: BertModel(BertConfig(**SMALL)), attentions),
    "tagger": (lambda: BertForTokenClassification(BertConfig(**CLASSIFIER)), attentions),
    "RoBERTa": (
        lambda: RobertaForSequenceClassification(RobertaConfig(**CLASSIFIER)),
        with_consecutive_positions,
    ),
    "ALBERT": (
        lambda: AlbertModel(
            AlbertConfig(**{**SMALL, "num_hidden_layers": 3, "embedding_size": 24})
        ),
        attentions,
    ),
    "MPNet": (lambda: MPNetModel(MPNetConfig(**SMALL)), with_consecutive_positions),
    "DistilBERT": (
        lambda: DistilBertModel(DistilBertConfig(**test_distilbert.SMALL)),
        attentions,
    ),
    "ELECTRA": (lambda: ElectraModel(ElectraConfig(**SMALL, embedding_size=24)), attentions),
    "DeBERTa": (
        lambda: DebertaV2Model(DebertaV2Config(**SMALL | test_deberta.V3)),
        attentions,
    ),
    "ModernBERT": (
        lambda: ModernBertModel(ModernBertConfig(**MODERN)),
        attentions,
    ),
    "RoFormer": (
        lambda: with_fixed_sinusoids(RoFormerModel(RoFormerConfig(**SMALL))),
        attentions,
    ),
    "Longformer": (lambda: LongformerModel(LongformerConfig(**LONG)), longformer_attentions),
    "CLIP": (lambda: CLIPTextModel(CLIPTextConfig(**test_clip.TEXT)), attentions),
    "T5": (lambda: T5ForConditionalGeneration(T5_SMALL), encoder_attentions),
    "BART, classifier": (test_bart_heads.model_of, bart_attentions),
    "Llama": (lambda: LlamaModel(LlamaConfig(**gated.SMALL)), attentions),
    "Mistral": (lambda: MistralModel(MistralConfig(**WINDOWED)), attentions),
    "EmbeddingGemma": (
        lambda: Gemma3TextModel(
            Gemma3TextConfig(**WINDOWED | {"head_dim": 32}, use_bidirectional_attention=True)
        ),
        attentions,
    ),
    SINKS: (
        lambda: OpenAIPrivacyFilterModel(
            OpenAIPrivacyFilterConfig(**WINDOWED, head_dim=16, num_local_experts=4)
        ),
        attentions,
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_weights_match_transformers(family: str) -> None:
    make, expected_of = FAMILIES[family]
    model = make()
    prepare = test_clip.end_texts if family == "CLIP" else None
    with imported(model, prepare=prepare) as checkpoint, tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        graphs = export_graphs(checkpoint.config, checkpoint.weights, directory)
        graphs = add_encoder_attention_graph(checkpoint.config, graphs, directory)
        for row, actual in zip(ROWS, attention_of(directory, graphs), strict=True):
            expected = torch.stack(list(expected_of(model, torch.tensor([row]))))[:, 0]
            np.testing.assert_allclose(actual, expected.detach().numpy(), atol=1e-5)
            if family == SINKS:
                assert actual.sum(-1).max() < 1 - 1e-3
            else:
                np.testing.assert_allclose(actual.sum(-1), 1, atol=1e-5)
            if len(row) > 1:
                assert actual.std() > 1e-3, "a uniform attention would show nothing"


@pytest.mark.parametrize("family", ["BERT", "ModernBERT"])
def test_quantized_bundles_return_weights(tmp_path: Path, family: str) -> None:
    """The int8 graphs' own weights, close to those of fp32; matrices are stored once."""
    make, expected_of = FAMILIES[family]
    model = make()
    with imported(model) as checkpoint:
        bundle = write_bundle(checkpoint, tmp_path, precision=Precision.INT8, accept_loss=True)
        graphs = read_manifest(bundle).graphs
        for row, actual in zip(ROWS, attention_of(bundle, graphs), strict=True):
            expected = torch.stack(list(expected_of(model, torch.tensor([row]))))[:, 0]
            np.testing.assert_allclose(actual, expected.detach().numpy(), atol=0.05)
            np.testing.assert_allclose(actual.sum(-1), 1, atol=1e-5)
        size = (bundle / "attend_encode.onnx").stat().st_size
        assert size < (bundle / "encode.onnx").stat().st_size + 50_000, "weights are shared"


def test_windows_of_any_size_are_put_at_their_places() -> None:
    """Texts shorter than a block, of exactly some blocks, and longer."""
    torch.manual_seed(0)
    config = ModernBertConfig(**MODERN)
    model = ModernBertModel(config)
    with imported(model) as checkpoint, tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        graphs = export_graphs(checkpoint.config, checkpoint.weights, directory)
        graph = add_encoder_attention_graph(checkpoint.config, graphs, directory)[ATTEND_ENCODE]
        session = Session(directory, graph)
        for length in (1, 2, 3, 4, 5, 12, 25):
            row = [5 + index % 20 for index in range(length)]
            feed = inputs_of(graph, [row], np.eye(4, dtype=np.float32))
            outputs = session.run(**feed)
            expected = attentions(model, torch.tensor([row]))
            for layer, weights in enumerate(expected):
                actual = outputs[f"{AttentionKind.ENCODER}.{layer}"]
                np.testing.assert_allclose(actual, weights.numpy(), atol=1e-5)
