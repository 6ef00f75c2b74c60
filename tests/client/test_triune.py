"""The ``triune`` command: its subcommands run the programs, and import them when they run."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

import client.cli
from triune.__main__ import command, main
from triune.commands import CLIENT, COMMANDS
from triune.lazy import load_command

ROOT = Path(__file__).parents[2]
Run = Callable[..., "subprocess.CompletedProcess[str]"]
# Runs `triune` without a package.
WITHOUT = """
import sys
sys.modules[sys.argv.pop(1)] = None
from triune.__main__ import main
main()
"""
# Prints the modules that a command imported.
IMPORTED = """
import sys
from triune.__main__ import main
try:
    main()
finally:
    print(*sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
"""


@pytest.fixture
def run(target: str) -> Run:
    def run(
        *arguments: str, start: tuple[str, ...] = ("-m", "triune"), **environment: str
    ) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, *start, *arguments],
            cwd=ROOT,
            env={**os.environ, "TRIUNE_TARGET": target, **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    return run


def test_a_call_with_the_options_of_the_connection(run: Run, target: str) -> None:
    arguments = ("--target", target, "--timeout", "30", "--model", "dates", "3 March 2021")
    ran = run("translate", *arguments, TRIUNE_TARGET="127.0.0.1:1")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "2021-03-03\n", "")


def test_a_call_imports_neither_torch_nor_the_server(run: Run) -> None:
    ran = run("translate", "--model", "dates", "3 March 2021", start=("-c", IMPORTED))
    assert ran.stdout == "2021-03-03\n"
    assert {"client"} == {"client", "server", "torch", "onnxruntime", "export"} & {
        *ran.stderr.split()
    }


def test_help_imports_no_program(run: Run) -> None:
    ran = run("--help", start=("-c", IMPORTED))
    assert all(f"  {name} " in ran.stdout for name in COMMANDS)
    assert not {"client", "server", "loadtest", "export", "grpc"} & {*ran.stderr.split()}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["embed", "--token-file", "tests", "a"], "error: [Errno 21] Is a directory: 'tests'"),
        (["embed", "--tls-ca", "README.md", "a"], "error: README.md: no certificate in PEM"),
        (["health", "--service", "none"], "error: NOT_FOUND: the server has no service 'none'"),
    ],
)
def test_an_unusable_argument_is_an_error_of_one_line(
    run: Run, arguments: list[str], reason: str
) -> None:
    ran = run(*arguments)
    assert ran.returncode == 1
    assert ran.stderr.startswith(reason)
    assert ran.stderr.count("\n") == 1


def test_output_that_nobody_reads_is_no_error_message(target: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ran = subprocess.run(
            [sys.executable, "-m", "triune", "models", "--json", "--server", target],
            cwd=ROOT,
            stdout=writer,
            stderr=subprocess.PIPE,
            check=False,
            timeout=60,
        )
    finally:
        os.close(writer)
    assert ran.stderr == b""


@pytest.mark.parametrize("option", ["--tls-cert", "--tls-key"])
def test_a_certificate_needs_its_key(run: Run, option: str) -> None:
    ran = run("embed", option, "README.md", "a")
    assert ran.returncode == 2
    assert f"{option} also needs --tls-" in ran.stderr


def test_admin_commands_have_no_address_but_the_admin_one(run: Run, target: str) -> None:
    refused = run("load", "--server", target, "dates")
    assert refused.returncode == 2
    assert "No such option: --server" in refused.stderr
    ran = run("load", "--admin", target, "dates")
    assert ran.returncode == 1
    assert f"{target} is not the server's admin address" in ran.stderr


def test_an_error_is_one_line(run: Run) -> None:
    ran = run("translate", "--model", "nothing", "a")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith("error: NOT_FOUND")
    assert len(ran.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "package", "message"),
    [
        (("export", "--help"), "torch", "needs the package torch: pip install '.[export]'"),
        (("train", "--help"), "train", "this installation has no `triune train`"),
        (("serve", "--help"), "server", "this installation has no `triune serve`"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    run: Run, arguments: tuple[str, ...], package: str, message: str
) -> None:
    ran = run(package, *arguments, start=("-c", WITHOUT))
    assert ran.returncode == 1
    assert message in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("triune tr", {"train", "transcribe", "translate"}),
        ("triune generate --temp", {"--temperature"}),
        ("triune rerank --tls-k", {"--tls-key"}),
        ("triune serve --max-que", {"--max-queue", "--max-queue-tokens"}),
        ("triune loadtest c", {"compare"}),
    ],
)
def test_the_shell_completes(
    line: str,
    expected: set[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("_TRIUNE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - 1))
    with pytest.raises(SystemExit):
        main()
    assert {*capsys.readouterr().out.split()} == expected


def test_every_command_of_the_client_is_here_and_no_flag_is_twice() -> None:
    group: Any = typer.main.get_command(client.cli.app)
    assert {name for name, (program, _) in COMMANDS.items() if program is CLIENT} == {
        *group.commands
    }
    for name in group.commands:
        flags = [flag for one in load_command(CLIENT, name).params for flag in one.opts]
        flags = [flag for flag in flags if flag.startswith("-")]
        assert len(flags) == len(set(flags)), name
        address = "--admin" if name in {"load", "unload"} else "--server"
        assert {address, "--timeout", "--token-file"} <= {*flags}


def test_the_console_script_is_declared() -> None:
    assert set(command().commands) == set(COMMANDS)
    assert 'triune = "triune.__main__:main"' in (ROOT / "pyproject.toml").read_text()
