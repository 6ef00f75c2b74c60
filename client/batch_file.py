"""Files of requests and of their results, as OpenAI's batches and vLLM's ``run-batch`` have them.

A request is a line of JSON: ``{"custom_id": "1", "method": "POST", "url": "/v1/embeddings",
"body": {...}}``. A result has ``custom_id``, ``response`` with ``status_code`` and ``body``, and
``error``, which is null if there is a response.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from client.http_calls import HttpCalls


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a file of requests: a request to send, or an error that says what is wrong."""

    id: str | None
    path: str = ""
    body: bytes = b""
    error: str = ""


def parse(text: str, number: int) -> Line:
    """The request of line ``number``, counted from 1."""
    try:
        row = json.loads(text)
    except ValueError as error:
        return Line(None, error=f"line {number} is not JSON: {error}")
    if not isinstance(row, dict):
        return Line(None, error=f"line {number} is not an object")
    id_ = row.get("custom_id")
    wrong = _wrong(row)
    if wrong:
        return Line(id_ if isinstance(id_, str) else None, error=f"line {number}: {wrong}")
    return Line(id_, row["url"], json.dumps(row["body"]).encode())


def _wrong(row: dict[str, Any]) -> str:
    """What is wrong with a request; empty if nothing is."""
    if not isinstance(row.get("custom_id"), str) or not row["custom_id"]:
        return "custom_id: must be a string"
    if row.get("method", "POST") != "POST":
        return "method: must be POST"
    if not isinstance(row.get("url"), str) or not re.fullmatch("/[!-~]*", row["url"]):
        return "url: must be the path of a route, such as /v1/embeddings"
    if not isinstance(row.get("body"), dict):
        return "body: must be an object"
    return "body.stream: a batch has no streams" if row["body"].get("stream") else ""


def result(line: Line, calls: HttpCalls) -> dict[str, Any]:
    """Sends a request; the result, which has an error if the line is none.

    Raises:
        TriuneError: the server did not answer.
    """
    if line.error:
        error = {"code": "invalid_request", "message": line.error}
        return {"id": None, "custom_id": line.id, "response": None, "error": error}
    answer = calls.post(line.path, line.body)
    response = {
        "status_code": answer.status,
        "request_id": answer.request_id,
        "body": answer.body,
    }
    return {"id": answer.request_id, "custom_id": line.id, "response": response, "error": None}


def finished_ids(file: Path) -> set[str]:
    """The ``custom_id`` of each result of a file. Removes a last line that was not finished.

    Raises:
        ValueError: a line is no result.
    """
    ids: set[str] = set()
    with file.open("r+b") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                lines.truncate(lines.tell() - len(line))
                break
            try:
                ids.add(json.loads(line)["custom_id"])
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError(f"{file}: line {number} is no result of a batch") from error
    return ids
