"""Decoders that embed, classify and tag, against transformers: every family and class."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, processors
from torch import Tensor

from export.errors import UnsupportedError
from export.sources import load_checkpoint
from model.bundle import ScoreFunction, Task
from model.config import Kind, PoolingKind
from tests.export.importers.support import edit_json, pooled, random_ids, randomise, save
from tests.families import test_bloom, test_gpt2, test_gpt_neox, test_opt
from tests.families.gated import SMALL, WINDOWS
from tests.families.harness import check_eager, check_graphs, imported

TOLERANCE = 1e-4
LENGTHS = torch.tensor([9, 4], dtype=torch.int32)
SLIDING = ["full_attention", "sliding_attention"]
GEMMA = {**SMALL, "head_dim": 32}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
# Windows are shorter than the texts.
SIZES: dict[str, dict[str, Any]] = {
    "Apertus": SMALL,
    "Bloom": test_bloom.SMALL,
    "GPT2": test_gpt2.SMALL,
    "GPTNeoX": test_gpt_neox.SMALL,
    "Gemma": GEMMA,
    "Gemma2": {**GEMMA, "sliding_window": 3, "layer_types": SLIDING},
    "Gemma3Text": {**GEMMA, "sliding_window": 3, "layer_types": SLIDING},
    "GptOss": {**SMALL, "num_local_experts": 4, "sliding_window": 3},
    "Llama": SMALL,
    "Mistral": {**SMALL, "sliding_window": 3},
    "Mixtral": {**SMALL, "num_local_experts": 4},
    "OPT": test_opt.SMALL,
    "Phi3": {**SMALL, "sliding_window": 3},
    "Phimoe": {**SMALL, "num_local_experts": 4},
    "Qwen2": {**SMALL, "use_sliding_window": True, "sliding_window": 3, "layer_types": SLIDING},
    "Qwen2Moe": {**SMALL, **EXPERTS, "shared_expert_intermediate_size": 48},
    "Qwen3": {**SMALL, "head_dim": 32},
    "Qwen3Moe": {**SMALL, **EXPERTS, "head_dim": 32},
    "SmolLM3": SMALL,
}
TASKS = {
    "Model": Task.EMBED,
    "ForSequenceClassification": Task.CLASSIFY,
    "ForTokenClassification": Task.TAG,
    "ForQuestionAnswering": Task.ANSWER,
}
CASES = [
    (family, kind) for family in SIZES for kind in TASKS if hasattr(transformers, family + kind)
]


def make(family: str, kind: str, **more: Any) -> Any:
    labels = {"num_labels": 2 if kind == "ForQuestionAnswering" else 3}
    config = getattr(transformers, f"{family}Config")(
        **SIZES[family] | {"pad_token_id": 0} | labels | more
    )
    model = getattr(transformers, family + kind)(config)
    model.set_attn_implementation("eager")
    return randomise(model)


@torch.no_grad()
def theirs(model: Any, ids: Tensor) -> Tensor:
    """Outputs of one row; of an encoder without a head, the mean of the hidden vectors."""
    output = model(ids)
    if "last_hidden_state" in output:
        mean: Tensor = output.last_hidden_state[0].mean(0)
        return mean
    if "logits" in output:
        logits: Tensor = output.logits
        return logits[0]
    return torch.stack([output.start_logits[0], output.end_logits[0]], -1)


def check(model: Any, folder: Path, task: Task) -> None:
    """A padded batch of the import against each row alone of ``model``."""
    checkpoint = load_checkpoint(str(save(model, folder)))
    assert checkpoint.config.kind == Kind.ENCODER
    assert task in checkpoint.tasks
    assert not any(name.startswith("decoder") for name in checkpoint.weights)
    ids = random_ids(2, 9)
    for row, length, actual in zip(ids, LENGTHS, pooled(checkpoint, ids, LENGTHS), strict=True):
        expected = theirs(model, row[None, :length])
        valid = actual[:length] if actual.ndim == 2 else actual
        torch.testing.assert_close(valid, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(("family", "kind"), CASES, ids=lambda value: value)
def test_class_matches_transformers(family: str, kind: str, tmp_path: Path) -> None:
    check(make(family, kind), tmp_path, TASKS[kind])


@settings(max_examples=6)
@given(
    family=st.sampled_from(("Mistral", "Qwen2", "Phi3", "Gemma2")),
    window=WINDOWS,
    types=st.lists(st.sampled_from(SLIDING), min_size=2, max_size=2),
)
def test_windows_match_transformers(family: str, window: int, types: list[str]) -> None:
    changes: dict[str, Any] = {"sliding_window": window}
    if family in ("Qwen2", "Gemma2"):
        changes["layer_types"] = types
    check_eager(make(family, "Model", **changes))


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Gemma"])
def test_tokens_see_those_after_them_if_the_configuration_says_so(
    family: str, tmp_path: Path
) -> None:
    """As GTE-Qwen2's does. Windows of transformers then include a distance of their size."""
    model = make(family, "Model")
    model.config.is_causal = False
    check(model, tmp_path, Task.EMBED)
    layer = load_checkpoint(str(tmp_path)).config.encoder.layers[0]  # type: ignore[union-attr]
    assert layer.attention is not None
    assert not layer.attention.is_causal


