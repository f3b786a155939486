"""How two definitions of work differ, and which settings are not part of one."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import fields, replace
from typing import Any

import pytest

from airflow_eos.exceptions import ConfigurationError, DifferentWork
from airflow_eos.ledger import keys
from airflow_eos.ledger.records.run_record import WORK
from airflow_eos.model.kafka import ProducerIdentity
from airflow_eos.model.ranges import Cursor, Explicit, Interval, OffsetRange, PartitionInterval
from airflow_eos.operators.retriable import is_final
from airflow_eos.run import laws
from airflow_eos.run.work import AUTHORS, WorkDefinition, as_named, differences
from tests.unit.airflow.fakes import a_record
from tests.unit.run.test_lookup import Ledger, a_spec, ask, made_by

NIGHT = dt.datetime(2026, 11, 20, tzinfo=dt.timezone.utc)
DAY = Interval(NIGHT, NIGHT + dt.timedelta(days=1))
A, B = OffsetRange("src", 0, 5, 15), OffsetRange("src", 1, 0, 3)

EVERY = [
    WorkDefinition(("a", "b"), "cursor", sink="out", origin="here"),
    WorkDefinition(("a",), "cursor", partition=0),
    WorkDefinition(("a",), "interval", interval=("2026-11-20T00:00:00.000Z", "2026-11-21T00:00:00.000Z")),
    WorkDefinition(("a",), "partition", interval=("2026-11-20", "2026-11-21"), key="k"),
    WorkDefinition(("src",), "explicit", ranges=(A, B), advance=True),
]


@pytest.mark.parametrize("work", EVERY, ids=lambda work: f"{work.mode}{work.partition}")
def test_definition_survives_the_ledger(work: WorkDefinition) -> None:
    """As JSON in a record's details, without fields that do not apply."""
    record = a_record(details={WORK: json.loads(json.dumps(work.to_dict()))})
    assert WorkDefinition.recorded(record) == work
    assert WorkDefinition.recorded(a_record(details={})) is None
    assert WorkDefinition(("a",), "cursor").to_dict() == {"topics": ["a"], "mode": "cursor"}


WORK_OF = WorkDefinition(
    ("a",), "explicit", 1, "out", ("2026-11-20", "2026-11-21"), "k", (A,), advance=True, origin="here"
)
OTHERS: dict[str, Any] = {
    "topics": ("a", "b"),
    "mode": "cursor",
    "partition": 2,
    "sink": None,
    "interval": ("2026-11-20", "2026-11-22"),
    "key": "other",
    "ranges": (A, B),
    "advance": False,
    "origin": "there",
}


def test_every_field_is_compared() -> None:
    """A new field without a comparison fails here."""
    assert set(OTHERS) == {field.name for field in fields(WorkDefinition)} == AUTHORS | {"origin"}


@pytest.mark.parametrize("field", OTHERS)
def test_each_field_alone_is_a_difference(field: str) -> None:
    """The text has the recorded and the requested value."""
    (difference,) = differences(WORK_OF, replace(WORK_OF, **{field: OTHERS[field]}))
    assert difference.field == field
    assert difference.recorded != difference.current
    assert "recorded" in str(difference)


def test_ranges_that_both_have_are_not_listed() -> None:
    """There may be hundreds."""
    (difference,) = differences(WORK_OF, replace(WORK_OF, ranges=(A, B)))
    assert str(difference) == "ranges: recorded no others, asked src-1 [0, 3)"


@pytest.mark.parametrize("origin", ["", "here"])
def test_origin_is_compared_where_both_name_one(origin: str) -> None:
    """A record from before the setting counts, and so does one made with it."""
    assert differences(WORK_OF, replace(WORK_OF, origin="")) == []
    assert differences(replace(WORK_OF, origin=""), replace(WORK_OF, origin=origin)) == []


HOW = [
    {"ranges": Cursor(max_records=5, start="latest", until_caught_up=True, max_rounds=3)},
    {"compression": "gzip", "max_send_attempts": 1, "audit": {"reason": "x"}, "task": {"dag_id": "d"}},
    {"clear_number": 2, "try_number": 3, "run_id": "r2", "group_id": "other", "prefix": "other"},
]


@pytest.mark.parametrize("how", HOW)
def test_how_a_run_is_made_is_no_part_of_its_work(how: dict[str, Any]) -> None:
    """Group and prefix are part of the transactional id."""
    assert WorkDefinition.of(a_spec(**how)) == WorkDefinition.of(a_spec())


