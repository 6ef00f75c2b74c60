"""A server with the protocols of peers: a real process for tests.

``python -m tests.loadtest.toy_server KIND PORT``: ``good`` answers all calls, ``short``
with one token too few, ``dead`` ends at once.
"""

import asyncio
import json
import sys

VECTOR = 384 * 4


def _tokens(question: dict, kind: str) -> int:
    wanted: int = question.get("n_predict", question.get("max_tokens", 0))
    return wanted - 1 if kind == "short" else wanted


def _events(path: str, count: int) -> list[dict]:
    if path == "/completion":
        return [{"content": "x"}] * (count - 1) + [{"stop": True, "tokens_predicted": count}]
    return [{"choices": []}] * count + [{"choices": [], "usage": {"completion_tokens": count}}]


def _answer(path: str, question: dict, kind: str) -> tuple[bytes, str]:
    """Body, and more headers."""
    if path in {"/completion", "/v1/completions"}:
        lines = [json.dumps(event) for event in _events(path, _tokens(question, kind))]
        return "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"]).encode(), ""
    if path == "/v1/embeddings":
        return json.dumps({"data": [{"embedding": "AAAA"}]}).encode(), ""
    if path == "/tiny-decoder/embed":
        return b"[[0.5]]", ""
    if path == "/v2/models/model/infer":
        return b"{}" + bytes(VECTOR), "Inference-Header-Content-Length: 2\r\n"
    return b"ok", ""


async def _connection(
    kind: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    while head := (await reader.readline()).decode():
        path = head.split()[1]
        length = 0
        while line := (await reader.readline()).decode().strip():
            name, _, value = line.partition(":")
            if name.lower() == "content-length":
                length = int(value)
        body = await reader.readexactly(length)
        content, headers = _answer(path, json.loads(body) if body else {}, kind)
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(content)}\r\n{headers}\r\n".encode())
        writer.write(content)
        await writer.drain()
    writer.close()


async def main(kind: str, port: int) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _connection(kind, reader, writer)

    server = await asyncio.start_server(connected, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    if sys.argv[1] == "dead":
        sys.exit("no such model")
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
