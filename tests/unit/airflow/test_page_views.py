"""The pages' views of records: selected by the viewer's Dags, and robust against any record."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from airflow_eos.cli.commands import record_row
from airflow_eos.coverage.lanes import LogBounds
from airflow_eos.exceptions import AuthorizationFailed
from airflow_eos.ledger import keys
from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.model.kafka import ProducerIdentity, TransactionDescription, TransactionState
from airflow_eos.model.ranges import OffsetRange, TopicPartition
from airflow_eos.operations.queries import LedgerRecord
from airflow_eos.ui import app, pipeline_rows, views
from airflow_eos.ui.addresses import Requested, page_of, runs_of
from airflow_eos.ui.answers import templates
from airflow_eos.ui.attempt_rows import attempts_view
from airflow_eos.ui.attempts import Attempt
from airflow_eos.ui.desk import Desk
from airflow_eos.ui.known_runs import PipelineHistory
from airflow_eos.ui.pipeline_rows import ledger_rows, pipeline_row, pipelines_view
from airflow_eos.ui.record_parts import flat
from airflow_eos.ui.transaction_rows import OpenNow, check_of
from airflow_eos.ui.trouble import Trouble
from airflow_eos.ui.viewer import NOT_SHOWN, Viewer
from tests.support.page_site import HandHistory
from tests.unit.airflow.fakes import a_record

NOW = dt.datetime(2026, 11, 21, tzinfo=dt.timezone.utc)
LOGS = {TopicPartition(topic, 0): LogBounds(0, 30) for topic in ("src", "theirs")}
IDS = {"src": "1", "theirs": "2"}


def history_of(*records: RunRecord) -> HandHistory:
    return HandHistory(*records, logs=LOGS, topic_ids=IDS)


def record(
    dag: str, run: str, topic: str = "src", start: int = 0, end: int = 10, **changes: Any
) -> RunRecord:
    return a_record(
        run_key=f"p/{run}",
        run_id=run,
        ranges=(OffsetRange(topic, 0, start, end),),
        details={"airflow": {"dag_id": dag}},
        **changes,
    )


def listed(history: HandHistory, viewer: Viewer) -> list[dict[str, Any]]:
    """Return the rows of all pipelines."""
    return pipelines_view(ledger_rows(history, viewer, NOW), [], NOW)["pipelines"]


@pytest.fixture
def shared() -> HandHistory:
    """A pipeline whose name another team's Dag used last."""
    return history_of(record("mine", "m1"), record("theirs", "t1", "theirs"))


@pytest.mark.parametrize(
    ("dag", "run", "topic"), [("mine", "m1", "src"), ("theirs", "t1", "theirs")], ids=["owner", "taker"]
)
def test_each_sees_the_records_of_his_dags(shared: HandHistory, dag: str, run: str, topic: str) -> None:
    """Neither Dag hides the other's page or reveals its topics."""
    viewer = Viewer([dag])
    (row,) = listed(shared, viewer)
    page = views.pipeline_view(shared, viewer, "pipelines.copy", NOW)
    for shown in (row, page):
        assert (shown["dag_id"], shown["topics"], shown["whole"]) == (dag, [topic], True)
    assert [entry["run_id"] for entry in page["runs_shown"]] == [run]
    assert [lane["where"] for lane in page["lanes"]] == [f"{topic}-0"]
    assert page["runs_hidden"] == 1


def test_what_others_read_of_the_same_topic_counts(shared: HandHistory) -> None:
    """Without a name: what another Dag has read is not a gap."""
    history = history_of(
        record("mine", "m1"), record("theirs", "t1", start=10, end=20), record("mine", "m2", start=20, end=30)
    )
    page = views.pipeline_view(history, Viewer(["mine"]), "pipelines.copy", NOW)
    assert page["whole"]
    assert [segment["runs"] for segment in page["lanes"][0]["segments"]] == [["p/m1"], [], ["p/m2"]]


def test_permission_is_asked_before_the_ledger(shared: HandHistory) -> None:
    """The ledger is read only for what may be shown."""
    for name in ("pipelines.copy", "nothing"):
        with pytest.raises(Trouble):
            views.run_of(shared, Viewer(["another"]), name, "p/old")
    assert shared.looked_up == []
    with pytest.raises(Trouble):
        views.run_of(shared, Viewer(["mine"]), "pipelines.copy", "p/old")
    assert shared.looked_up == [("pipelines.copy", "p/old")]


