"""Environments and models, made once: ``python -m loadtest compare --prepare``.

Each step stands alone: one that fails leaves its reason where the report finds it, and the others
go on. What is there is kept; our own bundles, for a state of the code that makes them.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from loadtest.compare.candidates import ROOT
from loadtest.compare.environments import COMPLETE_FILE, FAILURE_SUFFIX, Environment
from loadtest.compare.models import BuildStep

STEP_SECONDS = 3600
_REASON_CHARACTERS = 300
Log = Callable[[str], None]


def prepare(
    environments: Iterable[Environment], steps: Iterable[BuildStep], root: Path, log: Log
) -> bool:
    """Makes all of it below ``root``. Returns whether all of it is there."""
    good = [_install(one, root / "peers", log) for one in environments]
    return all(good + [_make(step, log) for step in steps])


def _install(environment: Environment, root: Path, log: Log) -> bool:
    """One that was made with other requirements is made anew."""
    folder = root / environment.name
    complete = folder / COMPLETE_FILE
    wanted = "\n".join(environment.requirements) + "\n"
    if complete.exists() and complete.read_text(encoding="utf-8") == wanted:
        return True
    log(f"installing {', '.join(environment.requirements)}")
    python = str(environment.python(root))
    commands: list[tuple[str, ...]] = [
        (sys.executable, "-m", "venv", "--clear", str(folder)),
        (python, "-m", "pip", "install", "--quiet", *environment.requirements),
    ]
    if environment.unwanted:
        commands.append((python, "-m", "pip", "uninstall", "--yes", *environment.unwanted))
    failure = _failure(folder)
    for command in commands:
        reason = _reason(command, environment.variables)
        if reason:
            log(f"{environment.name}: {reason}")
            failure.write_text(f"does not install: {reason}\n", encoding="utf-8")
            return False
    failure.unlink(missing_ok=True)
    complete.write_text(wanted, encoding="utf-8")
    return True


def _make(step: BuildStep, log: Log) -> bool:
    if step.out.exists():
        return True
    log(f"making {step.out}")
    step.out.parent.mkdir(parents=True, exist_ok=True)
    reason = _reason(step.command, {})
    if not reason and not step.out.exists():
        reason = "nothing was made"
    if reason:
        log(f"{step.out.name}: {reason}")
        _failure(step.out).write_text(f"the model could not be made: {reason}\n", encoding="utf-8")
        return False
    _failure(step.out).unlink(missing_ok=True)
    return True


def _failure(path: Path) -> Path:
    return path.with_name(path.name + FAILURE_SUFFIX)


def _reason(command: tuple[str, ...], variables: Mapping[str, str]) -> str:
    """Runs ``command``. Why it failed, or nothing."""
    try:
        ran = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, **variables},
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
