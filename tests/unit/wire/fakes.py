"""Base of the fakes: kafka-python's event loop without sockets, with the interface of BrokerConnections."""

from __future__ import annotations

import math

from kafka.future import Future
from kafka.net.selector import NetworkSelector

from airflow_eos.model.ranges import TopicPartition
from airflow_eos.wire.backoff import NotYet
from airflow_eos.wire.connection import BrokerConnections


class FakeConnections:
    """Leaders, coordinators and a loop; a subclass answers requests in :meth:`handle`.

    :param leaders: node id per partition; None if there is no leader.
    """

    request_timeout = 30.0
    patience = math.inf
    throttled = False
    _servers = "fake:9092"

    def __init__(self, leaders):
        self.net = NetworkSelector(slow_task_threshold_secs=0)
        self.leaders = dict(leaders)
        self.requests = []
        self.refreshes = 0
        self.forgotten = []
        self.hung_up = set()
        self.waits = []  # seconds after which the sender wants to be woken, in order
        self.script = []  # functions (request, node) -> answer, exception, or None for the answer of handle()

    def close(self):
        self.net.close()

    def run(self, coroutine):
        return self.net.run(coroutine)

    def spawn(self, coroutine):
        return self.net.call_soon_with_future(coroutine)

    def wait(self, future):
        self.net.poll(future=future)
        if future.exception is not None:
            raise future.exception
        return future.value

    def pump(self, turns=1):
        for _ in range(turns):
            self.net.poll(timeout_ms=0)

    async def pause(self, seconds):
        await self.net.sleep(seconds)

    def wake_later(self, seconds, future):
        self.waits.append(seconds)
        timer = self.net.call_later(seconds, lambda: future.is_done or future.success(None))
        return lambda: self.net.cancel(timer)

    def leader(self, topic, partition):
        return self.leaders.get(TopicPartition(topic, partition))

    async def leader_async(self, topic, partition, *, timeout):
        assert timeout >= 0
        node = self.leader(topic, partition)
        if node is None:
            raise NotYet(f"{topic}-{partition} has no leader")
        return node

    async def by_leader_async(self, partitions, *, timeout):
        assert timeout >= 0
        groups, leaderless = {}, []
        for partition in sorted(partitions):
            node = self.leaders[partition]
            if node is None:
                leaderless.append(partition)
            else:
                groups.setdefault(node, []).append(partition)
        return groups, leaderless

    async def refresh_async(self, _names):
        self.refreshes += 1
        return True

    def forget_leader(self, topic):
        self.forgotten.append(topic)

    async def retry_async(self, attempt, *, subject, timeout):
        return await BrokerConnections.retry_async(self, attempt, subject=subject, timeout=timeout)

    async def coordinator_async(self, kind, key, *, timeout):
        assert timeout >= 0
        return 0

    def forget_coordinator(self, kind, key):
        self.forgotten.append(key)

    def hang_up(self, node):
        self.hung_up.add(node)

    def send(self, request, node, *, timeout=None):
        future = Future()
        self.requests.append((node, request))
        self.started(request)

        def answer():
            self.ended(request)
            scripted = self.script.pop(0)(request, node) if self.scripted(request) else None
            outcome = self.handle(request, node) if scripted is None else scripted
            if isinstance(outcome, Exception):
                future.failure(outcome)
            else:
                future.success(outcome)

        self.net.call_later(0.001, answer)
        return future

    def scripted(self, request):
        """Whether the next scripted answer is for this request."""
        return bool(self.script)

    def started(self, request):
        """Called when a request is sent."""

    def ended(self, request):
        """Called when its answer arrives."""

    def handle(self, request, node):
        raise NotImplementedError


class ScriptedCoordinator(FakeConnections):
    """Answers with the next code, or exception, of ``codes``, then with 0; a subclass makes the answer."""

    def __init__(self):
        super().__init__({})
        self.codes = []

    def handle(self, request, _node):
        code = self.codes.pop(0) if self.codes else 0
        return code if isinstance(code, Exception) else self.answer(request, code)

    def answer(self, request, code):
        raise NotImplementedError


def kind_of(request):
    """Return the name of a request's class, without its suffix."""
    return type(request).__name__.removesuffix("Request")


def as_usual(_request, _node):
    """Script one answer: the default of the fake."""
