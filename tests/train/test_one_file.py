"""One file of one's own: JSON lines or a table, whose contents choose the parts."""

import json
from pathlib import Path

import msgspec
import pytest

from model.bundle import Task
from model.examples import (
    AnswerExample,
    ClassificationExample,
    Example,
    TextExample,
    TranslationExample,
    parse_examples,
)
from tests.train.test_folder import MODEL, RECIPE
from train.data.dataset import Dataset
from train.data.sources import load_dataset
from train.errors import DataError
from train.read_recipe import read_recipe
from train.recipe import Recipe
from train.run import run_training


def recipe_file(folder: Path, file: str, objective: str = "classification", **sizes: int) -> Path:
    given = "".join(f", {name} = {size}" for name, size in sizes.items())
    text = RECIPE.format(objective=objective).replace("MODEL", MODEL)
    if objective == "next_token":
        text = text.replace("wordpiece", "characters")
    recipe = folder / "mine.toml"
    recipe.write_text(text.replace('"folder:corpus"', f'"file:{file}"{given}'), encoding="utf-8")
    return recipe


def load(folder: Path, file: str, contents: str, objective: str = "classification") -> Dataset:
    (folder / file).write_text(contents, encoding="utf-8")
    recipe: Recipe = read_recipe(recipe_file(folder, file, objective))
    return load_dataset(recipe, folder)


def keys(examples: object) -> set[bytes]:
    return {msgspec.json.encode(example) for example in examples}  # type: ignore[attr-defined]


ROWS = [f'"text {number}, with a comma",label {number % 3}' for number in range(60)]


def test_a_table_has_the_examples_of_json_lines(tmp_path: Path) -> None:
    table = load(tmp_path, "a.csv", "\n".join(["\ufefftext,label", *ROWS]))
    lines = "\n".join(
        json.dumps({"text": f"text {number}, with a comma", "label": f"label {number % 3}"})
        for number in range(60)
    )
    assert table.train == load(tmp_path, "a.jsonl", lines).train
    assert len(table.held_out) == len(table.validation) == 6
    parts = [keys(part) for part in (table.train, table.validation, table.held_out)]
    assert [len(part) for part in parts] == [48, 6, 6]
    assert len(set().union(*parts)) == 60
    (origin,) = table.origins
    assert (table.name, origin.name, origin.num_examples) == ("a", "a.csv", 60)


@pytest.mark.parametrize(
    ("objective", "table", "expected"),
    [
        ("next_token", "text\n{}", TextExample(text="0")),
        (
            "sequence_to_sequence",
            "source\ttarget\n{}\tx",
            TranslationExample(source="0", target="x"),
        ),
        (
            "span",
            "question\tcontext\tstart\tend\n{}\tabc\t0\t2",
            AnswerExample(question="0", context="abc", start=0, end=2),
        ),
        (
            "classification",
            "text\tpair\tlabel\n{}\tb\tx",
            ClassificationExample(text="0", pair="b", label="x"),
        ),
    ],
)
def test_columns_are_the_fields_of_the_task(
    tmp_path: Path, objective: str, table: str, expected: Example
) -> None:
    head, *rows = table.split("\n")
    contents = "\n".join([head, *(row.format(number) for row in rows for number in range(20))])
    found = load(tmp_path, "a.tsv", contents, objective)
    assert expected in [*found.train, *found.validation, *found.held_out]


def test_more_examples_leave_the_others_in_their_parts(tmp_path: Path) -> None:
    before = load(tmp_path, "a.csv", "\n".join(["text,label", *ROWS]))
    more = [f"more {number},label 1" for number in range(30)]
    after = load(tmp_path, "a.csv", "\n".join(["text,label", *more, *ROWS]))
    moved = keys(before.train) & (keys(after.validation) | keys(after.held_out))
    assert len(moved) <= 6  # the parts are larger by three examples each
    assert not keys(before.held_out) & keys(after.train) - keys(before.train)


def test_equal_examples_are_in_one_part_and_a_rare_label_trains(tmp_path: Path) -> None:
    rows = [row for row in ROWS for _ in range(3)]
    found = load(tmp_path, "a.csv", "\n".join(["text,label", *rows, "x,rare", "y,rare too"]))
    assert len(found.train) == 3 * 48 + 2
    assert not keys(found.train) & (keys(found.held_out) | keys(found.validation))
    assert {"rare", "rare too"} <= {
        example.label for example in found.train if isinstance(example, ClassificationExample)
    }


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ("text,label\n" + "a,b,c\n", r"a\.csv: line 2: has more fields than the first line"),
        ("text,label\n" + "a\n", r"a\.csv: line 2: .*`label`"),
        ("text,label\n" + '"a,b\n', r"a\.csv: line 2: unexpected end of data"),
        ("text,label\n" + "\n".join(ROWS[:9]), r"a\.csv needs 10 different examples, and has 9"),
        ("text,label\n" + "a,b\n" * 100, r"a\.csv needs 10 different examples, and has 1"),
        (
            "text,label\n" + "\n".join(f"a,{number}" for number in range(20)),
            r"a\.csv has too few examples of each label",
        ),
        ("text,label,id\na,b,1\n", r"a\.csv: line 2: .*unknown field `id`"),
        ("", r"a\.csv needs 10 different examples, and has 0"),
    ],
)
def test_a_table_that_cannot_be_used_says_why(tmp_path: Path, contents: str, message: str) -> None:
    with pytest.raises(DataError, match=f"data.source: {message}"):
        load(tmp_path, "a.csv", contents)


def test_a_file_that_is_missing_or_not_text_is_an_error(tmp_path: Path) -> None:
    recipe = read_recipe(recipe_file(tmp_path, "none.csv"))
    with pytest.raises(DataError, match=r"none\.csv: No such file"):
        load_dataset(recipe, tmp_path)
    (tmp_path / "none.csv").write_bytes(b"text,label\n\xff,a\n")
    with pytest.raises(DataError, match="utf-8"):
        load_dataset(recipe, tmp_path)


def test_a_table_trains(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("\n".join(["text,label", *ROWS]), encoding="utf-8")
    run_training(recipe_file(tmp_path, "a.csv"), tmp_path / "out")
    held_out = (tmp_path / "out" / "held_out.jsonl").read_bytes()
    assert len(parse_examples(held_out, Task.CLASSIFY, "held out")) == 6
    training = json.loads((tmp_path / "out" / "training.json").read_text(encoding="utf-8"))
    assert training["data"][0]["name"] == "a.csv"
