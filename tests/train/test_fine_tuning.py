"""Language models and translators of other frameworks go on learning, whole or by adapters."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    LlamaForCausalLM,
    T5ForConditionalGeneration,
)

from export.adapters import read_adapters
from export.bundle_writer import write_bundle
from export.checkpoint import Checkpoint
from export.errors import SourceError
from export.sources import load_checkpoint
from model.bundle import Precision
from model.bundle_files import read_manifest, read_parity, read_quality
from model.transformer import from_weights
from tests.adapter_models import MAX_POSITIONS, bert, llama, t5
from tests.export.importers.support import WORDS, edit_json, randomise, save
from train.batches import IGNORED, make_batch
from train.data.sources import load_dataset
from train.errors import DataError, RecipeError
from train.inputs import encode, inputs_of
from train.objectives import TrainingModule
from train.read_recipe import read_recipe
from train.regularization import TrainingKernels
from train.run import run_training
from train.start import load_start

TEMPLATE = (
    "{% for m in messages %}{{ m.role }} {{ m.content }} [SEP] {% endfor %}"
    "{% if add_generation_prompt %}assistant {% endif %}"
)
RECIPE = """
name = "mine"
license = "Apache-2.0"
objective = "{objective}"
start_from = "base"
data = {{ source = "file:mine.jsonl" }}
{more}
[training]
num_steps = {num_steps}
batch_tokens = 256
learning_rate = 0.01
warmup_steps = 2
validate_every = 4
label_smoothing = {smoothing}
"""
ADAPTER = "adapter = { rank = 4, alpha = 16.0 }"
PAIRS = [{"source": f"w{number} w{number + 1}", "target": "w5 w6"} for number in range(40)]
TEXTS = [{"prompt": f"w{number}", "text": f"w{number + 1} w3"} for number in range(40)]
CHATS = [
    {
        "messages": [
            {"role": "user", "content": f"w{number}"},
            {"role": "assistant", "content": "w5 w6"},
            {"role": "user", "content": "w9"},
            {"role": "assistant", "content": "w8"},
        ]
    }
    for number in range(40)
]
LABELS = [{"text": f"w{number} w{number % 2}", "label": "ab"[number % 2]} for number in range(40)]
DATA: dict[str, list[Any]] = {
    "next_token": CHATS,
    "sequence_to_sequence": PAIRS,
    "classification": LABELS,
}


def base_of(objective: str, folder: Path) -> Path:
    """Saves the model that a training of ``objective`` starts from."""
    makers: dict[str, Any] = {
        "next_token": llama,
        "sequence_to_sequence": t5,
        "classification": bert,
    }
    base = save(randomise(makers[objective]()), folder / "base")
    if objective == "next_token":
        edit_json(base / "tokenizer_config.json", chat_template=TEMPLATE)
    return base


def bart() -> BartForConditionalGeneration:
    config = BartConfig(
        vocab_size=len(WORDS),
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        max_position_embeddings=MAX_POSITIONS,
        pad_token_id=0,
        bos_token_id=2,
        eos_token_id=3,
        decoder_start_token_id=3,
        forced_eos_token_id=None,
    )
    model: BartForConditionalGeneration = randomise(BartForConditionalGeneration(config))
    return model


def recipe_of(
    objective: str,
    folder: Path,
    more: str = "",
    num_steps: int = 12,
    data: Any = None,
    smoothing: float = 0.0,
) -> Path:
    lines = map(json.dumps, DATA[objective] if data is None else data)
    (folder / "mine.jsonl").write_text("\n".join(lines), "utf-8")
    path = folder / "mine.toml"
    text = RECIPE.format(objective=objective, more=more, num_steps=num_steps, smoothing=smoothing)
    path.write_text(text, "utf-8")
    return path


def rows_of(recipe_path: Path) -> Any:
    recipe = read_recipe(recipe_path)
    folder = recipe_path.parent
    dataset = load_dataset(recipe, folder)
    start = load_start(recipe, folder)
    return encode(recipe, inputs_of(recipe, start, folder / "out", dataset), (), dataset)


def module_of(checkpoint: Checkpoint, recipe_path: Path) -> TrainingModule:
    """The model and its losses, without dropout."""
    kernels = TrainingKernels(0.0)
    model = from_weights(checkpoint.config, checkpoint.weights, kernels)
    return TrainingModule(model, kernels, read_recipe(recipe_path).objective).eval()


def ids(text: str) -> list[int]:
    return [WORDS.index(word) if word in WORDS else 1 for word in text.split()]


def test_answers_of_a_conversation_are_learned(tmp_path: Path) -> None:
    base_of("next_token", tmp_path)
    rows = rows_of(recipe_of("next_token", tmp_path)).train
    chat = CHATS[0]["messages"]
    whole = ids("user w0 [SEP] assistant w5 w6 [SEP] user w9 [SEP] assistant w8 [SEP]")
    row = next(row for row in rows if row.inputs[1] == ids("w0")[0])
    assert len(chat) == 4
    assert row.inputs == whole[:-1]
    learned = [index for index, target in enumerate(row.targets) if target != IGNORED]
    assert learned == [3, 4, 5, 10, 11]  # before w5, w6, the end, w8, the end
    assert [row.targets[index] for index in learned] == [whole[index + 1] for index in learned]


@pytest.mark.parametrize("objective", ["next_token", "sequence_to_sequence"])
def test_the_loss_is_that_of_transformers(objective: str, tmp_path: Path) -> None:
    base = base_of(objective, tmp_path)
    data = TEXTS if objective == "next_token" else None
    recipe_path = recipe_of(objective, tmp_path, data=data)
    batch = make_batch(rows_of(recipe_path).train)
    module = module_of(load_checkpoint(str(base)), recipe_path)
    with torch.no_grad():
        found = module(batch, 0.0)[0][0] / batch.num_tokens
        if batch.sources is None:
            # transformers shifts the labels.
            first = torch.full_like(batch.targets[:, :1], IGNORED)
            labels = torch.cat([first, batch.targets], 1)
            inputs = torch.cat([batch.inputs, batch.targets[:, -1:].clamp(min=0)], 1)
            theirs = LlamaForCausalLM.from_pretrained(base)(inputs, labels=labels).loss
        else:
            theirs = T5ForConditionalGeneration.from_pretrained(base)(
                batch.sources,
                attention_mask=(batch.sources > 0).long(),
                decoder_input_ids=batch.inputs,
                labels=batch.targets,
            ).loss
    assert found.item() == pytest.approx(theirs.item(), rel=1e-5)


def test_label_smoothing_leaves_out_tokens_that_a_model_rules_out(tmp_path: Path) -> None:
    ruled_out = WORDS.index("w9")
    base = bart()
    base.final_logits_bias[0, ruled_out] = -1e9
    save(base, tmp_path / "base")
    recipe_path = recipe_of(
        "sequence_to_sequence", tmp_path, more='stored_precision = "fp16"', smoothing=0.1
    )
    batch = make_batch(rows_of(recipe_path).train)
    assert batch.sources is not None
    module = module_of(load_checkpoint(str(tmp_path / "base")), recipe_path)
    with torch.no_grad():
        found = module(batch, 0.1)[0][0]
        logits = base(
            batch.sources,
            attention_mask=(batch.sources > 0).long(),
            decoder_input_ids=batch.inputs,
        ).logits
    kept = [token for token in range(len(WORDS)) if token != ruled_out]
    targets = torch.where(batch.targets > ruled_out, batch.targets - 1, batch.targets)
    expected = functional.cross_entropy(
        logits[..., kept].flatten(0, 1),
        targets.flatten(),
        ignore_index=IGNORED,
        label_smoothing=0.1,
        reduction="sum",
    )
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    out = run_training(recipe_path, tmp_path / "out")
    bias = load_checkpoint(str(out)).weights["head.output.bias"]
    assert bias.isfinite().all()
    assert bias.argmin() == ruled_out
    assert bias.min() < -60_000


@pytest.mark.parametrize("objective", ["next_token", "sequence_to_sequence", "classification"])
def test_a_trained_adapter_merges_into_its_model(objective: str, tmp_path: Path) -> None:
    base = load_checkpoint(str(base_of(objective, tmp_path)))
    out = run_training(recipe_of(objective, tmp_path, ADAPTER), tmp_path / "out")
    record = json.loads((out / "training.json").read_text())
    losses = [loss for _, loss in record["validations"]]
    assert losses[-1] < losses[0]
    weights = load_file(out / "adapter.safetensors")
    assert record["num_trained"] == sum(x.numel() for x in weights.values())
    assert record["num_trained"] < record["num_parameters"] / 2
    assert not (out / "model.safetensors").exists()
    merged = load_checkpoint(str(out))
    for name, weight in merged.weights.items():
        changed = f"{name.removesuffix('.weight')}.adapter.a" in weights
        if name in base.weights and not changed and name not in weights:
            assert torch.equal(weight, base.weights[name])
        elif changed:
            assert torch.linalg.matrix_rank(weight - base.weights[name], rtol=1e-4) <= 4
    # The merged model has the loss that the training has reported.
    recipe_path = tmp_path / "mine.toml"
    recipe = read_recipe(recipe_path)
    dataset = load_dataset(recipe, tmp_path)
    start = load_start(recipe, tmp_path)
    inputs = inputs_of(recipe, start, out, dataset)
    batch = make_batch(encode(recipe, inputs, merged.labels, dataset).validation)
    module = module_of(merged, recipe_path)
    with torch.no_grad():
        found = module(batch, 0.0)[0][0] / batch.num_tokens
    assert found.item() == pytest.approx(record["validation_loss"], rel=1e-4)


@pytest.mark.parametrize("objective", ["next_token", "sequence_to_sequence"])
def test_a_trained_adapter_is_served_beside_its_model(objective: str, tmp_path: Path) -> None:
    base = base_of(objective, tmp_path)
    out = run_training(recipe_of(objective, tmp_path, ADAPTER), tmp_path / "out")
    checkpoint = load_checkpoint(str(base))
    adapters = read_adapters({"mine": str(out)}, checkpoint, str(base))
    path = write_bundle(
        checkpoint, tmp_path, name="both", precision=Precision.INT8, adapters=adapters
    )
    (adapter,) = read_manifest(path).adapters or ()
    assert (adapter.name, adapter.rank, adapter.license) == ("mine", 4, "Apache-2.0")
    (found,) = read_parity(path).adapters or ()
    assert found.greedy_tokens_equal == found.greedy_tokens_compared > 0


def test_a_killed_training_of_an_adapter_continues_bit_for_bit(tmp_path: Path) -> None:
    base_of("next_token", tmp_path)
    recipe = recipe_of("next_token", tmp_path, ADAPTER, num_steps=4)
    obstacle = tmp_path / "out" / "learning_curve.png"
    obstacle.mkdir(parents=True)
    with pytest.raises(OSError, match=obstacle.name):
        run_training(recipe, tmp_path / "out")
    obstacle.rmdir()
    recipe = recipe_of("next_token", tmp_path, ADAPTER)
    continued = run_training(recipe, tmp_path / "out")
    whole = run_training(recipe, tmp_path / "whole")
    files = [(folder / "adapter.safetensors").read_bytes() for folder in (continued, whole)]
    assert files[0] == files[1]


def test_a_whole_model_keeps_how_it_is_used(tmp_path: Path) -> None:
    base = load_checkpoint(str(base_of("next_token", tmp_path)))
    out = run_training(recipe_of("next_token", tmp_path), tmp_path / "out")
    trained = load_checkpoint(str(out))
    for name in ("config", "chat_template", "special_tokens", "tasks", "max_input_tokens"):
        assert getattr(trained, name) == getattr(base, name)
    assert set(trained.weights) == set(base.weights)
    path = write_bundle(trained, tmp_path, name="whole", held_out=trained.held_out)
    quality = read_quality(path)
    assert quality is not None
    (measured,) = quality.measurements
    assert measured.metrics["exact_match"] > 0.5
    assert measured.metrics["perplexity"] < 10


def test_another_model_than_the_trained_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base_of("next_token", tmp_path)
    out = run_training(recipe_of("next_token", tmp_path, ADAPTER, 1), tmp_path / "out")
    other = save(randomise(llama(), seed=1), tmp_path / "other")
    with pytest.raises(SourceError, match=r"trained with other weights than those of 'other'"):
        load_checkpoint(str(out), base=str(other))
    (tmp_path / "base").rename(tmp_path / "elsewhere")
    (tmp_path / "work" / "here").mkdir(parents=True)
    save(randomise(llama()), tmp_path / "work" / "base")  # not relative to the current folder
    monkeypatch.chdir(tmp_path / "work" / "here")
    with pytest.raises(SourceError, match="see --base"):
        load_checkpoint(str(out))
    assert load_checkpoint(str(out), base=str(tmp_path / "elsewhere")).name == "out"


def test_a_model_without_a_chat_template_has_no_conversations(tmp_path: Path) -> None:
    base = base_of("next_token", tmp_path)
    edit_json(base / "tokenizer_config.json", chat_template=None)
    with pytest.raises(DataError, match=r"train example 1: .* has no chat template"):
        rows_of(recipe_of("next_token", tmp_path))


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("adapter = { rank = 0 }", "adapter.rank: "),
        (f"{ADAPTER}\nmodel = {{ hidden_size = 8, num_layers = 1 }}", "adapter: needs start_from"),
    ],
)
def test_an_adapter_that_cannot_be_trained_names_the_field(
    more: str, expected: str, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError, match=expected):
        read_recipe(recipe_of("next_token", tmp_path, more))
