"""Startup errors: damaged bundles, missing devices, invalid options."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from client.sync import Client
from client.types import ModelState
from tests.faults.record import record
from tests.server.damaged_bundles import DAMAGES, rename
from tests.serving import server_process

VICTIM = "tiny-decoder"


def test_rejects_damaged_bundles_by_name_and_serves_the_others(
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
        rename(copy, name)
        damage(copy)
    with server_process(root, "--threads", "1") as running, Client(running.target) as client:
        models = {model.name: model for model in client.list_models()}
        for index, (label, (_, reason)) in enumerate(DAMAGES.items()):
            model = models[f"{VICTIM}-{index}"]
            assert model.state == ModelState.REFUSED, label
            assert reason in model.failure, label
        assert client.generate(VICTIM, "1", max_new_tokens=3).outputs
        assert models["dates"].state == ModelState.READY
    record(
        17,
        "damaged and hostile bundles: links, outside paths, hidden external data, …",
        "each is rejected by name, the others are served",
        bundles=len(DAMAGES),
        refused=sum(model.state == ModelState.REFUSED for model in models.values()),
    )


@pytest.mark.parametrize(
    ("options", "message", "status"),
    [
        (["--device", "cuda"], "device 'cuda' was asked for, but", 1),
        (["--device", "cuda:1"], "device 'cuda:1' was asked for, but", 1),
        (["--device", "tpu"], "unknown device 'tpu'", 2),
        (["--listen", "256.0.0.1:1"], "cannot listen on 256.0.0.1:1", 1),
        (["--metrics", "nowhere"], "address 'nowhere' is not HOST:PORT", 2),
    ],
)
def test_unavailable_options_fail_startup(tiny_bundles, options, message, status) -> None:
    command = [sys.executable, "-m", "server", "--bundles", str(tiny_bundles)]
    command += ["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", *options]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert completed.returncode == status
    assert message in completed.stderr


def test_missing_bundles_fail_startup(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "server", "--bundles", str(tmp_path)]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert completed.returncode == 1
    assert "no bundle" in completed.stderr