def test_a_row_that_cannot_be_made_says_so(shared: HandHistory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other rows are shown."""
    shared.pipelines["other"] = PipelineHistory("other")
    shared.pipelines["other"].add(record("mine", "m3", pipeline="other"), 1)
    moments = pipeline_rows.is_since

    def failing(run: RunRecord, moment: dt.datetime) -> bool:
        if run.pipeline == "other":
            raise ValueError(run)
        return moments(run, moment)

    monkeypatch.setattr(pipeline_rows, "is_since", failing)
    bad, good = listed(shared, Viewer(["mine"]))
    assert "cannot be shown" in bad["sentence"]
    assert not bad["whole"]
    assert good["whole"]
    assert bad.keys() == good.keys()


FIRST = "test.partition.never-committed." + "a" * 20
"""Transactional id of a first run: the ledger knows nothing of its pipeline."""


def open_now(
    history: HandHistory, viewer: Viewer, *names: str, attempts: Iterable[Attempt] = ()
) -> list[dict[str, Any]]:
    sink = frozenset({TopicPartition("secret", 0)})
    status = TransactionDescription(TransactionState.ONGOING, 1, 5, sink, 60_000, 0)
    history.open_now = dict.fromkeys(names, status)
    return OpenNow.of(history, viewer, "test").rows(viewer, attempts, "test", NOW)


@pytest.mark.parametrize(("dag", "count"), [("mine", 1), ("another", 0)])
def test_a_transaction_that_nobody_knows_is_shown_to_administrators(
    shared: HandHistory, dag: str, count: int
) -> None:
    """Only they see those of other pipelines; partitions of unknown owners are only counted."""
    names = (FIRST, "airflow-eos.g")
    assert len(open_now(shared, Viewer([dag]), *names)) == count
    rows = open_now(shared, Viewer([dag], is_admin=True), *names)
    assert len(rows) == count + 1
    assert (rows[-1]["pipeline"], rows[-1]["transactional_id"]) == ("", FIRST)
    assert (rows[-1]["partitions"], rows[-1]["partition_count"]) == ([], 1)
    assert rows[-1]["command"].endswith("--epoch 5")


def attempt(pipeline: str, group: str = "g", dag_id: str = "another", **changes: Any) -> Attempt:
    fields = {"task_id": "copy", "run_id": "r", "map_index": -1, "state": "failed", "try_number": 1}
    return Attempt(pipeline, group, dag_id, **{**fields, "max_tries": 0, "at": NOW, **changes})


def test_a_first_run_is_of_the_pipeline_that_was_tried(shared: HandHistory) -> None:
    """By its group or its name: a user who may see its Dag sees its transaction."""
    tried = [attempt("never-committed"), attempt("other", "first/group")]
    cursor = "test.cursor.first%2Fgroup"
    rows = open_now(shared, Viewer(["another"]), FIRST, cursor, attempts=tried)
    assert [(row["pipeline"], row["transactional_id"]) for row in rows] == [
        ("other", cursor),
        ("never-committed", FIRST),
    ]
    assert all(row["partitions"] == [] for row in rows)


def test_naming_another_teams_group_shows_nothing_of_it() -> None:
    """The ledger knows the group's owner."""
    history = history_of(record("mine", "m1"))
    group = [*history.pipelines["pipelines.copy"].runs.values()][-1].group_id
    tried = [attempt("taker", group)]
    assert open_now(history, Viewer(["another"]), f"test.cursor.{group}", attempts=tried) == []
    assert open_now(history, Viewer(["mine"]), f"test.cursor.{group}")[0]["partitions"] == ["secret-0"]


def of_group(dag: str, run: str, group: str) -> RunRecord:
    producer = ProducerIdentity(keys.cursor_transactional_id("test", group), 1, 1)
    return record(dag, run, group_id=group, producer=producer)


@pytest.mark.parametrize("last", ["mine", "theirs"])
@pytest.mark.parametrize("dag", ["mine", "theirs"])
def test_under_a_shared_pipeline_name_each_sees_the_transaction_of_his_dags(dag: str, last: str) -> None:
    """Whichever Dag ran last."""
    records = [of_group(dag_id, dag_id, f"{dag_id}-group") for dag_id in ("mine", "theirs")]
    history = history_of(*(records if last == "theirs" else reversed(records)))
    names = [record.producer.transactional_id for record in records]
    (row,) = open_now(history, Viewer([dag]), *names)
    assert (row["transactional_id"], row["partitions"]) == (f"test.cursor.{dag}-group", ["secret-0"])


@pytest.mark.parametrize("name", ["test.cursor.g", "test.partition.pipelines.copy." + "a" * 20])
def test_partitions_of_a_transaction_that_may_be_another_dags_are_not_named(name: str) -> None:
    """If they share a group, or the id has only the pipeline's name."""
    history = history_of(of_group("mine", "m1", "g"), of_group("theirs", "t1", "g"))
    for viewer in (Viewer(["mine"]), Viewer(["theirs"])):
        (row,) = open_now(history, viewer, name)
        assert (row["pipeline"], row["partitions"], row["partition_count"]) == ("pipelines.copy", [], 1)
    (row,) = open_now(history, Viewer(["mine", "theirs"]), name)
    assert row["partitions"] == ["secret-0"]


@pytest.mark.parametrize(("seconds", "status"), [(5, "ok"), (55, "warn")])
def test_health_warns_of_a_transaction_near_its_time_out(
    shared: HandHistory, seconds: int, status: str
) -> None:
    """With the command that ends it; a recent one belongs to an active run."""
    (row,) = open_now(shared, Viewer([], is_admin=True), FIRST)
    check = check_of([{**row, "age_seconds": seconds, "timeout_seconds": 60.0, "share": seconds / 60}])
    assert check.status == status
    assert f"{seconds} s of 60.0 s" in check.found
    assert (row["command"] in check.advice) == (status == "warn")
    assert check_of([]).status == "ok"


@pytest.mark.parametrize("error", [AuthorizationFailed("no Describe on the cluster"), TimeoutError()])
def test_open_transactions_that_are_not_seen_are_not_taken_for_none(
    shared: HandHistory, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page says that there are more than these, and health is not *ok*."""

    def refused(**_: object) -> None:
        raise error

    monkeypatch.setattr(shared, "open_transactions", refused)
    open_now = OpenNow.beside(shared, Viewer(["mine"]), "test")
    check = check_of(open_now.rows(Viewer(["mine"]), (), "test", NOW), open_now.unseen)
    assert (check.status, check.found) == ("unknown", f"not seen: {open_now.unseen}")
    assert open_now.unseen
    rows = ledger_rows(shared, Viewer(["mine"]), NOW)
    values = pipelines_view(rows, [], NOW, unseen_transactions=open_now.unseen)
    assert values["warnings"] == [f"Which transactions are open is not known: {open_now.unseen}."]


def test_a_topic_that_may_not_be_described_is_named(shared: HandHistory) -> None:
    """It claims neither a lag nor that all is well."""
    pipeline = shared.pipelines["pipelines.copy"]
    coverage = replace(shared.coverage(pipeline), unseen=("src",))
    row = pipeline_row(shared, Viewer(["mine"]), pipeline, coverage, NOW)
    assert (row["unread"], row["whole"], row["unseen"]) == (None, False, ["src"])
    assert row["sentence"].endswith("may not Describe src, or a partition has no leader")
    others = pipeline_row(shared, Viewer(["theirs"]), pipeline, coverage, NOW)
    assert others["whole"]


def test_versions_of_packages_are_told_one_by_one() -> None:
    """And not as the text of a dictionary."""
    assert flat({"spark": "4.1", "packages": {"pyarrow": 20}}) == {
        "spark": "4.1",
        "packages, pyarrow": "20",
    }


WORK = {"topics": ["src"], "mode": "interval"}


def of_interval(day: int, run: str, interval: Any = None) -> RunRecord:
    days = [f"2026-11-{day:02}T00:00:00Z", f"2026-11-{day + 1:02}T00:00:00Z"]
    plain = record("mine", run, start=day, end=day + 1, mode="interval")
    return replace(plain, details={**plain.details, "work": {**WORK, "interval": interval or days}})


def test_runs_of_intervals_show_them_and_come_in_their_order() -> None:
    """A backfill commits in any order, and its run id has another date than its interval."""
    history = history_of(of_interval(12, "b"), of_interval(10, "c"), of_interval(11, "a"))
    page = views.pipeline_view(history, Viewer(["mine"]), "pipelines.copy", NOW)
    assert [entry["interval"][0][:10] for entry in page["runs_shown"]] == [
        "2026-11-12",
        "2026-11-11",
        "2026-11-10",
    ]
    row = record_row(LedgerRecord("run:p/b", 0, 0, of_interval(12, "b").to_json()))
    assert row["what"].startswith("[2026-11-12T00:00:00Z, 2026-11-13T00:00:00Z): 10 read")


@pytest.mark.parametrize("interval", ["x", [1, 2], ["a"], {"a": 1}])
def test_what_is_not_an_interval_is_none(interval: Any) -> None:
    """Whatever wrote it."""
    history = history_of(of_interval(12, "b", interval))
    page = views.pipeline_view(history, Viewer(["mine"]), "pipelines.copy", NOW)
    assert page["runs_shown"][0]["interval"] is None


@pytest.mark.parametrize("value", ['"\\ud800"', "NaN", "Infinity", "1e999"])
def test_json_that_no_answer_can_repeat_is_refused(value: str) -> None:
    """The error describes the problem without the value."""
    pages = app.create_app(Desk(app.deployment))
    for dependency in (app._viewer, *(given.dependency for given in pages.router.dependencies)):
        pages.dependency_overrides[dependency] = lambda: Viewer(["mine"])
    body = f'{{"pipeline": {value}, "run_key": "k"}}'
    answer = TestClient(pages, raise_server_exceptions=False).post(
        "/api/v1/verify", content=body, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("body, pipeline: Input should be a valid string")
    assert value.strip('"') not in answer.text


def test_late_records_are_told_of_those_that_were_read() -> None:
    """The page has the text of the record."""
    late = record("mine", "m1", mode="interval", records_late=9, receipts=())
    values = views.run_view(history_of(late), Viewer(["mine"]), "pipelines.copy", "p/m1")
    text = templates.get_template("run.html").render(
        base="/eos", site="", version="1", trouble=None, **values
    )
    assert late.counts == "10 read (9 of them late), 0 written"
    assert f": {late.counts}." in text


@pytest.mark.parametrize(("number", "warning"), [(1, "1 record of"), (1_000, "1,000 records of")])
def test_unreadable_records_are_counted(shared: HandHistory, number: int, warning: str) -> None:
    shared.unreadable = ["an error"] * number
    (text,) = ledger_rows(shared, Viewer(["mine"]), NOW).warnings
    assert text.startswith(f"{warning} the ledger cannot be read")


def shown_for(requested: Requested, *attempts: Attempt) -> str:
    named = {"dag_id": "mine", "task_id": "copy", "map_index": -1}
    runs = [
        replace(record("mine", run, pipeline=pipeline), details={"airflow": {**named, "run_id": run}})
        for run, pipeline in (("m1", "p"), ("m2", "p"))
    ]
    history = history_of(*runs, record("theirs", "t1", "theirs", pipeline="secret"))
    return page_of(runs_of(history, Viewer(["mine"]), requested), attempts, requested)


@pytest.mark.parametrize("index", ["", "-1", "{MAP_INDEX}"])
def test_a_task_instance_leads_to_its_run_and_a_dag_to_its_pipeline(index: str) -> None:
    """For an unmapped task, Airflow leaves the placeholder of the map index in the address."""
    assert shown_for(Requested("mine", "m1", "copy", index)) == "/run?pipeline=p&key=p%2Fm1"
    assert shown_for(Requested("mine", "m1")) == "/pipeline?name=p"
    assert shown_for(Requested("mine")) == "/pipeline?name=p"


def test_a_tab_of_airflow_3_1_leads_to_its_run() -> None:
    """It does not quote names in the address, where a plus means a blank."""
    scheduled = attempt("q", dag_id="mine", run_id="manual__2026-11-20T22:00:00+00:00 again")
    named = "manual__2026-11-20T22:00:00 00:00 again"
    assert shown_for(Requested("mine", named, "copy"), scheduled) == "/pipeline?name=q"
    with pytest.raises(Trouble):
        shown_for(Requested("mine", named.replace(" ", "+"), "copy"), scheduled)


def test_what_never_committed_leads_to_its_attempts() -> None:
    """A Dag with several pipelines leads to the list of them."""
    failed = attempt("q", dag_id="mine", run_id="m3")
    assert shown_for(Requested("mine", "m3", "copy"), failed) == "/pipeline?name=q"
    assert shown_for(Requested("mine"), failed) == "/?dag=mine"


def test_the_list_of_a_dag_has_its_pipelines_alone() -> None:
    """Also pipelines that another Dag took over, or that it only tried; none of a Dag with a longer name."""
    history = history_of(
        record("etl", "r1", pipeline="orders"),
        record("nightly", "r2", pipeline="orders", start=10, end=20),
        record("etl_archive", "r1", pipeline="other"),
    )
    tried = (attempt("new", dag_id="etl"), attempt("clicks", dag_id="nightly"))
    ledger = ledger_rows(history, Viewer(["etl", "nightly", "etl_archive"]), NOW)
    shown = pipelines_view(ledger, tried, NOW, dag="etl")
    assert {row["pipeline"] for row in shown["pipelines"]} == {"orders", "new"}
    assert (shown["dag"], shown["total"]) == ("etl", 4)
    page = templates.get_template("pipelines.html").render(
        base="", site="", version="", trouble=None, **shown
    )
    assert "Pipelines of Dag etl" in page
    assert page.count("dag=etl") == len(shown["states"])
    assert '<input type="hidden" name="dag" value="etl">' in page


def test_what_was_written_in_a_week_is_a_lower_bound_where_runs_of_it_are_forgotten() -> None:
    """Memory has the newest records of a pipeline: a run per minute fills it in less than two days."""
    of_today = {"staged_at": "2026-11-20T22:00:00.000Z"}
    runs = [record("mine", f"r{n}", start=n, end=n + 1, **of_today) for n in range(3)]
    (row,) = ledger_rows(history_of(*runs), Viewer(["mine"]), NOW).rows
    assert (row["records_of_7_days"], row["all_of_7_days"]) == (30, True)
    history = history_of(*runs)
    history.pipelines["pipelines.copy"].forget_oldest()
    (row,) = ledger_rows(history, Viewer(["mine"]), NOW).rows
    assert (row["records_of_7_days"], row["all_of_7_days"]) == (20, False)
    page = views.pipeline_view(history, Viewer(["mine"]), "pipelines.copy", NOW)
    values = {**page, **attempts_view([], NOW)}
    shown = templates.get_template("pipeline.html").render(
        base="", site="", version="", trouble=None, **values
    )
    assert "at least 20" in shown
    old = replace(runs[0], staged_at="2026-01-01T00:00:00.000Z")
    history = history_of(old, replace(old, run_key="p/old"), *runs[1:])
    history.pipelines["pipelines.copy"].forget_oldest()
    (row,) = ledger_rows(history, Viewer(["mine"]), NOW).rows
    assert (row["records_of_7_days"], row["all_of_7_days"]) == (20, True)


@pytest.mark.parametrize(
    "requested", [Requested("theirs"), Requested("mine", "m9", "copy"), Requested("mine", task_id="x")]
)
def test_where_no_pipeline_is_known_the_tab_says_so(requested: Requested) -> None:
    """A user who may not see a Dag learns nothing about it."""
    with pytest.raises(Trouble) as refused:
        shown_for(requested)
    assert refused.value.status == 404
    assert "secret" not in refused.value.text


def test_a_user_without_a_dag_asks_neither_ledger_nor_brokers():
    """Such a user could only slow others down; an administrator sees what belongs to no Dag."""
    users = []
    desk = SimpleNamespace(ask=lambda question, user: users.append(user))
    request = SimpleNamespace(app=SimpleNamespace(state=SimpleNamespace(desk=desk)))
    with pytest.raises(Trouble, match="Nothing to show") as refusal:
        app._ask(request, Viewer([], "guest"), lambda history: None)
    assert refusal.value.status == NOT_SHOWN
    app._ask(request, Viewer([], "admin", is_admin=True), lambda history: None)
    app._ask(request, Viewer(["mine"], "owner"), lambda history: None)
    assert users == ["admin", "owner"]
