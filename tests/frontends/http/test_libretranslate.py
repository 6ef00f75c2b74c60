"""LibreTranslate's API, with curl and a plain HTTP client, against a real server."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import httpx2
import pytest
from libretranslatepy import LibreTranslateAPI
from starlette.datastructures import Headers

from client.sync import Client
from server.errors import InvalidArgumentError
from server.frontends.http.form import decode_form
from tests.serving import ServerProcess, server_process

FIRST, SECOND = "the 3rd of March, 2021", "the 4th of May, 1999"
TEXT = f"{FIRST}\n\n{SECOND}"
PAIRS = {"german": ("de", "en"), "english": ("en", "pt_BR")}


@pytest.fixture(scope="module")
def server(tiny_bundles: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The model of dates twice, with languages that it does not have."""
    root = tmp_path_factory.mktemp("pairs")
    for name, (source, target) in PAIRS.items():
        shutil.copytree(tiny_bundles / "dates", root / name)
        manifest = root / name / "1" / "bundle.json"
        content = json.loads(manifest.read_text())
        own = {"name": name, "source_language": source, "target_language": target}
        manifest.write_text(json.dumps(content | own))
    with server_process(root, "--threads", "1", "--slots", "4") as running:
        yield running


def translate(http: httpx2.Client, q: Any, **fields: Any) -> Any:
    body = {"q": q, "source": "en", "target": "pt"} | fields
    answer = http.post("/translate", json=body)
    return answer.json() | ({} if answer.status_code == 200 else {"status": answer.status_code})


def test_texts_are_those_of_grpc(server: ServerProcess, http: httpx2.Client) -> None:
    with Client(server.target) as client:
        first, second = (
            client.translate("english", text).outputs[0].text for text in (TEXT, SECOND)
        )
        others = client.translate("english", SECOND, num_hypotheses=3, alternatives=True)
    assert "\n\n" in first
    assert translate(http, TEXT) == {"translatedText": first}
    assert translate(http, [TEXT, " ", SECOND]) == {"translatedText": [first, " ", second]}
    assert translate(http, SECOND, format=None) == translate(http, SECOND, format="")
    assert translate(http, SECOND, format="") == {"translatedText": second}
    expected = [each.text for each in others.outputs[0].hypotheses[1:]]
    answer = translate(http, SECOND, alternatives=2)
    assert answer == {"translatedText": second, "alternatives": expected}


def test_requests_as_libretranslate_takes_them(http: httpx2.Client) -> None:
    assert translate(http, ["", " "]) == {"translatedText": ["", " "]}
    assert translate(http, [""], alternatives=1)["alternatives"] == [[]]
    assert translate(http, [])["status"] == 400
    expected = translate(http, SECOND, alternatives=2)
    assert len(expected["alternatives"]) == 2
    assert translate(http, SECOND, alternatives="2") == expected
    fields = {"q": f"{SECOND} & é", "source": "en", "target": "pt"}
    plain = translate(http, fields["q"])
    assert http.post("/translate", params=fields).json() == plain
    text = {"q": fields.pop("q")}
    assert http.post("/translate", params=fields, data=text).json() == plain
    assert http.post("/detect", params={"q": "Das Haus am See"}).json()[0]["language"] == "de"


def test_languages_and_a_way_by_english(http: httpx2.Client) -> None:
    languages = http.get("/languages").json()
    assert languages == [
        {"code": "de", "name": "German", "targets": ["de", "en", "pt_BR"]},
        {"code": "en", "name": "English", "targets": ["en", "pt_BR"]},
        {"code": "pt_BR", "name": "Portuguese (Brazil)", "targets": ["pt_BR"]},
    ]
    first = translate(http, FIRST, source="de", target="en-US")["translatedText"]
    both = translate(http, FIRST, source="de-AT", target="pt-BR")["translatedText"]
    assert both == translate(http, first)["translatedText"]
    assert translate(http, FIRST, target="en")["translatedText"] == FIRST
    assert translate(http, FIRST, source="pt_BR")["translatedText"] == FIRST
    settings = http.get("/frontend/settings").json()
    assert settings["language"]["target"]["code"] == "en"
    assert (settings["keyRequired"], settings["filesTranslation"]) == (False, False)
    assert http.get("/health").json() == {"status": "ok"}


