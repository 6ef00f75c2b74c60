"""Runs ``python -m train`` and shortens recipes."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "train" / "recipes"
SAVED = re.compile(r"^step (\d+): saved")


def shortened(recipe: str, folder: Path, **training: object) -> Path:
    """The committed ``recipe`` with other values in its section ``training``."""
    text = (RECIPES / f"{recipe}.toml").read_text("utf-8")
    for name, value in training.items():
        text = re.sub(rf"^{name} = .*\n", "", text, flags=re.MULTILINE)
        text = text.replace("[training]\n", f"[training]\n{name} = {value}\n")
    text = re.sub(r"^num_train = .*$", "num_train = 300", text, flags=re.MULTILINE)
    path = folder / f"{recipe}.toml"
    path.write_text(text, "utf-8")
    return path


def command(recipe: Path, out: Path, *more: str) -> list[str]:
    """The command line that trains ``recipe``."""
    options = ["--out", str(out), "--threads", "1", *more]
    return [sys.executable, "-m", "train", str(recipe), *options]


def train(recipe: Path, out: Path, *more: str) -> str:
    """Trains to the end; returns what was printed to standard error."""
    ran = subprocess.run(
        command(recipe, out, *more), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stderr


def train_in_two_processes(recipe: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """Trains with torchrun."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    program = ["--nproc-per-node=2", *command(recipe, out)[1:]]
    return subprocess.run(
        [*launcher, *program], cwd=ROOT, capture_output=True, text=True, check=False
    )


def train_and_kill(recipe: Path, out: Path, after: int) -> None:
    """Kills the process when it has saved the checkpoint of step ``after``, or a later one."""
    with subprocess.Popen(
        command(recipe, out), cwd=ROOT, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            saved = SAVED.match(line)
            if saved and int(saved[1]) >= after:
                process.kill()
                break
        process.communicate()
    assert process.returncode == -9
