"""Forms: split as their boundaries say, refused in time that their length bounds."""

import contextlib
import time
from urllib.parse import parse_qs

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from server.errors import InvalidArgumentError
from server.frontends.http import form
from server.frontends.http.form import MAX_FIELDS, decode_form, decode_upload
from server.frontends.http.multipart import MAX_HEAD_BYTES, Part, split_parts

TYPE = "multipart/form-data; boundary=a"
HEAD = b'--a\r\nContent-Disposition: form-data; name="x"\r\n\r\n'
END = b"\r\n--a--\r\n"
NUM_BYTES = 4 << 20
# The time for a form of that size on a busy machine. A loop over its bytes would take longer.
SECONDS = 0.5


class Upload(msgspec.Struct, forbid_unknown_fields=True):
    file: bytes = b""
    names: list[str] = []


def upload(data: bytes) -> Upload:
    headers = Headers({"content-type": TYPE})
    decoded: Upload = decode_upload(data, headers, Upload, files=("file",), lists=("names",))
    return decoded


def part(disposition: str, data: bytes, *others: str) -> bytes:
    lines = [f"Content-Disposition: form-data; {disposition}", *others]
    return b"--a\r\n" + "\r\n".join(lines).encode() + b"\r\n\r\n" + data + b"\r\n"


@pytest.mark.parametrize(
    "value",
    [b"", b"\r\n", b"\r\n--", b"--a", b"\r\n\r\n", b"\n--a--\n", bytes(range(256)), b"-" * 99],
)
def test_values_are_returned_as_sent(value: bytes) -> None:
    body = part('name="x"', value) + part('name=y; filename="a b.wav"', value) + b"--a--"
    padded = body.replace(b"--a\r\nContent", b"--a \t\r\nContent")
    preamble = b"This is a form.\r\nIt has --a b\r\n"
    for data in (
        *(body, b"\r\n" + body, preamble + body, padded + b" \r\n", preamble + padded),
        body + b"\r\nwhat follows is ignored --a\r\n",
    ):
        assert split_parts(data, TYPE, 2) == [Part("x", value, False), Part("y", value, True)]


def test_names_may_have_any_character() -> None:
    data = part('name="é[] ; \\"q\\""', b"1", "Content-Transfer-Encoding: binary") + b"--a--"
    assert split_parts(data, TYPE, 1) == [Part('é[] ; "q"', b"1", False)]
    boundary = "'()+_,-./:=? z"
    data = f"--{boundary}--".encode()
    assert split_parts(data, f'multipart/form-data; boundary="{boundary}"', 0) == []


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no boundary begins"),
        (b"junk--a--", "no boundary begins"),
        (b"--b--", "no boundary begins"),
        (b"x" * MAX_HEAD_BYTES + b"\r\n--a--", "no boundary begins"),
        (b"--a", "followed by other bytes"),
        (b"--a x\r\n", "followed by other bytes"),
        (b"--a" + b" " * 257 + b"\r\n", "followed by other bytes"),
        (HEAD + b"\r\n--ab", "followed by other bytes"),
        (b"--a\r\n", "no headers"),
        (b"--a\r\nx: " + b"y" * MAX_HEAD_BYTES + b"\r\n\r\n" + END, "no headers"),
        (b"--a\r\n\r\n" + END, "no name"),
        (b"--a\r\nContent-Disposition: form-data\r\n\r\n" + END, "no name"),
        (part("name=x", b"YQ==", "content-transfer-encoding: base64") + END, "transfer-encoding"),
        (HEAD, "last boundary"),
        ((HEAD + b"\r\n") * 4 + b"--a--", "more than 3"),
    ],
)
def test_malformed_forms_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        split_parts(data, TYPE, 3)


@pytest.mark.parametrize("boundary", ["", "; boundary=", "; boundary=" + "x" * 257])
def test_boundaries(boundary: str) -> None:
    with pytest.raises(ValueError, match="boundary"):
        split_parts(HEAD, f"multipart/form-data{boundary}", 3)


HOSTILE = {
    "false boundaries": HEAD + b"\r\n--aX" * (NUM_BYTES // 6) + END,
    "almost boundaries": HEAD + b"\r\n--" * (NUM_BYTES // 4) + END,
    "padding": HEAD + b"\r\n--a" + b" " * NUM_BYTES + END,
    "line ends": HEAD + b"\r" * NUM_BYTES + END,
    "a preamble": b"\r\n" * (NUM_BYTES // 2) + HEAD + END,
    "no boundary": b"-" * NUM_BYTES,
    "parts": (HEAD + b"\r\n") * (NUM_BYTES // len(HEAD)) + b"--a--",
    "parameters": part("a=b;" * 900 + "name=x", b"") * (NUM_BYTES // 3700) + b"--a--",
    "quotes": part('a="\\";' * 600 + "name=x", b"") * (NUM_BYTES // 3700) + b"--a--",
    "headers": part("name=x", b"", *["a:"] * 800) * (NUM_BYTES // 3300) + b"--a--",
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_time_is_bounded(data: bytes) -> None:
    started = time.thread_time()
    with contextlib.suppress(ValueError):
        split_parts(data, TYPE, MAX_FIELDS)
    assert time.thread_time() - started < SECONDS


def test_uploads_have_files_and_lists() -> None:
    names = part('name="names[]"', b"1") + part("name=names", b"2")
    decoded = upload(part('name="file"; filename=""', b"\xff") + names + b"--a--")
    assert (decoded.file, decoded.names) == (b"\xff", ["1", "2"])
    assert upload(part("name=names", b"1") + b"--a--").names == ["1"]


def test_an_invalid_field_is_named() -> None:
    for data, field in (
        (part('name="a b"', b""), "a b"),
        (part("name=file", b""), "file"),
        (part('name="names"; filename=x', b""), "names"),
        (part("name=names", b"\xff"), "names"),
    ):
        with pytest.raises(InvalidArgumentError) as caught:
            upload(data + b"--a--")
        assert caught.value.field == field


def test_forms_without_files() -> None:
    headers = Headers({"content-type": TYPE})
    repeated = part("name=names", b"1") + part("name=names", b"2") + b"--a--"
    assert decode_form(repeated, headers, Upload).names == ["1", "2"]
    with pytest.raises(InvalidArgumentError, match="names: is not UTF-8"):
        decode_form(part("name=names", b"\xff") + b"--a--", headers, Upload)


PIECES = st.sampled_from(["a", "%41", "%", "%4", "+", "&", "=", "%C3%A9", "é", "%zz", "%FF"])


@given(pieces=st.lists(PIECES, max_size=14), piece_bytes=st.sampled_from([3, 4, 7, 1 << 16]))
def test_encoded_forms_are_read_as_by_the_library(pieces: list[str], piece_bytes: int) -> None:
    data = "".join(pieces)
    headers = Headers({"content-type": "application/x-www-form-urlencoded"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(form, "_PIECE_BYTES", piece_bytes)
        try:
            expected = parse_qs(data, keep_blank_values=True, errors="strict")
        except ValueError:
            with pytest.raises(InvalidArgumentError, match="body: is not a form"):
                decode_form(data.encode(), headers, dict)
            return
        found = decode_form(data.encode(), headers, dict)
    lists = {name: [value] if isinstance(value, str) else value for name, value in found.items()}
    assert lists == expected
