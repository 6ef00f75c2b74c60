"""Ways to damage a bundle, and the reason that the server must give for each."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx


def _flip_byte(bundle: Path) -> None:
    path = bundle / "decode.onnx"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _remove_tokenizer(bundle: Path) -> None:
    (bundle / "tokenizer.json").unlink()


def _truncate_weights(bundle: Path) -> None:
    path = next(bundle.glob("*.data"))
    os.truncate(path, path.stat().st_size // 2)


def _symlink_outside(bundle: Path) -> None:
    path = bundle / "tokenizer.json"
    outside = bundle.parents[2] / "outside.json"
    shutil.move(path, outside)
    path.symlink_to(outside)


def _hard_link(bundle: Path) -> None:
    os.link(bundle / "tokenizer.json", bundle.parents[2] / "second-name.json")


def rename(bundle: Path, name: str) -> None:
    _edit(lambda manifest: manifest.update(name=name))(bundle)


def _truncate_manifest(bundle: Path) -> None:
    (bundle / "bundle.json").write_text("{")


def _edit(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def damage(bundle: Path) -> None:
        path = bundle / "bundle.json"
        manifest = json.loads(path.read_text())
        change(manifest)
        path.write_text(json.dumps(manifest))

    return damage


def _graph(change: Callable[[onnx.ModelProto], None]) -> Callable[[Path], None]:
    """Changes the graph and updates its hash in the manifest, so only the content is wrong."""

    def damage(bundle: Path) -> None:
        path = bundle / "decode.onnx"
        model = onnx.load(str(path), load_external_data=False)
        change(model)
        path.write_bytes(model.SerializeToString())
        _add_to_manifest(bundle, path)

    return damage


def _add_to_manifest(bundle: Path, path: Path) -> None:
    def add_row(manifest: dict[str, Any]) -> None:
        name = path.relative_to(bundle).as_posix()
        manifest["files"] = [file for file in manifest["files"] if file["path"] != name]
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        row = {"path": name, "size": path.stat().st_size, "sha256": digest}
        manifest["files"].append(row)

    _edit(add_row)(bundle)


def _tensor_outside_the_bundle() -> onnx.TensorProto:
    """A tensor with external data outside the bundle."""
    tensor = onnx.TensorProto(name="evil", data_type=onnx.TensorProto.FLOAT, dims=[1])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../secret")
    return tensor


def _initializer(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(_tensor_outside_the_bundle())


def _sparse(model: onnx.ModelProto) -> None:
    model.graph.sparse_initializer.add().values.CopyFrom(_tensor_outside_the_bundle())


def _attribute(model: onnx.ModelProto) -> None:
    model.graph.node.append(
        onnx.helper.make_node("Constant", [], ["evil"], value=_tensor_outside_the_bundle())
    )


def _subgraph(model: onnx.ModelProto) -> None:
    inner = onnx.GraphProto(name="inner", initializer=[_tensor_outside_the_bundle()])
    node = onnx.helper.make_node("If", ["evil"], ["evil"], then_branch=inner, else_branch=inner)
    model.graph.node.append(node)


def _function(model: onnx.ModelProto) -> None:
    node = onnx.helper.make_node("Constant", [], ["evil"], value=_tensor_outside_the_bundle())
    model.functions.add(name="evil", domain="", output=["evil"], node=[node])


def _function_default(model: onnx.ModelProto) -> None:
    attribute = onnx.helper.make_attribute("evil", _tensor_outside_the_bundle())
    model.functions.add(name="evil", attribute_proto=[attribute])


def _operator(name: str, domain: str) -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        model.graph.node.append(onnx.helper.make_node(name, [], ["evil"], domain=domain))

    return change


def _memory_address(bundle: Path) -> None:
    """Adds a file whose path ONNX Runtime interprets as a memory address."""
    path = bundle / "*" / "_ORT_MEM_ADDR_" / "*"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"1234")
    _add_to_manifest(bundle, path)


def _invalid_model(bundle: Path) -> None:
    path = bundle / "decode.onnx"
    path.write_bytes(b"\xff" * 99)
    _add_to_manifest(bundle, path)


def _graph_of_another_format(bundle: Path) -> None:
    """ONNX's library reads a file of this name as text, and ONNX Runtime as protobuf."""
    path = bundle / "decode.onnx"
    _add_to_manifest(bundle, path.rename(bundle / "decode.textproto"))

    def rename_graph(manifest: dict[str, Any]) -> None:
        manifest["files"] = [file for file in manifest["files"] if file["path"] != "decode.onnx"]
        manifest["graphs"]["decode"]["file"] = "decode.textproto"

    _edit(rename_graph)(bundle)


def _token_beyond_the_vocabulary(bundle: Path) -> None:
    path = bundle / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary[max(vocabulary, key=vocabulary.get)] = 1 << 20
    path.write_text(json.dumps(tokenizer))
    _add_to_manifest(bundle, path)


def _pipe_as_manifest(bundle: Path) -> None:
    (bundle / "bundle.json").unlink()
    os.mkfifo(bundle / "bundle.json")


