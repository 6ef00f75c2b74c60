"""Lists of known vulnerabilities for an index that serves none.

    python -m scripts.advisories CHECKOUT

writes ``requirements/advisories.json``, the advisories of the pinned packages, from a checkout of
https://github.com/pypa/advisory-database (CC-BY-4.0).

Lists have the format of the package ``safety-db``: ``{"$meta": {"timestamp": SECONDS}, "NAME":
[{"id": "…", "cve": "…", "specs": [">=1,<2"]}]}``. An entry of ``specs`` is a PEP 440 specifier set,
and a version that matches one of them is vulnerable.
"""

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import msgspec
import yaml
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from scripts.generated_sections import ROOT

COMMITTED = ROOT / "requirements" / "advisories.json"
LOCKS = ("cpu", "gpu", "export", "dev")
META = "$meta"
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Advisory:
    """``ranges``: a version that matches one of them is vulnerable."""

    names: tuple[str, ...]
    ranges: tuple[SpecifierSet, ...]

    def affects(self, version: Version) -> bool:
        return any(versions.contains(version, prereleases=True) for versions in self.ranges)


@dataclass(frozen=True, slots=True)
class AdvisoryList:
    """``advisories``: by canonical name of the package. ``asked``: names that the list was made
    for; ``None`` for every package. ``num_unreadable``: ranges that are no PEP 440 specifiers."""

    date: date
    advisories: dict[str, tuple[Advisory, ...]]
    asked: frozenset[str] | None
    num_unreadable: int

    def covers(self, name: str) -> bool:
        return self.asked is None or canonicalize_name(name) in self.asked

    def problems(self, pins: Iterable[tuple[str, str]]) -> list[str]:
        """Each (name, version) of ``pins`` with the advisories that it falls under."""
        found = []
        for name, version in sorted(pins):
            for advisory in self.advisories.get(canonicalize_name(name), ()):
                if advisory.affects(Version(version)):
                    found.append(f"{name}=={version}: {', '.join(advisory.names)}")
        return found


def pins() -> set[tuple[str, str]]:
    """Name and version of every package in the lock files."""
    texts = ((ROOT / "requirements" / f"{lock}.txt").read_text("utf-8") for lock in LOCKS)
    return {(found[1].lower(), found[2]) for text in texts for found in _PIN.finditer(text)}


def parse(data: bytes) -> AdvisoryList:
    """Reads a list.

    Raises:
        ValueError: ``data`` is no such list.
    """
    try:
        content = msgspec.json.decode(data, type=dict[str, Any])
        meta = content.pop(META)
        made = datetime.fromtimestamp(meta["timestamp"], UTC).date()
        asked = frozenset(meta["asked"]) if "asked" in meta else None
        unreadable = 0
        advisories: dict[str, list[Advisory]] = {}
        for name, entries in content.items():
            for entry in entries:
                ranges = [_specifiers(text) for text in entry["specs"]]
                unreadable += ranges.count(None)
                advisory = Advisory(
                    tuple(filter(None, (entry["id"], entry["cve"]))),
                    tuple(versions for versions in ranges if versions is not None),
                )
                advisories.setdefault(canonicalize_name(name), []).append(advisory)
    except (KeyError, TypeError, AttributeError, OverflowError, msgspec.DecodeError) as error:
        raise ValueError(f"not a list of advisories: {error!r}") from error
    return AdvisoryList(
        made, {name: tuple(found) for name, found in advisories.items()}, asked, unreadable
    )


def _specifiers(text: str) -> SpecifierSet | None:
    try:
        return SpecifierSet(text)
    except InvalidSpecifier:
        return None


def extract(checkout: Path, names: Iterable[str], made: datetime) -> bytes:
    """The advisories of ``names`` in a checkout of PyPA's database, as a list of ``made``."""
    asked = sorted({canonicalize_name(name) for name in names})
    content: dict[str, Any] = {
        META: {"timestamp": int(made.timestamp()), "source": "PyPA, CC-BY-4.0", "asked": asked}
    }
    for name in asked:
        files = sorted((checkout / "vulns" / name).glob("*.yaml"))
        entries = [_entry(yaml.safe_load(file.read_text("utf-8")), name) for file in files]
        if kept := [entry for entry in entries if entry is not None]:
            content[name] = kept
    return msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n"


def _entry(advisory: dict[str, Any], name: str) -> dict[str, Any] | None:
    """An OSV advisory (https://ossf.github.io/osv-schema/); ``None`` for a withdrawn one."""
    if "withdrawn" in advisory:
        return None
    affected = [
        part for part in advisory["affected"] if canonicalize_name(part["package"]["name"]) == name
    ]
    specs = [
        spec
        for part in affected
        for versions in part.get("ranges", [])
        if versions["type"] == "ECOSYSTEM"
        for spec in _ranges(versions["events"])
    ]
    if not specs:
        specs = [f"=={version}" for part in affected for version in part.get("versions", [])]
    cves = [alias for alias in advisory.get("aliases", []) if alias.startswith("CVE-")]
    return {"id": advisory["id"], "cve": ", ".join(cves) or None, "specs": specs}


def _ranges(events: Iterable[dict[str, str]]) -> Iterator[str]:
    """The ranges between the events of an OSV range, which are in order."""
    start: str | None = None
    for event in events:
        if "introduced" in event:
            start = event["introduced"]
        elif start is not None:
            operator, end = (
                ("<", event["fixed"]) if "fixed" in event else ("<=", event["last_affected"])
            )
            yield f">={start},{operator}{end}"
            start = None
    if start is not None:
        yield f">={start}"


def main(checkout: Path) -> None:
    """Writes the advisories of the pinned packages, dated as the checkout's last commit."""
    seconds = subprocess.run(
        ["git", "-C", str(checkout), "log", "-1", "--format=%ct"],
        check=True,
        stdout=subprocess.PIPE,
    ).stdout
    made = datetime.fromtimestamp(int(seconds), UTC)
    COMMITTED.write_bytes(extract(checkout, [name for name, _ in pins()], made))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
