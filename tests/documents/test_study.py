"""The study's page and plots are of its report, and its measures are right."""

import shutil
from pathlib import Path

import pytest

from model.examples import TranslationExample
from scripts import study
from tests.benchmarks.study import RECIPES, TASKS, groups, name_of, quality, systems

SOUND, TRANSLATION = TASKS


def test_page_and_plots_are_current() -> None:
    assert [section.name for section in study.SECTIONS if not section.is_current()] == []
    assert study.outdated_plots() == []


def test_every_recipe_is_of_a_system() -> None:
    names = {name_of(task.name, system) for task in TASKS for system in systems(task)}
    assert {path.stem for path in RECIPES.glob("study-*.toml")} == names


def test_every_system_of_a_task_has_the_same_groups() -> None:
    for task in TASKS:
        assert [row["system"] for row in study.rows_of(task.name)] == systems(task)
        found = {
            tuple((group["last"], group["num_texts"]) for group in row["quality"]["by_length"])
            for row in study.rows_of(task.name)
        }
        assert len(found) == 1


def test_a_plot_of_another_report_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (study.REPORT, *study.plots()):
        shutil.copy(path, tmp_path)
    copy = tmp_path / study.REPORT.name
    monkeypatch.setattr(study, "PAGE", tmp_path / study.PAGE.name)
    monkeypatch.setattr(study, "REPORT", copy)
    assert study.outdated_plots() == []
    copy.write_bytes(copy.read_bytes() + b"\n")
    assert study.outdated_plots() == study.plots()


def test_groups_and_quality_of_sounds() -> None:
    examples = [
        TranslationExample(source=word, target=target)
        for word, target in (("four", "F AO R"), ("seven", "S EH V AH N"), ("a", "AH"))
    ]
    found = groups(SOUND, examples)
    assert {limits: len(group) for limits, group in found.items()} == {(1, 4): 2, (5, 6): 1}
    measured = quality(SOUND, ["F AO R", "S EH B AH N", ""], examples)
    assert measured == {"phoneme_error_rate": 2 / 9, "word_accuracy": 1 / 3}


def test_lengths_of_translations_are_words() -> None:
    example = TranslationExample(source="one two three four five six", target="x")
    assert list(groups(TRANSLATION, [example])) == [(6, 10)]
