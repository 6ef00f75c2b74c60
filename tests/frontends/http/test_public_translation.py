"""Long texts and markup with the shipped English-Portuguese models, and LibreTranslate's client."""

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from libretranslatepy import LibreTranslateAPI

from client.sync import Client
from client.types import SentenceSplit
from tests.serving import ServerProcess, server_process

pytestmark = pytest.mark.slow

PARAGRAPHS = """The old lighthouse stood on a cliff above the harbour. Mr. Almeida, who had kept \
it for forty years, climbed the stairs every evening at 6 p.m. to light the lamp. "Nobody needs me \
any more," he used to say. "The ships have satellites now."

One night, however, the power failed in the whole town. The fishermen saw only one light on the \
dark coast: the old lamp of Mr. Almeida. They followed it home, and the next day they brought him \
fish, bread and wine.

- Open every day
- Tickets cost $3.50, e.g. at the entrance
"""
HTML = (
    '<h1>The lighthouse</h1><p>The <b>old</b> lighthouse stood on a <a href="/x?a=1&amp;b=2">high '
    'cliff</a>.</p><p translate="no">Keep this</p><script>var a = "<b>Hello</b>";</script>'
)


@pytest.fixture(scope="module")
def server(int8_bundles: Path) -> Iterator[ServerProcess]:
    with server_process(int8_bundles) as running:
        yield running


def test_a_long_text_is_translated_to_its_end(server: ServerProcess) -> None:
    with Client(server.target) as client:
        text = client.translate("en-pt", PARAGRAPHS).outputs[0].text
        whole = client.translate("en-pt", PARAGRAPHS, sentence_split=SentenceSplit.OFF).outputs[0]
        pieces = [piece.text for piece in client.translate_stream("en-pt", PARAGRAPHS)]
    assert "".join(pieces) == text
    assert "vinho" in text
    assert "vinho" not in whole.text  # the model was trained on sentences and stops early
    assert [line[:2] for line in text.splitlines()[-2:]] == ["- ", "- "]
    assert text.count("\n") == PARAGRAPHS.count("\n")
    assert "Sr. Almeida" in text
    api = LibreTranslateAPI(server.http_url)
    assert api.translate(PARAGRAPHS, "en", "pt") == text


def test_libretranslates_client(server: ServerProcess) -> None:
    api = LibreTranslateAPI(server.http_url)
    assert api.translate("O gato está na mesa.", "auto", "en").startswith("The cat is on the table")
    assert api.detect("O gato está na mesa.")[0]["language"] == "pt"
    assert {each["code"] for each in api.languages()} == {"en", "it", "pt"}


def test_markup_stays_around_its_words(server: ServerProcess) -> None:
    body = {"q": HTML, "source": "en", "target": "pt", "format": "html"}
    answer = httpx2.post(f"{server.http_url}/translate", json=body, timeout=60).json()
    text = answer["translatedText"]
    assert "<b>antigo</b> farol" in text
    assert '<a href="/x?a=1&amp;b=2">penhasco alto</a>.</p>' in text
    assert text.endswith(HTML[HTML.index('<p translate="no">') :])
