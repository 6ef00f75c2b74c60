"""Every generated section of the documents is up to date."""

from pathlib import Path

import pytest

from scripts import comparisons, engine_figures, families, faults
from scripts.generated_sections import Section, replace_section

SECTIONS = (
    *comparisons.SECTIONS,
    *engine_figures.SECTIONS,
    *families.SECTIONS,
    *faults.SECTIONS,
)


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.name)
def test_the_section_is_current(section: Section) -> None:
    assert section.render()
    assert section.is_current()


def test_only_the_named_section_is_replaced() -> None:
    text = "a\n<!-- x: begin -->\nold\n<!-- x: end -->\nb\n"
    assert replace_section(text, "x", "new") == text.replace("old", "new")
    with pytest.raises(ValueError, match="<!-- y: begin -->"):
        replace_section(text, "y", "new")


def test_an_outdated_section_is_found(tmp_path: Path) -> None:
    document = tmp_path / "document.md"
    section = Section(document=document, name="x", render=lambda: "new")
    document.write_text("<!-- x: begin -->\nold\n<!-- x: end -->\n")
    assert not section.is_current()
    document.write_text(section.rendered())
    assert section.is_current()
