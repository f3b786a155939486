"""Keys and ids: their forms, and that two different works never share one.

The only test file that spells out keys and ids; the others call the functions that make them.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.ledger import keys
from airflow_eos.model.ranges import (
    Cursor,
    Explicit,
    Interval,
    OffsetRange,
    PartitionInterval,
    TopicPartition,
)
from airflow_eos.model.spec import RunSpec

UTC = dt.timezone.utc
START, END = dt.datetime(2026, 11, 20, tzinfo=UTC), dt.datetime(2026, 11, 21, tzinfo=UTC)
DAY = Interval(START, END)
GIVEN = Explicit((OffsetRange("orders", 3, 0, 9),))
ROUNDS = Cursor(max_records=5, until_caught_up=True)


def a_spec(**changes):
    """Return a spec of a cursor."""
    kept = {
        "kafka": {"bootstrap.servers": "unused"},
        "pipeline": "sales.copy",
        "run_id": "r/1",
        "source_topics": ("orders",),
        "group_id": "sales.group",
        "prefix": "eos",
    }
    return RunSpec(**{**kept, **changes})


DAY_TEXT = "2026-11-20T00:00:00.000Z/2026-11-21T00:00:00.000Z"
EXAMPLES = [
    ({}, "run/sales.copy/r%2F1", r"eos\.cursor\.sales\.group"),
    (
        {"source_partition": 3},
        "mapped/sales.copy/orders-3/r%2F1",
        r"eos\.mapped-cursor\.sales\.group/orders-3",
    ),
    ({"ranges": GIVEN}, "run/sales.copy/r%2F1", r"eos\.explicit\.sales\.copy\.[0-9a-f]{20}"),
    (
        {"ranges": replace(GIVEN, advance=True)},
        "run/sales.copy/r%2F1",
        r"eos\.cursor\.sales\.group",
    ),
    (
        {"ranges": DAY, "source_topics": ("orders", "items")},
        f"interval/sales.copy/items,orders/{DAY_TEXT}",
        rf"eos\.interval\.sales\.copy\.{DAY_TEXT.replace('/', '_')}\.[0-9a-f]{{20}}",
    ),
    (
        {"ranges": DAY, "source_partition": 3},
        f"mapped-interval/sales.copy/orders-3/{DAY_TEXT}",
        rf"eos\.interval\.sales\.copy\.{DAY_TEXT.replace('/', '_')}\.[0-9a-f]{{20}}",
    ),
    (
        {"ranges": PartitionInterval("eu|a/b#1", DAY)},
        "partition/sales.copy/orders/eu|a%2Fb%231",
        r"eos\.partition\.sales\.copy\.[0-9a-f]{20}",
    ),
    ({"ranges": ROUNDS, "round": 2}, "rounds/run/sales.copy/r%2F1/2", r"eos\.cursor\.sales\.group"),
    ({"ranges": ROUNDS}, "rounds/run/sales.copy/r%2F1/final", r"eos\.cursor\.sales\.group"),
]


@pytest.mark.parametrize(("changes", "key", "pattern"), EXAMPLES)
def test_run_keys_and_ids_look_like_this(changes, key, pattern):
    """An operator finds kind, pipeline and group in them."""
    spec = a_spec(**changes)
    assert keys.run_key(spec) == key
    assert re.fullmatch(pattern, keys.transactional_id(spec))
    again = keys.reprocess_transactional_id(spec, key)
    assert re.fullmatch(r"eos\.reprocess\.sales\.copy\.[0-9a-f]{20}", again)


def test_ledger_keys_and_ids_of_no_run_look_like_this():
    """Their kind is first, or directly after the prefix."""
    only = TopicPartition("orders", 3)
    assert [
        keys.run_record_key("run/p/r"),
        keys.cursor_key("sales.group"),
        keys.cursor_key("sales.group", only),
        keys.boundary_key("orders", START),
        keys.reset_key("sales.group", "now"),
        keys.reset_key("sales.group", "now", only),
        keys.reset_run_key("sales.copy", "sales.group", "now"),
        keys.LEDGER_IDENTITY_KEY,
    ] == [
        "run:run/p/r",
        "cursor:sales.group",
        "cursor:sales.group/orders-3",
        "boundary:orders/2026-11-20T00:00:00.000Z",
        "reset:sales.group/now",
        "reset:sales.group/now/orders-3",
        "reset/sales.copy/sales.group/now",
        "ledger:identity",
    ]
    assert [
        keys.boundary_transactional_id("eos", "my.orders"),
        keys.ledger_transactional_id("eos", "my.ledger"),
        keys.ledger_witness_id("eos", "my.ledger"),
        keys.index_transactional_id("eos", "my.ledger", 3),
        keys.prune_transactional_id("eos", "my.ledger", 3),
        keys.doctor_transactional_id("eos"),
    ] == [
        "eos.boundary.my.orders",
        "eos.ledger.my.ledger",
        "eos.used-ledger.my.ledger",
        "eos.ledger-index.3.my.ledger",
        "eos.ledger-prune.3.my.ledger",
        "eos.doctor",
    ]
    assert keys.last_key("run/p/r") == "rounds/run/p/r/final"


def test_the_kinds_of_records_are_the_prefixes_that_the_module_defines():
    """A scan of a whole ledger would miss a kind that is not listed."""
    prefixes = {
        value for value in vars(keys).values() if isinstance(value, str) and re.match("[a-z]+:", value)
    }
    assert prefixes == set(keys.RECORD_KINDS)


def test_the_forms_an_operator_reads_are_those_that_are_made():
    """Each kind has a documented form, and the keys and ids made have it."""
    only = TopicPartition("orders", 3)
    ids = [
        *(keys.transactional_id(a_spec(**changes)) for changes, _, _ in EXAMPLES),
        keys.cursor_transactional_id("eos", "g", only),
        keys.reprocess_transactional_id(a_spec(), "run/p/r"),
        keys.boundary_transactional_id("eos", "orders"),
        keys.ledger_transactional_id("eos", "ledger"),
        keys.ledger_witness_id("eos", "ledger"),
        keys.index_transactional_id("eos", "ledger", 3),
        keys.prune_transactional_id("eos", "ledger", 3),
        keys.doctor_transactional_id("eos"),
    ]
    assert {keys.id_kind(transactional_id) for transactional_id in ids} == set(keys.ID_FORMS)
    for transactional_id in ids:
        form = re.escape(keys.ID_FORMS[keys.id_kind(transactional_id)])
        assert re.fullmatch(re.sub(r"<[a-z]+>", ".+", form), transactional_id)


@pytest.mark.parametrize("prefix", ["eos.x", ".", "eos.", "", "a b", "a/b", "é", "x" * 181])
def test_a_prefix_holds_no_dot(prefix):
    """An ACL on "eos." would cover the ids of "eos.x"; and no function makes an id with it."""
    with pytest.raises(ConfigurationError, match="prefix"):
        a_spec(prefix=prefix)
    for make in (keys.doctor_transactional_id, keys.ids_prefix):
        with pytest.raises(ConfigurationError, match="prefix"):
            make(prefix)
    with pytest.raises(ConfigurationError, match="prefix"):
        keys.cursor_transactional_id(prefix, "group")


def test_a_source_partition_is_not_negative():
    """orders--1 would be partition 1 of orders-, too."""
    with pytest.raises(ConfigurationError, match="source_partition must be a whole number of at least 0"):
        a_spec(source_partition=-1)


# -- different works ----------------------------------------------------------------------------------------

PIECES = [
    *"ab./#%,: -_é",
    *("a.b", "%2F", "%2C", "#1", "-3", "-1", "3", "0", "final", "run", "rounds", "mapped", "reset"),
    *("cursor", "mapped-cursor", "interval", "partition", "explicit", "reprocess"),
    *("boundary", "ledger", "used-ledger", "doctor", "identity", "2026-11-20T00:00:00.000Z"),
]
PREFIXES = ("a", "eos", "doctor", "cursor")


def names_of(name, other):
    """Return names of the same few pieces, so that two pairs of them soon collide when joined."""
    short = [*product(("a", name, other), repeat=1), *product(("a", name, other), repeat=2)]
    return sorted({"".join(parts) for parts in (*short, ("a", name, "a"), ("a", name, other))})


NAMES = st.builds(names_of, *2 * [st.sampled_from(PIECES) | st.text(min_size=1, max_size=2)])


def separators(test):
    """Include the pieces that join keys and ids, whatever else is drawn."""
    for pieces in (
        (".", "doctor"),
        ("/", "%2F"),
        ("%", "2F"),
        ("#1", "%23"),
        (",", "b"),
        ("-3", "/"),
        ("/a-3", ".a-3"),
    ):
        test = example(names_of(*pieces))(test)
    return test


def unchecked(spec, **changes):
    """Return a changed spec, also with names that RunSpec would refuse."""
    changed = object.__new__(RunSpec)
    for name in RunSpec.__slots__:  # copy.copy takes five times as long, for hundreds of thousands
        object.__setattr__(changed, name, changes[name] if name in changes else getattr(spec, name))
    return changed


BASE = a_spec(prefix="eos", group_id="g", pipeline="p")
LATER = Interval(START, END + dt.timedelta(milliseconds=1))


def all_runs(names):
    """Yield runs of every kind with all combinations of these names."""
    for name, other in product(names, names):
        topics = tuple(sorted({name, other}))
        mapped = {"source_topics": (other,), "source_partition": 3}
        for spec in (BASE, unchecked(BASE, prefix="doctor")):
            yield unchecked(spec, group_id=name, source_topics=(other,))
            yield unchecked(spec, group_id=name, **mapped)
        for ranges in (Cursor(), GIVEN, ROUNDS, DAY, LATER, PartitionInterval("k", DAY)):
            yield unchecked(BASE, pipeline=name, ranges=ranges, **mapped)
            yield unchecked(BASE, pipeline=name, ranges=ranges, source_topics=(other,))
            yield unchecked(BASE, ranges=ranges, source_topics=topics)
        for ranges in (Cursor(), GIVEN, ROUNDS, PartitionInterval(other, DAY)):
            yield unchecked(BASE, pipeline=name, run_id=other, ranges=ranges)
            yield unchecked(
                BASE, pipeline="a", run_id=other, ranges=ranges, **{**mapped, "source_topics": (name,)}
            )
        yield unchecked(BASE, pipeline=name, run_id=other, ranges=ROUNDS, round=0)


def source_of(spec):
    """Return the topics, or the one partition, that a spec reads."""
    if spec.source_partition is None:
        return frozenset(spec.source_topics)
    return (spec.source_topics[0], spec.source_partition)


def run_of(spec):
    """Return the identity of a run."""
    ranges = spec.ranges
    if isinstance(ranges, Interval):
        return ("interval", spec.pipeline, source_of(spec), ranges.start, ranges.end)
    if isinstance(ranges, PartitionInterval):
        return ("partition", spec.pipeline, source_of(spec), ranges.key)
    only = None if spec.source_partition is None else source_of(spec)
    if ranges == ROUNDS:
        return ("rounds", spec.pipeline, only, spec.run_id, spec.round)
    return ("run", spec.pipeline, only, spec.run_id)


def work_of(spec):
    """Return the work whose attempts fence each other: for a cursor, that of the group, whatever the run."""
    if isinstance(spec.ranges, Cursor) or (isinstance(spec.ranges, Explicit) and spec.ranges.advance):
        only = None if spec.source_partition is None else source_of(spec)
        return ("cursor", spec.prefix, spec.group_id, only)
    return ("of one run", spec.prefix, run_of(spec)) + (("explicit",) if spec.ranges == GIVEN else ())


def refuse_shared_names(named):
    """Check that equal things, and only those, have equal names."""
    by_name, by_thing = {}, {}
    for thing, name in named:
        assert by_name.setdefault(name, thing) == thing, name
        assert by_thing.setdefault(thing, name) == name, thing


@pytest.mark.search
@settings(max_examples=15)
@separators
@given(NAMES)
def test_different_works_have_different_transactional_ids(names):
    """Runs, cursors, reprocessings, pins, witness and doctor: each id belongs to one work."""
    named = []
    for spec in all_runs(names):
        named.append((work_of(spec), keys.transactional_id(spec)))
        again = keys.reprocess_transactional_id(spec, keys.run_key(spec))
        named.append((("reprocess", spec.prefix, run_of(spec)), again))
    for prefix in PREFIXES:
        named.append((("doctor", prefix), keys.doctor_transactional_id(prefix)))
        for topic in names:
            named += [
                (("boundary", prefix, topic), keys.boundary_transactional_id(prefix, topic)),
                (("ledger", prefix, topic), keys.ledger_transactional_id(prefix, topic)),
                (("witness", prefix, topic), keys.ledger_witness_id(prefix, topic)),
            ]
    refuse_shared_names(named)
    for thing, name in named:
        assert [prefix for prefix in PREFIXES if keys.is_id_of(name, prefix)] == [thing[1]]


@pytest.mark.search
@settings(max_examples=15)
@separators
@given(NAMES)
def test_different_runs_have_different_keys_in_the_ledger(names):
    """Runs and their reprocessings, cursors, boundaries, resets, identity: each key belongs to one thing."""
    text = keys.utc_text(START)
    runs = []
    for spec in all_runs(names):
        key = keys.run_key(spec)
        runs.append((run_of(spec), key))
        runs += [((run_of(spec), n), keys.reprocess_key(key, n)) for n in (1, 3)]
    # A cursor and its reset also name a run.
    runs += [
        (("reset", pipeline, other), keys.reset_run_key(pipeline, other, text))
        for pipeline, other in product(names, names)
    ]
    refuse_shared_names(runs)
    records = [(("run", thing), keys.run_record_key(key)) for thing, key in runs]
    records.append(("identity", keys.LEDGER_IDENTITY_KEY))
    for name in names:
        records.append((("boundary", name), keys.boundary_key(name, START)))
        for only in (None, *(TopicPartition(topic, 3) for topic in names)):
            records.append((("cursor", name, only), keys.cursor_key(name, only)))
            records.append((("reset", name, only), keys.reset_key(name, text, only)))
    refuse_shared_names(records)
    assert all(key.startswith(keys.RECORD_KINDS) for _, key in records)
    assert all(keys.is_run_record(key) == (thing[0] == "run") for thing, key in records)


@settings(max_examples=15)
@separators
@given(NAMES)
def test_a_pipelines_runs_are_found_by_its_name_and_no_others(names):
    """A query for pipeline "a" does not return runs of "a/b"; nor one for a run another's rounds."""
    for name, other in product(names, names):
        prefixes = keys.run_key_prefixes(name)
        for ranges in (Cursor(), ROUNDS, DAY, PartitionInterval("k", DAY)):
            for partition in (None, 3):
                spec = unchecked(BASE, pipeline=other, ranges=ranges, source_partition=partition)
                assert keys.run_key(spec).startswith(prefixes) == (name == other)
        assert keys.boundary_key(other, START).startswith(keys.boundary_prefix(name)) == (name == other)
        rounds = unchecked(BASE, run_id=other, ranges=ROUNDS, round=1)
        assert keys.run_key(rounds).startswith(keys.rounds_prefix(unchecked(BASE, run_id=name))) == (
            name == other
        )
        assert keys.last_key(keys.cursor_run_key("p", name)) == keys.final_key(unchecked(BASE, run_id=name))


