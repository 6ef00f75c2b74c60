"""Starting: bundles that are damaged, devices that are missing."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from client.sync import Client
from client.types import ModelState
from tests.serving import server_process

VICTIM = "tiny-decoder"


def _flip_a_byte(bundle: Path) -> None:
    path = bundle / "decode.onnx"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _remove_the_tokenizer(bundle: Path) -> None:
    (bundle / "tokenizer.json").unlink()


def _truncate_the_weights(bundle: Path) -> None:
    path = next(bundle.glob("*.data"))
    os.truncate(path, path.stat().st_size // 2)


def _link_out(bundle: Path) -> None:
    path = bundle / "tokenizer.json"
    outside = bundle.parents[2] / "outside.json"
    shutil.move(path, outside)
    path.symlink_to(outside)


def _hard_link(bundle: Path) -> None:
    os.link(bundle / "tokenizer.json", bundle.parents[2] / "second-name.json")


def _rename(bundle: Path, name: str) -> None:
    _edit(lambda manifest: manifest.update(name=name))(bundle)


def _cut_the_manifest(bundle: Path) -> None:
    (bundle / "bundle.json").write_text("{")


def _edit(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def damage(bundle: Path) -> None:
        path = bundle / "bundle.json"
        manifest = json.loads(path.read_text())
        change(manifest)
        path.write_text(json.dumps(manifest))

    return damage


Damage = Callable[[Path], None]

DAMAGES: dict[str, tuple[Damage, str]] = {
    "hash": (_flip_a_byte, "decode.onnx"),
    "missing file": (_remove_the_tokenizer, "tokenizer.json"),
    "truncated": (_truncate_the_weights, ".data"),
    "symbolic link": (_link_out, "tokenizer.json"),
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
    "not JSON": (_cut_the_manifest, "bundle.json"),
}


def test_damaged_bundles_are_refused_by_name_and_the_others_served(
    tiny_bundles: Path, tmp_path: Path
) -> None:
    root = tmp_path / "root" / "bundles"
    root.mkdir(parents=True)
    shutil.copytree(tiny_bundles, root, dirs_exist_ok=True)
    (version,) = (root / VICTIM).iterdir()
    for index, (damage, _) in enumerate(DAMAGES.values()):
        name = f"{VICTIM}-{index}"
        copy = root / name / version.name
        shutil.copytree(version, copy)
        _rename(copy, name)
        damage(copy)
    with server_process(root, "--threads", "1") as running, Client(running.target) as client:
        models = {model.name: model for model in client.list_models()}
        for index, (label, (_, reason)) in enumerate(DAMAGES.items()):
            model = models[f"{VICTIM}-{index}"]
            assert model.state == ModelState.REFUSED, label
            assert reason in model.failure, label
        assert client.generate(VICTIM, "1", max_new_tokens=3).outputs
        assert models["dates"].state == ModelState.READY


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--device", "cuda"], "device 'cuda' was asked for, but"),
        (["--device", "cuda:1"], "device 'cuda:1' was asked for, but"),
        (["--device", "tpu"], "unknown device 'tpu'"),
        (["--listen", "256.0.0.1:1"], "cannot listen on 256.0.0.1:1"),
        (["--metrics", "nowhere"], "address 'nowhere' is not HOST:PORT"),
    ],
)
def test_what_cannot_be_had_is_an_error_at_start(tiny_bundles, options, message) -> None:
    command = [sys.executable, "-m", "server", "--bundles", str(tiny_bundles)]
    command += ["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert message in done.stderr


def test_no_bundle_at_all_is_an_error_at_start(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "server", "--bundles", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "no bundle" in done.stderr
