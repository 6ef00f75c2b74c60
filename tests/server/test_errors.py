"""Errors that repeat what a client sent: cut, printable, and with their details."""

from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from client.errors import TriuneError
from client.sync import Client
from client.types import Message, Regex
from server.errors import InvalidArgumentError
from server.frontends.grpc.status import message_of, metadata_of
from server.printable import MAX_FIELD_BYTES, MAX_MESSAGE_BYTES, printable, quoted, shortened
from tests.fuzz.service import MAX_METADATA_BYTES, metadata_bytes
from tests.serving import server_process

CHARACTERS = ["m", "\n", "\x1b", "語", "🙂", "\u202e"]
NOT_FOUND, INVALID = grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT
# A call that repeats its argument in an error, and the status of that error.
CALLS: tuple[tuple[Callable[[Client, str], object], grpc.StatusCode], ...] = (
    (lambda client, text: client.get_model(text[:40]), NOT_FOUND),
    (lambda client, text: client.tokenize("dates", "x", version=text[:40]), NOT_FOUND),
    (lambda client, text: client.generate(text[:40], "x"), NOT_FOUND),
    (lambda client, text: client.get_model(text), INVALID),
    (lambda client, text: client.tokenize("dates", "x", version=text), INVALID),
    (lambda client, text: client.generate(text, "x"), INVALID),
    (lambda client, text: client.translate("dates", "x", target_language=text), INVALID),
    (lambda client, text: client.generate("tiny-decoder", messages=[Message(text, "x")]), INVALID),
    (lambda client, text: client.generate("tiny-decoder", "1", grammar=Regex(f"({text}")), INVALID),
)


@pytest.fixture(scope="module")
def client(tiny_bundles: Path) -> Iterator[Client]:
    with (
        server_process(tiny_bundles, "--threads", "1") as running,
        Client(running.target, timeout_seconds=60) as client,
    ):
        yield client


@pytest.mark.parametrize("character", CHARACTERS, ids=ascii)
def test_long_texts_keep_the_details_of_errors(client: Client, character: str) -> None:
    for call, code in CALLS:
        with pytest.raises(TriuneError) as caught:
            call(client, character * 20_000)
        assert (caught.value.code, caught.value.reason) == (code, code.name)
        assert caught.value.message.isprintable()
        assert len(caught.value.message.encode()) <= MAX_FIELD_BYTES + 2 + MAX_MESSAGE_BYTES


@pytest.mark.parametrize("character", CHARACTERS, ids=ascii)
def test_the_longest_error_fits_into_metadata(character: str) -> None:
    error = InvalidArgumentError(character * 10_000, character * 10_000)
    assert metadata_bytes(message_of(error), metadata_of(error)) <= MAX_METADATA_BYTES


def test_printable_text_stays_as_it_is() -> None:
    assert printable("a \N{GREEK SMALL LETTER ALPHA}") == "a α"
    assert printable("a\nb\x1b\udcff\u2028") == r"a\nb\x1b\udcff\u2028"
    assert quoted("it's") == repr("it's")
    assert quoted("m" * 81) == repr("m" * 80 + "…")
    assert shortened("語" * 4, 12) == "語" * 4
    assert shortened("語" * 5, 12) == "語" * 3 + "…"
