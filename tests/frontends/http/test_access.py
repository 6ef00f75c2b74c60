"""Tokens, certificates, CORS and health of the HTTP front end."""

import asyncio
import json
import re
import ssl
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest
import trustme
from starlette.routing import Route

from server.config import ServerConfig, TlsFiles
from server.errors import StartupError, UnauthenticatedError
from server.frontends.http.access import Access
from server.frontends.http.body import BodyBudget
from server.frontends.http.endpoint import Context, Endpoint
from server.frontends.http.protocols import PROTOCOLS
from server.frontends.http.settings import HttpSettings
from server.service.service import Service
from tests.faults.record import record
from tests.server.in_process_server import CLASSIFIER, serving
from tests.server.test_tls import write_ca, write_certificate

PUBLIC = ("/livez", "/readyz", "/health", "/ping")
BEARER = {"authorization": "Bearer first-token"}
LOOPBACK = "127.0.0.1:0"
CLASSIFY = {"model": CLASSIFIER, "input": "12"}


def all_routes(bundles: Path) -> list[Route]:
    """The routes of all protocols."""
    access = Access(ServerConfig(bundles=bundles))
    service = Service(cast("Any", None))
    context = Context(service, HttpSettings(), access, BodyBudget(0))
    return [cast("Route", route) for protocol in PROTOCOLS for route in protocol(context)]


async def test_every_route_except_health_needs_a_token(bundles: Path, tokens: Path) -> None:
    every = all_routes(bundles)
    routes = [route for route in every if not cast("Endpoint", route.endpoint).is_public]
    assert all(isinstance(route.endpoint, Endpoint) for route in routes)
    public = {route.path for route in every} - {route.path for route in routes}
    page = {path for path in public if path == "/" or path.startswith("/console")}
    assert all("health" in path for path in public - page), public
    assert len(routes) > 10
    async with (
        serving(bundles, http=LOOPBACK, tokens=tokens) as running,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{running.http_port}") as client,
    ):
        calls = [(method, route.path) for route in routes for method in route.methods or ()]
        calls += [("GET", "/metrics"), ("GET", "/nothing"), ("PUT", "/v1/models")]
        let_in = []

        async def check(method: str, template: str) -> None:
            path = re.sub(r"{\w+}", CLASSIFIER, template)
            for headers in ({}, {"authorization": "Bearer third-token"}):
                refused = await client.request(method, path, headers=headers)
                if refused.status_code != 401:
                    let_in.append((method, path, headers))
                    continue
                assert refused.headers["www-authenticate"] == "Bearer"
            accepted = await client.request(method, path, headers=BEARER)
            assert accepted.status_code != 401, (method, path)

        await asyncio.gather(*(check(*call) for call in calls))
        assert not let_in
        for path in PUBLIC:
            assert (await client.get(path)).status_code == 200
        metrics = await client.get("/metrics", headers=BEARER)
        assert "triune_requests_total" in metrics.text
    record(
        18,
        "HTTP requests without a token or with a wrong one, to every route except health checks",
        "status 401, metrics and unknown paths included",
        routes=len(calls),
        let_in=len(let_in),
    )


@pytest.mark.parametrize(
    ("headers", "is_accepted"),
    [
        ({"authorization": "Basic first-token"}, False),
        ({"authorization": "first-token"}, False),
        ({"x-api-key": "alice:first-token"}, False),
        ({"authorization": "Bearer third-token", "x-api-key": "first-token"}, False),
        ({"authorization": "bearer first-token"}, True),
        ({"x-api-key": "second.token=="}, True),
        ({"api-key": "first-token"}, True),
    ],
)
def test_tokens_are_read_from_headers(
    bundles: Path, tokens: Path, headers: dict[str, str], is_accepted: bool
) -> None:
    access = Access(ServerConfig(bundles=bundles, tokens=tokens))
    scope = {"headers": [(name.encode(), value.encode()) for name, value in headers.items()]}
    if is_accepted:
        assert access.identity(scope).startswith("token:")
    else:
        with pytest.raises(UnauthenticatedError):
            access.identity(scope)


async def test_readiness_ends_before_liveness(bundles: Path) -> None:
    async with httpx2.AsyncClient() as client:
        async with serving(bundles, http=LOOPBACK) as running:
            url = f"http://127.0.0.1:{running.http_port}"
            running.engine_failure.set_exception(RuntimeError("the engine died"))
            running.engine_failure.exception()
            while (await client.get(f"{url}/readyz")).status_code == 200:
                pass
            assert (await client.get(f"{url}/livez")).status_code == 200
        with pytest.raises(httpx2.ConnectError):
            await client.get(f"{url}/livez")


