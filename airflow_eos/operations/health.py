"""The web page's subset of the doctor: checks that a read-only principal can make.

They do not read the ledger: the caller passes what it has read. A missing permission is ``unknown``, not a
failure.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Collection, Iterator, Mapping

from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.exceptions import (
    AuthorizationFailed,
    BrokersUnavailable,
    BrokerUnsupported,
    EosError,
    LedgerReplaced,
    TimeoutsInconsistent,
)
from airflow_eos.model.spec import DELIVERY_TIMEOUT, TRANSACTION_TIMEOUT, Deployment
from airflow_eos.operations import checks
from airflow_eos.operations.checks import Check, error_line
from airflow_eos.operations.repair import LeftOpen
from airflow_eos.wording import counted, some_of

log = logging.getLogger(__name__)


def health(
    deployment: Deployment,
    *,
    ignored: Collection[tuple[int, int]],
    unreadable: int,
    ids: Mapping[int, str],
    sources: Collection[str],
    sinks: Collection[str],
) -> list[Check]:
    """Return all findings; checks of topics cover sources and sinks.

    :param ignored: partition and offset of records of the ledger that no run wrote.
    :param ids: transactional ids by producer id, from records of the ledger.
    :raises BrokersUnavailable: no check was possible.
    """
    with ControlPlane(deployment) as control:
        control.cluster.limit_patience(checks.CHECK_PATIENCE)
        brokers = len(control.cluster.brokers())
        findings = [checks.brokers_answer(control, brokers)]
        features = functools.cache(control.cluster.features)
        findings += _guarded("partition verification", checks.verification(features))
        findings += _guarded("time-outs", default_timeouts(features))
        findings += _guarded("expiry of ids", checks.expiry(features))
        findings += _guarded("ledger", checks.ledger_identity(control))
        findings += _guarded("ledger records", checks.ledger_records(control))
        findings += _guarded("ledger writers", _ledger_writers(ignored, unreadable))
        findings += _guarded("ledger topic", checks.ledger_topic(control, brokers))
        for name in sorted({*sources, *sinks}):
            findings += _guarded(f"topic {name}", _topic(control, name, brokers, written=name in sinks))
        for name in sorted(sources):
            findings += _guarded(f"end of topic {name}", checks.undecided_offsets(control, name))
        left = LeftOpen(control.cluster, deployment.prefix, ids.get)
        findings += _guarded("transactions left open", _left_open(left, {deployment.ledger.topic, *sinks}))
    return findings


def _guarded(name: str, looks: Iterator[Check]) -> list[Check]:
    try:
        return list(looks)
    except BrokersUnavailable:
        raise  # every other check would wait as long
    except AuthorizationFailed as error:
        log.info("The page cannot check %s: %s", name, error)
        return [Check(name, "unknown", "the page's principal may not see it", "grant what the page needs")]
    except (BrokerUnsupported, LedgerReplaced) as error:  # their texts say nothing of a connection
        return [Check(name, "fail", error_line(error))]
    except EosError as error:
        log.warning("The page cannot check %s", name, exc_info=error)
        return [Check(name, "unknown", type(error).__name__, "the API server's log has the reason")]


def default_timeouts(features: checks.AskFeatures) -> Iterator[Check]:
    """Check that the brokers allow the time-outs of tasks that set none."""
    try:
        yield from checks.timeouts(features, DELIVERY_TIMEOUT, TRANSACTION_TIMEOUT)
    except TimeoutsInconsistent as error:
        advice = "tasks that set a shorter transaction_timeout and delivery_timeout can run, others fail"
        yield Check("time-outs", "warn", error.message, advice)


def _ledger_writers(ignored: Collection[tuple[int, int]], unreadable: int) -> Iterator[Check]:
    name = "ledger writers"
    if ignored:
        places = some_of(f"partition {partition}, offset {offset}" for partition, offset in sorted(ignored))
        finding = f"{len(ignored)} records that no run wrote: {places}"
        advice = "revoke the writer's right to write to the ledger; `airflow eos doctor` names the records"
        yield Check(name, "fail", finding, advice)
    elif unreadable:
        advice = "upgrade airflow-eos here, where a newer version wrote them; `airflow eos ledger` names them"
        yield Check(name, "warn", f"{unreadable} records cannot be read", advice)
    else:
        yield Check(name, "ok", "runs only")


def _topic(control: ControlPlane, name: str, brokers: int, *, written: bool) -> Iterator[Check]:
    topic, subject = checks.visible_topic(control, name), f"topic {name}"
    if topic is None:
        yield Check(subject, "warn", "it is gone, or the page may not describe it", "grant Describe on it")
    elif written:
        yield from checks.durability(control, topic, brokers)
    else:
        yield Check(subject, "ok", counted(topic.partitions, "partition"))


def _left_open(left: LeftOpen, topics: Collection[str]) -> Iterator[Check]:
    name = "transactions left open"
    hanging = left.still(left.candidates(topics))
    if not hanging and left.unseen:
        advice = "grant Read on what pipelines write, and on the ledger"
        yield Check(
            name,
            "unknown",
            f"none is seen, but these may not be looked at: {some_of(sorted(left.unseen))}",
            advice,
        )
    elif not hanging:
        yield Check(name, "ok", "none: each that is open has a coordinator that will end it")
    else:
        places = some_of(
            f"{transaction.tp} from {transaction.producer.current_txn_start_offset}"
            for transaction in hanging
        )
        advice = "readers do not get past them: `airflow eos repair` says how they were decided and ends them"
        yield Check(name, "fail", places, advice)