def test_order_and_lateness_are_no_part_of_the_work() -> None:
    """Topics and ranges are sets; a boundary is where it was fixed."""
    assert WorkDefinition.of(a_spec(source_topics=("b", "a"))) == WorkDefinition.of(
        a_spec(source_topics=("a", "b"))
    )
    assert WorkDefinition.of(a_spec(ranges=Explicit((B, A)))) == WorkDefinition.of(
        a_spec(ranges=Explicit((A, B)))
    )
    zone = dt.timezone(dt.timedelta(hours=5))
    same = Interval(DAY.start.astimezone(zone), DAY.end.astimezone(zone), dt.timedelta(0))
    for ranges, other in ((DAY, same), (PartitionInterval("k", DAY), PartitionInterval("k", same))):
        assert WorkDefinition.of(a_spec(ranges=ranges)) == WorkDefinition.of(a_spec(ranges=other))


def recorded(mode: str = "cursor", **changes: Any) -> Any:
    spec = a_spec(**changes)
    return made_by(spec, mode, details={WORK: WorkDefinition.of(spec).to_dict()})


def test_refusal_lists_every_difference_and_is_final() -> None:
    """A retry would meet the same record."""
    ledger = Ledger(recorded(sink_topic="out", source_topics=("src", "more")))
    with pytest.raises(DifferentWork) as refused:
        ask(a_spec(sink_topic="new", clear_number=1), ledger)
    text = str(refused.value)
    assert "source topics: recorded 'more, src', asked 'src'; sink topic: recorded 'out', asked 'new'" in text
    assert isinstance(refused.value, ConfigurationError)
    assert is_final(refused.value)


@pytest.mark.parametrize("on_committed", ["skip", "accept", "reprocess"])
def test_no_on_committed_answers_for_another_fence(on_committed: str) -> None:
    """Another transactional id does not fence this one, so the same run could be committed again."""
    recorded_id, current_id = (keys.cursor_transactional_id(prefix, "g") for prefix in ("staging", "prod"))
    ledger = Ledger(recorded(prefix="staging"))
    with pytest.raises(
        DifferentWork, match=f"committed under transactional id {recorded_id!r}, not {current_id!r}"
    ):
        ask(a_spec(prefix="prod", clear_number=1, on_committed=on_committed), ledger)


def test_who_waits_for_a_run_compares_what_he_says_of_it() -> None:
    """A sensor knows neither the sink nor the group."""
    record = recorded("explicit", sink_topic="out", origin="a", ranges=Explicit((A,)))

    def wait(**given: Any) -> None:
        named = as_named(record, given)
        assert named is not None
        laws.same_work(record, record.producer.transactional_id, named)

    wait()
    wait(topics=["src"], ranges=[A.to_list()])
    with pytest.raises(DifferentWork, match="source topics: recorded 'src', asked 'other'"):
        wait(topics=["other"])
    with pytest.raises(DifferentWork, match=r"asked src-1 \[0, 3\)"):
        wait(ranges=[B.to_list()])
    assert as_named(a_record(details={}), {"topics": ["other"]}) is None


def test_reprocessing_answers_only_where_the_run_itself_is_ours() -> None:
    """It did the requested work, but for a run that was made under another cursor."""
    first = recorded(sink_topic="out")
    moved = a_spec(sink_topic="new")
    again = made_by(
        moved,
        "reprocess",
        run_key=keys.reprocess_key(first.run_key, 1),
        clear_number=1,
        producer=ProducerIdentity(keys.reprocess_transactional_id(moved, first.run_key), 2, 0),
        details={WORK: WorkDefinition.of(moved).to_dict()},
    )
    ledger = Ledger(first, again)
    requested = replace(moved, clear_number=2)
    assert ask(requested, ledger).run_key == again.run_key
    recorded_id, current_id = (keys.cursor_transactional_id("airflow-eos", group) for group in ("g", "other"))
    for on_committed in ("skip", "fail", "accept"):
        with pytest.raises(DifferentWork, match=f"transactional id {recorded_id!r}, not {current_id!r}"):
            ask(replace(requested, group_id="other", on_committed=on_committed), ledger)
    assert not differences(WorkDefinition.of(requested), WorkDefinition.of(moved))
