"""The only speller, and the only reader, of run keys, ledger keys and transactional ids.

A *run key* names a unit of work, a *ledger key* a record of the ledger, a *transactional id* what all
attempts at some work share. An id names the work, never the worker: each attempt, on whatever machine, fences
the others. It holds no map index, no try number and nothing random.

Two different works never have one key or one id:

- Each begins with its kind; that of an id stands behind the prefix, which holds no dot.
- Parts of a run key or ledger key are quoted and separated by a slash, which no quoted part holds.
- In an id one part at most may hold dots: it is the last, or a slash or a part of fixed length follows it.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import re
from collections.abc import Iterable

from airflow_eos.exceptions import RunAlreadyCommitted
from airflow_eos.ledger.records.index import IndexKeys
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

RUN_RECORDS = "run:"
"""What the ledger keys of run records begin with."""
CURSORS = "cursor:"
"""What the ledger keys of cursors begin with."""
BOUNDARIES = "boundary:"
"""What the ledger keys of pinned boundaries begin with."""
RESETS = "reset:"
"""What the ledger keys of the records of resets begin with."""
LEDGER_IDENTITY_KEY = "ledger:identity"
LEDGER_IDENTITY_ROUTING = ""
SIGNED_KEY = "ledger:signed"
"""Key of the record that says from where on a ledger is signed that was used before it had a key; it stands
where the identity does."""
INDEX = IndexKeys(root="index:root", leaves="index:leaf/")
"""The ledger keys of the index of a partition, which stands in the partition itself."""
PRUNED = "pruned:"
"""What the ledger keys begin with of the records that say which runs were pruned."""
HORIZONS = "horizon:"
"""What the ledger keys begin with of what pruned runs have read, one for each pipeline."""
INTENTS = "intent:"
"""What the ledger keys begin with of what runs are about to publish in a table, one for each id of work."""
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
"""What ledger keys begin with, but for the index: what is known of runs."""

RUN_KINDS = ("run", "mapped", "interval", "mapped-interval", "partition", "mapped-partition")
"""What run keys begin with, but for rounds and resets. ``mapped``: of one source partition."""
_ROUNDS = "rounds"
_SPECIAL = ("%", "/", REPROCESS_MARK)  # the mark of quoting first
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
"""The kinds of transactional ids, and how each looks to an operator; digests are of run keys."""


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
"""What follows the kind in the ids of a pipeline's runs: what is behind the pipeline has a fixed length."""


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
    """Return the name of the unit of work; one committed run record per key.

    A cursor and given ranges have the same key: the run of a pipeline reads either, and is committed once.
    """
    if loops(spec):
        return final_key(spec) if spec.round is None else round_key(spec, spec.round)
    only = mapped_partition(spec)
    ranges = spec.ranges
    if isinstance(ranges, Interval | PartitionInterval):
        kind = "interval" if isinstance(ranges, Interval) else "partition"
        work = (
            (utc_text(ranges.start), utc_text(ranges.end)) if isinstance(ranges, Interval) else (ranges.key,)
        )
        if only is not None:
            return _joined(f"mapped-{kind}", spec.pipeline, str(only), *work)
        topics = ",".join(_quoted(topic).replace(",", "%2C") for topic in sorted(spec.source_topics))
        return "/".join((kind, _quoted(spec.pipeline), topics, *map(_quoted, work)))
    return _key_of_all_rounds(spec)


def _key_of_all_rounds(spec: RunSpec) -> str:
    only = mapped_partition(spec)
    if only is not None:
        return _joined("mapped", spec.pipeline, str(only), spec.run_id)
    return cursor_run_key(spec.pipeline, spec.run_id)


def cursor_run_key(pipeline: str, run_id: str) -> str:
    """Return the run key of a run over a whole cursor, or over given ranges."""
    return _joined("run", pipeline, run_id)


def run_name(pipeline: str, run_id: str) -> str:
    """Return how a command names a run: ``<pipeline>/<run id>``, each quoted."""
    return _joined(pipeline, run_id)


def named_run(name: str) -> tuple[str, str]:
    """Return pipeline and run id of a :func:`run_name`; a part is empty where it is missing."""
    pipeline, _, run_id = name.partition("/")
    return _unquoted(pipeline), _unquoted(run_id)


def reset_run_key(pipeline: str, group: str, moment: str) -> str:
    """Return the key by which a cursor and its offsets name the reset that moved them."""
    return _joined(_RESET, pipeline, group, moment)


def run_key_prefixes(pipeline: str) -> tuple[str, ...]:
    """Return what the keys of all runs of a pipeline begin with, and of no other pipeline's."""
    whole = [f"{kind}/{_quoted(pipeline)}/" for kind in RUN_KINDS]
    return (*whole, *(f"{_ROUNDS}/{one}" for one in whole))


def loops(spec: RunSpec) -> bool:
    """Return whether the run goes on in rounds until it has caught up."""
    return isinstance(spec.ranges, Cursor) and spec.ranges.until_caught_up


