"""Installs environments and builds models: ``python -m loadtest compare --prepare``.

Steps are independent: one that fails writes its reason to a file, where the report finds it, and
the others continue. Existing results are kept; our bundles have a folder for each version of the
exporting code.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from loadtest.compare.candidates import ROOT
from loadtest.compare.environments import COMPLETE_FILE, FAILURE_SUFFIX, Environment
from loadtest.compare.models import BuildStep
from loadtest.compare.process import NO_TELEMETRY

STEP_SECONDS = 3600
_REASON_CHARACTERS = 300
Log = Callable[[str], None]


def prepare(
    environments: Iterable[Environment], steps: Iterable[BuildStep], root: Path, log: Log
) -> bool:
    """Runs all steps below ``root``. Returns whether all succeeded."""
    succeeded = [_install(each, root / "peers", log) for each in environments]
    return all(succeeded + [_build(step, log) for step in steps])


def _install(environment: Environment, root: Path, log: Log) -> bool:
    """Installs an environment, again if its requirements have changed."""
    folder = root / environment.name
    complete = folder / COMPLETE_FILE
    wanted = "\n".join(environment.requirements) + "\n"
    if complete.exists() and complete.read_text(encoding="utf-8") == wanted:
        return True
    log(f"installing {', '.join(environment.requirements)}")
    python = str(environment.python(root))
    failure = _failure_path(folder)
    try:
        interpreter = _interpreter(environment.python_version)
    except LookupError as error:
        log(f"{environment.name}: {error}")
        failure.write_text(f"does not install: {error}\n", encoding="utf-8")
        return False
    commands: list[tuple[str, ...]] = [
        (interpreter, "-m", "venv", "--clear", str(folder)),
        # Without bytecode of what nobody imports: Python writes that of the rest.
        (python, "-m", "pip", "install", "--quiet", "--no-compile", *environment.requirements),
    ]
    if environment.unwanted:
        commands.append((python, "-m", "pip", "uninstall", "--yes", *environment.unwanted))
    for command in commands:
        reason = _run(command, environment.variables)
        if reason:
            log(f"{environment.name}: {reason}")
            failure.write_text(f"does not install: {reason}\n", encoding="utf-8")
            return False
    failure.unlink(missing_ok=True)
    complete.write_text(wanted, encoding="utf-8")
    return True


def _interpreter(version: str | None) -> str:
    """Python of this version on ``PATH`` or below pyenv's folder; ``None`` is our own.

    Raises ``LookupError`` if none is installed.
    """
    if version is None:
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [shutil.which(f"python{version}")]
    found += map(str, sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}")))
    for each in filter(None, found):
        # A shim of pyenv fails if its version is not activated.
        if not _run((each, "-c", "import venv"), {}):
            return each
    raise LookupError(f"Python {version} is not installed")


def _build(step: BuildStep, log: Log) -> bool:
    if step.out.exists():
        return True
    log(f"building {step.out}")
    step.out.parent.mkdir(parents=True, exist_ok=True)
    reason = _run(step.command, {})
    if not reason and not step.out.exists():
        reason = "the command created nothing"
    if reason:
        log(f"{step.out.name}: {reason}")
        _failure_path(step.out).write_text(
            f"the model could not be built: {reason}\n", encoding="utf-8"
        )
        return False
    _failure_path(step.out).unlink(missing_ok=True)
    return True


def _failure_path(path: Path) -> Path:
    return path.with_name(path.name + FAILURE_SUFFIX)


def _run(command: tuple[str, ...], variables: Mapping[str, str]) -> str:
    """Runs ``command``. Returns the reason of its failure, or an empty string."""
    try:
        ran = subprocess.run(
            command,
            cwd=ROOT,
            env={**NO_TELEMETRY, **os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=STEP_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"timed out after {STEP_SECONDS} s"
    except OSError as error:
        return f"{command[0]}: {error.strerror}"
    if not ran.returncode:
        return ""
    lines = [line for line in ran.stdout.splitlines() if line.strip()] or ["no message"]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines)[-1].strip()[:_REASON_CHARACTERS]
