"""Files of requests over HTTP: results in order, failures among them, and a second start."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from client.batch_file import finished_ids, parse
from client.errors import TriuneError
from client.http_calls import HttpCalls
from client.retry import RetryPolicy
from tests.serving import ServerProcess, server_process

ROOT = Path(__file__).parents[2]
DATE = {"text": "3 March 2021"}


@pytest.fixture(scope="module")
def server(tiny_bundles: Path) -> Iterator[ServerProcess]:
    with server_process(tiny_bundles, "--threads", "1") as running:
        yield running


def run(url: str, *arguments: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "client", "batch", *arguments],
        cwd=ROOT,
        env={**os.environ, "TRIUNE_URL": url},
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def request(id_: str, url: str = "/classify", **body: object) -> str:
    row = {"custom_id": id_, "method": "POST", "url": url, "body": body}
    return json.dumps(row) + "\n"


def classify(id_: str) -> str:
    return request(id_, model="tiny-classifier", input=id_)


@pytest.mark.slow
def test_results_are_in_the_order_of_the_requests(server: ServerProcess, tmp_path: Path) -> None:
    requests, out = tmp_path / "requests.jsonl", tmp_path / "results.jsonl"
    complete = request("c", "/v1/completions", model="tiny-decoder", prompt="7,", max_tokens=2)
    lines = [
        *map(classify, map(str, range(80))),
        complete,
        request("d", "/nowhere/embed", inputs="a"),
        "x\n",
    ]
    requests.write_text("".join(lines), encoding="utf-8")
    ran = run(server.http_url, str(requests), "--out", str(out))
    assert (ran.returncode, ran.stderr) == (1, "81 answered, 2 failed, 0 left out\n")
    results = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [row["custom_id"] for row in results] == [*map(str, range(80)), "c", "d", None]
    assert results[7]["response"]["status_code"] == 200
    assert results[7]["response"]["body"]["data"][0]["num_classes"] == 2
    assert results[80]["response"]["body"]["choices"][0]["text"]
    assert results[81]["response"]["status_code"] == 404
    assert results[82]["response"] is None
    assert results[82]["error"]["message"].startswith("line 83 is not JSON")


@pytest.mark.slow
def test_a_batch_continues_where_it_stopped(server: ServerProcess, tmp_path: Path) -> None:
    requests, out = tmp_path / "requests.jsonl", tmp_path / "results.jsonl"
    requests.write_text("".join(map(classify, "123456")), encoding="utf-8")
    assert run(server.http_url, str(requests), "--out", str(out)).returncode == 0
    whole = out.read_text(encoding="utf-8").splitlines(keepends=True)
    out.write_text("".join(whole[:3]) + whole[3][:20], encoding="utf-8")
    ran = run(server.http_url, str(requests), "--out", str(out))
    assert (ran.returncode, ran.stderr) == (0, "3 answered, 0 failed, 3 left out\n")
    results = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [row["custom_id"] for row in results] == [*"123456"]


@pytest.mark.slow
def test_standard_input_to_standard_output(server: ServerProcess) -> None:
    ran = run(server.http_url, "-", "--in-flight", "1", stdin=classify("1") + "\n" + classify("2"))
    assert [json.loads(line)["custom_id"] for line in ran.stdout.splitlines()] == ["1", "2"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://127.0.0.1:1", "error: UNAVAILABLE: http://127.0.0.1:1: "),
        ("127.0.0.1:8080", "error: '127.0.0.1:8080' is not http://HOST:PORT"),
        ("http://127.0.0.1:8080/v1", "error: 'http://127.0.0.1:8080/v1' is not http://HOST:PORT"),
    ],
)
def test_an_address_without_a_server_is_one_line(url: str, message: str) -> None:
    ran = run(url, "-", stdin=classify("1"))
    assert ran.returncode == 1
    assert ran.stderr.startswith(message)
    assert ran.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([], "is not an object"),
        ({"url": "/rerank", "body": {}}, ": custom_id: must be a string"),
        ({"custom_id": 1, "url": "/rerank", "body": {}}, ": custom_id: must be a string"),
        ({"custom_id": "a", "url": "/a", "body": {}, "method": "GET"}, ": method: must be POST"),
        ({"custom_id": "a", "url": "rerank", "body": {}}, ": url: must be the path"),
        ({"custom_id": "a", "url": "/a b", "body": {}}, ": url: must be the path"),
        ({"custom_id": "a", "url": "/a\r\nx: y", "body": {}}, ": url: must be the path"),
        ({"custom_id": "a", "url": "/a"}, ": body: must be an object"),
        ({"custom_id": "a", "url": "/a", "body": {"stream": True}}, ": body.stream: "),
    ],
)
def test_a_line_that_is_no_request_says_why(row: Any, message: str) -> None:
    line = parse(json.dumps(row), 7)
    assert line.error.startswith("line 7")
    assert message in line.error


def test_a_file_of_other_lines_is_no_file_of_results(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("hello\n", encoding="utf-8")
    with pytest.raises(ValueError, match="line 1 is no result of a batch"):
        finished_ids(file)
    assert file.read_text(encoding="utf-8") == "hello\n"


@contextmanager
def answering(*statuses: int) -> Iterator[str]:
    """The URL of a server that answers each request with the next status; 0 closes instead."""
    left = list(statuses)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            status = left.pop(0)
            if not status:
                self.close_connection = True
                return
            body = json.dumps({"left": len(left)}).encode()
            self.send_response(status)
            self.send_header("retry-after-ms", "1")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{running.server_address[1]}"
        finally:
            running.shutdown()
            thread.join()


PATIENT = RetryPolicy(attempts=4, initial_seconds=0.001)


def test_refused_and_lost_requests_are_sent_again() -> None:
    with answering(429, 0, 503, 200) as url:
        answer = HttpCalls(url, retry=PATIENT).post("/a", b"{}")
    assert (answer.status, answer.body) == (200, {"left": 0})


def test_the_last_refusal_is_the_answer() -> None:
    with answering(429, 429, 429, 429, 200) as url:
        assert HttpCalls(url, retry=PATIENT).post("/a", b"{}").status == 429


def test_errors_of_a_request_are_not_sent_again() -> None:
    with answering(400, 200) as url:
        assert HttpCalls(url, retry=PATIENT).post("/a", b"{}").status == 400


def test_a_server_that_never_answers_is_an_error() -> None:
    with answering(0, 0, 0, 0) as url, pytest.raises(TriuneError, match="UNAVAILABLE"):
        HttpCalls(url, retry=PATIENT).post("/a", b"{}")
