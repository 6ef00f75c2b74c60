"""Checkpoints by name: the Hub's protocol on loopback, its cache, and no network."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants
from transformers import BertModel, ViTConfig, ViTModel
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from export.errors import SourceError, UnsupportedError
from export.hub import HubName, parse, pull
from export.readers.lora import ADAPTER_FILE, ADAPTER_WEIGHTS_FILE
from export.sources import load_checkpoint
from model.bundle_files import read_manifest
from tests import gliner_models, m3_models, static_models
from tests.export.hub_server import BRANCH, COMMIT, GATED, NAME, PRIVATE, TOKEN, Hub, hub_server
from tests.export.importers.ctranslate2_files import variables_of, whisper, write_folder
from tests.export.importers.support import edit_json, randomise, save
from tests.export.importers.test_bert import config
from tests.export.importers.test_llama_gguf import llama, write
from tests.export.importers.test_lora import assert_weights_equal, llama_adapter
from tests.export.importers.test_sentence_transformers import add_dense, add_modules

ROOT = Path(__file__).parents[2]
UNUSED = ("pytorch_model.bin", "model.fp16.safetensors", "tf_model.h5", "onnx/model.onnx")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    return tmp_path / "repository"


@pytest.fixture
def hub(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The package reads its variables when it is imported, so its constants are set."""
    with hub_server(files) as server:
        template = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
        yield server


def sentence_transformer(folder: Path) -> None:
    save(randomise(BertModel(config())), folder)
    add_modules(folder, "Transformer", "Pooling", "Dense", pooling_mode_mean_tokens=True)
    add_dense(folder, "2_Dense", 40, bias=True, activation="activation.Tanh")
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n")


def add_unused(folder: Path) -> None:
    for name in UNUSED:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"\x80")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("hf:a/b", HubName(repository="a/b")),
        ("hf:a-1/b.c@v1.0", HubName(repository="a-1/b.c", revision="v1.0")),
        ("hf:a/b@refs/pr/7", HubName(repository="a/b", revision="refs/pr/7")),
        ("hf:a/b@main:x/y.gguf", HubName(repository="a/b", revision="main", file="x/y.gguf")),
    ],
)
def test_parses_names(source: str, expected: HubName) -> None:
    assert parse(source) == expected


@pytest.mark.parametrize("source", ["hf:", "hf:a", "hf:a/b/c", "hf:a/b@", "hf:a/b:", "hf:a b/c"])
def test_rejects_other_forms(source: str) -> None:
    with pytest.raises(SourceError, match="OWNER/NAME"):
        parse(source)


def test_fetches_only_what_the_export_reads(
    hub: Hub, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sentence_transformer(files)
    add_unused(files)
    pulled = pull(f"hf:{NAME}")
    assert pulled.source == f"hf:{NAME}@{COMMIT}"
    assert sorted(hub.fetched) == [
        "1_Pooling/config.json",
        "2_Dense/config.json",
        "2_Dense/model.safetensors",
        "README.md",
        "config.json",
        "model.safetensors",
        "modules.json",
        "tokenizer.json",
    ]
    hub.fetched.clear()
    checkpoint = load_checkpoint(f"hf:{NAME}@{BRANCH}")
    assert (checkpoint.license, checkpoint.source) == ("apache-2.0", pulled.source)
    assert hub.fetched == []  # all files were in the cache
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert pull(f"hf:{NAME}") == pulled
    with pytest.raises(SourceError, match=r"HF_HUB_OFFLINE is set, and the cache .* does not have"):
        pull("hf:owner/other")


def test_fetches_static_embeddings(hub: Hub, files: Path) -> None:
    static_models.save_sentences(files)
    add_unused(files)
    (files / "0_StaticEmbedding" / "pytorch_model.bin").write_bytes(b"\x80")
    checkpoint = load_checkpoint(f"hf:{NAME}")
    assert checkpoint.embedding is not None
    assert checkpoint.embedding.static_tokens
    assert sorted(hub.fetched) == [
        "0_StaticEmbedding/model.safetensors",
        "0_StaticEmbedding/tokenizer.json",
        "config_sentence_transformers.json",
        "modules.json",
    ]


def test_fetches_a_model_of_ctranslate2(hub: Hub, files: Path) -> None:
    write_folder(files, variables_of(whisper()))
    (files / "pytorch_model.bin").write_bytes(b"\x80")
    with pytest.raises(UnsupportedError, match=r"only pickles"):
        pull(f"hf:{NAME}")
    (files / "vocabulary.txt").write_text("")
    assert load_checkpoint(f"hf:{NAME}").transcription is not None
    assert sorted(hub.fetched) == ["config.json", "model.bin", "tokenizer.json"]


def test_fetches_an_adapter_and_the_model_that_it_changes(
    hub: Hub, files: Path, tmp_path: Path
) -> None:
    adapter = llama_adapter(tmp_path)
    expected = load_checkpoint(str(adapter))
    shutil.copytree(adapter, files)
    fetched = load_checkpoint(f"hf:{NAME}")
    assert fetched.source == f"hf:{NAME}@{COMMIT}"
    assert sorted(hub.fetched) == ["README.md", ADAPTER_FILE, ADAPTER_WEIGHTS_FILE]
    assert_weights_equal(fetched, expected)


def test_fetches_the_model_that_an_adapter_changes(hub: Hub, files: Path, tmp_path: Path) -> None:
    adapter = llama_adapter(tmp_path)
    expected = load_checkpoint(str(adapter))
    (tmp_path / "base").rename(files)
    edit_json(adapter / ADAPTER_FILE, base_model_name_or_path=NAME, revision=BRANCH)
    fetched = load_checkpoint(str(adapter))
    assert fetched.source == f"hf:{NAME}@{COMMIT}"
    assert "model.safetensors" in hub.fetched
    assert_weights_equal(fetched, expected)
    assert load_checkpoint(str(adapter), base=f"hf:{NAME}").source == fetched.source


def test_fetches_how_pictures_are_prepared(hub: Hub, files: Path) -> None:
    config = ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=8,
        patch_size=4,
    )
    ViTModel(config).save_pretrained(files)
    ViTImageProcessorPil(size={"height": 8, "width": 8}).save_pretrained(files)
    checkpoint = load_checkpoint(f"hf:{NAME}")
    assert checkpoint.image is not None
    assert "preprocessor_config.json" in hub.fetched


def test_gguf_is_named_where_there_are_several(hub: Hub, files: Path) -> None:
    files.mkdir()
    write(files / "a.gguf", llama())
    assert load_checkpoint(f"hf:{NAME}").source == f"hf:{NAME}@{COMMIT}"
    assert hub.fetched == ["a.gguf"]


def test_several_gguf_files_are_listed(hub: Hub, files: Path) -> None:
    files.mkdir()
    for name in ("a.gguf", "b.gguf"):
        write(files / name, llama())
    with pytest.raises(SourceError, match=rf"as in hf:{NAME}:a\.gguf: a\.gguf, b\.gguf"):
        pull(f"hf:{NAME}")
    assert pull(f"hf:{NAME}:b.gguf").path.name == "b.gguf"
    assert hub.fetched == ["b.gguf"]
    with pytest.raises(SourceError, match=r"has no file c\.gguf"):
        pull(f"hf:{NAME}:c.gguf")


def test_pickles_are_not_fetched(hub: Hub, files: Path) -> None:
    sentence_transformer(files)
    (files / "model.safetensors").unlink()
    add_unused(files)
    with pytest.raises(UnsupportedError, match=r"only pickles.*not fetched: pytorch_model\.bin"):
        pull(f"hf:{NAME}")
    assert not {"pytorch_model.bin", *UNUSED} & {*hub.fetched}


def test_fetches_the_maps_of_m3_embedding_alone(hub: Hub, files: Path) -> None:
    m3_models.save_source(files)
    add_unused(files)
    assert load_checkpoint(f"hf:{NAME}").config.head.sparse
    pickles = [name for name in hub.fetched if name.endswith((".pt", ".bin"))]
    assert sorted(pickles) == ["colbert_linear.pt", "sparse_linear.pt"]


def test_fetches_the_file_of_gliner(hub: Hub, files: Path) -> None:
    gliner_models.save_source(files, gliner_models.model())
    add_unused(files)
    assert load_checkpoint(f"hf:{NAME}").span_tagging
    assert not {*UNUSED} & {*hub.fetched}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("hf:owner/nothing", "no such repository at http://.*needs HF_TOKEN"),
        (f"hf:{NAME}@v9", "no revision v9"),
        (f"hf:{PRIVATE}", "needs HF_TOKEN"),
        (f"hf:{GATED}", "accept its terms there, then set HF_TOKEN"),
        (f"hf:{NAME}", "no weights in a known format"),
    ],
)
@pytest.mark.usefixtures("hub")
def test_errors_say_what_to_do(files: Path, source: str, message: str) -> None:
    files.mkdir()
    (files / "config.json").write_text("{}")
    with pytest.raises(SourceError, match=message):
        pull(source)


@pytest.mark.usefixtures("hub")
def test_a_token_opens_private_repositories(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sentence_transformer(files)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert pull(f"hf:{PRIVATE}").path.is_dir()
    assert pull(f"hf:{GATED}@{COMMIT}").source == f"hf:{GATED}@{COMMIT}"


@pytest.mark.slow
def test_export_writes_the_commit_and_works_offline(files: Path, tmp_path: Path) -> None:
    """The whole program with the package's own variables, then without a server."""
    sentence_transformer(files)

    def export(name: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "triune", "export", f"hf:{NAME}"]
        command += ["--out", str(tmp_path / name), "--precision", "fp32"]
        variables = {**os.environ, "HF_HOME": str(tmp_path / "home"), **environment}
        return subprocess.run(
            command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False
        )

    with hub_server(files) as server:
        url = server.url
        online = export("online", HF_ENDPOINT=url)
        assert online.returncode == 0, online.stderr
    manifest = read_manifest(tmp_path / "online" / "1")
    assert (manifest.source, manifest.license) == (f"hf:{NAME}@{COMMIT}", "apache-2.0")
    # Nothing listens at the address any more; the cache has all files.
    again = export("again", HF_ENDPOINT=url)
    assert again.returncode == 0, again.stderr
    assert read_manifest(tmp_path / "again" / "1").source == manifest.source


@pytest.mark.usefixtures("hub")
def test_no_connection_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    monkeypatch.setattr(constants, "ENDPOINT", url)
    with pytest.raises(SourceError, match=f"hf:{NAME}: no connection to {url}, and the cache"):
        pull(f"hf:{NAME}")
