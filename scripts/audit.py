"""``make audit``: vulnerabilities and licences of the dependencies, and a reproducible wheel.

It needs the package index, and is no part of the tests. Exit status 1 if a check fails or could not
be made. If the index serves no vulnerability list, two older lists are asked: that of a package and
``requirements/advisories.json`` (see ``scripts.advisories``).
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

from scripts.advisories import COMMITTED, AdvisoryList, parse, pins
from scripts.generated_sections import ROOT
from scripts.licenses import is_allowed, license_of

PIP_AUDIT = "pip-audit==2.10.1"
ENVIRONMENT = ROOT / "build" / "audit"
# It has known vulnerabilities: a list that does not report them is none.
CANARY = "jinja2==2.4.1"
# A package that carries a list and not only a program that downloads one. CC BY-NC-SA 4.0: the list
# is read here, never passed on.
SAFETY_DB = "safety-db==2021.7.17"
SAFETY_DB_SHA256 = "33d4f657060345e5a417e05d2fd59fcc42bbcdf2c246e4e7bdb2238f8566c429"
# The start of 2026 (UTC). Any fixed time will do; zip files cannot hold times before 1980.
SOURCE_DATE_EPOCH = "1767225600"
BUILD = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"


class AuditError(Exception):
    """A check that failed or could not be made."""


def vulnerabilities() -> str:
    """Looks up every pinned dependency in the index's list, else in two dated lists.

    Raises:
        AuditError: a dependency has a known vulnerability, or a list does not have the canary.
    """
    program = _pip_audit()
    with tempfile.TemporaryDirectory() as folder:
        canary = Path(folder) / "canary.txt"
        canary.write_text(CANARY + "\n")
        found = _run_audit(program, canary)
        if not any(word in found.stdout for word in ("GHSA", "PYSEC", "CVE")):
            reason = _last_line(found.stderr or found.stdout)
            return (
                f"THE INDEX SERVES NO VULNERABILITY LIST ({reason}); OLDER LISTS WERE ASKED "
                f"INSTEAD, WHICH KNOW NOTHING THAT IS NEWER:\n{_look_up_offline(folder)}"
            )
        all_pins = Path(folder) / "pins.txt"
        all_pins.write_text("".join(f"{name}=={version}\n" for name, version in sorted(pins())))
        result = _run_audit(program, all_pins)
    if result.returncode != 0:
        raise AuditError(f"{result.stdout}\n{result.stderr}".strip())
    return f"{len(pins())} pinned versions have no known vulnerability"


def _look_up_offline(folder: str) -> str:
    """Looks up the dependencies in the package's list and in the committed one."""
    lines, problems = [], []
    for source, data in (
        (SAFETY_DB, _safety_db(Path(folder))),
        (str(COMMITTED.relative_to(ROOT)), COMMITTED.read_bytes()),
    ):
        advisories = parse(data)
        problems += [f"{found} ({source})" for found in vulnerable(advisories, source)]
        asked = {pin for pin in pins() if advisories.covers(pin[0])}
        lines.append(
            f"  {source}, of {advisories.date}: {len(asked)} of {len(pins())} pinned versions "
            f"looked up, {advisories.num_unreadable} unreadable ranges left out"
        )
    if problems:
        raise AuditError("\n".join(problems))
    return "\n".join([*lines, "  no known vulnerability"])


def vulnerable(advisories: AdvisoryList, source: str) -> list[str]:
    """The vulnerable dependencies.

    Raises:
        AuditError: the list does not have the canary, so it is none.
    """
    name, version = CANARY.split("==")
    if not advisories.problems([(name, version)]):
        raise AuditError(f"{source} does not report {CANARY}, which has known vulnerabilities")
    return advisories.problems(pins())


