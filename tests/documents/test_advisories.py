"""The lists of known vulnerabilities that ``make audit`` reads where the index serves none."""

import json
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from scripts.advisories import COMMITTED, extract, parse, pins
from scripts.audit import CANARY, AuditError, vulnerable

META = {"timestamp": 1625119202}
OSV = """
id: PYSEC-2014-8
affected:
- package: {name: Jinja2, ecosystem: PyPI}
  ranges:
  - type: GIT
    events: [{introduced: "0"}, {fixed: abcdef}]
  - type: ECOSYSTEM
    events: [{introduced: "0"}, {fixed: 2.7.2}, {introduced: 2.8}, {last_affected: 2.8.1}]
aliases: [CVE-2014-1402, GHSA-8r7q-cvjq-x353]
"""
LISTED = """
id: PYSEC-2015-1
affected:
- package: {name: jinja2, ecosystem: PyPI}
  versions: ["1.0", "1.1"]
"""


def listed(**advisories: list[dict[str, Any]]) -> bytes:
    return json.dumps({"$meta": META, **advisories}).encode()


def advisory(*specs: str, cve: str | None = None) -> dict[str, Any]:
    return {"id": "pyup.io-1", "cve": cve, "specs": list(specs), "v": "", "advisory": "a text"}


def test_versions_are_compared_with_ranges() -> None:
    found = parse(listed(Some_Package=[advisory("<1.2", ">=2.0,<2.0.3", cve="CVE-1")]))
    assert found.date == date(2021, 7, 1)
    versions = ("1.1.9", "1.2", "2.0", "2.0.3", "2.0.2rc1", "10.0")
    problems = found.problems([("some-package", version) for version in versions])
    assert problems == [
        f"some-package=={version}: pyup.io-1, CVE-1" for version in ("1.1.9", "2.0", "2.0.2rc1")
    ]
    assert found.problems([("another", "1.1.9")]) == []


def test_unreadable_ranges_are_counted() -> None:
    found = parse(listed(a=[advisory("<1.2", "<all of them")]))
    assert found.num_unreadable == 1
    assert found.problems([("a", "1.1")])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"$meta": {}}',
        b'{"$meta": {"timestamp": "today"}}',
        b'{"$meta": {"timestamp": 1e30}}',
        b'{"$meta": {"timestamp": 1}, "a": [{"id": "x", "cve": null}]}',
        b'{"$meta": {"timestamp": 1}, "a": "<1"}',
        b'{"$meta": {"timestamp": 1}, "a": [{"id": "x", "cve": null, "specs": [1]}]}',
    ],
)
def test_other_files_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a list of advisories"):
        parse(data)


def test_osv_advisories_become_ranges(tmp_path: Path) -> None:
    folder = tmp_path / "vulns" / "jinja2"
    folder.mkdir(parents=True)
    (folder / "PYSEC-2014-8.yaml").write_text(OSV)
    (folder / "PYSEC-2015-1.yaml").write_text(LISTED)
    (folder / "PYSEC-2016-1.yaml").write_text(OSV + 'withdrawn: "2020-01-01T00:00:00Z"\n')
    found = parse(extract(tmp_path, ["jinja2", "Other"], datetime(2024, 10, 10, tzinfo=UTC)))
    assert found.date == date(2024, 10, 10)
    assert found.covers("other")
    assert not found.covers("third")
    versions = ("1.0", "2.4.1", "2.7.2", "2.8", "2.8.1", "2.8.2")
    assert found.problems([("jinja2", version) for version in versions]) == [
        "jinja2==1.0: PYSEC-2014-8, CVE-2014-1402",
        "jinja2==1.0: PYSEC-2015-1",
        "jinja2==2.4.1: PYSEC-2014-8, CVE-2014-1402",
        "jinja2==2.8: PYSEC-2014-8, CVE-2014-1402",
        "jinja2==2.8.1: PYSEC-2014-8, CVE-2014-1402",
    ]


def test_list_without_the_canary_is_refused() -> None:
    name, version = CANARY.split("==")
    empty = parse(listed(another=[advisory("<1")]))
    with pytest.raises(AuditError, match=CANARY):
        vulnerable(empty, "a list")
    pinned, pinned_version = min(pin for pin in pins() if pin[0] != name)
    full = parse(
        listed(**{name: [advisory(f"=={version}")], pinned: [advisory(f"=={pinned_version}")]})
    )
    assert vulnerable(full, "a list") == [f"{pinned}=={pinned_version}: pyup.io-1"]


def test_committed_list_has_the_canary() -> None:
    found = parse(COMMITTED.read_bytes())
    assert vulnerable(found, "the committed list") == []
    assert found.num_unreadable == 0
