"""``python -m loadtest``: options that cannot be used."""

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
