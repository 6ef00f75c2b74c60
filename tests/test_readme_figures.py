"""The README says what the committed report says."""

import json

from scripts.readme_figures import README, REPORT, rendered


def test_the_readmes_figures_are_those_of_the_report() -> None:
    readme = README.read_text(encoding="utf-8")
    assert rendered(readme, json.loads(REPORT.read_text(encoding="utf-8"))) == readme