def rounds_prefix(spec: RunSpec) -> str:
    """Return what the keys of all rounds of a run begin with; the rest is a number or :data:`FINAL_ROUND`."""
    return _rounds_of(_key_of_all_rounds(spec))


def _rounds_of(key: str) -> str:
    return f"{_ROUNDS}/{key}/"


def round_key(spec: RunSpec, number: int) -> str:
    """Return the key of a round that leaves something for the next one; from 0."""
    return f"{rounds_prefix(spec)}{number}"


def final_key(spec: RunSpec) -> str:
    """Return the key of the last round: committed, it says that the whole run is."""
    return f"{rounds_prefix(spec)}{FINAL_ROUND}"


def last_key(key: str) -> str:
    """Return the key of the last round of the run that this key names without its rounds."""
    return f"{_rounds_of(key)}{FINAL_ROUND}"


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


def whole_run_key(key: str) -> str:
    """Return the key of the run that this one names, or names a round or a reprocessing of."""
    key = key.partition(REPROCESS_MARK)[0]
    return key.removeprefix(f"{_ROUNDS}/").rpartition("/")[0] if key.startswith(f"{_ROUNDS}/") else key


def ends_run(key: str) -> bool:
    """Return whether a run key names a whole run or the last of its rounds; no reprocessing."""
    is_round = key.startswith(f"{_ROUNDS}/")
    return REPROCESS_MARK not in key and (not is_round or key.endswith(f"/{FINAL_ROUND}"))


def pruned_digest(key: str) -> str:
    """Return what a ledger keeps of the key of a run whose records were pruned.

    :param key: of the whole run, see :func:`whole_run_key`.
    """
    return hashlib.sha256(key.encode()).hexdigest()[: 2 * DIGEST_BYTES]


def pruned_key(pipeline: str, key: str) -> str:
    """Return the ledger key of the record that says whether a run was pruned.

    :param key: as of :func:`pruned_digest`.
    """
    return f"{PRUNED}{_quoted(pipeline)}/{pruned_digest(key)[:2]}"


def horizon_key(pipeline: str) -> str:
    """Return the ledger key of what the pruned runs of a pipeline have read."""
    return f"{HORIZONS}{_quoted(pipeline)}"


def reprocessing_number(key: str) -> int | None:
    """Return which reprocessing a run key names, None where it names none: authors' texts hold no mark."""
    _, mark, number = key.rpartition(REPROCESS_MARK)
    return int(number) if mark else None


