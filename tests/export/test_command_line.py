"""``python -m export``: output and errors."""

import subprocess
import sys
from pathlib import Path

from export.sources import DEFAULT_SOURCES

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "export", *arguments],
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
    result = run(str(source), "--out", str(tmp_path / "bundles" / "x"))
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "bundles").exists()


def test_help_lists_the_default_models() -> None:
    result = run("--help")
    assert result.returncode == 0
    for name in DEFAULT_SOURCES:
        assert name in result.stdout


def test_unknown_precision_is_a_usage_error() -> None:
    result = run("minilm", "--out", "x/y", "--precision", "int3")
    assert result.returncode == 2
