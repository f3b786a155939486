"""The only maker of run keys, ledger keys and transactional ids.

A transactional id names the *work*, never the worker: every attempt at the same work, on whatever machine,
fences the others. It holds no map index, no try number and nothing random.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Iterable
from dataclasses import replace

from airflow_eos.exceptions import RunAlreadyCommitted
from airflow_eos.model.ledger import LedgerMessage
from airflow_eos.model.ranges import (
    Cursor,
    Explicit,
    Interval,
    OffsetRange,
    PartitionInterval,
    TopicPartition,
)
from airflow_eos.model.spec import RunSpec

METADATA_VERSION = "v1"
REPROCESS_MARK = "#"
FINAL_ROUND = "final"
MAX_REPROCESSINGS = 100
LEDGER_IDENTITY_KEY = "ledger:identity"
LEDGER_IDENTITY_ROUTING = ""


def utc_text(moment: dt.datetime) -> str:
    """Return an aware datetime as UTC, to the millisecond: the resolution of Kafka's timestamps."""
    return moment.astimezone(dt.timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def moves_cursor(spec: RunSpec) -> bool:
    """Return whether the run advances the group's committed offsets."""
    return isinstance(spec.ranges, Cursor) or (isinstance(spec.ranges, Explicit) and spec.ranges.advance)


def offsets_group(spec: RunSpec) -> str:
    """Return the group end offsets are committed to; offsets of ``<group>.runs`` carry no meaning."""
    return spec.group_id if moves_cursor(spec) else f"{spec.group_id}.runs"


def mapped_partition(spec: RunSpec) -> TopicPartition | None:
    """Return the one source partition of a mapped cursor, None for a whole one."""
    if spec.source_partition is None:
        return None
    return TopicPartition(spec.source_topics[0], spec.source_partition)


def run_key(spec: RunSpec) -> str:
    """Return the name of the unit of work; one committed run record per key."""
    if loops(spec):
        return final_key(spec) if spec.round is None else round_key(spec, spec.round)
    topics = ",".join(sorted(spec.source_topics))
    only = mapped_partition(spec)
    source = topics if only is None else str(only)
    if isinstance(spec.ranges, Interval):
        return f"interval/{spec.pipeline}/{source}/{utc_text(spec.ranges.start)}/{utc_text(spec.ranges.end)}"
    if isinstance(spec.ranges, PartitionInterval):
        return f"partition/{spec.pipeline}/{source}/{_quoted(spec.ranges.key)}"
    if only is not None:
        return f"mapped/{spec.pipeline}/{only}/{_quoted(spec.run_id)}"
    return cursor_run_key(spec.pipeline, spec.run_id)


def cursor_run_key(pipeline: str, run_id: str) -> str:
    """Return the run key of a run over a whole cursor, or over given ranges."""
    return f"run/{pipeline}/{_quoted(run_id)}"


def loops(spec: RunSpec) -> bool:
    """Return whether the run goes on in rounds until it has caught up."""
    return isinstance(spec.ranges, Cursor) and spec.ranges.until_caught_up


def rounds_prefix(spec: RunSpec) -> str:
    """Return what the keys of all rounds of a run begin with; the rest is a number or :data:`FINAL_ROUND`."""
    return f"rounds/{run_key(replace(spec, ranges=Cursor()))}/"


def round_key(spec: RunSpec, number: int) -> str:
    """Return the key of a round that leaves something for the next one; from 0."""
    return f"{rounds_prefix(spec)}{number}"


def final_key(spec: RunSpec) -> str:
    """Return the key of the last round: committed, it says that the whole run is."""
    return f"{rounds_prefix(spec)}{FINAL_ROUND}"


def reprocess_key(key: str, number: int) -> str:
    """Return the key of the ``number``-th reprocessing of a committed run, from 1.

    :raises RunAlreadyCommitted: beyond the number a look-up covers.
    """
    if number > MAX_REPROCESSINGS:
        raise RunAlreadyCommitted(
            f"{key} was reprocessed {MAX_REPROCESSINGS} times already; start a new run instead"
        )
    return f"{key}{REPROCESS_MARK}{number}"


def reprocess_keys(key: str) -> list[str]:
    """Return the keys of every reprocessing a run may have."""
    return [reprocess_key(key, n) for n in range(1, MAX_REPROCESSINGS + 1)]


def ranges_digest(ranges: Iterable[OffsetRange]) -> str:
    """Return a short digest of ranges, independent of their order."""
    text = json.dumps([r.to_list() for r in sorted(ranges)], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def transactional_id(spec: RunSpec) -> str:
    """Return the id every attempt at this work initialises: one run key, one id.

    Given ranges are no part of it: they may be templated, and every try must fence the others all the same.
    """
    if moves_cursor(spec):
        only = mapped_partition(spec)
        return f"{spec.prefix}.{spec.group_id}" + ("" if only is None else f".{only}")
    if isinstance(spec.ranges, Explicit):
        return f"{spec.prefix}.{spec.pipeline}.{_digest(run_key(spec))}"
    if isinstance(spec.ranges, PartitionInterval):
        work = spec.ranges.key
    else:
        assert isinstance(spec.ranges, Interval)
        work = f"{utc_text(spec.ranges.start)}_{utc_text(spec.ranges.end)}"
    only = mapped_partition(spec)
    return f"{spec.prefix}.{spec.pipeline}.{work}" + ("" if only is None else f".{only}")


def reprocess_transactional_id(spec: RunSpec, key: str) -> str:
    """Return the id of all reprocessings of a run: it never fences the pipeline's live cursor."""
    return f"{spec.prefix}.{spec.pipeline}.{_digest(key)}{REPROCESS_MARK}"


def boundary_transactional_id(prefix: str, topic: str) -> str:
    """Return the id under which boundaries of one topic are pinned, one after the other.

    One id for all boundaries of a topic, not one for each: two boundaries pinned at the same time could
    otherwise cross, and the records between them would belong to two intervals.

    :param prefix: the ledger's; a boundary belongs to the ledger it is pinned in, not to a run.
    """
    return f"{prefix}.boundary.{topic}"


def ledger_transactional_id(prefix: str, topic: str) -> str:
    """Return the id under which the ledger's own identity is pinned."""
    return f"{prefix}.ledger.{topic}"


def ledger_witness_id(prefix: str, topic: str) -> str:
    """Return the id that runs touch at their end; nothing is written under it."""
    return f"{prefix}.used-ledger.{topic}"


def run_record_key(key: str) -> str:
    """Return the ledger key of a run record."""
    return f"run:{key}"


def cursor_key(group: str, only: TopicPartition | None = None) -> str:
    """Return the ledger key of a group's cursor, or of one partition of a mapped cursor."""
    return f"cursor:{group}" if only is None else f"cursor:{group}/{only}"


def boundary_prefix(topic: str) -> str:
    """Return what the ledger keys of all boundaries of a topic begin with."""
    return f"boundary:{topic}/"


def boundary_key(topic: str, moment: dt.datetime) -> str:
    """Return the ledger key of a pinned boundary."""
    return f"{boundary_prefix(topic)}{utc_text(moment)}"


def offset_metadata(key: str, ledger_partition: int, ledger_topic_id: str) -> str:
    """Return the metadata committed with offsets: which run, and in which ledger; under 100 bytes."""
    return f"{METADATA_VERSION} {_digest(key)} {ledger_partition} {ledger_topic_id}"


def metadata_ledger(metadata: str) -> str | None:
    """Return the ledger topic id an offset's metadata names, None where this package did not write it."""
    parts = metadata.split(" ")
    return parts[3] if len(parts) == 4 and parts[0] == METADATA_VERSION else None  # noqa: PLR2004


def metadata_names(metadata: str, key: str) -> bool:
    """Return whether an offset's metadata was committed by the run with this key."""
    return metadata.split(" ")[:2] == [METADATA_VERSION, _digest(key)]


def message(key: str, value: str, routing: str) -> LedgerMessage:
    """Return a ledger message; ``routing`` chooses the ledger partition."""
    return LedgerMessage(key=key, value=value, routing=routing)


def _quoted(text: str) -> str:
    """Keep an author's text from looking like the mark of a reprocessing."""
    return text.replace("%", "%25").replace(REPROCESS_MARK, "%23")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:20]
