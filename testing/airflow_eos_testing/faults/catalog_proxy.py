"""An HTTP proxy in front of a REST catalog that loses, cuts or repeats commits.

::

    with CatalogProxy(catalog.address) as proxy:
        lost = proxy.lose_response()
        run(proxy.properties)
        assert lost.hits == 1
"""

from __future__ import annotations

import http.client
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Literal

from airflow_eos_testing.ports import HOST

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from typing_extensions import Self

_POLL = 0.02
"""Seconds until the server notices a shutdown request; the library's default is 0.5."""
_HOP_BY_HOP = frozenset({"connection", "transfer-encoding", "content-length", "keep-alive"})


@dataclass(eq=False)
class CatalogFault:
    """One fault and the number of requests it hit.

    :param method: HTTP method of the requests; a commit to a table is a POST.
    :param containing: a substring of their path.
    :param then: called between the fault and the end of the client's connection.
    """

    action: Literal["lose response", "cut", "repeat"]
    method: str
    containing: str
    times: int
    then: Callable[[], object] | None = None
    hits: int = 0


class CatalogProxy:
    """See the module. No TLS; the oldest fault that matches a request is applied to it.

    :param upstream: host and port of the catalog.
    """

    def __init__(self, upstream: tuple[str, int]) -> None:
        self._upstream = upstream
        self._faults: list[CatalogFault] = []
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._server = ThreadingHTTPServer((HOST, 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(_POLL,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def properties(self) -> dict[str, str]:
        """The catalog's properties for pyiceberg, through the proxy."""
        return {"type": "rest", "uri": f"http://{HOST}:{self._server.server_port}/"}

    def lose_response(
        self,
        method: str = "POST",
        containing: str = "/tables/",
        times: int = 1,
        then: Callable[[], object] | None = None,
    ) -> CatalogFault:
        """Deliver the request, lose the answer, and cut the client's connection."""
        return self._add(CatalogFault("lose response", method, containing, times, then))

    def cut(
        self,
        method: str = "POST",
        containing: str = "/tables/",
        times: int = 1,
        then: Callable[[], object] | None = None,
    ) -> CatalogFault:
        """Cut the client's connection before the request reaches the catalog."""
        return self._add(CatalogFault("cut", method, containing, times, then))

    def repeat(self, method: str = "POST", containing: str = "/tables/", times: int = 1) -> CatalogFault:
        """Deliver the request twice, and return the second answer."""
        return self._add(CatalogFault("repeat", method, containing, times))

    def _add(self, fault: CatalogFault) -> CatalogFault:
        with self._lock:
            self._faults.append(fault)
        return fault

    # -- the connections' side ----------------------------------------------------------------------------

    def fault_for(self, method: str, path: str) -> CatalogFault | None:
        """Return the fault to apply to a request, and count the hit."""
        with self._lock:
            for fault in self._faults:
                if fault.hits < fault.times and fault.method == method and fault.containing in path:
                    fault.hits += 1
                    return fault
        return None

    def forward(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> _Answer:
        """Forward a request to the catalog."""
        connection = http.client.HTTPConnection(*self._upstream, timeout=60)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return _Answer(response.status, response.getheaders(), response.read())
        finally:
            connection.close()


@dataclass(frozen=True)
class _Answer:
    status: int
    headers: list[tuple[str, str]]
    body: bytes


class _Handler(BaseHTTPRequestHandler):
    proxy: CatalogProxy
    protocol_version = "HTTP/1.1"

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
        fault = self.proxy.fault_for(self.command, self.path)
        action = None if fault is None else fault.action
        answer = None
        try:
            for _ in range({"cut": 0, "repeat": 2}.get(action or "", 1)):
                answer = self.proxy.forward(self.command, self.path, body, headers)
        except OSError:
            answer = None  # the catalog is down: close the client's connection, too
        if fault is not None and fault.then is not None:
            fault.then()
        if answer is None or action in ("lose response", "cut"):
            self.close_connection = True
            return
        self.send_response(answer.status)
        for name, value in answer.headers:
            if name.lower() not in _HOP_BY_HOP:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_GET = do_POST = do_HEAD = do_DELETE = _serve  # noqa: N815 - http.server's names

    def log_message(self, *_: Any) -> None:
        """Log nothing."""
