"""Splits multipart forms (RFC 7578) in bounded time.

python-multipart examines some bytes one by one: 16 MiB of spaces after a boundary take it 5 s,
which would block the event loop. Here every loop runs once per part or header.
"""

from dataclasses import dataclass

from python_multipart.multipart import parse_options_header

MAX_HEAD_BYTES = 4096  # headers of one part; also the preamble before the first part
MAX_HEADS_BYTES = 256 << 10  # headers of all parts
_MAX_BOUNDARY_BYTES = 256
_MAX_PADDING_BYTES = 256  # after a boundary
_END = b"\r\n"
_PLAIN = (b"7bit", b"8bit", b"binary")


@dataclass(frozen=True, slots=True)
class Part:
    """A field of a form. If ``is_file``, it has a filename."""

    name: str
    data: bytes
    is_file: bool


def split_parts(data: bytes, content_type: str, max_parts: int) -> list[Part]:
    """Splits a form into its parts, in order.

    Args:
        data: the body.
        content_type: the request's content-type header, with the boundary.
        max_parts: maximum number of parts.

    Raises:
        ValueError: the form is malformed or exceeds a limit; the message says why.
    """
    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if not 0 < len(boundary) <= _MAX_BOUNDARY_BYTES:
        raise ValueError("the boundary is missing or too long")
    delimiter = _END + b"--" + boundary
    if data.startswith(b"--" + boundary):
        start = len(b"--" + boundary)
    else:
        preamble_end = data.find(delimiter, 0, MAX_HEAD_BYTES)
        if preamble_end < 0:
            raise ValueError(f"no boundary begins in its first {MAX_HEAD_BYTES} bytes")
        start = preamble_end + len(delimiter)
    parts: list[Part] = []
    num_head_bytes = 0
    while not data.startswith(b"--", start):
        start = _line_end(data, start)
        if len(parts) == max_parts:
            raise ValueError(f"more than {max_parts} fields")
        head_end = data.find(_END * 2, start, start + MAX_HEAD_BYTES)
        if head_end < 0:
            raise ValueError(f"a part has no headers of at most {MAX_HEAD_BYTES} bytes")
        num_head_bytes += head_end - start
        if num_head_bytes > MAX_HEADS_BYTES:
            raise ValueError(f"more than {MAX_HEADS_BYTES} bytes of headers")
        end = data.find(delimiter, head_end + 2 * len(_END))
        if end < 0:
            raise ValueError("the last boundary is missing")
        head = data[start + len(_END) : head_end]
        parts.append(_part(head, data[head_end + 2 * len(_END) : end]))
        start = end + len(delimiter)
    return parts


def _line_end(data: bytes, start: int) -> int:
    """The end of a boundary's line, on which spaces may follow (RFC 2046, 5.1.1)."""
    end = data.find(_END, start, start + _MAX_PADDING_BYTES + len(_END))
    if end < 0 or data[start:end].strip(b" \t"):
        raise ValueError("a boundary is followed by other bytes")
    return end


def _part(head: bytes, data: bytes) -> Part:
    headers: dict[bytes, bytes] = {}
    for line in head.split(_END):
        name, _, value = line.partition(b":")
        headers[name.strip().lower()] = value.strip()
    _, options = parse_options_header(headers.get(b"content-disposition"))
    if b"name" not in options:
        raise ValueError("a part has no name")
    if headers.get(b"content-transfer-encoding", _PLAIN[0]).lower() not in _PLAIN:
        raise ValueError("a part has a content-transfer-encoding")
    return Part(options[b"name"].decode(), data, b"filename" in options)
