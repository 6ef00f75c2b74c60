"""``python -m export``: output and errors."""

import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import BertModel
from typer.testing import CliRunner

from export.__main__ import app
from export.sources import DEFAULT_SOURCES
from model.bundle_files import read_manifest
from tests.export.importers.support import randomise, save
from tests.export.importers.test_bert import config
from tests.export.importers.test_llama_gguf import llama, write
from tests.export.importers.test_sentence_transformers import add_modules
from tests.families.test_bart import model_of

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str, program: str = "export") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *program.split(), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_missing_source_is_an_error(tmp_path: Path) -> None:
    result = run("no-such-model", "--out", str(tmp_path / "bundle"))
    assert result.returncode == 1
    assert "no-such-model" in result.stderr
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_unknown_format_is_an_error(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "readme.txt").write_text("hello")
    result = CliRunner().invoke(app, [str(source), "--out", str(tmp_path / "bundles" / "x")])
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    assert str(source) in result.stderr.replace("\n", "")
    assert not (tmp_path / "bundles").exists()


def test_help_lists_the_default_models() -> None:
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    for name in DEFAULT_SOURCES:
        assert name in result.stdout
    assert "@REVISION" in result.stdout


def test_unknown_precision_is_a_usage_error() -> None:
    result = CliRunner().invoke(app, ["minilm", "--out", "x/y", "--precision", "int3"])
    assert result.exit_code == 2
    assert "--precision" in result.stderr


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--out", "{folder}/a b"], "the bundle's name, --out: 'a b' does not match"),
        (["--out", "{file}"], "--out: {file} is not a folder"),
        (["--out", "{file}/m"], "--out: {file} is not a folder"),
        (["--out", "{folder}/m", "--version", "../x"], "--version: '../x' does not match"),
        (["--out", "{folder}/m", "--evaluate", "nothing"], "--evaluate: nothing: No such file"),
        (["--out", "{folder}/m", "--shortlist", "nothing"], "--shortlist: only for an encoder_dec"),
    ],
)
def test_an_unusable_option_is_named_in_one_line(
    tmp_path: Path, options: list[str], reason: str
) -> None:
    paths = {"folder": tmp_path, "file": ROOT / "README.md"}
    options = [option.format(**paths) for option in options]
    result = CliRunner().invoke(app, ["digits", *options])
    assert result.exit_code == 1
    assert f"digits: {reason.format(**paths)}" in result.stderr.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_brackets_in_a_path_are_no_markup(tmp_path: Path) -> None:
    source = tmp_path / "a[" / "b] [bold]c"
    source.parent.mkdir()
    source.symlink_to(ROOT / "models" / "digits")
    arguments = ["--out", str(tmp_path / "m"), "--precision", "fp32", "--evaluate", "off"]
    result = CliRunner().invoke(app, [str(source), *arguments])
    assert result.exit_code == 0, result.exception
    assert f"{source}: 0 s: trace the graphs" in re.sub(r": \d+ s:", ": 0 s:", result.stderr)


def test_a_colon_in_a_name_is_no_emoji(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["hf:a", "--out", str(tmp_path / "m")])
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].startswith("hf:a: ")


def test_an_existing_bundle_is_an_error_before_the_source_is_read(tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    result = CliRunner().invoke(app, ["no-such-model", "--out", str(tmp_path / "m")])
    assert result.exit_code == 1
    assert "1 exists: delete it, or choose another version" in result.stderr


def sentence_transformers(folder: Path) -> None:
    save(randomise(BertModel(config())), folder)
    add_modules(folder, "Transformer", "Pooling", pooling_mode_mean_tokens=True)


def opus_mt(folder: Path) -> None:
    save(randomise(model_of("Marian (OPUS-MT)")), folder)


def gguf(folder: Path) -> None:
    folder.mkdir()
    write(folder / "model.gguf", llama())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "architecture"),
    [(sentence_transformers, "BertModel"), (opus_mt, "MarianMTModel"), (gguf, "LlamaForCausalLM")],
)
def test_triune_exports_folders(
    tmp_path: Path, make: Callable[[Path], None], architecture: str
) -> None:
    make(tmp_path / "source")
    out = tmp_path / "bundles" / "x"
    arguments = (str(tmp_path / "source"), "--out", str(out), "--precision", "fp32")
    result = run(*arguments, program="triune export")
    assert result.returncode == 0, result.stderr
    assert "max error" in result.stdout
    assert ("greedy tokens" in result.stdout) == (architecture != "BertModel")
    assert read_manifest(out / "1").architecture == architecture


def test_an_export_that_sigterm_ends_leaves_no_files(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "export", "digits", "--out", str(tmp_path / "x")]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "trace the graphs" in line:
                assert [path.name[:8] for path in tmp_path.iterdir()] == [".export-"]
                process.terminate()
                break
        process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []
