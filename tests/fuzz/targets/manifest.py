"""``bundle.json`` and ``parity.json`` with arbitrary content."""

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx

from model.bundle import MANIFEST_FILE, PARITY_FILE, TOKENIZER_FILE, BundleError
from protos.triune.v1.models_pb2 import Model
from server.config import ServerConfig
from server.frontends.grpc.codec import encode
from server.models.registry import Entry, State, load_bundle
from server.runtime.contract import KernelNodes, StepGraphs
from server.runtime.host_memory import HostMemory
from server.runtime.memory import Layout, Memory, Tensor
from server.service.model_info import model_info
from tests.fuzz.draw import Draw
from tests.fuzz.files import rewrite, scratch
from tests.fuzz.vocabularies import file

SIZE = 4096
GRAPH = "encode.onnx"
PARITY = {
    "max_absolute_error": 1e-5,
    "greedy_tokens_compared": 0,
    "greedy_tokens_equal": 0,
    "min_cosine": 1.0,
    "tolerance": 1e-4,
    "onnxruntime": "1",
    "torch": "2",
}


class _Graph:
    """Never run: startup only binds graphs."""

    kernel_nodes = KernelNodes()
    outputs = ()

    def bind(
        self, states: Mapping[tuple[str, str], Tensor], outputs: Collection[str] | None = None
    ) -> Any:
        del states, outputs
        return self


class _Backend:
    version = "none"

    def load(
        self,
        path: Path,
        disabled_optimizers: tuple[str, ...],
        *,
        repeats: bool = False,
        takes_candidates: bool = False,
        suppressed: tuple[int, ...] = (),
    ) -> _Graph:
        del disabled_optimizers, repeats, takes_candidates, suppressed
        assert path.is_file()
        return _Graph()

    def load_steps(
        self, path: Path, disabled_optimizers: tuple[str, ...], suppressed: tuple[int, ...] = ()
    ) -> StepGraphs | None:
        del path, disabled_optimizers, suppressed
        return None

    def unshared_bytes(self, path: Path, *, takes_candidates: bool = False) -> int:
        del takes_candidates
        return path.stat().st_size

    def weight_bytes(self, path: Path, *, takes_candidates: bool = False) -> int | None:
        del path, takes_candidates
        return None

    def load_model(self, model: onnx.ModelProto, *, repeats: bool = False) -> _Graph:
        del model, repeats
        return _Graph()

    def memory(self, layouts: Mapping[str, Layout]) -> Memory:
        return HostMemory(layouts)


def run(data: bytes) -> None:
    """First byte: which of the two files the rest replaces."""
    directory = _directory()
    draw = Draw(data)
    is_parity = draw.byte() == 1
    text = draw.rest()
    rewrite(directory / MANIFEST_FILE, _manifest() if is_parity else text)
    parity = text if is_parity else json.dumps(PARITY).encode()
    rewrite(directory / PARITY_FILE, parity)
    if is_parity:  # the manifest lists the correct hash
        listed = json.loads(_manifest())
        for record in listed["files"]:
            if record["path"] == PARITY_FILE:
                record.update(size=len(parity), sha256=hashlib.sha256(parity).hexdigest())
        rewrite(directory / MANIFEST_FILE, json.dumps(listed).encode())
    try:
        model = load_bundle(directory, _Backend(), 2048)
    except BundleError as error:
        str(error).encode()  # ListModels returns it
        return
    entry = Entry(directory.parent.name, directory.name, State.READY, model)
    encode(model_info(entry, ServerConfig(bundles=directory)), Model).SerializeToString()


def seeds() -> Iterator[bytes]:
    yield b"\0" + _manifest()
    yield b"\1" + json.dumps(PARITY).encode()
    for change in (
        {"chat_template": "{{ messages[0].content }}"},
        {"labels": ["a", "b"], "score_function": "sigmoid", "max_length_factor": 1.5},
        {"languages": {"pt": 4}, "source_language": "pt"},
        {"embedding": {"size": 8, "pooling": "mean", "is_normalized": True, "prompts": {"q": "q"}}},
    ):
        yield b"\0" + json.dumps(json.loads(_manifest()) | change).encode()


def _directory() -> Path:
    directory = scratch("bundle") / "tiny" / "1"
    if not directory.is_dir():
        directory.mkdir(parents=True)
        graph = onnx.helper.make_graph([], "g", [], [])
        (directory / GRAPH).write_bytes(onnx.helper.make_model(graph).SerializeToString())
        (directory / TOKENIZER_FILE).write_bytes(file("characters").read_bytes())
        (directory / PARITY_FILE).write_text(json.dumps(PARITY))
    return directory


def _manifest() -> bytes:
    directory = _directory()
    records = []
    for name in (GRAPH, TOKENIZER_FILE, PARITY_FILE):
        content = (directory / name).read_bytes()
        if name == PARITY_FILE:
            content = json.dumps(PARITY).encode()
        sha256 = hashlib.sha256(content).hexdigest()
        records.append({"path": name, "size": len(content), "sha256": sha256})
    tensor = {"name": "token_ids", "dtype": "int64", "shape": ["batch", "length"]}
    output = {"name": "logits", "dtype": "float32", "shape": ["batch", 2]}
    manifest = {
        "format_version": 2,
        "name": "tiny",
        "version": "1",
        "kind": "encoder",
        "tasks": ["classify"],
        "architecture": "Transformer",
        "precision": "fp32",
        "license": "Apache-2.0",
        "dimensions": {
            "hidden_size": 8,
            "num_layers": 1,
            "vocabulary_size": 99,
            "max_positions": 32,
            "num_parameters": 1000,
        },
        "special_tokens": {"eos": [1], "pad": 0, "bos": 3, "mask": 2},
        "graphs": {"encode": {"file": GRAPH, "inputs": [tensor], "outputs": [output]}},
        "files": records,
    }
    return json.dumps(manifest).encode()