@settings(max_examples=6)
@given(
    window=st.sampled_from((2, 4, 5, 12)),
    types=st.lists(st.sampled_from(SLIDING), min_size=2, max_size=2),
)
def test_embedding_gemma_matches_transformers(window: int, types: list[str]) -> None:
    changes = {"use_bidirectional_attention": True, "sliding_window": window}
    check_eager(make("Gemma3Text", "Model", layer_types=types, **changes))


def embedding_gemma() -> Any:
    return make("Gemma3Text", "Model", use_bidirectional_attention=True, sliding_window=4)


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("BLOOM (embeddings)", lambda: make("Bloom", "Model")),
        ("Gemma 3 (embeddings, not causal)", embedding_gemma),
        ("Gemma 2 (embeddings)", lambda: make("Gemma2", "Model")),
        ("GPT-2 (embeddings)", lambda: make("GPT2", "Model")),
        ("Mistral (embeddings)", lambda: make("Mistral", "Model")),
        ("Mixtral (embeddings)", lambda: make("Mixtral", "Model")),
        ("Qwen3 (embeddings)", lambda: make("Qwen3", "Model")),
    ],
)
def test_graphs_match_transformers(name: str, model: Callable[[], Any]) -> None:
    check_graphs(name, model())


def test_graphs_of_a_bidirectional_window_match_transformers() -> None:
    model = make("Qwen2", "Model")
    model.config.is_causal = False
    check_graphs("Qwen2 (embeddings, not causal)", model)


def test_graphs_of_a_classifier_match_transformers() -> None:
    model = make("Llama", "ForSequenceClassification")
    check_graphs("Llama (labels)", model, expected=lambda model, ids: model(ids).logits)


@pytest.mark.parametrize(
    ("problem", "score_function"),
    [
        (None, ScoreFunction.SIGMOID),
        ("regression", ScoreFunction.IDENTITY),
        ("multi_label_classification", ScoreFunction.SIGMOID),
    ],
)
def test_one_label_is_a_score(problem: str | None, score_function: ScoreFunction) -> None:
    """Reward models and rerankers."""
    model = make("Qwen2", "ForSequenceClassification", num_labels=1, problem_type=problem)
    with imported(model) as checkpoint:
        assert checkpoint.tasks == (Task.CLASSIFY, Task.RERANK)
        assert checkpoint.score_function == score_function
        assert checkpoint.config.head.pooling == PoolingKind.LAST
        assert not checkpoint.config.head.bias


def test_a_token_classifier_may_have_no_bias(tmp_path: Path) -> None:
    check(
        make("Qwen3", "ForTokenClassification", token_classification_bias=False),
        tmp_path,
        Task.TAG,
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["LlamaBidirectionalModel"]}, "LlamaForSequenceClassification"),
        ({"auto_map": {"AutoModel": "modeling.Other"}}, "code of its own, AutoModel"),
    ],
)
def test_other_code_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    save(make("Llama", "Model"), tmp_path)
    edit_json(tmp_path / "config.json", **changes)
    with pytest.raises(UnsupportedError, match=message):
        load_checkpoint(str(tmp_path))


def test_a_tokenizer_that_ends_texts_by_its_own_code_is_refused(tmp_path: Path) -> None:
    """As that of GTE-Qwen2."""
    save(make("Qwen2", "Model"), tmp_path)
    edit_json(
        tmp_path / "tokenizer_config.json",
        add_eos_token=True,
        auto_map={"AutoTokenizer": ["tokenization.Other", None]},
        eos_token="[SEP]",
    )
    with pytest.raises(UnsupportedError, match="ends texts with the eos_token"):
        load_checkpoint(str(tmp_path))
    path = str(tmp_path / "tokenizer.json")
    tokenizer = Tokenizer.from_file(path)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A [SEP]", special_tokens=[("[SEP]", 3)]
    )
    tokenizer.save(path)
    assert load_checkpoint(str(tmp_path)).tasks == (Task.EMBED, Task.RERANK)


def test_a_language_model_that_is_not_causal_is_refused(tmp_path: Path) -> None:
    save(transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL)), tmp_path)
    edit_json(tmp_path / "config.json", is_causal=False)
    with pytest.raises(UnsupportedError, match="LlamaForCausalLM generates no text"):
        load_checkpoint(str(tmp_path))


def test_a_classifier_whose_texts_end_with_padding_is_refused(tmp_path: Path) -> None:
    """transformers would pool the token before."""
    save(make("Llama", "ForSequenceClassification"), tmp_path)
    path = str(tmp_path / "tokenizer.json")
    tokenizer = Tokenizer.from_file(path)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A [PAD]", special_tokens=[("[PAD]", 0)]
    )
    tokenizer.save(path)
    with pytest.raises(UnsupportedError, match="ends texts with the token 0"):
        load_checkpoint(str(tmp_path))


def test_opt_with_a_projection_is_refused(tmp_path: Path) -> None:
    save(make("OPT", "Model", word_embed_proj_dim=32, do_layer_norm_before=False), tmp_path)
    with pytest.raises(UnsupportedError, match="projection"):
        load_checkpoint(str(tmp_path))


def test_alibi_must_be_causal(tmp_path: Path) -> None:
    save(make("Bloom", "Model"), tmp_path)
    edit_json(tmp_path / "config.json", is_causal=False)
    with pytest.raises(UnsupportedError, match="ALiBi"):
        load_checkpoint(str(tmp_path))
