"""Identifies clients; limits per client apply to these identities."""

from contextvars import ContextVar
from urllib.parse import unquote

from server.frontends.grpc.context import Context

# Set by BearerTokenInterceptor, in the task that then runs the call.
token_name: ContextVar[str | None] = ContextVar("token_name", default=None)


def identity_of(context: Context) -> str:
    """Returns ``token:NAME``, else ``certificate:COMMON NAME``, else ``peer:ADDRESS``.

    The certificate is the client's verified one. The address has no port, so all connections from
    one address are one client. The prefixes prevent one kind of identity from posing as another.
    """
    name = token_name.get()
    if name is not None:
        return f"token:{name}"
    common_names = context.auth_context().get("x509_common_name", ())
    for common_name in common_names:
        return f"certificate:{common_name.decode(errors='replace')}"
    return f"peer:{address_of(context.peer())}"


def address_of(peer: str) -> str:
    """The host of ``ipv4:1.2.3.4:50`` or ``ipv6:[::1]:50``, or "unix" of ``unix:PATH``."""
    kind, _, rest = unquote(peer).partition(":")
    if kind in {"ipv4", "ipv6"}:
        return rest.rpartition(":")[0].strip("[]")
    return kind
