"""LoRA adapters that *peft* writes: merged weights equal to those of *peft*, and errors."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import (
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    LlamaModel,
    T5Config,
    T5ForConditionalGeneration,
)

from export.checkpoint import Checkpoint
from export.errors import SourceError, UnsupportedError, WeightsError
from export.readers.lora import ADAPTER_FILE, ADAPTER_WEIGHTS_FILE
from export.sources import load_checkpoint
from model.bundle import Task
from tests.export.importers import test_bert
from tests.export.importers.support import (
    WORDS,
    edit_json,
    logits,
    pooled,
    random_ids,
    randomise,
    save,
)
from tests.export.importers.test_sentence_transformers import add_modules

LENGTHS = torch.tensor([7, 4, 1])
# What transformers and peft say of their own code and of these adapters.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*have invalid shape:UserWarning"),
    pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to:UserWarning"),
    pytest.mark.filterwarnings("ignore:Model (with|has) .tie_word_embeddings:UserWarning"),
]


def llama_config(**changes: Any) -> LlamaConfig:
    shape: dict[str, Any] = {
        "vocab_size": len(WORDS),
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32,
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": 3,
    }
    return LlamaConfig(**{**shape, **changes})


def adapt(model: Any, base: Path, folder: Path, **options: Any) -> PeftModel:
    """Adapts ``model`` with random weights, and saves the adapter alone in ``folder``."""
    options = {"r": 4, "lora_alpha": 6, "init_lora_weights": False, **options}
    adapted = get_peft_model(model, LoraConfig(**options))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.add_(noise, alpha=0.3)
    adapted.save_pretrained(str(folder))
    edit_json(folder / ADAPTER_FILE, base_model_name_or_path=str(base))
    return adapted


def assert_weights_equal(found: Checkpoint, expected: Checkpoint) -> None:
    assert found.config == expected.config
    assert found.weights.keys() == expected.weights.keys()
    for name, weight in expected.weights.items():
        torch.testing.assert_close(found.weights[name], weight, rtol=1e-5, atol=1e-6, msg=name)


DECODERS = {
    "llama": lambda: LlamaForCausalLM(llama_config()),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(vocab_size=len(WORDS), n_embd=32, n_layer=2, n_head=4, n_positions=32)
    ),
    "untied-gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(WORDS),
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=32,
            tie_word_embeddings=False,
        )
    ),
    "tied-llama": lambda: LlamaForCausalLM(llama_config(tie_word_embeddings=True)),
    "t5": lambda: T5ForConditionalGeneration(
        T5Config(vocab_size=len(WORDS), d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4)
    ),
}


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("llama", {}),
        ("llama", {"target_modules": "all-linear", "use_dora": True}),
        ("llama", {"use_rslora": True, "modules_to_save": ["norm"]}),
        ("llama", {"target_modules": ["embed_tokens", "q_proj", "lm_head"]}),
        ("llama", {"target_modules": ["q_proj"], "trainable_token_indices": [3, 17]}),
        (
            "llama",
            {"target_modules": ["q_proj"], "trainable_token_indices": {"embed_tokens": [5, 1]}},
        ),
        (
            "llama",
            {
                "target_modules": ["q_proj", "o_proj", "down_proj"],
                "rank_pattern": {r"layers\.1\.self_attn\.q_proj": 7},
                "alpha_pattern": {"down_proj": 20, "^model.layers.0.self_attn.o_proj": 3},
            },
        ),
        ("gpt2", {"fan_in_fan_out": True}),
        ("gpt2", {"fan_in_fan_out": True, "use_dora": True}),
        ("untied-gpt2", {"target_modules": ["attn.c_proj", "c_attn", "lm_head"]}),
        ("t5", {"target_modules": ["q", "v", "wi", "wo"]}),
    ],
)
def test_generators_equal_those_that_peft_merges(
    family: str, options: dict[str, Any], tmp_path: Path
) -> None:
    task = "SEQ_2_SEQ_LM" if family == "t5" else "CAUSAL_LM"
    model = randomise(DECODERS[family]())
    base = save(model, tmp_path / "base")
    adapted = adapt(model, base, tmp_path / "adapter", task_type=task, **options)
    merged = save(adapted.merge_and_unload(), tmp_path / "merged")
    found = load_checkpoint(str(tmp_path / "adapter"))
    assert_weights_equal(found, load_checkpoint(str(merged)))
    assert found.name == "adapter"
    if family == "llama":
        ids = random_ids(2, 9)
        with torch.no_grad():
            expected = adapted(ids).logits
        torch.testing.assert_close(logits(found, ids), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("tied-llama", {"target_modules": ["embed_tokens", "q_proj"]}),
        ("tied-llama", {"target_modules": ["lm_head"]}),
        ("tied-llama", {"target_modules": ["embed_tokens", "lm_head"]}),
        ("tied-llama", {"target_modules": ["embed_tokens"], "ensure_weight_tying": True}),
        ("tied-llama", {"modules_to_save": ["embed_tokens"]}),
        ("tied-llama", {"modules_to_save": ["lm_head"]}),
        ("tied-llama", {"modules_to_save": ["embed_tokens", "lm_head"]}),
        ("tied-llama", {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}),
        ("tied-llama", {"trainable_token_indices": {"embed_tokens": [3, 4], "lm_head": [5]}}),
        ("tied-llama", {"trainable_token_indices": [3, 17]}),
        ("gpt2", {"target_modules": ["wte", "wpe", "c_fc"], "fan_in_fan_out": True}),
        ("gpt2", {"target_modules": ["attn.c_proj", "c_attn", "lm_head"]}),
    ],
)
def test_one_of_two_tied_matrices_can_be_adapted(
    family: str, options: dict[str, Any], tmp_path: Path
) -> None:
    """``merge_and_unload`` would add the change of one matrix to both."""
    model = randomise(DECODERS[family]())
    base = save(model, tmp_path / "base")
    adapted = adapt(model, base, tmp_path / "adapter", task_type="CAUSAL_LM", **options)
    ids = random_ids(2, 9)
    with torch.no_grad():
        expected = adapted(ids).logits
    found = load_checkpoint(str(tmp_path / "adapter"))
    torch.testing.assert_close(logits(found, ids), expected, rtol=1e-4, atol=1e-4)


def test_an_adapter_of_a_shared_table_is_refused(tmp_path: Path) -> None:
    model = randomise(DECODERS["t5"]())
    base = save(model, tmp_path / "base")
    options = {"task_type": "SEQ_2_SEQ_LM", "modules_to_save": ["shared"]}
    adapt(model, base, tmp_path / "adapter", **options)
    with pytest.raises(UnsupportedError, match="adapter of shared is not supported"):
        load_checkpoint(str(tmp_path / "adapter"))


@pytest.mark.parametrize("base_class", [BertModel, BertForMaskedLM])
@pytest.mark.parametrize(
    "options",
    [{}, {"bias": "all"}, {"bias": "lora_only"}, {"lora_bias": True, "rank_pattern": {"query": 2}}],
)
def test_a_classifier_on_a_model_with_another_head(
    base_class: Any, options: dict[str, Any], tmp_path: Path
) -> None:
    """The adapter brings the classifier; a lone ``BertModel`` names its weights without prefix."""
    model = randomise(BertForSequenceClassification(test_bert.config(num_labels=5)))
    body = base_class(
        test_bert.config(), **({"add_pooling_layer": True} if base_class is BertModel else {})
    )
    if base_class is BertModel:
        body.load_state_dict(model.bert.state_dict())
    else:
        body = randomise(body)
        body.bert.load_state_dict(model.bert.state_dict(), strict=False)
    base = save(body, tmp_path / "base")
    if base_class is BertForMaskedLM:  # as Google's files, which have the pooler too
        pooler = {f"bert.pooler.{n}": x for n, x in model.bert.pooler.state_dict().items()}
        path = base / "model.safetensors"
        save_file({**load_file(path), **pooler}, path, {"format": "pt"})
    adapted = adapt(model, base, tmp_path / "adapter", task_type="SEQ_CLS", **options)
    found = load_checkpoint(str(tmp_path / "adapter"))
    merged = save(adapted.merge_and_unload(), tmp_path / "merged")
    assert found.labels == tuple(f"LABEL_{index}" for index in range(5))
    assert found.tasks == (Task.CLASSIFY,)
    assert_weights_equal(found, load_checkpoint(str(merged)))
    ids = random_ids(3, 7)
    with torch.no_grad():
        expected = adapted(ids, attention_mask=test_bert.mask()).logits
    torch.testing.assert_close(pooled(found, ids, LENGTHS), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("model_class", "task_type", "task"),
    [
        (BertModel, "FEATURE_EXTRACTION", Task.EMBED),
        (BertForSequenceClassification, "SEQ_CLS", Task.CLASSIFY),
    ],
)
def test_only_an_embedding_model_keeps_its_modules(
    model_class: Any, task_type: str, task: Task, tmp_path: Path
) -> None:
    base = save(randomise(BertModel(test_bert.config())), tmp_path / "base")
    add_modules(base, "Transformer", "Pooling", "Normalize", pooling_mode_cls_token=True)
    adapt(
        randomise(model_class(test_bert.config())), base, tmp_path / "adapter", task_type=task_type
    )
    found = load_checkpoint(str(tmp_path / "adapter"))
    assert task in found.tasks
    assert found.config.head.normalize == (task == Task.EMBED)


@pytest.mark.parametrize("base_class", [LlamaModel, LlamaForCausalLM])
def test_a_decoder_that_classifies(base_class: Any, tmp_path: Path) -> None:
    model = randomise(LlamaForSequenceClassification(llama_config(num_labels=3)))
    body = randomise(base_class(llama_config()))
    (body if base_class is LlamaModel else body.model).load_state_dict(model.model.state_dict())
    base = save(body, tmp_path / "base")
    adapted = adapt(model, base, tmp_path / "adapter", task_type="SEQ_CLS")
    merged = save(adapted.merge_and_unload(), tmp_path / "merged")
    assert_weights_equal(load_checkpoint(str(tmp_path / "adapter")), load_checkpoint(str(merged)))


def llama_adapter(folder: Path, **options: Any) -> Path:
    model = randomise(LlamaForCausalLM(llama_config()))
    base = save(model, folder / "base")
    adapt(model, base, folder / "adapter", task_type="CAUSAL_LM", **options)
    return folder / "adapter"


def test_the_adapters_files_come_before_those_of_the_base(tmp_path: Path) -> None:
    adapter = llama_adapter(tmp_path)
    (tmp_path / "base" / "chat_template.jinja").write_text("base")
    template = "{% for message in messages %}<{{ message.content }}>{% endfor %}"
    (adapter / "chat_template.jinja").write_text(template)
    (tmp_path / "base" / "README.md").write_text("---\nlicense: mit\n---\n")
    found = load_checkpoint(str(adapter))
    assert found.chat_template == template
    assert found.license == "mit"
    (adapter / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    assert load_checkpoint(str(adapter)).license == "apache-2.0"


def test_a_larger_vocabulary(tmp_path: Path) -> None:
    """Tokens were added before the training; the adapter has the whole tables."""
    model = randomise(LlamaForCausalLM(llama_config()))
    base = save(model, tmp_path / "base")
    model.resize_token_embeddings(len(WORDS) + 3)
    saved = ["embed_tokens", "lm_head"]
    adapted = adapt(model, base, tmp_path / "adapter", task_type="CAUSAL_LM", modules_to_save=saved)
    merged = save(adapted.merge_and_unload(), tmp_path / "merged")
    found = load_checkpoint(str(tmp_path / "adapter"))
    assert found.config.vocabulary_size == len(WORDS) + 3
    assert_weights_equal(found, load_checkpoint(str(merged)))


def test_the_base_can_be_elsewhere(tmp_path: Path) -> None:
    adapter = llama_adapter(tmp_path)
    expected = load_checkpoint(str(adapter))
    (tmp_path / "base").rename(tmp_path / "moved")
    with pytest.raises(SourceError, match="--base"):
        load_checkpoint(str(adapter))
    with pytest.raises(SourceError, match="--base: nowhere: no such folder"):
        load_checkpoint(str(adapter), base="nowhere")
    found = load_checkpoint(str(adapter), base=str(tmp_path / "moved"))
    assert_weights_equal(found, expected)
    with pytest.raises(UnsupportedError, match=r"--base: .* whole model"):
        load_checkpoint(str(tmp_path / "moved"), base=str(tmp_path / "moved"))
    with pytest.raises(UnsupportedError, match="--base: minilm"):
        load_checkpoint("minilm", base=str(tmp_path / "moved"))


def test_an_adapter_that_names_no_base(tmp_path: Path) -> None:
    adapter = llama_adapter(tmp_path)
    edit_json(adapter / ADAPTER_FILE, base_model_name_or_path=None)
    with pytest.raises(SourceError, match="no base_model_name_or_path: give --base"):
        load_checkpoint(str(adapter))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("peft_type", "IA3"),
        ("init_lora_weights", "pissa"),
        ("target_parameters", ["mlp.experts.gate_up_proj"]),
        ("layer_replication", [[0, 1]]),
        ("alora_invocation_tokens", [1]),
        ("alpha_pattern", {"(a+)+": 1}),
        ("alpha_pattern", {".*.*.*.*x": 1}),
    ],
)
def test_refuses_what_it_cannot_merge(field: str, value: object, tmp_path: Path) -> None:
    adapter = llama_adapter(tmp_path)
    edit_json(adapter / ADAPTER_FILE, **{field: value})
    with pytest.raises(UnsupportedError, match=field):
        load_checkpoint(str(adapter))


LAYER = "base_model.model.model.layers.1.self_attn.q_proj"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (f"{LAYER}.lora_A.weight", None, "lacks lora_A or lora_B"),
        (f"{LAYER}.lora_A.weight", torch.zeros(3, 32), "lora_A has 3 rows, lora_B 4"),
        (f"{LAYER}.lora_B.weight", torch.zeros(31, 4), r"\[31, 32\] values, the weight has"),
        (f"{LAYER}.lora_A.weight", torch.full((4, 32), torch.nan), "NaN or infinite"),
        (f"{LAYER[:-6]}k_proj.lora_magnitude_vector", torch.zeros(16), "lacks lora_A or lora_B"),
        (f"{LAYER}.lora_Q.weight", torch.zeros(1), "lora_Q.weight is not supported"),
        (f"{LAYER}s.lora_A.weight", torch.zeros(4, 32), "no weight model.layers.1.*q_projs.weight"),
        ("base_model.model.model.extra.weight", torch.zeros(2), "unexpected: model.extra.weight"),
    ],
)
def test_damaged_adapters(name: str, value: Any, message: str, tmp_path: Path) -> None:
    adapter = llama_adapter(tmp_path)
    path = adapter / ADAPTER_WEIGHTS_FILE
    weights = {**load_file(path), name: value}
    save_file({key: x for key, x in weights.items() if x is not None}, path)
    with pytest.raises((SourceError, UnsupportedError, WeightsError), match=message):
        load_checkpoint(str(adapter))


def test_a_pickle_is_refused(tmp_path: Path) -> None:
    adapter = llama_adapter(tmp_path)
    weights = load_file(adapter / ADAPTER_WEIGHTS_FILE)
    (adapter / ADAPTER_WEIGHTS_FILE).unlink()
    torch.save(weights, adapter / "adapter_model.bin")
    with pytest.raises(UnsupportedError, match="pickle"):
        load_checkpoint(str(adapter))


def test_a_base_that_is_an_adapter(tmp_path: Path) -> None:
    adapter = llama_adapter(tmp_path)
    edit_json(adapter / ADAPTER_FILE, base_model_name_or_path=str(adapter))
    with pytest.raises(SourceError, match=r"no config\.json"):
        load_checkpoint(str(adapter))
    assert json.loads((adapter / ADAPTER_FILE).read_text())["r"] == 4
