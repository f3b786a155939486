"""Another user of this host who connects to every listening socket of a process tree without its secrets."""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

NOBODY = 65534
_LISTEN = "0A"
_TIMEOUT = 3.0
_THREADS = 32
_BROADCASTS = 24
"""Number of broadcasts to request."""

# Spark's transport (org.apache.spark.network.protocol): a frame is its length, a type, and the message.
_FETCH_CHUNK, _CHUNK, _RPC, _RPC_ANSWER, _RPC_FAILURE = 0, 1, 3, 4, 5
_FRAME = struct.Struct(">qb")
# RpcEndpointVerifier.CheckExistence("BlockManagerMaster"), as Java serialises it.
_CHECK_EXISTENCE = (
    b"\xac\xed\x00\x05sr\x00=org.apache.spark.rpc.netty.RpcEndpointVerifier$CheckExistence"
    b"J\xa5\x1e\x9e\xe4\xc1\x9a\xc4\x02\x00\x01L\x00\x04namet\x00\x12Ljava/lang/String;xp"
    b"t\x00\x12BlockManagerMaster"
)
_REQUESTS_OF_OTHERS = {
    "HTTP": b"GET /environment/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
    # py4j: a static call without the token.
    "py4j": b"r\nu\njava.lang.System\nrj\ne\n",
    # A secret of PySpark's sockets: length and text.
    "PySpark": struct.pack(">i", 5) + b"wrong",
}
_ENOUGH = 4096
# py4j refuses, or echoes an unknown command; PySpark's daemon sends the pid of a worker, which then refuses;
# HTTP/2 sends SETTINGS or GOAWAY on stream 0.
_REFUSAL = re.compile(
    rb"!x.*|!zspy4j\.Py4JException: Unknown command received.*"
    rb"|(\x00.{3})?(\x00\x00\x00\x03err)?"
    rb"|\x00.{2}[\x04\x07].\x00{4}.*",
    re.DOTALL,
)


@dataclass(frozen=True)
class Listener:
    """A listening socket.

    :param address: an IPv4 or IPv6 address, or the path of a Unix socket.
    :param port: None for a Unix socket.
    """

    address: str
    port: int | None

    @property
    def is_loopback(self) -> bool:
        """Whether other machines cannot reach it."""
        return self.port is None or self.address in ("127.0.0.1", "::1", "::ffff:127.0.0.1")


