"""``python -m loadtest``: options that cannot be used."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from loadtest.cli import app


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--task", "embed", "--model", "m", "--json", "."], "'.' is a directory"),
        (["compare", "--task", "embed", "--json", "."], "'.' is a directory"),
        (["compare", "--task", "embed", "--precisions", "int8,int7"], "there is no int7"),
        (["gpu", "--out", "."], "'.' is a directory"),
        (["gpu", "--out", "x", "--device", "tpu"], "'tpu' is none of cuda, cuda:N and cpu"),
        (["gpu-server", "--bundles", ".", "--out", "x", "--device", "cuda:"], "'cuda:' is none of"),
    ],
)
def test_an_unusable_option_is_an_error_before_anything_runs(
    arguments: list[str], message: str
) -> None:
    ran = CliRunner().invoke(app, arguments)
    assert ran.exit_code == 2
    assert message in ran.stderr


def test_a_selection_of_nothing_is_an_error(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    options = ["--device", "cpu", "--budget-s", "1", "--root", str(tmp_path), "--only", "xx|yy"]
    ran = CliRunner().invoke(app, ["gpu", "--out", str(out), *options])
    assert isinstance(ran.exception, ValueError)
    assert str(ran.exception) == "--only: nothing has xx or yy in its name"
    assert not out.exists()
