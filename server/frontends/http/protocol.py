"""HTTP/1.1: uvicorn's protocol, where RFC 9110 and RFC 9112 ask for more."""

import asyncio
from typing import Any, cast
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from server.frontends.http.cycle import Cycle, ResponseTransport
from server.frontends.http.request_head import is_host_given, without_upgrade


class Protocol(HttpToolsProtocol):
    """Parses requests and starts their responses. Ignores ``Upgrade``.

    A subclass implements :meth:`close_after_response`, and extends :meth:`on_request` and
    :meth:`on_request_complete`, which take the place of the parser's callbacks.
    """

    def close_after_response(self) -> None:
        """Closes the connection after a response."""
        raise NotImplementedError

    def parse(self, data: memoryview) -> None:
        """Parses what was received.

        Raises:
            HttpParserError: it is no valid request.
        """
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                # The parser holds what follows for another protocol, and would lose the body.
                data = data[upgrade.args[0] :]
                self._parse_without_upgrade()

    def on_headers_complete(self) -> None:
        if not self.parser.should_upgrade():
            self.on_request()
        elif self.parser.get_method() == b"CONNECT":
            raise httptools.HttpParserError("this is no proxy")

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            self.on_request_complete()

    def on_request(self) -> None:
        """Starts the response to the request whose head was parsed, or queues it."""
        version = self.parser.get_http_version()
        if not is_host_given(version, self.headers):
            raise httptools.HttpParserError("there is not one Host")
        url = httptools.parse_url(self.url)
        path = url.path.decode("ascii")
        scope = cast("dict[str, Any]", self.scope)
        scope["method"] = self.parser.get_method().decode("ascii")
        scope["http_version"] = version
        scope["path"] = unquote(path) if "%" in path else path
        scope["raw_path"] = url.path
        scope["query_string"] = url.query or b""
        previous = self.cycle
        is_current = version == "1.1"
        self.cycle = Cycle(
            scope=self.scope,
            transport=cast("Any", ResponseTransport(self.transport, self.close_after_response)),
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=is_current and self.expect_100_continue,
            keep_alive=is_current and self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        if previous is None or previous.response_complete:
            self._start_asgi_task(self.cycle, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))

    def on_request_complete(self) -> None:
        """Tells the response that the body is complete."""
        super().on_message_complete()

    def _parse_without_upgrade(self) -> None:
        """Parses the head again, by a new parser and without what asks for another protocol."""
        method, version = self.parser.get_method(), self.parser.get_http_version()
        line = b" ".join((method, self.url, b"HTTP/" + version.encode("ascii")))
        head = without_upgrade(line, self.headers)
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.parser.feed_data(head)
