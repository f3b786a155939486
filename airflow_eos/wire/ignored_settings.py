"""librdkafka settings that the wire layer ignores, with the reason; and hints for refused settings."""

from __future__ import annotations

from collections.abc import Mapping

OWNED_BY_PACKAGE = frozenset(
    {
        "acks",
        "auto.commit.interval.ms",
        "auto.offset.reset",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.idempotence",
        "enable.partition.eof",
        "group.id",
        "group.instance.id",
        "group.protocol",
        "group.remote.assignor",
        "isolation.level",
        "max.in.flight",
        "max.in.flight.requests.per.connection",
        "message.send.max.retries",
        "partition.assignment.strategy",
        "request.required.acks",
        "retries",
        "transaction.timeout.ms",
        "transactional.id",
    }
)
"""Settings that this package sets itself; values from the connection are dropped for confluent-kafka too."""

BULK_PRODUCING = frozenset(
    {
        "batch.num.messages",
        "batch.size",
        "compression.codec",
        "compression.level",
        "compression.type",
        "delivery.report.only.error",
        "delivery.timeout.ms",
        "dr_cb",
        "dr_msg_cb",
        "enable.gapless.guarantee",
        "linger.ms",
        "message.max.bytes",
        "message.timeout.ms",
        "msg_order_cmp",
        "on_delivery",
        "partitioner",
        "partitioner_cb",
        "produce.offset.report",
        "queue.buffering.backpressure.threshold",
        "queue.buffering.max.kbytes",
        "queue.buffering.max.messages",
        "queue.buffering.max.ms",
        "queuing.strategy",
        "request.timeout.ms",
        "sticky.partitioning.linger.ms",
    }
)
"""Settings that tune bulk producing; no client gets them, as the driver sends only a handful of messages."""

_IGNORED_BY_REASON: dict[str, tuple[str, ...]] = {
    "set by this package on every client": tuple(sorted(OWNED_BY_PACKAGE)),
    "consumer groups are not used to read": (
        "check.crcs",
        "consume.callback.max.messages",
        "consume_cb",
        "coordinator.query.interval.ms",
        "group.protocol.type",
        "heartbeat.interval.ms",
        "max.poll.interval.ms",
        "offset.store.method",
        "offset.store.path",
        "offset.store.sync.interval.ms",
        "offset_commit_cb",
        "on_commit",
        "rebalance_cb",
        "session.timeout.ms",
        "share.acknowledgement.mode",
    ),
    "local fetch queue of librdkafka; the wire layer bounds its own memory": (
        "fetch.error.backoff.ms",
        "fetch.max.bytes",
        "fetch.message.max.bytes",
        "fetch.min.bytes",
        "fetch.queue.backoff.ms",
        "fetch.wait.max.ms",
        "max.partition.fetch.bytes",
        "message.copy.max.bytes",
        "queued.max.messages.kbytes",
        "queued.min.messages",
    ),
    "producer queue of librdkafka; batches are sealed, partitioned and compressed by this package": tuple(
        sorted(BULK_PRODUCING)
    ),
    "retries and back-off are the wire layer's own": (
        "max.block.ms",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
        "socket.max.fails",
    ),
    "metadata is asked for the topics of the run only, and never creates a topic": (
        "allow.auto.create.topics",
        "enable.sparse.connections",
        "max.metadata.age.ms",
        "metadata.recovery.rebootstrap.trigger.ms",
        "metadata.recovery.strategy",
        "metadata.request.timeout.ms",
        "topic.blacklist",
        "topic.metadata.propagation.max.ms",
        "topic.metadata.refresh.fast.cnt",
        "topic.metadata.refresh.fast.interval.ms",
        "topic.metadata.refresh.interval.ms",
        "topic.metadata.refresh.sparse",
    ),
    "statistics, logging and call-backs of librdkafka": (
        "background_event_cb",
        "closesocket_cb",
        "connect_cb",
        "debug",
        "default_topic_conf",
        "enable.metrics.push",
        "enable.random.seed",
        "enabled_events",
        "error_cb",
        "internal.termination.signal",
        "log.connection.close",
        "log.queue",
        "log.thread.name",
        "log_cb",
        "log_level",
        "logger",
        "opaque",
        "open_cb",
        "plugin.library.paths",
        "socket_cb",
        "statistics.interval.ms",
        "stats_cb",
        "throttle_cb",
        "interceptors",
    ),
    "version negotiation is kafka-python's": (
        "api.version.fallback.ms",
        "api.version.request",
        "api.version.request.timeout.ms",
        "broker.version.fallback",
    ),
    "no counterpart needed: addresses are resolved at each connect": ("broker.address.ttl",),
    "no counterpart needed: sockets never block": ("socket.blocking.max.ms",),
    "no counterpart needed: the fetch is always from the leader": ("client.rack",),
    "for kinit only; the ticket cache names the principal": (
        "sasl.kerberos.min.time.before.relogin",
        "sasl.kerberos.principal",
    ),
}

IGNORED: Mapping[str, str] = {key: reason for reason, keys in _IGNORED_BY_REASON.items() for key in keys}
"""Ignored keys, with the reason."""

HINTS: Mapping[str, str] = {
    "broker.address.family": "kafka-python resolves any family; only 'any' can be kept",
    "enable.sasl.oauthbearer.unsecure.jwt": "unsecured tokens are refused by this package; pass 'oauth_cb'",
    "sasl.jaas.config": "it is a Java setting: use sasl.mechanisms, sasl.username and sasl.password",
    "sasl.kerberos.keytab": "set KRB5_CLIENT_KTNAME on every host: MIT Kerberos then logs in by itself",
    "sasl.kerberos.kinit.cmd": "set KRB5_CLIENT_KTNAME on every host: MIT Kerberos then logs in by itself",
    "sasl.oauthbearer.method": "pass a function as 'oauth_cb' that returns (token, expiry in seconds)",
    "ssl.keystore.location": "export the PKCS#12 store to PEM: ssl.certificate.location and ssl.key.location",
    "ssl.engine.location": "OpenSSL engines cannot be loaded from Python; use PEM files",
    "ssl.truststore.location": "it is a Java setting: use ssl.ca.location with a PEM file",
}
"""The alternative to a refused setting."""
