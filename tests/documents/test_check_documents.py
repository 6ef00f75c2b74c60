"""The check of the documents finds missing names, and nothing else."""

from pathlib import Path

import pytest

from scripts.check_documents import missing_names


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "Makefile").write_text("serve: setup\n\techo\nsetup:\n")
    (tmp_path / "client").mkdir()
    (tmp_path / "client" / "__main__.py").touch()
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "note.md").touch()
    return tmp_path


@pytest.mark.parametrize(
    "text",
    [
        "[a note](docs/note.md) [a section](docs/note.md#here) [elsewhere](https://a.example/b)",
        "    make serve        # a comment\n`make setup`",
        ".venv/bin/python -m client generate, python -m venv .venv",
        "`docs/note.md`, `bundles/smollm2`, `HOST:PORT`, `a/b`",
        "These make up a whole.",
    ],
)
def test_nothing_is_missing(text: str, root: Path) -> None:
    assert list(missing_names(text, root, root)) == []


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("[gone](docs/gone.md)", "link to docs/gone.md"),
        ("    make serve\n    make deploy\n", "make deploy"),
        ("run `make setup tidy`", "make tidy"),
        ("python -m server --bundles x", "python -m server"),
        ("see `docs/gone.md`", "path docs/gone.md"),
    ],
)
def test_one_name_is_missing(text: str, name: str, root: Path) -> None:
    assert list(missing_names(text, root, root)) == [name]


def test_links_start_from_the_documents_folder(root: Path) -> None:
    assert list(missing_names("[a](note.md)", root / "docs", root)) == []