def _symlink_manifest(bundle: Path) -> None:
    path = bundle / "bundle.json"
    path.symlink_to(path.rename(bundle.parents[2] / f"{bundle.parent.name}.json"))


def _duplicate_key(key: str) -> Callable[[Path], None]:
    """Adds a duplicate of a manifest key."""

    def damage(bundle: Path) -> None:
        path = bundle / "bundle.json"
        path.write_text(f'{{"{key}": "other",' + path.read_text().lstrip()[1:])

    return damage


def _write_manifest(text: str) -> Callable[[Path], object]:
    return lambda bundle: (bundle / "bundle.json").write_text(text)


Damage = Callable[[Path], object]

DAMAGES: dict[str, tuple[Damage, str]] = {
    "manifest is a pipe": (_pipe_as_manifest, "bundle.json: is not a regular file"),
    "manifest is a link": (_symlink_manifest, "bundle.json: is a link"),
    "manifest too large": (_write_manifest(" " * (5 << 20)), "larger than 4194304 bytes"),
    "deep nesting": (_write_manifest('{"labels":' + "[" * 200_000), "bundle.json"),
    "deep nesting of unknown": (_write_manifest('{"a":' * 200_000), "bundle.json"),
    "duplicate key": (_duplicate_key("license"), "duplicate key 'license'"),
    "many files": (
        _edit(
            lambda m: m["files"].extend(
                {"path": f"x{index}", "size": 1, "sha256": ""} for index in range(1000)
            )
        ),
        "files, at most 1000",
    ),
    "one file twice": (_edit(lambda m: m["files"].append(m["files"][0])), "is listed twice"),
    "huge size": (
        _edit(lambda m: m["dimensions"].update(vocabulary_size=1 << 40)),
        "vocabulary_size is 1099511627776",
    ),
    "no layers": (_edit(lambda m: m["dimensions"].update(num_layers=0)), "num_layers is 0"),
    "huge state": (
        _edit(lambda m: m["graphs"]["decode"]["states"][0].update(shape=[1 << 40, "length", 1])),
        "graphs.decode.states.",
    ),
    "timestamps beyond the vocabulary": (
        _edit(
            lambda m: m.update(
                transcription={
                    "first_timestamp": 5,
                    "num_timestamps": 1 << 20,
                    "no_timestamps": 4,
                }
            )
        ),
        "is beyond the vocabulary of",
    ),
    "state beyond memory": (
        _edit(
            lambda m: m["graphs"]["decode"]["states"][0].update(shape=[1 << 30, "length", 1 << 30])
        ),
        "of memory with one slot",
    ),
    "unlisted file": (lambda b: (b / "extra.so").write_bytes(b"x"), "'extra.so' is not"),
    "unlisted link": (lambda b: (b / "lib").symlink_to("/usr/lib"), "'lib' is not listed"),
    "address in memory": (_memory_address, "'*/_ORT_MEM_ADDR_/*' is not a plain path"),
    "not a model": (
        _invalid_model,
        "'decode.onnx' is not an ONNX model",
    ),
    "graph of another format": (
        _graph_of_another_format,
        "graph 'decode.textproto' is not an .onnx file",
    ),
    **{
        f"data outside, in {change.__name__}": (_graph(change), "reads '../../secret', which")
        for change in (_initializer, _sparse, _attribute, _subgraph, _function, _function_default)
    },
    "operators of a library": (_graph(_operator("Evil", "evil.ops")), "operators of 'evil.ops'"),
    "operator that reads": (_graph(_operator("EPContext", "com.microsoft")), "EPContext"),
    "hash": (_flip_byte, "decode.onnx"),
    "missing file": (_remove_tokenizer, "tokenizer.json"),
    "truncated": (_truncate_weights, ".data"),
    "symbolic link": (_symlink_outside, "tokenizer.json"),
    "hard link": (_hard_link, "tokenizer.json"),
    "path outside": (
        _edit(lambda m: m["files"].append({"path": "../x", "size": 1, "sha256": "0" * 64})),
        "'../x' is outside",
    ),
    "absolute path": (
        _edit(lambda m: m["graphs"]["decode"].update(file="/etc/passwd")),
        "'/etc/passwd' is outside",
    ),
    "unlisted weights": (
        _edit(lambda m: m.update(files=[f for f in m["files"] if not f["path"].endswith(".data")])),
        ".data",
    ),
    "unknown field": (_edit(lambda m: m.update(surprise=1)), "surprise"),
    "wrong type": (_edit(lambda m: m["dimensions"].update(num_layers="two")), "num_layers"),
    "future format": (_edit(lambda m: m.update(format_version=99)), "format_version 99"),
    "other name": (_edit(lambda m: m.update(name="../evil")), "'../evil'"),
    "token beyond": (_token_beyond_the_vocabulary, "is beyond the vocabulary of 99 tokens"),
    "special token beyond": (
        _edit(lambda m: m["special_tokens"].update(eos=[99])),
        "special token 99 is beyond",
    ),
    "not JSON": (_truncate_manifest, "bundle.json"),
}