@pytest.mark.search
@settings(max_examples=15)
@separators
@given(NAMES)
def test_an_id_belongs_to_its_pipeline_or_its_group_and_to_no_other(names):
    """Whatever the names contain: a run's id belongs to the pipeline, a cursor's to the group."""
    owners = set()  # many runs share an id: each is asked about once
    for spec in all_runs(names):
        name = keys.transactional_id(spec)
        moves = work_of(spec)[0] == "cursor"
        assert keys.is_cursor_id(name) == moves
        owners.add((name, spec.prefix, None if moves else spec.pipeline, spec.group_id if moves else None))
        again = keys.reprocess_transactional_id(spec, keys.run_key(spec))
        owners.add((again, spec.prefix, spec.pipeline, None))
    for (name, own, pipeline, group), prefix in product(owners, PREFIXES):
        # Under another prefix nobody owns an id: the names inside it are the likeliest mistakes.
        for other in names if prefix == own else ():
            if other not in (pipeline, group):
                assert not keys.belongs_to(name, prefix, pipeline=other, group=other)
        for other in {pipeline, group} - {None}:
            by_pipeline = keys.belongs_to(name, prefix, pipeline=other, group="\0 no group")
            by_group = keys.belongs_to(name, prefix, pipeline="\0 no pipeline", group=other)
            assert by_pipeline == (prefix == own and other == pipeline)
            assert by_group == (prefix == own and other == group)


