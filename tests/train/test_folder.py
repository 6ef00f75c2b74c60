"""Data of one's own: examples that cannot be used are errors that name them."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from export.importers.native import read_native_config
from export.sources import load_checkpoint
from model.bundle import Task
from model.bundle_files import read_quality
from model.examples import (
    AnswerExample,
    ClassificationExample,
    Example,
    LabelledSpan,
    MaskedExample,
    RankingExample,
    TaggingExample,
    parse_examples,
    write_examples,
)
from tests.train.support import ROOT
from train.errors import DataError, ResumeError
from train.run import run_training

RECIPE = """
name = "mine"
license = "Apache-2.0"
objective = "{objective}"
data = {{ source = "folder:corpus" }}
tokenizer = {{ kind = "wordpiece" }}
model = MODEL
training = {{ num_steps = 1, batch_tokens = 128 }}
"""
MODEL = "{ hidden_size = 16, num_layers = 1, num_heads = 2, inner_size = 16 }"


def _run(
    folder: Path,
    objective: str,
    train: Example,
    validation: Example,
    *,
    start_from: str = "",
    model: str = MODEL,
) -> None:
    corpus: dict[str, object] = {"name": "mine", "origins": []}
    (folder / "corpus").mkdir(exist_ok=True)
    for part, example in {"train": train, "validation": validation, "held_out": train}.items():
        data = msgspec.json.encode(example) + b"\n"
        (folder / "corpus" / f"{part}.jsonl").write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        corpus[part] = {"file": f"{part}.jsonl", "sha256": digest}
    (folder / "corpus" / "corpus.json").write_bytes(msgspec.json.encode(corpus))
    recipe = folder / "mine.toml"
    text = RECIPE.format(objective=objective).replace("MODEL", model)
    if start_from:
        text = text.replace('tokenizer = { kind = "wordpiece" }', f'start_from = "{start_from}"')
    recipe.write_text(text, "utf-8")
    run_training(recipe, folder / "out")


LABELLED = ClassificationExample(text="a b", label="x")
TAGGED = TaggingExample(text="a b", spans=(LabelledSpan(start=0, end=1, label="X"),))
ANSWER = AnswerExample(question="a", context="b c", start=0, end=1)


@pytest.mark.parametrize(
    ("objective", "train", "validation", "expected"),
    [
        ("classification", LABELLED, ClassificationExample(text="a", label="y"), "validation .* y"),
        (
            "token_classification",
            TAGGED,
            TaggingExample(text="a", spans=(LabelledSpan(start=0, end=1, label="Y"),)),
            "validation example 1: .* B-Y",
        ),
        ("token_classification", TaggingExample(text="a"), TAGGED, "no train example has an ent"),
        ("span", AnswerExample(question="a", context="b", start=8, end=9), ANSWER, "train .* 8 to"),
        ("masked", MaskedExample(text=""), MaskedExample(text="a"), "has a text"),
    ],
)
def test_an_example_that_cannot_be_used_is_named(
    objective: str, train: Example, validation: Example, expected: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=f"data: .*{expected}"):
        _run(tmp_path, objective, train, validation)


@pytest.mark.parametrize(("start", "end"), [(-2, -1), (1, 1), (2, 1), (0, 4)])
def test_an_entity_outside_its_text_is_an_error(start: int, end: int) -> None:
    data = b'{"text": "a b"}\n{"text": "a b", "spans": [{"start": %d, "end": %d, "label": "X"}]}'
    with pytest.raises(ValueError, match=f"mine: line 2: .*from {start} to {end} in a text"):
        parse_examples(data % (start, end), Task.TAG, "mine")


def _stop_at_the_end(folder: Path, example: Example, **options: str) -> None:
    """Trains until the last checkpoint is saved; then a file cannot be written."""
    obstacle = folder / "out" / "learning_curve.png"
    obstacle.mkdir(parents=True)
    with pytest.raises(OSError, match=obstacle.name):
        _run(folder, "classification", example, example, **options)
    obstacle.rmdir()


def test_other_validation_data_cannot_continue(tmp_path: Path) -> None:
    _stop_at_the_end(tmp_path, LABELLED)
    other = ClassificationExample(text="b a", label="x")
    with pytest.raises(ResumeError, match="the validation data changed"):
        _run(tmp_path, "classification", LABELLED, other)
    _run(tmp_path, "classification", LABELLED, LABELLED)


def test_another_model_to_start_from_cannot_continue(tmp_path: Path) -> None:
    _run(tmp_path, "classification", LABELLED, LABELLED)
    start = tmp_path / "start"
    (tmp_path / "out").rename(start)
    _stop_at_the_end(tmp_path, LABELLED, start_from="start")
    weights = start / "model.safetensors"
    save_file({name: 2 * weight for name, weight in load_file(weights).items()}, weights)
    with pytest.raises(ResumeError, match="the start_from changed"):
        _run(tmp_path, "classification", LABELLED, LABELLED, start_from="start")


def test_a_question_ends_at_the_separator_of_start_from(tmp_path: Path) -> None:
    sizes = MODEL.replace("16", "128", 1).replace("16", "512").replace("}", ", window = 8")
    model = sizes + ', global_tokens = "question" }'
    answer = AnswerExample(question="who", context="anna is here", start=0, end=4)
    _run(tmp_path, "span", answer, answer, start_from="bert-tiny", model=model)
    encoder = read_native_config(tmp_path / "out").model.encoder
    assert encoder is not None
    tokenizer = Tokenizer.from_str(load_checkpoint("bert-tiny").tokenizer_json)
    assert encoder.global_before == tokenizer.token_to_id("[SEP]")


def test_the_record_counts_documents_that_are_too_long(tmp_path: Path) -> None:
    query = RankingExample(query="a", relevant="b", others=("c", "long " * 200))
    _run(tmp_path, "relevance", query, query)
    record = json.loads((tmp_path / "out" / "training.json").read_text("utf-8"))
    assert (record["num_train"], record["num_dropped"]) == (2, 1)


@pytest.mark.slow
def test_quality_is_measured_beside_a_blank_text(tmp_path: Path) -> None:
    text = MaskedExample(text="a b")
    _run(tmp_path, "masked", text, text)
    write_examples(tmp_path / "blank.jsonl", [MaskedExample(text=" "), text])
    command = [sys.executable, "-m", "export", str(tmp_path / "out"), "--precision", "fp32"]
    command += ["--out", str(tmp_path / "bundle"), "--evaluate", str(tmp_path / "blank.jsonl")]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    quality = read_quality(tmp_path / "bundle" / "1")
    assert quality is not None
    assert quality.measurements[0].num_examples == 2


@pytest.mark.parametrize(
    ("contents", "reason"),
    [(None, r"data\.source: .*corpus\.json: No such file"), ("{}", r"corpus\.json: .*`name`")],
)
def test_a_missing_or_damaged_corpus_is_named(
    contents: str | None, reason: str, tmp_path: Path
) -> None:
    (tmp_path / "corpus").mkdir()
    if contents is not None:
        (tmp_path / "corpus" / "corpus.json").write_text(contents)
    recipe = tmp_path / "mine.toml"
    recipe.write_text(RECIPE.format(objective="classification").replace("MODEL", MODEL), "utf-8")
    with pytest.raises(DataError, match=reason):
        run_training(recipe, tmp_path / "out")
