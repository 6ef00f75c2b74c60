"""A training that stops goes on bit for bit; two processes learn what one does."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from tests.train.support import shortened, train_in_two_processes
from train.__main__ import app
from train.errors import ResumeError, TrainingError
from train.log import read_log
from train.report import TrainingReport
from train.run import run_training
from train.state import STATE_FILE, STATE_FOLDER, StateFolder

WEIGHTS = "model.safetensors"
LENGTHS = {"num_steps": 6, "validate_every": 2, "log_every": 3, "num_averaged": 1}


class StoppedError(Exception):
    """Instead of a kill: nothing of the process is used again."""


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("tiny-reverse", {"residual_dropout": 0.1, "attention_dropout": 0.1, "accumulation": 2}),
        ("tiny-runs", {"embedding_dropout": 0.1, "precision": '"bf16"'}),
        ("tiny-vit", {"attention_dropout": 0.1, "accumulation": 2}),
        ("tiny-sparse", {"residual_dropout": 0.1, "accumulation": 2}),
        ("tiny-colbert", {"embedding_dropout": 0.1}),
        ("tiny-gru-additive", {"embedding_dropout": 0.1}),
        pytest.param("tiny-experts", {"residual_dropout": 0.1}, marks=pytest.mark.slow),
    ],
)
def test_a_stopped_training_continues_bit_for_bit(
    name: str, changes: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = {"num_steps": 9, "validate_every": 3, "num_averaged": 2, "log_every": 1}
    recipe = shortened(name, tmp_path, **lengths, **changes)
    whole = run_training(recipe, tmp_path / "whole")
    original = TrainingReport.step

    def stop(report: TrainingReport, step: int, *arguments: float, **named: bool) -> None:
        original(report, step, *arguments, **named)
        if step == 8:
            raise StoppedError

    with monkeypatch.context() as patched:
        patched.setattr(TrainingReport, "step", stop)
        with pytest.raises(StoppedError):
            run_training(recipe, tmp_path / "parts")
    assert not (tmp_path / "parts" / "config.json").exists()
    torch.manual_seed(99)  # the random state comes from the checkpoint of step 6
    parts = run_training(recipe, tmp_path / "parts")
    expected, actual = (load_file(str(folder / WEIGHTS)) for folder in (whole, parts))
    assert expected.keys() == actual.keys()
    assert all(torch.equal(expected[key], actual[key]) for key in expected)
    logs = [read_log(folder) for folder in (whole, parts)]
    assert [row["step"] for row in logs[1]] == [str(step) for step in range(1, 10)]
    assert [row["loss"] for row in logs[0]] == [row["loss"] for row in logs[1]]
    record = json.loads((parts / "training.json").read_text("utf-8"))
    assert record["num_steps"] == 9
    assert record["data"][0]["sha256"] == record["train_sha256"]
    assert (parts / "learning_curve.png").stat().st_size > 1000
    assert (parts / "learning_curve.svg").read_text("utf-8").startswith("<?xml")


@pytest.mark.parametrize("moment", ["save_weights", "save"])
def test_a_kill_after_a_file_of_a_checkpoint_changes_nothing(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = shortened("tiny-majority", tmp_path, **LENGTHS)
    whole = run_training(recipe, tmp_path / "whole")
    original = getattr(StateFolder, moment)

    def stop(state: StateFolder, *arguments: object) -> None:
        original(state, *arguments)
        if len(read_log(tmp_path / "parts")) == 3:  # steps 2, 3 and 4
            raise StoppedError

    with monkeypatch.context() as patched:
        patched.setattr(StateFolder, moment, stop)
        with pytest.raises(StoppedError):
            run_training(recipe, tmp_path / "parts")
    parts = run_training(recipe, tmp_path / "parts")
    columns = ("step", "loss", "validation_loss", "gradient_norm")
    logs = [
        [[row[name] for name in columns] for row in read_log(folder)] for folder in (whole, parts)
    ]
    assert logs[0] == logs[1]
    assert (whole / WEIGHTS).read_bytes() == (parts / WEIGHTS).read_bytes()


def test_a_state_finds_its_weights_after_a_kill_while_the_next_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recipe then ends the training at the state's step."""
    original = StateFolder.save_weights

    def stop(state: StateFolder, step: int, *arguments: Any) -> None:
        original(state, step, *arguments)
        if step == 4:
            raise StoppedError

    with monkeypatch.context() as patched:
        patched.setattr(StateFolder, "save_weights", stop)
        with pytest.raises(StoppedError):
            run_training(shortened("tiny-majority", tmp_path, **LENGTHS), tmp_path / "out")
    fewer = shortened("tiny-majority", tmp_path, **{**LENGTHS, "num_steps": 2})
    out = run_training(fewer, tmp_path / "out")
    record = json.loads((out / "training.json").read_text("utf-8"))
    assert record["averaged_steps"] == [2]


