"""The flags and subcommands that the documents mention exist, and are not deprecated."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import client.cli
import export.__main__
import loadtest.cli
import server.__main__
import tests.fuzz.__main__
import tests.soak.__main__
import train.__main__
from scripts.generated_sections import ROOT

DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
# Flags of docker, pip, pytest and torchrun.
OTHER_FLAGS = {
    *("--build-arg", "--read-only", "--cap-drop", "--security-opt", "--gpus"),
    *("--require-hashes", "--no-deps", "--help", "--nproc-per-node"),
}
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
_COMMAND = re.compile(r"^ {4}\S*python3? -m ([\w.]+)(.*)$", re.MULTILINE)


def single(main: Callable[..., Any]) -> typer.Typer:
    app = typer.Typer()
    app.command()(main)
    return app


PROGRAMS = {
    "client": client.cli.app,
    "export": export.__main__.app,
    "loadtest": loadtest.cli.app,
    "server": single(server.__main__.main),
    "tests.fuzz": single(tests.fuzz.__main__.main),
    "tests.soak": single(tests.soak.__main__.main),
    "train": train.__main__.app,
}


def flags(command: Any) -> Iterator[str]:
    """Every visible flag of a command and its subcommands."""
    for parameter in command.params:
        if not getattr(parameter, "hidden", False):
            yield from (name for name in (*parameter.opts, *parameter.secondary_opts))
    for subcommand in getattr(command, "commands", {}).values():
        yield from flags(subcommand)


FLAGS = {name: {*flags(typer.main.get_command(app))} for name, app in PROGRAMS.items()}


def test_the_programs_have_flags() -> None:
    assert "--max-queue" in FLAGS["server"]
    assert "--beam-size" in FLAGS["client"]
    assert "--no-cuda-graphs" in FLAGS["server"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_flag_exists(document: Path) -> None:
    known = set().union(*FLAGS.values(), OTHER_FLAGS)
    mentioned = {*_FLAG.findall(document.read_text(encoding="utf-8"))}
    assert mentioned - known == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_command_line_has_flags_of_its_program(document: Path) -> None:
    unknown = {
        (program, flag)
        for program, arguments in _COMMAND.findall(document.read_text(encoding="utf-8"))
        if program in FLAGS
        for flag in _FLAG.findall(arguments)
        if flag not in FLAGS[program]
    }
    assert unknown == set()


def test_every_subcommand_exists() -> None:
    named = {
        (program, arguments.split()[0])
        for document in DOCUMENTS
        for program, arguments in _COMMAND.findall(document.read_text(encoding="utf-8"))
        if program in ("client", "loadtest")
    }
    existing = {
        (program, name)
        for program in ("client", "loadtest")
        for name in typer.main.get_command(PROGRAMS[program]).commands  # type: ignore[attr-defined]
    }
    assert {("client", "generate"), ("loadtest", "compare")} <= named
    assert named - existing == set()
