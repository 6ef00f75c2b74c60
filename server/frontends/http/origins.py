"""Which pages may call: browsers send some requests of any page without asking the server first.

Such a "simple request" runs a model although the page cannot read the answer. Browsers say where a
page comes from in the header ``Origin`` (https://fetch.spec.whatwg.org/#origin-header).
"""

from collections.abc import Collection

from starlette.datastructures import Headers

from server.errors import Code, ServeError

ANY = "*"
_DEFAULT_PORTS = (":80", ":443")


class ForeignOriginError(ServeError):
    """A request of a page that may not call: status 403."""

    code = Code.FAILED_PRECONDITION

    def __init__(self, origin: str) -> None:
        super().__init__(f"pages of {origin} may not call, unless --http-cors names their origin")


def check_origin(headers: Headers, allowed: Collection[str]) -> None:
    """Refuses a request of a page that is neither of this server nor of an ``allowed`` origin.

    A page of this server comes from the host and port that the request names. Its scheme does not
    count: a proxy may have ended TLS. Other clients than browsers send no origin.

    Raises:
        ForeignOriginError: the page may not call.
    """
    for origin in headers.getlist("origin"):
        if origin in allowed or ANY in allowed:
            continue
        scheme, _, place = origin.partition("://")
        hosts = [_without_default_port(host) for host in headers.getlist("host")]
        if not scheme or not place or hosts != [_without_default_port(place)]:
            raise ForeignOriginError(origin)


def _without_default_port(host: str) -> str:
    host = host.strip().lower()
    for port in _DEFAULT_PORTS:
        host = host.removesuffix(port)
    return host
