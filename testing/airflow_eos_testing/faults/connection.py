"""One client's connection through the proxy; every frame is inspected, in both directions."""

from __future__ import annotations

import socket
import struct
import threading
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_eos_testing.faults.rewrite import refusal, rewritten
from airflow_eos_testing.faults.rules import ProxyFault, Request

if TYPE_CHECKING:
    from airflow_eos_testing.faults.proxy import KafkaProxy

_LENGTH = struct.Struct(">i")
_HEADER = struct.Struct(">hhi")


@dataclass
class _Pending:
    """A request whose answer has not been sent to the client yet."""

    request: Request
    fault: ProxyFault | None
    answer: bytes | None = None


class ProxiedConnection:
    """Two threads, one per direction; if one ends, both do, after held frames have been delivered."""

    def __init__(self, proxy: KafkaProxy, client: socket.socket, broker: socket.socket, address: str) -> None:
        self._proxy = proxy
        self._client = client
        self._broker = broker
        self._address = address
        self._pending: OrderedDict[int, _Pending] = OrderedDict()
        self._lock = threading.Lock()
        self._silent = False
        for side in (client, broker):
            side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def start(self) -> None:
        """Start forwarding frames."""
        for target in (self._requests, self._responses):
            threading.Thread(target=target, daemon=True).start()

    def close(self) -> None:
        """Close both sides."""
        for side in (self._client, self._broker):
            _hang_up(side)
        self._proxy.forget(self)

    def _requests(self) -> None:
        try:
            while (frame := _receive(self._client)) is not None:
                request = _request(frame, self._address)
                if not self._forward_request(request):
                    break
        except OSError:
            pass
        finally:
            self.close()

    def _forward_request(self, request: Request) -> bool:
        """Forward a request; return False to end the connection."""
        fault = self._proxy.fault_for(request)
        action = None if fault is None else fault.action
        if fault is not None and action in ("cut", "refuse", "hold request"):
            fault.hit()
        if action == "cut":
            return False
        answer = refusal(request, fault.error_code) if fault is not None and action == "refuse" else None
        if fault is not None and action == "hold request" and not fault.stall():
            return False
        with self._lock:
            self._pending[request.correlation_id] = _Pending(request, fault, answer)
            if answer is not None:
                self._flush()
        if answer is None:
            self._broker.sendall(_LENGTH.pack(len(request.frame)) + request.frame)
        return True

    def _responses(self) -> None:
        try:
            while (frame := _receive(self._broker)) is not None:
                if not self._forward_answer(frame):
                    break
        except OSError:
            pass
        finally:
            # The other direction may still hold a request that the broker must receive.
            _hang_up(self._client)

    def _forward_answer(self, frame: bytes) -> bool:
        """Forward an answer; return False to end the connection."""
        (correlation_id,) = _LENGTH.unpack_from(frame)
        pending = self._pending_of(correlation_id)
        fault = None if pending is None else pending.fault
        if fault is not None and fault.action == "hold response":
            fault.hit()
            if not fault.stall():
                return False
        if fault is not None and fault.action == "silence":
            self._silent = True
            fault.hit()
        if fault is not None and fault.action == "lose response":
            _hang_up(self._client)  # first: whoever waits for the hit may rely on it
            fault.hit()
            return False
        if pending is not None:
            frame = rewritten(pending.request, frame, self._proxy.translate, self._proxy.hosts)
        with self._lock:
            self._pending.pop(correlation_id, None)
            self._send(frame)
            self._flush()
        return True

    def _pending_of(self, correlation_id: int) -> _Pending | None:
        """Return the request of an answer; it stays pending, so that no other answer overtakes this one."""
        with self._lock:
            # Earlier requests without an answer, such as Produce with acks=0, never get one.
            while self._pending:
                number, pending = next(iter(self._pending.items()))
                if number == correlation_id:
                    return pending
                del self._pending[number]
                if pending.answer is not None:
                    self._send(pending.answer)
        return None

    def _flush(self) -> None:
        """Send the proxy's own answers that follow all earlier ones. The caller holds the lock."""
        while self._pending:
            number, pending = next(iter(self._pending.items()))
            if pending.answer is None:
                return
            del self._pending[number]
            self._send(pending.answer)

    def _send(self, frame: bytes) -> None:
        if not self._silent:
            self._client.sendall(_LENGTH.pack(len(frame)) + frame)


def _request(frame: bytes, broker: str) -> Request:
    from kafka.protocol.api_key import ApiKey

    key, version, correlation_id = _HEADER.unpack_from(frame)
    try:
        api = ApiKey(key).name
    except ValueError:  # newer than the client library
        api = str(key)
    return Request(api, version, correlation_id, broker, frame)


def _receive(side: socket.socket) -> bytes | None:
    """Return the next frame without its length prefix; None at the end."""
    head = _exactly(side, _LENGTH.size)
    if head is None:
        return None
    return _exactly(side, _LENGTH.unpack(head)[0])


def _exactly(side: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = side.recv(min(size - len(parts), 1 << 20))
        if not part:
            return None
        parts += part
    return bytes(parts)


def _hang_up(side: socket.socket) -> None:
    # shutdown first: close alone does not wake a thread in recv.
    with suppress(OSError):
        side.shutdown(socket.SHUT_RDWR)
    side.close()