def _safety_db(folder: Path) -> bytes:
    """The list in the package, which is downloaded and neither installed nor imported."""
    requirement = folder / "safety-db.txt"
    requirement.write_text(f"{SAFETY_DB} --hash=sha256:{SAFETY_DB_SHA256}\n")
    pip = [sys.executable, "-m", "pip", "--quiet", "download", "--no-deps", "--require-hashes"]
    done = subprocess.run(
        [*pip, "--only-binary", ":all:", "--dest", str(folder), "--requirement", str(requirement)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise AuditError(f"not checked: {_last_line(done.stderr)}")
    (wheel_file,) = folder.glob("safety_db-*.whl")
    with zipfile.ZipFile(wheel_file) as archive:
        return archive.read("safety_db/insecure_full.json")


def licenses() -> str:
    """Compares the licence of every installed dependency with the allowed ones.

    Raises:
        AuditError: a licence is not allowed, or a package names none.
    """
    problems, checked, absent = [], 0, []
    for name in sorted({name for name, _ in pins()}):
        try:
            found = license_of(metadata.metadata(name))
        except metadata.PackageNotFoundError:
            absent.append(name)
            continue
        checked += 1
        if not is_allowed(name, found):
            problems.append(f"{name}: {found or 'no licence named'}")
    if problems:
        raise AuditError("not allowed:\n" + "\n".join(f"  {line}" for line in problems))
    left_out = f"; not installed here, so not checked: {', '.join(absent)}" if absent else ""
    return f"{checked} packages have an allowed licence{left_out}"


def wheel() -> str:
    """Builds the wheel twice, in different folders and with compiled kernels, and compares.

    Raises:
        AuditError: the two differ; the message names the files.
    """
    with tempfile.TemporaryDirectory() as folder:
        # One archive: HEAD may change between two builds.
        archive = _output("git", "archive", "HEAD")
        first, second = (_build(archive, Path(folder) / name) for name in ("first", "a/second"))
        if first.read_bytes() == second.read_bytes():
            digest = hashlib.sha256(first.read_bytes()).hexdigest()
            return f"two builds of {first.name} are equal: sha256 {digest}"
        raise AuditError(f"two builds of {first.name} differ in: {_differing(first, second)}")


def _differing(first: Path, second: Path) -> str:
    """The names of entries whose content, time or mode differs; else that their order does."""
    with zipfile.ZipFile(first) as one, zipfile.ZipFile(second) as other:
        both = [
            {
                entry.filename: (entry.CRC, entry.date_time, entry.external_attr)
                for entry in archive.infolist()
            }
            for archive in (one, other)
        ]
    names = sorted({name for name, _ in both[0].items() ^ both[1].items()})
    return ", ".join(names) or "the order of their entries"


def _output(*command: str) -> bytes:
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout


def _build(archive: bytes, folder: Path) -> Path:
    """The wheel of the committed files in ``archive``, unpacked in ``folder``."""
    source, out = folder / "source", folder / "out"
    source.mkdir(parents=True)
    out.mkdir()
    subprocess.run(["tar", "-x", "-C", str(source)], input=archive, check=True)
    subprocess.run(
        [sys.executable, "-c", BUILD, str(out)],
        cwd=source,
        env={**os.environ, "SOURCE_DATE_EPOCH": SOURCE_DATE_EPOCH},
        check=True,
        capture_output=True,
    )
    (built,) = out.glob("*.whl")
    return built


def _pip_audit() -> Path:
    """The program, in an environment of its own."""
    program = ENVIRONMENT / "bin" / "pip-audit"
    if not program.exists():
        venv.create(ENVIRONMENT, with_pip=True)
        pip = [str(ENVIRONMENT / "bin" / "python"), "-m", "pip", "--quiet"]
        subprocess.run([*pip, "install", PIP_AUDIT], check=True)
    return program


def _run_audit(program: Path, pins: Path) -> "subprocess.CompletedProcess[str]":
    """``--strict``: a package that the list does not know is an error, not skipped."""
    command = [str(program), "--strict", "--disable-pip", "--no-deps", "--progress-spinner", "off"]
    return subprocess.run(
        [*command, "--requirement", str(pins)], capture_output=True, text=True, check=False
    )


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "nothing"


CHECKS: dict[str, Callable[[], str]] = {
    "licences": licenses,
    "wheel": wheel,
    "vulnerabilities": vulnerabilities,
}


def run(names: list[str]) -> Iterator[bool]:
    """Runs checks and prints their results; yields whether each passed."""
    for name in names or CHECKS:
        try:
            print(f"{name}: {CHECKS[name]()}", flush=True)
            yield True
        except AuditError as error:
            print(f"{name}: FAILED: {error}", flush=True)
            yield False


if __name__ == "__main__":
    sys.exit(0 if all([*run(sys.argv[1:])]) else 1)
