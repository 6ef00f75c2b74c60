"""Exports the bundles of the compatibility tests: ``python -m tests.compatibility.export_bundles``.

Run it only to record again: the archive should stay as an earlier version wrote it.
"""

import json
import shutil
import string
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
)

from export.bundle_writer import write_bundle
from export.sources import load_checkpoint
from model.bundle import Precision, Task
from tests import tiny
from tests.compatibility.server import ARCHIVE
from tests.export.importers.support import edit_json, randomise
from tests.tiny_training import CHARACTERS, SPECIAL

MAX_LENGTH = 48
SPECIAL_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = """
anna peter lives works in paris london berlin at the a of and is was who where what river bank city
train station house blue green red small large old new good bad film book
"""
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'system' and loop.index0 %}"
    "{{ raise_exception('the system message comes first') }}{% endif %}"
    "{{ bos_token if loop.first }}{{ message.content }}"
    "{% endfor %}"
)


def word_pieces() -> Tokenizer:
    """A BERT-style WordPiece tokenizer with a few words, letters and digits."""
    letters = string.ascii_lowercase + string.digits
    pieces = [*SPECIAL_PIECES, *".,:;!?'-()", *letters, *(f"##{letter}" for letter in letters)]
    vocabulary = {
        piece: index for index, piece in enumerate(dict.fromkeys([*pieces, *WORDS.split()]))
    }
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    tokenizer.add_special_tokens(list(SPECIAL_PIECES))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(piece, vocabulary[piece]) for piece in ("[CLS]", "[SEP]")],
    )
    return tokenizer


def encoders(vocabulary_size: int) -> dict[str, Any]:
    """A transformers model with random weights for each encoder task."""

    def config(labels: Sequence[str] = (), **changes: Any) -> BertConfig:
        changes["attn_implementation"] = "eager"
        if labels:
            changes["id2label"] = dict(enumerate(labels))
        return BertConfig(
            vocab_size=vocabulary_size,
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=4,
            intermediate_size=48,
            max_position_embeddings=MAX_LENGTH,
            **changes,
        )

    tags = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
    several = config("abc", problem_type="multi_label_classification")
    models_by_name = {
        "tagger": BertForTokenClassification(config(tags)),
        "answerer": BertForQuestionAnswering(config()),
        "filler": BertForMaskedLM(config()),
        "judge": BertForSequenceClassification(config(["fits"])),
        "sorter": BertForSequenceClassification(several),
        "embedder": BertModel(config(matryoshka_dimensions=[8, 16])),
    }
    return {
        name: randomise(model, seed) for seed, (name, model) in enumerate(models_by_name.items())
    }


def write_encoders(root: Path) -> None:
    """A bundle for each of :func:`encoders`."""
    tokenizer = word_pieces()
    for name, model in encoders(tokenizer.get_vocab_size()).items():
        folder = root / f".source-{name}"
        model.save_pretrained(folder)
        tokenizer.save(str(folder / "tokenizer.json"))
        edit_json(folder / "tokenizer_config.json", mask_token="[MASK]")
        if name == "embedder":
            prompts = {"query": "who: ", "passage": ""}
            edit_json(folder / "config_sentence_transformers.json", prompts=prompts)
        write_bundle(load_checkpoint(str(folder)), root, name=name)
        shutil.rmtree(folder)


def write_trained(root: Path) -> None:
    """Tiny trained models, and variants with the same weights."""
    dates, decoder, classifier = tiny.dates()[0], tiny.decoder()[0], tiny.classifier()[0]
    for checkpoint in (dates, decoder, classifier):
        write_bundle(checkpoint, root)
    write_bundle(classifier, root, version="2")
    write_bundle(decoder, root, name="tiny-decoder-int8", precision=Precision.INT8)
    write_bundle(replace(decoder, chat_template=CHAT_TEMPLATE), root, name="chat")
    write_bundle(replace(dates, tasks=(Task.GENERATE,)), root, name="rewriter")
    numbers = {character: len(SPECIAL) + n for n, character in enumerate(CHARACTERS)}
    languages = {"written": numbers["~"], "iso": numbers["^"], "other": numbers["|"]}
    write_bundle(replace(dates, languages=languages), root, name="polyglot")


def _copy(root: Path, name: str, copy: str, **values: object) -> Path:
    """``root/copy/1``: the bundle ``name`` with ``values`` in its manifest."""
    folder = root / copy / "1"
    shutil.copytree(root / name / "1", folder)
    edit_json(folder / "bundle.json", name=copy, **values)
    return folder


def _manifest(root: Path, name: str) -> Any:
    return json.loads((root / name / "1" / "bundle.json").read_text())


def write_edited(root: Path) -> None:
    """Edited manifests for the same graphs: invalid, or with fewer features."""
    _copy(root, "tiny-classifier", "refused", format_version=99)
    embedder = _manifest(root, "embedder")
    normalized = {**embedder["embedding"], "is_normalized": True}
    _copy(root, "embedder", "unit-embedder", embedding=normalized)
    encode = embedder["graphs"]["encode"]
    outputs = [output for output in encode["outputs"] if output["name"] != "token_embeddings"]
    graphs = {"encode": {**encode, "outputs": outputs}}
    _copy(root, "embedder", "plain-embedder", graphs=graphs)
    dates = _manifest(root, "dates")
    graphs = {name: graph for name, graph in dates["graphs"].items() if name != "attend"}
    languages = {"source_language": "written", "target_language": "iso"}
    _copy(root, "dates", "plain-dates", graphs=graphs, **languages)
    special_tokens = {**dates["special_tokens"], "decoder_start": None}
    _copy(root, "dates", "startless", special_tokens=special_tokens)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = 0
    return member


def main() -> None:
    """Writes the archive."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_trained(root)
        write_encoders(root)
        write_edited(root)
        # The preset's 64 MiB dictionary spans all files, so shared weights are stored once.
        with tarfile.open(ARCHIVE, "w:xz", preset=9) as archive:
            for path in sorted(root.iterdir()):
                archive.add(path, path.name, filter=_anonymous)
    print(f"{ARCHIVE}: {ARCHIVE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