def test_another_recipe_cannot_continue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = {"num_steps": 2, "validate_every": 1}
    recipe = shortened("tiny-majority", tmp_path, **lengths)

    def stop(_report: TrainingReport, step: int, *_: float, **__: bool) -> None:
        if step == 2:
            raise StoppedError

    monkeypatch.setattr(TrainingReport, "step", stop)
    with pytest.raises(StoppedError):
        run_training(recipe, tmp_path / "out")
    changed = shortened("tiny-majority", tmp_path, **lengths, learning_rate=0.5)
    with pytest.raises(ResumeError, match="the recipe changed"):
        run_training(changed, tmp_path / "out")
    path = tmp_path / "out" / STATE_FOLDER / STATE_FILE
    state = torch.load(path, weights_only=True)
    del state["random_states"]
    torch.save(state, path)
    restored = shortened("tiny-majority", tmp_path, **lengths)
    with pytest.raises(ResumeError, match="of an earlier version"):
        run_training(restored, tmp_path / "out")


def test_a_recipe_may_change_before_the_first_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(_report: TrainingReport, *_: float, **__: bool) -> None:
        raise StoppedError

    recipe = shortened("tiny-runs", tmp_path, num_steps=2)
    with monkeypatch.context() as patched:
        patched.setattr(TrainingReport, "step", stop)
        with pytest.raises(StoppedError):
            run_training(recipe, tmp_path / "out")
    text = recipe.read_text("utf-8").replace('"wordpiece"', '"bpe"')
    recipe.write_text(text, "utf-8")
    out = run_training(recipe, tmp_path / "out")
    tokenizer = json.loads((out / "tokenizer.json").read_text("utf-8"))
    assert tokenizer["model"]["type"] == "BPE"


def test_early_stopping(tmp_path: Path) -> None:
    """With a learning rate of nearly zero, rounding decides; with a huge one, nothing improves."""
    recipe = shortened(
        "tiny-majority",
        tmp_path,
        num_steps=200,
        validate_every=2,
        patience=2,
        learning_rate=5.0,
        warmup_steps=1,
    )
    out = run_training(recipe, tmp_path / "out")
    record = json.loads((out / "training.json").read_text("utf-8"))
    losses = [loss for _, loss in record["validations"]]
    assert record["num_steps"] < 200
    assert min(losses) == losses[-3]
    assert record["validation_loss"] <= min(losses)


def test_the_best_checkpoint_has_its_own_second_head(tmp_path: Path) -> None:
    lengths = {"num_steps": 4, "validate_every": 1, "num_averaged": 1}
    recipe = shortened("tiny-runs", tmp_path, **lengths, learning_rate=0.5, warmup_steps=1)
    out = run_training(recipe, tmp_path / "out")
    record = json.loads((out / "training.json").read_text("utf-8"))
    losses = [loss for _, loss in record["validations"]]
    assert min(losses) < losses[-1]
    assert record["validation_loss"] == min(losses)
    names = load_file(str(out / WEIGHTS))
    assert names
    assert not any(name.startswith(("model.", "next_sentence.")) for name in names)


def test_a_training_that_diverges_says_so(tmp_path: Path) -> None:
    lengths = {"num_steps": 4, "validate_every": 2}
    recipe = shortened("tiny-majority", tmp_path, **lengths, learning_rate=1e30)
    with pytest.raises(TrainingError, match=r"step 2: .* nan; training\.learning_rate may be"):
        run_training(recipe, tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "batch_tokens"), [("tiny-reverse", 256), ("tiny-vit", 544)])
def test_two_processes_learn_what_one_does_with_twice_the_batch(
    name: str, batch_tokens: int, tmp_path: Path
) -> None:
    """Without dropout; the sums of gradients differ in the order of additions only."""
    lengths = {"num_steps": 8, "validate_every": 4, "log_every": 1, "num_averaged": 1}
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    one = shortened(name, tmp_path / "one", **lengths, batch_tokens=2 * batch_tokens)
    two = shortened(name, tmp_path / "two", **lengths, batch_tokens=batch_tokens)
    alone = run_training(one, tmp_path / "alone")
    ran = train_in_two_processes(two, tmp_path / "both")
    assert ran.returncode == 0, ran.stderr
    logs = [read_log(folder) for folder in (alone, tmp_path / "both")]
    for column in ("loss", "validation_loss", "gradient_norm"):
        expected, actual = ([float(row[column]) for row in log if row[column]] for log in logs)
        assert actual == pytest.approx(expected, rel=2e-3), column


