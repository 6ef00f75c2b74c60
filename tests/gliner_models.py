"""GLiNER with random weights: encoders of transformers, and the head as its paper describes it.

Zaratiana et al. 2023 (arXiv 2311.08526), section 2.2; prompts and words are those of the package
``gliner``. The reference computes one span at a time, with PyTorch's own layers.
"""

import re
import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken
from torch import Tensor, nn
from transformers import (
    AutoModel,
    BertConfig,
    DebertaV2Config,
    ModernBertConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
)

from export.bundle_writer import write_bundle
from export.sources import load_checkpoint
from model.bundle import Precision
from server.runtime.memory import Array
from tests import heads
from tests.export.importers.support import edit_json, randomise

GLINER, GLINER_INT8 = "gliner", "gliner-int8"
NAMES = (GLINER, GLINER_INT8)
MARKER, SEPARATOR = "<<ENT>>", "<<SEP>>"
ENCODER_SIZE, SIZE = 32, 24
MAX_WIDTH, MAX_WORDS, MAX_TOKENS = 8, 16, 64
VOCABULARY_SIZE = 30_524  # BERT's and two markers
SAMPLE = "Anna Smith moved from Lisbon to Berlin in May 2021."
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY_SIZE,
    "hidden_size": ENCODER_SIZE,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": MAX_TOKENS,
    "pad_token_id": 0,
}
_DEBERTA: dict[str, Any] = {
    "type_vocab_size": 0,
    "relative_attention": True,
    "position_buckets": 16,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
}
_MODERNBERT: dict[str, Any] = {
    "local_attention": 16,
    "global_attn_every_n_layers": 2,
    "bos_token_id": 101,
    "cls_token_id": 101,
    "eos_token_id": 102,
    "sep_token_id": 102,
}
ENCODERS: dict[str, PretrainedConfig] = {
    "deberta": DebertaV2Config(**_SHAPE, **_DEBERTA),
    "bert": BertConfig(**_SHAPE),
    "modernbert": ModernBertConfig(**_SHAPE, **_MODERNBERT),
}


class Entity(NamedTuple):
    """An expected entity: places in characters, a label, a score."""

    start: int
    end: int
    label: str
    score: float


def _network(size: int, inputs: int | None = None) -> nn.Sequential:
    """As the package makes it: the third layer has no effect without training."""
    return nn.Sequential(
        nn.Linear(inputs or size, 4 * size), nn.ReLU(), nn.Dropout(0.1), nn.Linear(4 * size, size)
    )


class Gliner(nn.Module):
    """The whole model, with the names of the package ``gliner``."""

    def __init__(self, encoder: str, size: int, num_rnn_layers: int) -> None:
        super().__init__()
        config = ENCODERS[encoder]
        self.token_rep_layer = nn.Module()
        self.token_rep_layer.bert_layer = nn.Module()
        model: Any = AutoModel.from_config(config)
        self.token_rep_layer.bert_layer.model = model
        if size != config.hidden_size:
            self.token_rep_layer.projection = nn.Linear(config.hidden_size, size)
        if num_rnn_layers:
            self.rnn = nn.Module()
            self.rnn.lstm = nn.LSTM(
                size, size // 2, num_rnn_layers, batch_first=True, bidirectional=True
            )
        spans = nn.Module()
        spans.project_start, spans.project_end = _network(size), _network(size)
        spans.out_project = _network(size, 2 * size)
        self.span_rep_layer = nn.Module()
        self.span_rep_layer.span_rep_layer = spans
        self.prompt_rep_layer = _network(size)

    @torch.no_grad()
    def vectors(self, row: "Prompted", max_width: int) -> tuple[Tensor, Tensor]:
        """The vectors of spans ``[words, max_width, size]`` and of labels ``[labels, size]``."""
        layer: Any = self.token_rep_layer
        hidden = layer.bert_layer.model(input_ids=torch.tensor([row.ids])).last_hidden_state[0]
        if hasattr(layer, "projection"):
            hidden = layer.projection(hidden)
        padded = torch.cat([hidden, torch.zeros(1, hidden.shape[1])])  # -1: a word without tokens
        h = padded[row.words]
        if hasattr(self, "rnn"):
            rnn: Any = self.rnn
            h = rnn.lstm(h[None])[0][0]
        spans: Any = self.span_rep_layer.span_rep_layer
        found = torch.zeros(len(h), max_width, h.shape[1])
        for i in range(len(h)):
            for j in range(i, min(i + max_width, len(h))):
                pair = torch.cat([spans.project_start(h[i]), spans.project_end(h[j])]).relu()
                found[i, j - i] = spans.out_project(pair)
        return found, self.prompt_rep_layer(hidden[row.labels])

    def logits(self, row: "Prompted", max_width: int) -> Tensor:
        """``[words, max_width, labels]``; 0 beyond the last word."""
        spans, labels = self.vectors(row, max_width)
        return spans @ labels.T


def make(encoder: str = "deberta", size: int = SIZE, num_rnn_layers: int = 1) -> Gliner:
    """A model with random weights; the same for the same arguments. Logits are around 0."""
    model: Gliner = randomise(Gliner(encoder, size, num_rnn_layers), seed=3).eval()
    layer: Any = model.token_rep_layer
    with torch.no_grad():
        layer.bert_layer.model.get_input_embeddings().weight.mul_(8)
        for name, parameter in model.named_parameters():
            if not name.startswith("token_rep_layer.bert_layer"):
                parameter.mul_(7 * parameter.shape[-1] ** -0.5 if parameter.ndim == 2 else 0.5)
        spans: Any = model.span_rep_layer.span_rep_layer
        found, _ = model.vectors(prompted(SAMPLE, ["person"]), 1)
        spans.out_project[-1].bias.sub_(found.mean((0, 1)))
    return model


