"""Requests a zombie could send under its old identity: abort, commit, add partitions, write."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from airflow_eos.exceptions import ProducerFenced
from airflow_eos.model.kafka import EndTxnAnswer
from airflow_eos.recordbatch.sealer import seal
from airflow_eos.wire.connection import BrokerConnections
from airflow_eos.wire.produce import send_partitions
from airflow_eos.wire.txn_requests import add_partitions_to_txn, end_txn

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_eos.model.kafka import ProducerIdentity
    from airflow_eos.model.ranges import TopicPartition
    from chaos.playground import Playground

_TIMEOUT = 60.0


def zombie_requests(playground: Playground, old: ProducerIdentity) -> str:
    """Send all requests; return a text for the report.

    :raises RuntimeError: a request was accepted.
    """
    targets = playground.sink_partitions()
    with BrokerConnections(playground.spec.kafka) as connections:
        for commit in (False, True):
            answer = end_txn(connections, old, commit=commit, timeout=_TIMEOUT)
            if answer is not EndTxnAnswer.FENCED:
                raise RuntimeError(f"EndTxn(commit={commit}) of the zombie {old} was answered {answer}")
        _must_be_refused("AddPartitionsToTxn", lambda: add_partitions_to_txn(connections, old, targets))
        for target in targets:  # one at a time: a refusal ends a whole send
            batches = {target: _batches(target)}
            send = functools.partial(send_partitions, connections, old, batches, timeout=_TIMEOUT)
            _must_be_refused(f"Produce to {target}", send)
    return ", its abort, commit and writes refused"


def _batches(target: TopicPartition) -> list[tuple[int, bytes]]:
    value = pa.array([b"zombie"], pa.binary())
    tp = np.array([target.partition], np.int32)
    return [(batch.records, batch.data) for batch in seal(value, tp, topic=target.topic)]


def _must_be_refused(request_name: str, request: Callable[[], object]) -> None:
    try:
        request()
    except ProducerFenced:
        return
    raise RuntimeError(f"{request_name} of the zombie was accepted")
