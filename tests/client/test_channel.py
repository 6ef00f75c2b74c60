"""What a connection refuses: gRPC would end the process, or log lines of its own."""

from pathlib import Path

import pytest

from client.channel import Security
from client.sync import Client

FILE = Path(__file__)


def test_certificate_and_key_need_each_other() -> None:
    with pytest.raises(ValueError, match="certificate also needs its key"):
        Security(certificate_file=FILE)
    with pytest.raises(ValueError, match="key also needs its certificate"):
        Security(key_file=FILE)


@pytest.mark.parametrize(
    "security",
    [Security(ca_file=FILE), Security(certificate_file=FILE, key_file=FILE)],
    ids=["ca", "certificate and key"],
)
def test_files_are_pem(security: Security) -> None:
    with pytest.raises(ValueError, match=r"test_channel\.py: no .* in PEM format"):
        Client("localhost:1", security=security)


@pytest.mark.parametrize("token", ["ä", "a b", "a\nb"])
def test_a_token_is_one_line_of_visible_characters(token: str) -> None:
    with pytest.raises(ValueError, match="bearer token"):
        Security(token=token)