@cache
def model() -> Gliner:
    """The model of the bundles."""
    return make()


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    """BERT's, with the markers."""
    made = PreTrainedTokenizerFast(
        tokenizer_file=str(heads.tokenizer_folder() / "tokenizer.json"), pad_token="[PAD]"
    )
    library: Any = made
    library._tokenizer.no_padding()
    library._tokenizer.no_truncation()
    made.add_tokens([AddedToken(MARKER), AddedToken(SEPARATOR)])
    return made


def save_source(
    folder: Path, model: Gliner, encoder: str = "deberta", size: int = SIZE, **changes: Any
) -> Path:
    """The files that the package writes."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: x.contiguous() for name, x in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors")
    tokenizer().save_pretrained(folder)
    lstm = getattr(getattr(model, "rnn", None), "lstm", None)
    config = {
        "model_name": "none",
        "encoder_config": ENCODERS[encoder].to_dict(),
        "hidden_size": size,
        "num_rnn_layers": 0 if lstm is None else lstm.num_layers,
        "max_width": MAX_WIDTH,
        "max_len": MAX_WORDS,
        "ent_token": MARKER,
        "sep_token": SEPARATOR,
        "class_token_index": tokenizer().convert_tokens_to_ids(MARKER),
        "span_mode": "markerV0",
        "subtoken_pooling": "first",
        "embed_ent_token": True,
        "fuse_layers": False,
        "labels_encoder": None,
        "words_splitter_type": "whitespace",
        "vocab_size": VOCABULARY_SIZE,
    }
    edit_json(folder / "gliner_config.json", **{**config, **changes})
    return folder


def write_bundle_of(root: Path, name: str) -> None:
    """Writes the bundle ``root / name`` of one of :data:`NAMES`, unless it exists."""
    if (root / name).exists():
        return
    folder = save_source(root / f".source-{name}", model())
    precision = Precision.INT8 if name == GLINER_INT8 else Precision.FP32
    write_bundle(load_checkpoint(str(folder)), root, name=name, precision=precision)
    shutil.rmtree(folder)


class Prompted(NamedTuple):
    """A row of ids, where its words and labels are in it, and where words are in the text.

    A word that the tokenizer drops, such as a lone accent, is none.
    """

    ids: list[int]
    words: list[int]
    labels: list[int]
    spans: list[tuple[int, int]]


def prompted(text: str, labels: Sequence[str], *, reads_marker: bool = True) -> Prompted:
    """Labels and words of ``text`` as transformers tokenizes a list of words."""
    spans = [match.span() for match in re.finditer(r"\w+(?:[-_]\w+)*|\S", text)]
    before = [word for label in labels for word in (MARKER, label)] + [SEPARATOR]
    words = before + [text[start:end] for start, end in spans]
    encoded: Any = tokenizer()(words, is_split_into_words=True)
    of_tokens = encoded.word_ids()
    marks = [of_tokens.index(2 * label) for label in range(len(labels))]
    kept = [word for word in range(len(before), len(words)) if word in of_tokens]
    return Prompted(
        encoded["input_ids"],
        [of_tokens.index(word) for word in kept],
        marks if reads_marker else [mark + 1 for mark in marks],
        [spans[word - len(before)] for word in kept],
    )


def logits(text: str, labels: Sequence[str]) -> Array:
    """The logits ``[words, max_width, labels]`` of the bundles' model."""
    row = prompted(text, labels)
    if not row.words:
        return np.zeros((0, MAX_WIDTH, len(labels)), np.float32)
    found: Array = model().logits(row, MAX_WIDTH).numpy()
    return found


class Rules(NamedTuple):
    """The options of decoding."""

    min_score: float = 0.5
    nested: bool = False
    multi_label: bool = False


def greedy(scores: Array, rules: Rules) -> list[tuple[int, int, int]]:
    """The first word, the last one and the label of each span that the greedy search takes.

    Section 2.2: the best spans first; a span that conflicts with a taken one is left out.
    ``scores [words, max_width, labels]``.
    """
    count, width, num_labels = scores.shape
    spans = [
        (i, i + k, c)
        for i in range(count)
        for k in range(min(width, count - i))
        for c in range(num_labels)
        if scores[i, k, c] >= rules.min_score
    ]
    taken: list[tuple[int, int, int]] = []
    for first, last, label in sorted(spans, key=lambda x: -scores[x[0], x[1] - x[0], x[2]]):
        for a, b, _ in taken:
            is_apart = last < a or b < first
            is_nested = (a <= first and last <= b) or (first <= a and b <= last)
            if (a, b) == (first, last):
                if not rules.multi_label:
                    break
            elif not (is_apart or (rules.nested and is_nested)):
                break
        else:
            taken.append((first, last, label))
    return sorted(taken, key=lambda span: span[0])


def reference(text: str, labels: Sequence[str], rules: Rules | None = None) -> list[Entity]:
    """The entities of a text that fits into one window."""
    scores = torch.sigmoid(torch.from_numpy(logits(text, labels))).numpy()
    spans = prompted(text, labels).spans
    return [
        Entity(spans[i][0], spans[j][1], labels[c], float(scores[i, j - i, c]))
        for i, j, c in greedy(scores, rules or Rules())
    ]