async def test_request_ids_are_repeated_or_made(bundles: Path) -> None:
    async with (
        serving(bundles, http=LOOPBACK) as running,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{running.http_port}") as client,
    ):
        given = await client.post("/classify", json=CLASSIFY, headers={"x-request-id": "abc"})
        assert (given.headers["x-request-id"], given.json()["id"]) == ("abc", "classify-abc")
        made = await client.post("/classify", json=CLASSIFY, headers={"x-request-id": "a" * 200})
        assert len(made.headers["x-request-id"]) == 32
        for path in ("/nothing", "/v1/nothing", "/v1/models"):  # unknown, and another method's
            refused = await client.post(path, headers={"x-request-id": "abc"})
            assert (refused.status_code, refused.headers["x-request-id"]) in (
                (404, "abc"),
                (405, "abc"),
            )


async def test_only_given_origins_may_call(bundles: Path) -> None:
    preflight = {"origin": "https://a.example", "access-control-request-method": "POST"}
    for origins, allowed in (((), None), (("https://a.example",), "https://a.example")):
        async with (
            serving(bundles, http=LOOPBACK, http_cors=origins) as running,
            httpx2.AsyncClient(base_url=f"http://127.0.0.1:{running.http_port}") as client,
        ):
            answer = await client.options("/classify", headers=preflight)
            assert answer.headers.get("access-control-allow-origin") == allowed
            answer = await client.post("/classify", json=CLASSIFY, headers=preflight)
            assert answer.headers.get("access-control-allow-origin") == allowed
            answer = await client.options(
                "/classify", headers={**preflight, "origin": "https://b.example"}
            )
            assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    ("origin", "host", "is_accepted"),
    [
        (None, "x", True),
        ("https://evil.example", "server.example", False),
        ("https://server.example", "server.example", True),
        ("http://server.example:8080", "Server.example:8080", True),
        ("http://server.example:9090", "server.example:8080", False),
        ("https://server.example", "server.example:443", True),
        ("http://[::1]:8080", "[::1]:8080", True),
        ("https://a.example", "server.example", True),
        ("https://a.example.evil.example", "server.example", False),
        ("null", "server.example", False),
        ("null", "null", False),
    ],
)
async def test_pages_of_other_origins_run_nothing(
    bundles: Path, origin: str | None, host: str, is_accepted: bool
) -> None:
    """With a content type that browsers send without asking first."""
    headers = {"host": host, "content-type": "text/plain"}
    if origin is not None:
        headers["origin"] = origin
    async with (
        serving(bundles, http=LOOPBACK, http_cors=("https://a.example",)) as running,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{running.http_port}") as client,
    ):
        answer = await client.post("/classify", content=json.dumps(CLASSIFY), headers=headers)
        assert answer.status_code == (200 if is_accepted else 403)
        metrics = (await client.get("/metrics")).text
        assert ('method="/classify"' in metrics) == is_accepted


async def can_call(port: int | None, ca: Path, identity: TlsFiles | None = None) -> bool:
    """Whether a call over a new connection succeeds."""
    context = ssl.create_default_context(cafile=ca)
    if identity is not None:
        context.load_cert_chain(identity.certificate, identity.key)
    async with httpx2.AsyncClient(verify=context) as client:
        try:
            answer = await client.post(f"https://127.0.0.1:{port}/classify", json=CLASSIFY)
        except (httpx2.TransportError, ssl.SSLError):
            return False
        return answer.status_code == 200


async def test_certificates_are_required_and_reloaded(bundles: Path, tmp_path: Path) -> None:
    old, new, clients, others = (trustme.CA() for _ in range(4))
    old_ca, new_ca = write_ca(tmp_path / "old", old), write_ca(tmp_path / "new", new)
    good = write_certificate(tmp_path, clients, "good")
    bad = write_certificate(tmp_path, others, "bad")
    files = write_certificate(tmp_path, old)
    client_ca = write_ca(tmp_path / "clients", clients)
    tls = TlsFiles(certificate=files.certificate, key=files.key, client_ca=client_ca)
    async with serving(bundles, http=LOOPBACK, tls=tls) as running:
        port = running.http_port
        assert await can_call(port, old_ca, good)
        assert not await can_call(port, old_ca)
        assert not await can_call(port, old_ca, bad)
        write_certificate(tmp_path, new)
        assert await can_call(port, new_ca, good)
        assert not await can_call(port, old_ca, good)
        write_ca(client_ca, others)
        assert await can_call(port, new_ca, bad)
        assert not await can_call(port, new_ca, good)


async def test_an_address_in_use_is_a_startup_error(bundles: Path) -> None:
    async with serving(bundles, http=LOOPBACK) as running:
        with pytest.raises(StartupError, match="--http"):
            async with serving(bundles, http=f"127.0.0.1:{running.http_port}"):
                pass