def process_tree(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    pids = [pid]
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            pids += [member for child in children.read_text().split() for member in process_tree(int(child))]
    return pids


def listeners_of(pid: int) -> set[Listener]:
    """Return every socket on which a process tree listens, as the kernel lists them."""
    inodes = set()
    for member in process_tree(pid):
        with suppress(OSError):
            for descriptor in Path(f"/proc/{member}/fd").iterdir():
                with suppress(OSError):
                    inodes.add(str(descriptor.readlink()).removeprefix("socket:[").removesuffix("]"))
    listeners = set()
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTEN and fields[9] in inodes:
                address, port = fields[1].split(":")
                words = struct.unpack(f">{len(address) // 8}I", bytes.fromhex(address))
                packed = struct.pack(f"={len(words)}I", *words)
                listeners.add(Listener(socket.inet_ntop(family, packed), int(port, 16)))
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "00010000" and fields[6] in inodes and len(fields) > 7:
            listeners.add(Listener(fields[7], None))
    return listeners


def ask_as_nobody(listeners, folders, secret):
    """Query every socket, as another user if this process is root, and read all files that user can read.

    :param folders: temporary folders of the process tree.
    :param secret: bytes that no other user may see.
    :returns: answers by address; files that contain the secret. Both are empty if all is private.
    """
    # Load the codec that connecting needs: the child may not be able to read Python's library.
    "localhost".encode("idna")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
                readable = [str(path) for folder in folders for path in _readable(folder, secret)]
            else:
                readable = []
            text = json.dumps((_ask(listeners), readable))
        except BaseException:
            text = json.dumps(({"": [traceback.format_exc()]}, []))
        os.close(reading)
        with os.fdopen(writing, "w") as answer:
            answer.write(text)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return tuple(json.loads(text))


def _readable(folder, secret):
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                if secret in (Path(parent) / name).read_bytes():
                    yield Path(parent) / name


def _ask(listeners):
    """Query all in parallel: a socket that does not understand a request keeps it until the time-out."""
    with ThreadPoolExecutor(_THREADS) as threads:
        futures = [
            (f"{listener.address}:{listener.port}", threads.submit(question, listener, *arguments))
            for listener in listeners
            for question, *arguments in _questions(listener)
        ]
    answers = {}
    for address, answer in futures:
        if answer.result():
            answers.setdefault(address, []).append(answer.result())
    return answers


def _questions(listener):
    if listener.port is None:
        return [(_connect_unix,)]
    others = [(_other, name, request) for name, request in _REQUESTS_OF_OTHERS.items()]
    return [(_check_existence,), (_fetch_blocks,), *others]


def _connect_unix(listener):
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(listener.address)
        except PermissionError:
            return None
    return "a Unix socket that takes connections of others" if os.getuid() == NOBODY else None


def _connect(listener):
    address = listener.address if listener.address not in ("0.0.0.0", "::") else "127.0.0.1"
    return socket.create_connection((address, listener.port), timeout=_TIMEOUT)


def _text(value):
    return struct.pack(">H", len(value)) + value.encode()


def _counted(value):
    return struct.pack(">i", len(value)) + value.encode()


def _rpc(client, body):
    """Send a request of Spark's transport; return type and content of the answer, or None."""
    request = struct.pack(">qi", 1, len(body)) + body
    client.sendall(_FRAME.pack(_FRAME.size + len(request), _RPC) + request)
    return _frame(client)


def _exactly(client, length):
    data = b""
    while len(data) < length and (part := client.recv(length - len(data))):
        data += part
    return data


def _frame(client):
    head = _exactly(client, _FRAME.size)
    if len(head) < _FRAME.size:
        return None
    length, kind = _FRAME.unpack(head)
    if not _FRAME.size <= length < 1 << 24:
        return None
    return kind, _exactly(client, length - _FRAME.size)


def _check_existence(listener):
    """Look up an RPC endpoint, as ``RpcEnv.setupEndpointRef`` does."""
    address = b"\x01" + _text(listener.address.removeprefix("::ffff:")) + struct.pack(">i", listener.port)
    with suppress(OSError), _connect(listener) as client:
        answer = _rpc(client, b"\x00" + address + _text("endpoint-verifier") + _CHECK_EXISTENCE)
        if answer is not None and answer[0] == _RPC_ANSWER:
            return "Spark's RPC answers without the secret"
    return None


def _fetch_blocks(listener):
    """Fetch broadcasts from a block manager (``OpenBlocks``, then their chunks)."""
    with suppress(OSError):  # mostly a time-out: it is not a port of Spark's transport
        for number in range(_BROADCASTS):
            if _fetch(listener, f"broadcast_{number}_piece0"):
                return f"the block manager serves broadcast_{number}_piece0"
    return None


def _fetch(listener, name):
    block = b"\x00" + _counted("local") + _counted("driver") + struct.pack(">i", 1) + _counted(name)
    with _connect(listener) as client:
        answer = _rpc(client, block)
        if answer is None or answer[0] != _RPC_ANSWER:
            return False
        # Request id, length of the body, type StreamHandle, stream id, number of chunks.
        stream, chunks = struct.unpack_from(">qi", answer[1], 13)
        if not chunks:
            return False
        request = struct.pack(">qi", stream, 0)
        client.sendall(_FRAME.pack(_FRAME.size + len(request), _FETCH_CHUNK) + request)
        chunk = _frame(client)
        return chunk is not None and chunk[0] == _CHUNK


def _other(listener, name, request):
    """Send a request of another protocol; return the answer unless it is a refusal."""
    data = b""
    with suppress(OSError), _connect(listener) as client:
        client.sendall(request)
        while len(data) < _ENOUGH and (part := client.recv(_ENOUGH)):
            data += part
    if not data or _REFUSAL.fullmatch(data):
        return None
    return f"an answer to {name}: {data[:80]!r}"
