"""The choice of models by languages, and translations by two models, one after the other."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from server.service.caller import Caller
from server.service.service import Service
from server.service.translate_by_language import LanguageRequest
from server.service.translation_routes import Hop, TranslationRoutes
from tests.server.in_process_service import service_context

TEXT = "the 3rd of March, 2021"


def _copy(tiny_bundles: Path, root: Path, name: str, source: str, target: str) -> Any:
    """Copies the model of dates with other languages, and returns its manifest."""
    shutil.copytree(tiny_bundles / "dates", root / name)
    manifest = json.loads((root / name / "1" / "bundle.json").read_text())
    manifest |= {"name": name, "source_language": source, "target_language": target}
    _write(root, manifest)
    return manifest


def _write(root: Path, manifest: Any) -> None:
    (root / manifest["name"] / "1" / "bundle.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("is_html", [False, True])
async def test_a_text_that_the_first_model_translates_to_nothing(
    tiny_bundles: Path, tmp_path: Path, is_html: bool
) -> None:
    first = _copy(tiny_bundles, tmp_path, "first", "de", "en")
    special, ids = first["special_tokens"], range(first["dimensions"]["vocabulary_size"])
    special["suppressed"] = [id_ for id_ in ids if id_ not in special["eos"]]
    _write(tmp_path, first)
    _copy(tiny_bundles, tmp_path, "second", "en", "pt")
    async with service_context(tmp_path, num_threads=1, num_slots=4) as context:
        request = LanguageRequest(inputs=(TEXT, TEXT), source="de", target="pt", is_html=is_html)
        result = await Service(context).translate_by_language(request, Caller("", None))
    assert result.texts == ("", "")
    assert result.alternatives == ((), ())


async def test_of_two_models_the_one_for_the_region_or_script_is_used(
    tiny_bundles: Path, tmp_path: Path
) -> None:
    pairs = {"a": ("en", "pt"), "b": ("en", "pt_BR"), "c": ("en", "zh_CN"), "d": ("en", "zh_TW")}
    pairs |= {"e": ("pt_BR", "en"), "f": ("pt_PT", "en")}
    for name, (source, target) in pairs.items():
        _copy(tiny_bundles, tmp_path, name, source, target)
    async with service_context(tmp_path, num_threads=1, num_slots=1) as context:
        routes = TranslationRoutes(context.registry)
        for name, (source, target) in pairs.items():
            assert routes.find(source, target) == (Hop(name, source, target),)
        assert routes.find("en-GB", "pt-BR") == (Hop("b", "en", "pt_BR"),)
        assert routes.find("en", "zh-Hant") == (Hop("d", "en", "zh_TW"),)
        assert routes.find("pt-PT", "zh-HK") == (Hop("f", "pt_PT", "en"), Hop("d", "en", "zh_TW"))


async def test_the_language_of_html_is_that_of_its_texts(
    tiny_bundles: Path, tmp_path: Path
) -> None:
    for name, source in (("german", "de"), ("english", "en")):
        _copy(tiny_bundles, tmp_path, name, source, "pt")
    style = "body { color: black; } .the-header { display: none; font-family: the-name; }"
    html = f"<html><style>{style}</style><p class='the lead text'>Das Haus am See</p></html>"
    async with service_context(tmp_path, num_threads=1, num_slots=4) as context:
        request = LanguageRequest(inputs=(html, "<br>"), source="auto", target="pt", is_html=True)
        result = await Service(context).translate_by_language(request, Caller("", None))
    assert result.detected is not None
    assert result.detected.language == "de"
    assert result.texts[0].startswith(html.partition("Das")[0])
    assert result.texts[1] == "<br>"