def test_detection(http: httpx2.Client) -> None:
    found = http.post("/detect", json={"q": "Das Haus am See ist sehr schön."}).json()
    assert found[0]["language"] == "de"
    assert found[0]["confidence"] > 90
    answer = translate(http, ["The house by the lake", "is very old"], source="auto")
    assert [each["language"] for each in answer["detectedLanguage"]] == ["en", "en"]


def test_markup_stays_in_place(http: httpx2.Client) -> None:
    html = (
        "<!DOCTYPE html>\n<p class='a \"b'>the <b id=x>3rd</b> of <i>March</i>, 2021<br>"
        f'<script>if (a < b) "<p>{SECOND}"</script><p translate="no">{SECOND}</p>\n'
        f'<span class="x notranslate">{SECOND}</span>&nbsp;<!-- {SECOND} -->'
        f"<img src=a.png><ul><li>{SECOND}</ul>1 &lt; 2"
    )
    answer = translate(http, html, format="html")["translatedText"]
    plain = translate(http, SECOND)["translatedText"]
    assert answer.startswith("<!DOCTYPE html>\n<p class='a \"b'>")
    assert answer.count("<b id=x>") == answer.count("</b>") == answer.count("<i>") == 1
    kept = html[html.index("<br>") : html.index("<li>")]
    assert kept in answer
    assert answer.endswith(f"<li>{plain}</ul>1 &lt; 2")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"q": ""}, "q: must not be empty"),
        ({"q": 3}, "q: expected"),
        ({"target": "xx"}, "target: 'xx' is not a language served here"),
        ({"source": "pt", "target": "en"}, "source: 'pt' is not a language served here"),
        ({"format": "docx"}, "format: "),
        ({"alternatives": -1}, "alternatives: -1 is not in 0 … "),
        ({"alternatives": 99}, "alternatives: 99 is not in 0 … "),
        ({"alternatives": 1, "format": "html"}, "alternatives: "),
        ({"q": ["a"] * 100_000}, "q: 100000 given, at most 4096"),
        ({"q": "<b>" * 60_000, "format": "html"}, r"q\[0\]: has more than 50000 tags"),
        ({"q": "a b c.\n\n" * 10_000}, "q.*sentences"),
    ],
)
def test_invalid_requests(http: httpx2.Client, fields: Any, message: str) -> None:
    answer = translate(http, **{"q": FIRST} | fields)
    assert answer["status"] == 400
    assert re.match(message, answer["error"]), answer


def test_curl_sends_forms(server: ServerProcess) -> None:
    def curl(path: str, *options: str) -> Any:
        command = ["curl", "-sS", f"{server.http_url}{path}", *options]
        return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)

    encoded = curl("/translate", "-d", f"q={FIRST}&source=en&target=pt")
    parts = ["-F", f"q={FIRST}", "-F", "source=en", "-F", "target=pt"]
    assert encoded == curl("/translate", *parts) != {}
    assert curl("/translate", *parts, "-F", "x=@/dev/null") == {"error": "x: is a file"}
    assert "file translation" in curl("/translate_file", *parts)["error"]


@pytest.mark.parametrize("boundary", ["", "; boundary=x"])
def test_malformed_forms_are_not_logged(caplog: pytest.LogCaptureFixture, boundary: str) -> None:
    headers = Headers({"content-type": f"multipart/form-data{boundary}"})
    with pytest.raises(InvalidArgumentError, match="body"):
        decode_form(b"junk", headers, dict)
    assert not caplog.records


def test_tokens(tiny_bundles: Path, tokens: Path) -> None:
    with server_process(tiny_bundles, "--tokens", str(tokens)) as running:
        url = running.http_url
        body = {"q": "a", "source": "en", "target": "pt"}
        refused = httpx2.post(f"{url}/translate", json=body)
        assert refused.status_code == 401
        assert set(refused.json()) == {"error"}
        accepted = httpx2.post(f"{url}/translate", json=body | {"api_key": "first-token"})
        assert accepted.status_code == 400  # no languages are served
        assert httpx2.get(f"{url}/languages").status_code == 401
        with pytest.raises(HTTPError):
            LibreTranslateAPI(url, api_key="nobody's-token").languages()
        assert LibreTranslateAPI(url, api_key="first-token").languages() == []
