"""The README says what the committed report says."""

from scripts.parts import README
from scripts.readme_figures import committed, rendered


def test_the_readmes_figures_are_those_of_the_report() -> None:
    readme = README.read_text(encoding="utf-8")
    assert rendered(readme, committed()) == readme