@settings(max_examples=15)
@separators
@given(NAMES)
def test_the_name_of_a_run_is_read_as_it_was_written(names):
    """Commands take it as ``<pipeline>/<run id>``; ordinary names are not quoted."""
    for pipeline, run_id in product(names, names):
        assert keys.named_runs(keys.run_name(pipeline, run_id))[0] == (pipeline, run_id)
    assert keys.named_runs("flights.daily/manual__2026-11-20T00:00:00+00:00")[0] == (
        "flights.daily",
        "manual__2026-11-20T00:00:00+00:00",
    )
    assert keys.named_runs("no slash") == [("no slash", "")]


COLLISIONS = [
    pytest.param(
        a_spec(pipeline="a", ranges=PartitionInterval("b", DAY)), a_spec(group_id="a.b"), id="key and group"
    ),
    pytest.param(
        a_spec(group_id="a", source_partition=3), a_spec(group_id="a.orders-3"), id="mapped and group"
    ),
    pytest.param(
        a_spec(group_id="a", source_topics=("b.c",), source_partition=3),
        a_spec(group_id="a.b", source_topics=("c",), source_partition=3),
        id="dots of group and topic",
    ),
    pytest.param(
        a_spec(pipeline="a", ranges=PartitionInterval("b.c", DAY)),
        a_spec(pipeline="a.b", ranges=PartitionInterval("c", DAY)),
        id="dots of pipeline and key",
    ),
    pytest.param(
        a_spec(ranges=DAY, source_topics=("orders-3",)),
        a_spec(ranges=DAY, source_partition=3),
        id="topic and partition",
    ),
]