def ranges_digest(ranges: Iterable[OffsetRange]) -> str:
    """Return a short digest of ranges, independent of their order."""
    text = json.dumps([r.to_list() for r in sorted(ranges)], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def transactional_id(spec: RunSpec) -> str:
    """Return the id every attempt at this work initialises: one run key, one id.

    A group has one position, so all runs of its cursor have one id. Ranges that are given are no part of it:
    they may be templated, and every try must fence the others all the same.
    """
    if moves_cursor(spec):
        return cursor_transactional_id(spec.prefix, spec.group_id, mapped_partition(spec))
    digest = _digest(run_key(spec))
    if isinstance(spec.ranges, Explicit):
        return _id(spec.prefix, "explicit", f"{_quoted(spec.pipeline)}.{digest}")
    if isinstance(spec.ranges, PartitionInterval):
        return _id(spec.prefix, "partition", f"{_quoted(spec.pipeline)}.{digest}")
    assert isinstance(spec.ranges, Interval)
    interval = f"{utc_text(spec.ranges.start)}_{utc_text(spec.ranges.end)}"
    return _id(spec.prefix, "interval", f"{_quoted(spec.pipeline)}.{interval}.{digest}")


def cursor_transactional_id(prefix: str, group: str, only: TopicPartition | None = None) -> str:
    """Return the id of whoever moves a group's cursor: its runs, and who resets it.

    :param only: the source partition of a mapped cursor.
    """
    if only is None:
        return _id(prefix, "cursor", _quoted(group))
    return _id(prefix, "mapped-cursor", f"{_quoted(group)}/{_quoted(str(only))}")


def reprocess_transactional_id(spec: RunSpec, key: str) -> str:
    """Return the id of all reprocessings of a run: it never fences the pipeline's live cursor."""
    return _id(spec.prefix, "reprocess", f"{_quoted(spec.pipeline)}.{_digest(key)}")


def boundary_transactional_id(prefix: str, topic: str) -> str:
    """Return the id under which boundaries of one topic are pinned, one after the other.

    One id for all boundaries of a topic, not one for each: two boundaries pinned at the same time could
    otherwise cross, and the records between them would belong to two intervals.

    :param prefix: the ledger's; a boundary belongs to the ledger it is pinned in, not to a run.
    """
    return _id(prefix, "boundary", topic)


def ledger_transactional_id(prefix: str, topic: str) -> str:
    """Return the id under which the ledger's own identity is pinned."""
    return _id(prefix, "ledger", topic)


def ledger_witness_id(prefix: str, topic: str) -> str:
    """Return the id that runs touch at their end; nothing is written under it."""
    return _id(prefix, "used-ledger", topic)


def index_transactional_id(prefix: str, topic: str, partition: int) -> str:
    """Return the id under which the index of one ledger partition is written.

    :param prefix: the ledger's: all that share it fence each other here.
    """
    return _id(prefix, "ledger-index", f"{partition}.{topic}")


def prune_transactional_id(prefix: str, topic: str, partition: int) -> str:
    """Return the id under which records of one ledger partition are pruned; as the index's."""
    return _id(prefix, "ledger-prune", f"{partition}.{topic}")


def doctor_transactional_id(prefix: str) -> str:
    """Return the id that shows whether ids of the prefix may be used; no run has it."""
    return f"{ids_prefix(prefix)}doctor"


def ids_prefix(prefix: str) -> str:
    """Return what all ids of a prefix begin with, and no other prefix's: what a PREFIXED ACL names."""
    return f"{checked_prefix(prefix)}."


def is_id_of(transactional_id: str, prefix: str) -> bool:
    """Return whether an id is of this prefix."""
    return transactional_id.startswith(ids_prefix(prefix))


def id_kind(transactional_id: str) -> str:
    """Return which of :data:`ID_FORMS` an id of this package has."""
    return transactional_id.split(".")[1]


def is_cursor_id(transactional_id: str) -> bool:
    """Return whether an id of this package is that of a cursor, whole or of one partition."""
    return id_kind(transactional_id) in _CURSOR_KINDS


def belongs_to(transactional_id: str, prefix: str, pipeline: str, group: str) -> bool:
    """Return whether a pipeline works under an id: it is its group's cursor's, or one of its runs'."""
    if not is_id_of(transactional_id, prefix):
        return False
    kind, _, work = transactional_id.removeprefix(ids_prefix(prefix)).partition(".")
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
    """Return whether a ledger key is of a run record."""
    return key.startswith(RUN_RECORDS)


def is_cursor_record(key: str) -> bool:
    """Return whether a ledger key is of a cursor, whole or of one partition."""
    return key.startswith(CURSORS)


def cursor_key(group: str, only: TopicPartition | None = None) -> str:
    """Return the ledger key of a group's cursor, or of one partition of a mapped cursor."""
    whole = f"{CURSORS}{_quoted(group)}"
    return whole if only is None else f"{whole}/{_quoted(str(only))}"


def intent_key(transactional_id: str) -> str:
    """Return the ledger key of the INTENT of whoever works under an id."""
    return f"{INTENTS}{transactional_id}"


def intent_routing(spec: RunSpec) -> str:
    """Return what chooses the ledger partition of a run's INTENT: that of the cursor's record, if any."""
    return spec.group_id if moves_cursor(spec) else spec.pipeline


def table_property(ledger_topic_id: str, group: str) -> str:
    """Return the name of the table property that holds what a group's runs have published.

    Another ledger counts from other tokens, and so has another property. A pipeline may be renamed, its group
    stays.
    """
    return f"eos.{_digest(json.dumps([ledger_topic_id, group]))}"


def table_scope(transactional_id: str, branch: str | None) -> str:
    """Return by which name a table property knows who works under an id: fenced by it, on one branch."""
    return _digest(json.dumps([transactional_id, branch]))


def boundary_prefix(topic: str) -> str:
    """Return what the ledger keys of all boundaries of a topic begin with."""
    return f"{BOUNDARIES}{_quoted(topic)}/"


def boundary_key(topic: str, moment: dt.datetime) -> str:
    """Return the ledger key of a pinned boundary."""
    return f"{boundary_prefix(topic)}{utc_text(moment)}"


def is_ever_written(key: str) -> bool:
    """Return whether this package may write a record of a ledger key: a boundary's ends with a moment."""
    if not key.startswith(BOUNDARIES):
        return True
    moment = key.rpartition("/")[2]
    try:
        return utc_text(dt.datetime.fromisoformat(moment.replace("Z", "+00:00"))) == moment
    except (ValueError, OverflowError):
        return False


def reset_key(group: str, moment: str, only: TopicPartition | None = None) -> str:
    """Return the ledger key of what a reset did to a group, or to one partition of a mapped cursor."""
    whole = f"{RESETS}{_quoted(group)}/{moment}"
    return whole if only is None else f"{whole}/{_quoted(str(only))}"


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


def _joined(*parts: str) -> str:
    return "/".join(_quoted(part) for part in parts)


def _quoted(text: str) -> str:
    """Keep an author's text from looking like a separator, or like the mark of a reprocessing."""
    for special in _SPECIAL:
        text = text.replace(special, f"%{ord(special):02X}")
    return text


def _unquoted(text: str) -> str:
    """Return what :func:`_quoted` has quoted; other percent signs stay as they are."""
    for special in reversed(_SPECIAL):
        text = text.replace(f"%{ord(special):02X}", special)
    return text


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:20]
