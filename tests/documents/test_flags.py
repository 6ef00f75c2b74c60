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
from triune.commands import COMMANDS, TRAIN
from triune.lazy import load_command

DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
# Flags of docker, pip, pytest, perf_analyzer, GuideLLM and torchrun.
OTHER_FLAGS = {
    *("--file", "--build", "--scale"),
    *("--build-arg", "--read-only", "--cap-drop", "--security-opt", "--gpus"),
    *("--require-hashes", "--no-deps", "--help", "--install-completion", "--show-completion"),
    *("--async", "--concurrency-range", "--input-data", "--streaming", "--nproc-per-node"),
    *("--backend", "--tokenizer", "--data", "--profile", "--constraint", "--output"),
}
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
_TRIUNE = re.compile(r"^ {4}(?:\S*/)?triune ([a-z-]+)(.*)$", re.MULTILINE)
_COMMAND = re.compile(r"^ {4}\S*python3? -m ([\w.]+)(.*)$", re.MULTILINE)


def single(main: Callable[..., Any]) -> typer.Typer:
    app = typer.Typer()
    app.command()(main)
    return app


PROGRAMS = {
    "client": client.cli.app,
    "export": export.__main__.app,
    "loadtest": loadtest.cli.app,
    "server": server.__main__.app,
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


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_triune_command_has_flags_of_its_own(document: Path) -> None:
    for name, arguments in _TRIUNE.findall(document.read_text(encoding="utf-8")):
        program, _ = COMMANDS[name]
        if program is not TRAIN:
            known = {*flags(load_command(program, name))}
            assert {*_FLAG.findall(arguments)} <= known, name


def test_the_documents_name_commands_of_triune() -> None:
    texts = [document.read_text(encoding="utf-8") for document in DOCUMENTS]
    named = {name for text in texts for name, _ in _TRIUNE.findall(text)}
    assert {"serve", "export", "generate"} <= named <= {*COMMANDS}


def test_every_subcommand_exists() -> None:
    named = {
        (program, arguments.split()[0])
        for document in DOCUMENTS
        for pattern in (_COMMAND, _TRIUNE)
        for program, arguments in pattern.findall(document.read_text(encoding="utf-8"))
        if program in ("client", "loadtest")
    }
    existing = {
        (program, name)
        for program in ("client", "loadtest")
        for name in typer.main.get_command(PROGRAMS[program]).commands  # type: ignore[attr-defined]
    }
    assert ("loadtest", "compare") in named
    assert named - existing == set()
