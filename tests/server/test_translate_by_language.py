"""Translations by two models, one after the other."""

import json
import shutil
from pathlib import Path

import pytest

from server.service.caller import Caller
from server.service.service import Service
from server.service.translate_by_language import LanguageRequest
from tests.server.in_process_service import service_context

TEXT = "the 3rd of March, 2021"


@pytest.fixture
def bundles(tiny_bundles: Path, tmp_path: Path) -> Path:
    """The model of dates twice. The first may only end its output, so its texts are empty."""
    for name, source, target in (("first", "de", "en"), ("second", "en", "pt")):
        shutil.copytree(tiny_bundles / "dates", tmp_path / name)
        path = tmp_path / name / "1" / "bundle.json"
        manifest = json.loads(path.read_text())
        manifest |= {"name": name, "source_language": source, "target_language": target}
        if name == "first":
            special = manifest["special_tokens"]
            ids = range(manifest["dimensions"]["vocabulary_size"])
            special["suppressed"] = [id_ for id_ in ids if id_ not in special["eos"]]
        path.write_text(json.dumps(manifest))
    return tmp_path


@pytest.mark.parametrize("is_html", [False, True])
async def test_a_text_that_the_first_model_translates_to_nothing(
    bundles: Path, is_html: bool
) -> None:
    async with service_context(bundles, num_threads=1, num_slots=4) as context:
        request = LanguageRequest(inputs=(TEXT, TEXT), source="de", target="pt", is_html=is_html)
        result = await Service(context).translate_by_language(request, Caller("", None))
    assert result.texts == ("", "")
    assert result.alternatives == ((), ())
