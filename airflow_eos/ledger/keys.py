"""Formats and parses run keys, ledger keys and transactional ids; no other module does.

A *run key* names a unit of work, a *ledger key* a record of the ledger, a *transactional id* is shared by all
attempts at a unit of work. An id names the work, never the worker, so that each attempt fences the others on
any machine. It contains no map index, no try number and nothing random.

Two different units of work never share a key or an id:

- Each begins with its kind; in an id the kind follows the prefix, which contains no dot.
- Parts of a run key or ledger key are quoted and separated by a slash, which no quoted part contains.
- In an id at most one part may contain dots: it is the last, or a slash or a part of fixed length follows it.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import replace

from airflow_eos.exceptions import RunAlreadyCommitted
from airflow_eos.ledger.records.ledger_index import IndexKeys, OwnKeys
from airflow_eos.ledger.records.pruned import DIGEST_BYTES
from airflow_eos.model.names import checked_prefix
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

# Prefixes of ledger keys.
RUN_RECORDS = "run:"
CURSORS = "cursor:"
BOUNDARIES = "boundary:"
RESETS = "reset:"
PRUNED = "pruned:"
"""Prefix of the records that list pruned runs."""
HORIZONS = "horizon:"
"""One per pipeline: what its pruned runs have read."""
INTENTS = "intent:"
"""One per transactional id: what a run will publish in a table."""

LEDGER_IDENTITY_KEY = "ledger:identity"
LEDGER_IDENTITY_ROUTING = ""
SIGNED_KEY = "ledger:signed"
"""Key of the record, beside the identity, that says from which offsets on records are signed; written in a
ledger that was first used without a key."""
INDEX = IndexKeys(root="index:root", leaves="index:leaf/")
"""The ledger keys of a partition's index, which is stored in the partition itself."""
OWN_KEYS = OwnKeys(LEDGER_IDENTITY_KEY, SIGNED_KEY, INDEX)
RECORD_KINDS = (
    RUN_RECORDS,
    CURSORS,
    BOUNDARIES,
    RESETS,
    LEDGER_IDENTITY_KEY,
    SIGNED_KEY,
    PRUNED,
    HORIZONS,
    INTENTS,
)
"""Prefixes of all ledger keys except those of the index."""

RUN_KINDS = ("run", "mapped", "interval", "mapped-interval", "partition", "mapped-partition")
"""First parts of run keys, except for rounds and resets. ``mapped``: of one source partition."""
_ROUNDS = "rounds"
_ESCAPES = {ord(special): f"%{ord(special):02X}" for special in ("%", "/", REPROCESS_MARK)}  # "%" first
_RESET = "reset"

ID_FORMS = {
    "cursor": "<prefix>.cursor.<group>",
    "mapped-cursor": "<prefix>.mapped-cursor.<group>/<topic>-<partition>",
    "interval": "<prefix>.interval.<pipeline>.<start>_<end>.<digest>",
    "partition": "<prefix>.partition.<pipeline>.<digest>",
    "explicit": "<prefix>.explicit.<pipeline>.<digest>",
    "reprocess": "<prefix>.reprocess.<pipeline>.<digest>",
    "boundary": "<prefix>.boundary.<topic>",
    "ledger": "<prefix>.ledger.<topic>",
    "used-ledger": "<prefix>.used-ledger.<topic>",
    "ledger-index": "<prefix>.ledger-index.<partition>.<topic>",
    "ledger-prune": "<prefix>.ledger-prune.<partition>.<topic>",
    "doctor": "<prefix>.doctor",
}
"""The kinds of transactional ids and their forms; digests are of run keys."""


_CURSOR_KINDS = ("cursor", "mapped-cursor")
_MOMENT = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
_WORK_FORMS = {
    kind: re.compile(rf"(?P<pipeline>.+)\.{moments}[0-9a-f]{{20}}", re.DOTALL)
    for kind, moments in {
        "interval": rf"{_MOMENT}_{_MOMENT}\.",
        "partition": "",
        "explicit": "",
        "reprocess": "",
    }.items()
}
"""The part after the kind, in ids of a pipeline's runs: the text after the pipeline has a fixed length."""


