"""A server on loopback with the parts of the Hugging Face Hub's API that downloads use."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
BRANCH = "main"
TOKEN = "hf_test"
NAME = "owner/tiny"
PRIVATE, GATED = "owner/private", "owner/gated"


class Hub(ThreadingHTTPServer):
    """Serves the folder ``files`` as the repositories ``NAME``, ``PRIVATE`` and ``GATED``.

    ``fetched`` lists the files that were sent, without repetitions of metadata.
    """

    daemon_threads = True

    def __init__(self, files: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = files
        self.fetched: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def hub_server(files: Path) -> Iterator[Hub]:
    with Hub(files) as hub:
        thread = Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        is_api = parts[:2] == ["api", "models"]
        owner, name, action, revision, *path = [*(parts[2:] if is_api else parts), "", "", ""]
        path = [part for part in path if part]
        refusal = self._refusal(f"{owner}/{name}", revision)
        if refusal is not None:
            self._send(*refusal)
        elif is_api and action == "revision":
            siblings = [{"rfilename": file} for file in self._files()]
            self._json({"id": f"{owner}/{name}", "sha": COMMIT, "siblings": siblings})
        elif is_api and action == "tree":
            self._json([self._entry(file) for file in self._files()])
        elif action == "resolve":
            self._file("/".join(path))
        else:
            self._send(404, "EntryNotFound")

    def _refusal(self, repository: str, revision: str) -> tuple[int, str] | None:
        has_token = self.headers["Authorization"] == f"Bearer {TOKEN}"
        if repository == GATED and not has_token:
            return 403, "GatedRepo"
        if repository == PRIVATE and not has_token:
            return 401, "RepoNotFound"
        if repository not in (NAME, PRIVATE, GATED):
            return 404, "RepoNotFound"
        return None if revision in (BRANCH, COMMIT) else (404, "RevisionNotFound")

    def _files(self) -> list[str]:
        found = (path for path in self.server.files.rglob("*") if path.is_file())
        return sorted(str(path.relative_to(self.server.files)) for path in found)

    def _entry(self, name: str) -> dict[str, object]:
        content = (self.server.files / name).read_bytes()
        oid = hashlib.sha1(content, usedforsecurity=False).hexdigest()
        return {"type": "file", "path": name, "size": len(content), "oid": oid}

    def _file(self, name: str) -> None:
        path = self.server.files / name
        if not path.is_file():
            self._send(404, "EntryNotFound")
            return
        if self.command == "GET":
            self.server.fetched.append(name)
        etag = str(self._entry(name)["oid"])
        self._send(200, "", path.read_bytes(), {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT})

    def _json(self, value: object) -> None:
        self._send(200, "", json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(
        self, status: int, code: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        if code:
            self.send_header("X-Error-Code", code)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Logs nothing."""