@pytest.mark.slow
def test_two_processes_continue_bit_for_bit(tmp_path: Path) -> None:
    """Each draws its own dropout. The first part fails after its last checkpoint."""
    name = "tiny-reverse"
    lengths = {"validate_every": 3, "log_every": 1, "batch_tokens": 256, "residual_dropout": 0.2}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    short = shortened(name, tmp_path, num_steps=3, **lengths)
    obstacle = parts / "learning_curve.png"
    obstacle.mkdir(parents=True)
    assert "learning_curve.png" in train_in_two_processes(short, parts).stderr
    obstacle.rmdir()
    recipe = shortened(name, tmp_path, num_steps=6, **lengths)
    for out in (whole, parts):
        ran = train_in_two_processes(recipe, out)
        assert ran.returncode == 0, ran.stderr
    expected, actual = (load_file(str(folder / WEIGHTS)) for folder in (whole, parts))
    assert all(torch.equal(expected[key], actual[key]) for key in expected)
    assert "resumed at step 3" in ran.stderr


def test_a_full_disk_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    state = StateFolder(tmp_path, {})
    state.save_weights(1, {"x": torch.ones(4)})
    partial = state.path / "weights-2.partial"
    partial.symlink_to("/dev/full")
    with pytest.raises(TrainingError, match=r"weights-2\.pt: No space left on device"):
        state.save_weights(2, {"x": torch.ones(100_000)})
    assert [path.name for path in state.path.iterdir()] == ["weights-1.pt"]


def test_weights_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    recipe = shortened("tiny-reverse", tmp_path, **LENGTHS)
    (tmp_path / "out" / WEIGHTS).mkdir(parents=True)
    with pytest.raises(TrainingError, match=r"cannot write .*model\.safetensors: .*directory"):
        run_training(recipe, tmp_path / "out")
    (tmp_path / "out" / WEIGHTS).rmdir()
    assert run_training(recipe, tmp_path / "out") == tmp_path / "out"


def test_a_finished_training_of_another_recipe_is_kept(tmp_path: Path) -> None:
    recipe = shortened("tiny-majority", tmp_path, **LENGTHS)
    out = run_training(recipe, tmp_path / "out")
    weights = (out / WEIGHTS).read_bytes()
    assert run_training(recipe, out) == out
    changed = shortened("tiny-majority", tmp_path, **{**LENGTHS, "num_steps": 2})
    with pytest.raises(ResumeError, match=r"out: a finished training of another recipe"):
        run_training(changed, out)
    assert (out / WEIGHTS).read_bytes() == weights
    run_training(changed, out, restart=True)
    assert json.loads((out / "training.json").read_text("utf-8"))["num_steps"] == 2


def test_a_model_that_no_training_wrote_is_kept(tmp_path: Path) -> None:
    recipe = shortened("tiny-majority", tmp_path, **LENGTHS)
    config = tmp_path / "out" / "config.json"
    config.parent.mkdir()
    config.write_text("{}", "utf-8")
    for restart in (False, True):
        with pytest.raises(ResumeError, match=r"its config\.json is not of a training"):
            run_training(recipe, config.parent, restart=restart)
    assert [path.name for path in config.parent.iterdir()] == ["config.json"]


def test_a_restart_whose_data_cannot_be_read_keeps_the_finished_training(tmp_path: Path) -> None:
    recipe = shortened("tiny-majority", tmp_path, **LENGTHS)
    out = run_training(recipe, tmp_path / "out")
    text = recipe.read_text("utf-8")
    recipe.write_text(re.sub(r'^source = ".*"$', 'source = "folder:none"', text, flags=re.M))
    with pytest.raises(TrainingError, match="none"):
        run_training(recipe, out, restart=True)
    assert (out / "config.json").is_file()


def test_whoever_may_read_the_configuration_may_read_the_weights(tmp_path: Path) -> None:
    out = run_training(shortened("tiny-majority", tmp_path, **LENGTHS), tmp_path / "out")
    modes = {name: (out / name).stat().st_mode for name in ("config.json", WEIGHTS)}
    assert modes[WEIGHTS] == modes["config.json"]


def test_the_printed_export_command_is_one_for_a_shell(tmp_path: Path) -> None:
    recipe, out = shortened("tiny-majority", tmp_path, **LENGTHS), tmp_path / "my model"
    result = CliRunner().invoke(app, [str(recipe), "--out", str(out)])
    assert result.exit_code == 0, result.stderr
    assert shlex.split(result.stdout)[-5:-1] == ["triune", "export", str(out), "--out"]
    command = json.loads((out / "training.json").read_text("utf-8"))["command"]
    assert shlex.split(command)[-1] == "my model"