def utc_text(moment: dt.datetime) -> str:
    """Return an aware datetime in UTC, in milliseconds: the resolution of Kafka's timestamps."""
    return moment.astimezone(dt.timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def utc_moment(text: str) -> dt.datetime:
    """Return the aware datetime of a text, as :func:`utc_text` writes it.

    :raises ValueError: it is not an ISO time.
    """
    return dt.datetime.fromisoformat(text.replace("Z", "+00:00"))


def moves_cursor(spec: RunSpec) -> bool:
    """Return whether the run advances the group's committed offsets."""
    match spec.ranges:
        case Cursor():
            return True
        case Explicit() as explicit:
            return explicit.advance
        case Interval() | PartitionInterval():
            return False


def offsets_group(spec: RunSpec) -> str:
    """Return the group to which end offsets are committed; offsets of ``<group>.runs`` have no meaning."""
    return spec.group_id if moves_cursor(spec) else f"{spec.group_id}.runs"


def mapped_partition(spec: RunSpec) -> TopicPartition | None:
    """Return the source partition of a mapped cursor; None for a whole one."""
    if spec.source_partition is None:
        return None
    return TopicPartition(spec.source_topics[0], spec.source_partition)


def run_key(spec: RunSpec) -> str:
    """Return the name of the unit of work; the ledger has at most one committed run record per key.

    Cursor and explicit ranges share a key: a run reads one or the other, and is committed once.
    """
    if loops(spec):
        return final_key(spec) if spec.round is None else round_key(spec, spec.round)
    match spec.ranges:
        case Interval() as interval:
            return _key_of_topics(spec, "interval", utc_text(interval.start), utc_text(interval.end))
        case PartitionInterval() as partition:
            return _key_of_topics(spec, "partition", partition.key)
        case Cursor() | Explicit():
            return _key_of_all_rounds(spec)


def other_layout_keys(spec: RunSpec, partitions: int = 1) -> list[str]:
    """Return the run keys of the same interval where the task is not mapped, or else mapped.

    Empty for cursors, whose group has one layout, for given offsets, and where a task cannot be mapped.

    :param partitions: number of the source's partitions, each of which has a key where the task is mapped.
    """
    if isinstance(spec.ranges, Cursor | Explicit) or len(spec.source_topics) > 1:
        return []
    numbers = range(partitions) if spec.source_partition is None else [None]
    return [run_key(replace(spec, source_partition=number)) for number in numbers]


def other_layout_id(spec: RunSpec, key: str) -> str:
    """Return the transactional id of one of :func:`other_layout_keys`."""
    return f"{transactional_id(spec).rpartition('.')[0]}.{_digest(key)}"


def _key_of_topics(spec: RunSpec, kind: str, *work: str) -> str:
    """Return the key of a run that is named after the data it reads, not after its Dag run."""
    partition = mapped_partition(spec)
    if partition is not None:
        return _joined(f"mapped-{kind}", spec.pipeline, str(partition), *work)
    topics = ",".join(_quoted(topic).replace(",", "%2C") for topic in sorted(spec.source_topics))
    return "/".join((kind, _quoted(spec.pipeline), topics, *map(_quoted, work)))


def _key_of_all_rounds(spec: RunSpec) -> str:
    partition = mapped_partition(spec)
    if partition is not None:
        return _joined("mapped", spec.pipeline, str(partition), spec.run_id)
    return cursor_run_key(spec.pipeline, spec.run_id)


def cursor_run_key(pipeline: str, run_id: str) -> str:
    """Return the run key of a run over a whole cursor, or over explicit ranges."""
    return _joined("run", pipeline, run_id)


def run_name(pipeline: str, run_id: str) -> str:
    """Return the name of a run in commands: ``<pipeline>/<run id>``, each quoted."""
    return _joined(pipeline, run_id)


def named_runs(name: str) -> list[tuple[str, str]]:
    """Return pipeline and run id of a :func:`run_name`; a missing part is empty.

    Further pairs are other readings of the name, if a slash in the pipeline's name is not quoted.
    """
    parts = name.split("/")
    ways = [("/".join(parts[:at]), "/".join(parts[at:])) for at in range(1, max(len(parts), 2))]
    return [(_unquoted(pipeline), _unquoted(run_id)) for pipeline, run_id in ways]


def quoted_key(key: str) -> str:
    """Return the ledger key of a group or pipeline, given one in which the name is not quoted."""
    kind, colon, name = key.partition(":")
    return f"{kind}{colon}{_quoted(name)}"


def reset_run_key(pipeline: str, group: str, moment: str) -> str:
    """Return the run key of a reset, as named by the cursor and offsets that it moved."""
    return _joined(_RESET, pipeline, group, moment)


def run_key_prefixes(pipeline: str) -> tuple[str, ...]:
    """Return the prefixes of the run keys of this pipeline, and of no other."""
    whole = [f"{kind}/{_quoted(pipeline)}/" for kind in RUN_KINDS]
    return (*whole, *(f"{_ROUNDS}/{prefix}" for prefix in whole))


def loops(spec: RunSpec) -> bool:
    """Return whether the run continues in rounds until it has caught up."""
    return isinstance(spec.ranges, Cursor) and spec.ranges.until_caught_up


def rounds_prefix(spec: RunSpec) -> str:
    """Return the prefix of the keys of a run's rounds; the rest is a number or :data:`FINAL_ROUND`."""
    return f"{_ROUNDS}/{_key_of_all_rounds(spec)}/"


def round_key(spec: RunSpec, number: int) -> str:
    """Return the key of a round before the last one; ``number`` starts at 0."""
    return f"{rounds_prefix(spec)}{number}"


def final_key(spec: RunSpec) -> str:
    """Return the key of the last round, whose commit means that the whole run is committed."""
    return last_key(_key_of_all_rounds(spec))


def last_key(key: str) -> str:
    """Return the key of the last round of a run, whose own key is without a round."""
    return f"{_ROUNDS}/{key}/{FINAL_ROUND}"


def reprocess_key(key: str, number: int) -> str:
    """Return the key of the ``number``-th reprocessing of a committed run, from 1.

    :raises RunAlreadyCommitted: ``number`` is beyond the keys that a look-up covers.
    """
    if number > MAX_REPROCESSINGS:
        raise RunAlreadyCommitted(
            f"{key} was reprocessed {MAX_REPROCESSINGS} times already; write its ranges again with "
            "ReplayOffsetRangesOperator"
        )
    return f"{key}{REPROCESS_MARK}{number}"


def reprocess_keys(key: str) -> list[str]:
    """Return the keys of all possible reprocessings of a run."""
    return [reprocess_key(key, n) for n in range(1, MAX_REPROCESSINGS + 1)]


def whole_run_key(key: str) -> str:
    """Return the key of the whole run, for the key of a run, a round or a reprocessing."""
    key = key.partition(REPROCESS_MARK)[0]
    return key.removeprefix(f"{_ROUNDS}/").rpartition("/")[0] if key.startswith(f"{_ROUNDS}/") else key


def ends_run(key: str) -> bool:
    """Return whether a run key names a whole run or its last round, but not a reprocessing."""
    return REPROCESS_MARK not in key and (not is_round(key) or key.endswith(f"/{FINAL_ROUND}"))


def is_round(key: str) -> bool:
    """Return whether a run key names a round, and not a reprocessing."""
    return REPROCESS_MARK not in key and key.startswith(f"{_ROUNDS}/")


def pruned_digest(key: str) -> str:
    """Return the digest by which a ledger remembers a pruned run, by its :func:`whole_run_key`."""
    return hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()[: 2 * DIGEST_BYTES]


def pruned_key(pipeline: str, key: str) -> str:
    """Return the ledger key of the record that tells whether a run was pruned, by :func:`whole_run_key`."""
    return f"{PRUNED}{_quoted(pipeline)}/{pruned_digest(key)[:2]}"


def horizon_key(pipeline: str) -> str:
    """Return the ledger key of a pipeline's horizon: what its pruned runs have read."""
    return f"{HORIZONS}{_quoted(pipeline)}"


def reprocessing_number(key: str) -> int | None:
    """Return the number of the reprocessing that a run key names; None if it does not name one."""
    _, mark, number = key.rpartition(REPROCESS_MARK)
    return int(number) if mark else None


def ranges_digest(ranges: Iterable[OffsetRange]) -> str:
    """Return a short digest of ranges, independent of their order."""
    return _digest(json.dumps([r.to_list() for r in sorted(ranges)], separators=(",", ":")))


def transactional_id(spec: RunSpec) -> str:
    """Return the transactional id that every attempt at this work initialises.

    A group has one position, so all runs of its cursor share an id. Explicit ranges are not part of the id:
    they may be templated, and every try must fence the others regardless of them.
    """
    if moves_cursor(spec):
        return cursor_transactional_id(spec.prefix, spec.group_id, mapped_partition(spec))
    pipeline, digest = _quoted(spec.pipeline), _digest(run_key(spec))
    match spec.ranges:
        case Cursor():
            raise AssertionError("a cursor is moved")
        case Explicit():
            return _id(spec.prefix, "explicit", f"{pipeline}.{digest}")
        case PartitionInterval():
            return _id(spec.prefix, "partition", f"{pipeline}.{digest}")
        case Interval(start=start, end=end):
            return _id(spec.prefix, "interval", f"{pipeline}.{utc_text(start)}_{utc_text(end)}.{digest}")


def cursor_transactional_id(prefix: str, group: str, partition: TopicPartition | None = None) -> str:
    """Return the id under which a group's cursor moves: that of its runs and its resets."""
    if partition is None:
        return _id(prefix, "cursor", _quoted(group))
    return _id(prefix, "mapped-cursor", f"{_quoted(group)}/{_quoted(str(partition))}")


def reprocess_transactional_id(spec: RunSpec, key: str) -> str:
    """Return the id of all reprocessings of a run; it never fences the runs of the pipeline's cursor."""
    return _id(spec.prefix, "reprocess", f"{_quoted(spec.pipeline)}.{_digest(key)}")


def boundary_transactional_id(prefix: str, topic: str) -> str:
    """Return the id under which the boundaries of a topic are pinned, one after the other.

    All boundaries of a topic share an id: otherwise two boundaries pinned at the same time could cross, and
    the records between them would belong to two intervals.

    :param prefix: the ledger's prefix; a boundary belongs to its ledger, not to a run.
    """
    return _id(prefix, "boundary", topic)


def ledger_transactional_id(prefix: str, topic: str) -> str:
    """Return the id under which the ledger's own identity is pinned."""
    return _id(prefix, "ledger", topic)


def ledger_witness_id(prefix: str, topic: str) -> str:
    """Return the id that runs initialise at their end; no transaction runs under it."""
    return _id(prefix, "used-ledger", topic)


def index_transactional_id(prefix: str, topic: str, partition: int) -> str:
    """Return the id under which the index of one ledger partition is written.

    :param prefix: the ledger's prefix; all writers that share it fence each other.
    """
    return _id(prefix, "ledger-index", f"{partition}.{topic}")


def prune_transactional_id(prefix: str, topic: str, partition: int) -> str:
    """Return the id under which records of one ledger partition are pruned; it fences like the index's."""
    return _id(prefix, "ledger-prune", f"{partition}.{topic}")


def doctor_transactional_id(prefix: str) -> str:
    """Return the id with which the doctor checks permissions on ids of the prefix; no run uses it."""
    return f"{ids_prefix(prefix)}doctor"


def ids_prefix(prefix: str) -> str:
    """Return the common beginning of all ids of a prefix, and of no other prefix; a PREFIXED ACL names it."""
    return f"{checked_prefix(prefix)}."


def is_id_of(transactional_id: str, prefix: str) -> bool:
    """Return whether an id has this prefix."""
    return transactional_id.startswith(ids_prefix(prefix))


def id_kind(transactional_id: str) -> str:
    """Return the kind of an id of this package, a key of :data:`ID_FORMS`; empty for one without a dot."""
    return transactional_id.partition(".")[2].partition(".")[0]


def is_cursor_id(transactional_id: str) -> bool:
    """Return whether an id of this package is for a cursor, whole or of one partition."""
    return id_kind(transactional_id) in _CURSOR_KINDS


def belongs_to(transactional_id: str, prefix: str, pipeline: str, group: str) -> bool:
    """Return whether an id belongs to a pipeline: to its group's cursor, or to one of its runs."""
    beginning = ids_prefix(prefix)
    if not transactional_id.startswith(beginning):
        return False
    kind, _, work = transactional_id.removeprefix(beginning).partition(".")
    if kind in _CURSOR_KINDS:
        return work.partition("/")[0] == _quoted(group) and ("/" in work) == (kind != _CURSOR_KINDS[0])
    form = _WORK_FORMS.get(kind)
    match = form.fullmatch(work) if form else None
    return match is not None and match["pipeline"] == _quoted(pipeline)


def _id(prefix: str, kind: str, work: str) -> str:
    return f"{ids_prefix(prefix)}{kind}.{work}"


def run_record_key(key: str) -> str:
    """Return the ledger key of a run record."""
    return f"{RUN_RECORDS}{key}"


def is_run_record(key: str) -> bool:
    """Return whether a ledger key is that of a run record."""
    return key.startswith(RUN_RECORDS)


def cursor_key(group: str, partition: TopicPartition | None = None) -> str:
    """Return the ledger key of a group's cursor, or of one partition of a mapped cursor."""
    whole = f"{CURSORS}{_quoted(group)}"
    return whole if partition is None else f"{whole}/{_quoted(str(partition))}"


def intent_key(transactional_id: str) -> str:
    """Return the ledger key of the INTENT of a transactional id."""
    return f"{INTENTS}{transactional_id}"


def intent_routing(spec: RunSpec) -> str:
    """Return the routing string of an INTENT: its partition is that of the cursor's record, if any."""
    return spec.group_id if moves_cursor(spec) else spec.pipeline


def table_property(ledger_topic_id: str, group: str, branch: str | None) -> str:
    """Return the name of the table property that holds what a group's runs have published on a branch.

    Each ledger has its own property, because its tokens are not comparable. A pipeline may be renamed, its
    group stays. Commits to two branches do not conflict: in one property, one would overwrite the other.
    """
    owner = [ledger_topic_id, group] if branch is None else [ledger_topic_id, group, branch]
    return f"eos.{_digest(json.dumps(owner))}"


def table_scope(transactional_id: str, branch: str | None) -> str:
    """Return the key, within a table property, of the runs of one transactional id on one branch."""
    return _digest(json.dumps([transactional_id, branch]))


def boundary_prefix(topic: str) -> str:
    """Return the prefix of the ledger keys of a topic's boundaries."""
    return f"{BOUNDARIES}{_quoted(topic)}/"


def boundary_key(topic: str, moment: dt.datetime) -> str:
    """Return the ledger key of a pinned boundary."""
    return f"{boundary_prefix(topic)}{utc_text(moment)}"


def is_ever_written(key: str) -> bool:
    """Return whether this package writes records with such a key: a boundary's key ends with a moment."""
    if not key.startswith(BOUNDARIES):
        return True
    moment = key.rpartition("/")[2]
    try:
        return utc_text(utc_moment(moment)) == moment
    except (ValueError, OverflowError):
        return False


def reset_key(group: str, moment: str, partition: TopicPartition | None = None) -> str:
    """Return the ledger key of a reset of a group, or of one partition of a mapped cursor."""
    whole = f"{RESETS}{_quoted(group)}/{moment}"
    return whole if partition is None else f"{whole}/{_quoted(str(partition))}"


def offset_metadata(key: str, ledger_partition: int, ledger_topic_id: str) -> str:
    """Return the metadata committed with offsets, which names run and ledger; under 100 bytes."""
    return f"{METADATA_VERSION} {_digest(key)} {ledger_partition} {ledger_topic_id}"


def metadata_ledger(metadata: str) -> str | None:
    """Return the ledger topic id in an offset's metadata; None if this package did not write the metadata."""
    parts = metadata.split(" ")
    return parts[3] if len(parts) == 4 and parts[0] == METADATA_VERSION else None  # noqa: PLR2004


def metadata_names(metadata: str, key: str) -> bool:
    """Return whether the run with this key committed an offset's metadata."""
    return metadata.split(" ")[:2] == [METADATA_VERSION, _digest(key)]


def _joined(*parts: str) -> str:
    return "/".join(_quoted(part) for part in parts)


def _quoted(text: str) -> str:
    """Escape separators and the reprocessing mark in user-defined text."""
    return text.translate(_ESCAPES)


def _unquoted(text: str) -> str:
    """Reverse :func:`_quoted`; other percent signs stay."""
    for special, escape in reversed(_ESCAPES.items()):
        text = text.replace(escape, chr(special))
    return text


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:20]