@pytest.mark.parametrize(("spec", "other"), COLLISIONS)
def test_works_that_once_shared_an_id_do_not(spec, other):
    """Names that would collide if parts were only joined by dots."""
    assert keys.transactional_id(spec) != keys.transactional_id(other)


@pytest.mark.parametrize(
    "group", ["doctor", "boundary.orders", "ledger.topic", "used-ledger.topic", "cursor"]
)
def test_a_group_may_have_the_name_of_a_kind(group):
    """Neither doctor, nor a pin, nor a witness fences anybody's run."""
    cursor_id = keys.transactional_id(a_spec(group_id=group))
    assert cursor_id == f"eos.cursor.{group}"
    assert cursor_id not in (
        keys.doctor_transactional_id("eos"),
        keys.boundary_transactional_id("eos", "orders"),
        keys.ledger_transactional_id("eos", "topic"),
        keys.ledger_witness_id("eos", "topic"),
    )


def test_one_work_has_one_id_whatever_attempts_it():
    """A cursor's id has neither run, try, clear nor given ranges; an interval's has neither try nor clear."""
    cursor = keys.transactional_id(a_spec())
    assert keys.transactional_id(a_spec(run_id="r2", try_number=3, clear_number=1)) == cursor
    assert keys.transactional_id(a_spec(ranges=replace(GIVEN, advance=True))) == cursor
    other_ranges = Explicit((OffsetRange("orders", 0, 5, 6),))
    assert keys.transactional_id(a_spec(ranges=other_ranges)) == keys.transactional_id(a_spec(ranges=GIVEN))
    interval = keys.transactional_id(a_spec(ranges=DAY))
    assert keys.transactional_id(a_spec(ranges=DAY, try_number=2, clear_number=1, run_id="x")) == interval


@pytest.mark.parametrize("run_id", ["r", "r#1", "r%231", "#"])
def test_the_number_of_a_reprocessing_is_read_from_its_key_and_nothing_else(run_id):
    """Text from users is quoted: none looks like the mark."""
    key = keys.cursor_run_key("p", run_id)
    assert keys.reprocessing_number(key) is None
    assert keys.reprocessing_number(keys.reprocess_key(key, 7)) == 7
