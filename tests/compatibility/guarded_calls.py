"""Calls to a server with access tokens, rate limits and an admin listener. Order matters.

Rate limit per client: a burst of 64 tokens and 1 token/s.
"""

from collections.abc import Iterator

from tests.compatibility.call_builder import Fields, call
from tests.compatibility.wire import Call

ALICE, BOB, CAROL = "alice-token", "bob-token", "carol-token"
CLASSIFIER = "tiny-classifier"


def calls() -> Iterator[Call]:
    """All calls, in the order in which they are sent."""
    ask: Fields = {"model": "tiny-decoder", "inputs": ["7,"], "stopping": {"max_new_tokens": 50}}
    text: Fields = {"model": CLASSIFIER, "inputs": ["1a2"]}
    yield _guarded("no-token", "Generate", ask, token="")
    yield _guarded("unknown-token", "Generate", ask, token="mallory")
    yield _guarded("no-token-for-a-stream", "GenerateStream", ask, token="")
    yield _guarded("no-token-for-models", "ListModels", {}, token="")
    health = "/grpc.health.v1.Health/Check"
    yield Call("guarded/health-needs-no-token", "guarded", health, (b"",))
    yield _guarded("first", "Generate", ask)
    yield _guarded("limit", "Generate", ask)
    yield _guarded("limit-of-a-stream", "GenerateStream", ask)
    yield _guarded("another-client", "Generate", ask, token=BOB)
    yield _guarded("models-cost-nothing", "GetModel", {"model": "dates"})
    more = {**ask, "stopping": {"max_new_tokens": 100}}
    yield _guarded("more-than-at-once", "Generate", more, token=CAROL)
    yield _guarded("texts-more-than-at-once", "Classify", {**text, "inputs": ["1234567"] * 20})
    yield _guarded("text", "Classify", text, token=CAROL)
    yield from _administration(text)


def _administration(text: Fields) -> Iterator[Call]:
    first = {"model": CLASSIFIER, "version": "1"}
    yield _admin("no-token", "LoadModel", first, token="")
    yield _admin("load-again", "LoadModel", first)
    yield _admin("load-newest", "LoadModel", {"model": CLASSIFIER})
    yield _admin("load-refused", "LoadModel", {"model": "refused"})
    yield _admin("load-unknown", "LoadModel", {"model": "nobody"})
    yield _admin("load-unknown-version", "LoadModel", {"model": CLASSIFIER, "version": "8"})
    yield _admin("load-no-name", "LoadModel", {"model": "../dates"})
    yield _admin("load-no-version", "LoadModel", {"model": "dates", "version": "a/b"})
    yield _admin("load-nothing", "LoadModel", {})
    yield _admin("unload", "UnloadModel", first)
    yield _guarded("unloaded", "Classify", {**text, "version": "1"}, token=CAROL)
    yield _guarded("other-version", "Classify", {**text, "version": "2"}, token=CAROL)
    yield _admin("unload-twice", "UnloadModel", first)
    yield _admin("unload-unknown", "UnloadModel", {"model": "nobody"})
    yield _admin("unload-all", "UnloadModel", {"model": CLASSIFIER})
    yield _guarded("none-left", "Classify", text, token=CAROL)
    yield _admin("load-after-unload", "LoadModel", first)
    yield _guarded("loaded", "Classify", text, token=CAROL)
    yield _admin("models", "GetModel", {"model": "dates"})


def _guarded(name: str, method: str, fields: Fields, token: str = ALICE) -> Call:
    return call(f"guarded/{name}", method, fields, server="guarded", token=token)


def _admin(name: str, method: str, fields: Fields, token: str = BOB) -> Call:
    return call(f"admin/{name}", method, fields, server="admin", token=token)
