"""The pages in Airflow, with Airflow's real application and a real broker: access rights and contents."""

from __future__ import annotations

import datetime as dt
import json
import re
import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from urllib.parse import quote, urlencode

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Position

from airflow_eos.broker.cluster import KafkaCluster
from airflow_eos.broker.shared_connections import Link
from airflow_eos.cli.main import main
from airflow_eos.engine.control_plane import ControlPlane
from airflow_eos.exceptions import BrokersUnavailable
from airflow_eos.ledger import keys
from airflow_eos.model.ledger import LedgerMessage
from airflow_eos.model.spec import Deployment, LedgerSettings
from airflow_eos.operators.failure_record import FailureRecord
from airflow_eos.run.states import State
from airflow_eos.ui.desk import QUESTIONS_WAITING, VERIFY_OFFSETS, Desk
from airflow_eos.ui.trouble import Trouble
from airflow_eos.ui.viewer import Viewer
from tests.support.accessible import faint, names, reached_by_tab
from tests.support.airflow_app import (  # first of all: it sets Airflow's home
    airflow_app,
    password,
    served,
    token,
)
from tests.support.airflow_records import attempted, forget_attempts
from tests.support.brokers import foreign_transaction, unique, write
from tests.support.browser import browser, with_browser
from tests.support.local_runs import Paused, Pipeline
from tests.support.patience import eventually, wait_until

# Airflow 3.1's own page of all views, and the streams of the Starlette that it allows.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The `name` is not the first parameter:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Unclosed <MemoryObject:ResourceWarning"),
]
MINE, THEIRS = "mine", "theirs"
NOW = dt.datetime.now(dt.timezone.utc)


def task(dag):
    return {"dag_id": dag, "task_id": "copy", "map_index": -1, "run_id": "manual__1"}


@pytest.fixture(scope="module")
def pipeline(embedded_kafka):
    """Three runs of a Dag that users may see."""
    # Names that Kafka and Airflow allow, and that ids quote.
    names = {"group_id": "team/orders 50%", "pipeline": "한국어/집계 #1"}
    return three_runs(embedded_kafka, **names)


def three_runs(kafka, **changes):
    pipeline = Pipeline(kafka, task=task(MINE), **changes)
    for number in range(3):
        pipeline.publish([f"a{number}", f"b{number}"], partition=0)
        pipeline.publish([f"c{number}"], partition=1)
        pipeline.run(f"r{number}")
    return pipeline


@pytest.fixture(scope="module")
def other(embedded_kafka, pipeline):
    """A run in the same ledger, of a Dag that the user may not see."""
    return another(embedded_kafka, pipeline, task=task(THEIRS))


@pytest.fixture(scope="module")
def nameless(embedded_kafka, pipeline):
    """A run whose record names no Dag."""
    return another(embedded_kafka, pipeline)


def tiled(pipeline):
    """Return the sentence on three runs; each partition has its own end."""
    source = pipeline.source
    return f"3 runs tile offsets [0, 6) of {source}-0 and [0, 3) of {source}-1 without gap or overlap"


def another(kafka, pipeline, **changes):
    sibling = Pipeline(kafka, ledger=pipeline.spec.ledger, **changes)
    sibling.publish(["x"])
    sibling.run("r0")
    return sibling


@pytest.fixture(scope="module")
def app(pipeline, other, nameless):
    with airflow_app(pipeline.spec.kafka, ledger=pipeline.spec.ledger.topic, dags=(MINE,)) as client:
        yield client
        close_desk(client)


def mounted(client):
    """Return the pages' own application."""
    return next(route.app for route in client.app.routes if getattr(route, "path", "") == "/eos")


def close_desk(client):
    """Close the connections of the pages: else garbage collection warns of them."""
    mounted(client).state.desk.close()


@contextmanager
def with_desk(client, desk):
    """Give the pages another desk."""
    pages = mounted(client)
    before, pages.state.desk = pages.state.desk, desk
    try:
        yield client
    finally:
        pages.state.desk = before


@pytest.fixture
def page(app):
    """Request a page as the viewer."""
    app.cookies.clear()
    app.cookies.set("_token", token("viewer"))
    yield app
    app.cookies.clear()
    forget_attempts()


@contextmanager
def own_page(page, pipeline):
    """Request the pages of a separate ledger."""
    desk = Desk(lambda: pipeline.spec.deployment)
    with with_desk(page, desk):
        yield page
    desk.close()


def run_key(pipeline, run_id):
    return keys.cursor_run_key(pipeline.spec.pipeline, run_id)


PAGES = ["/pipeline?name={p}", "/run?pipeline={p}&key={k}"]
PATHS = [
    "/",
    "/pipeline?name=p",
    "/run?pipeline=p&key=k",
    "/transactions",
    "/health",
    "/of?dag_id=d",
    "/style.css",
    "/page.js",
]
TWINS = [
    f"/api/v1/{name}"
    for name in ("pipelines", "pipeline?name=p", "run?pipeline=p&key=k", "transactions", "health")
]


@pytest.mark.parametrize("path", [*PATHS, *TWINS])
def test_nothing_is_served_without_a_login(app, path):
    """Airflow does not authenticate the applications that plugins mount: the pages do it."""
    app.cookies.clear()
    answer = app.get(f"/eos{path}")
    assert answer.status_code == 401
    assert "ledger" not in answer.text


def test_verifying_wants_a_login_and_json(app, page, pipeline):
    """A form of another site can send neither."""
    body = {"pipeline": pipeline.spec.pipeline, "run_key": run_key(pipeline, "r0")}
    assert page.post("/eos/api/v1/verify", data=body).status_code in (415, 422)
    app.cookies.clear()
    assert app.post("/eos/api/v1/verify", json=body).status_code == 401


def test_a_bearer_token_is_a_login(app, pipeline):
    """As for Airflow's own API."""
    app.cookies.clear()
    answer = app.get("/eos/api/v1/pipelines", headers={"Authorization": f"Bearer {token('viewer')}"})
    assert answer.status_code == 200
    assert pipeline.spec.pipeline in {row["pipeline"] for row in answer.json()["pipelines"]}


def test_who_may_not_see_plugins_sees_no_page(app):
    """A login without the permission on plugins is not enough."""
    app.cookies.clear()
    app.cookies.set("_token", token("nobody", role=None))
    assert app.get("/eos/").status_code == 403
    assert app.get("/eos/style.css").status_code == 403


def test_pipelines_of_other_dags_and_of_none_are_not_listed(page, pipeline, other, nameless):
    """One row: the pipeline of the Dag that the user may see."""
    answer = page.get("/eos/")
    assert answer.status_code == 200
    assert pipeline.spec.pipeline in answer.text
    assert other.spec.pipeline not in answer.text
    assert nameless.spec.pipeline not in answer.text
    assert tiled(pipeline) in answer.text


@pytest.mark.parametrize("kind", ["other", "nameless"])
@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("twin", ["", "/api/v1"])
def test_records_of_other_dags_and_of_none_are_refused(page, request, kind, path, twin):
    """The answer is the same as for records that do not exist."""
    foreign = request.getfixturevalue(kind)
    url = twin + path.format(p=foreign.spec.pipeline, k=run_key(foreign, "r0"))
    absent = twin + path.format(p="absent", k="absent")
    answer = page.get(f"/eos{url}")
    assert answer.status_code == page.get(f"/eos{absent}").status_code == 403
    assert foreign.source not in answer.text
    assert answer.text == page.get(f"/eos{absent}").text
    body = {"pipeline": foreign.spec.pipeline, "run_key": run_key(foreign, "r0")}
    assert page.post("/eos/api/v1/verify", json=body).status_code == 403


def test_a_pipeline_has_its_sentence_its_lanes_and_its_runs(page, pipeline):
    """Its twin in JSON has the same content."""
    name = pipeline.spec.pipeline
    text = page.get(f"/eos/pipeline?name={quote(name)}").text
    assert 'class="sentence whole"' in text
    assert text.count('class="lane"') == 2
    twin = page.get(f"/eos/api/v1/pipeline?name={quote(name)}").json()
    assert twin["sentence"] == tiled(pipeline)
    assert [run["run_id"] for run in twin["runs_shown"]] == ["r2", "r1", "r0"]
    assert [
        (segment["start"], segment["end"], segment["runs"]) for segment in twin["lanes"][1]["segments"]
    ] == [(number, number + 1, [run_key(pipeline, f"r{number}")]) for number in range(3)]
    only = page.get(f"/eos/api/v1/pipeline?name={quote(name)}&find=r1").json()["runs_shown"]
    assert [run["run_id"] for run in only] == ["r1"]


def test_tabs_of_airflow_lead_to_the_page_of_a_pipeline(page, pipeline, other):
    """For a Dag that the user may see; the tab of another one reveals nothing."""
    address = "/eos/of?dag_id={}&run_id={}&task_id=copy&map_index={}"
    answer = page.get(address.format(MINE, "never", "{MAP_INDEX}"))
    assert (answer.status_code, "No pipeline is known here" in answer.text) == (404, True)
    attempted(MINE, run_id="first", at=NOW, fields={"pipeline": pipeline.spec.pipeline})
    answer = page.get(address.format(MINE, "first", "{MAP_INDEX}"), follow_redirects=False)
    assert answer.status_code == 303
    assert answer.headers["location"] == f"/eos/pipeline?{urlencode({'name': pipeline.spec.pipeline})}"
    assert page.get(answer.headers["location"]).status_code == 200
    refused = page.get(address.format(THEIRS, "manual__1", "-1"))
    assert refused.status_code == 403
    assert other.spec.pipeline not in refused.text


@pytest.mark.parametrize("entity", ["TASK_INSTANCE", "XCOM"])
def test_attempts_are_shown_to_whom_airflow_shows_them(page, pipeline, entity, monkeypatch):
    """An error may quote a record: access to a Dag alone shows neither task instances nor XComs."""
    from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

    name, failure = pipeline.spec.pipeline, FailureRecord(1, "ProcessFailed", "not a number: '4711'")
    attempted(MINE, at=NOW, fields={"pipeline": name}, failure=failure)
    paths = {path: {"name": name} for path in ("/", "/pipeline", "/api/v1/pipelines", "/api/v1/pipeline")}
    answers = [page.get(f"/eos{path}", params=params) for path, params in paths.items()]
    assert all("4711" in answer.text for answer in answers)
    allows = SimpleAuthManager.is_authorized_dag

    def allows_others(manager, *, access_entity=None, **request):
        refused = access_entity is not None and access_entity.name == entity
        return not refused and allows(manager, access_entity=access_entity, **request)

    monkeypatch.setattr(SimpleAuthManager, "is_authorized_dag", allows_others)
    for path, params in paths.items():
        answer = page.get(f"/eos{path}", params=params)
        assert (answer.status_code, name in answer.text, "4711" in answer.text) == (200, True, False)
    assert "or you may not see them in Airflow" in page.get("/eos/").text


def test_a_run_is_shown_and_verified(page, pipeline):
    """Its output is read again; each partition shows the result."""
    key = run_key(pipeline, "r1")
    text = page.get("/eos/run", params={"pipeline": pipeline.spec.pipeline, "key": key}).text
    assert f'href="/dags/{MINE}/runs/manual__1"' in text
    report = page.post("/eos/api/v1/verify", json={"pipeline": pipeline.spec.pipeline, "run_key": key}).json()
    assert report["ok"]
    assert sum(finding["found"] for finding in report["findings"]) == 3


def test_a_transaction_that_is_open_now_is_shown(embedded_kafka, page, pipeline, other):
    """Only those of pipelines that the user may see; the page cannot end one."""
    group = {"group_id": f"team/{unique('orders')} 50%"}
    pipeline = another(embedded_kafka, pipeline, task=task(MINE), **group)
    shown(page, pipeline, 1)  # the page's view of the ledger may be a second old
    pipeline.publish(["d"], partition=0)
    with_open = Paused(pipeline, State.WRITTEN, "r3")
    try:
        rows = page.get("/eos/api/v1/transactions").json()["transactions"]
        assert [(row["pipeline"], row["state"]) for row in rows] == [(pipeline.spec.pipeline, "Ongoing")]
        assert f"{pipeline.sink}-" in rows[0]["partitions"][0]
        assert 0 <= rows[0]["age_seconds"] < rows[0]["timeout_seconds"]
        text = page.get("/eos/transactions").text
        assert keys.cursor_transactional_id("test", pipeline.spec.group_id) in text
        assert '<button type="button" id="refresh"' in text
        assert text.count("<button") == 1
    finally:
        with_open.resume()
    assert with_open.error is None
    wait_until(lambda: not page.get("/eos/api/v1/transactions").json()["transactions"])
    shown(page, pipeline, 2)


def test_health_is_told_of_brokers_ledger_and_the_topics_that_one_may_see(embedded_kafka, page):
    """Read-only: the doctor's transactional id is not fenced. Topics of other Dags are omitted."""
    pipeline = three_runs(embedded_kafka)
    other, nameless = (
        another(embedded_kafka, pipeline, task=task(THEIRS)),
        another(embedded_kafka, pipeline),
    )
    with Link(pipeline.spec.kafka) as link:
        cluster = KafkaCluster(link)
        before = cluster.describe_transaction(keys.doctor_transactional_id("test"))
    with own_page(page, pipeline):
        twin = page.get("/eos/api/v1/health").json()
        text = page.get("/eos/health").text
    assert (twin["healthy"], twin["failed"]) == (True, [])
    statuses = {check["name"]: check["status"] for check in twin["checks"]}
    assert set(statuses.values()) == {"ok"}
    topics = {name for name in statuses if name.startswith("topic ")}
    assert topics == {f"topic {pipeline.source}", f"topic {pipeline.sink} replicas"}
    assert twin["sentence"] == f"None of {len(statuses)} checks fails"
    assert 'class="sentence whole"' in text
    assert text.count("<button") == 1
    for hidden in (other, nameless):
        assert hidden.source not in text
        assert hidden.sink not in text
    with Link(pipeline.spec.kafka) as link:
        cluster = KafkaCluster(link)
        assert cluster.describe_transaction(keys.doctor_transactional_id("test")) == before


def test_health_is_not_told_to_whom_no_pipeline_is_shown(app, page, pipeline, monkeypatch):
    """They see neither brokers nor the ledger."""
    monkeypatch.setattr(Viewer, "may_see", lambda *_: False)
    twin = page.get("/eos/api/v1/health").json()
    assert twin["checks"] == []
    text = page.get("/eos/health").text
    assert "No run of a Dag that you may see is in the ledger" in text
    assert pipeline.spec.ledger.topic not in text


def take_out(pipeline, run_id):
    """Write a tombstone for a run's record, as any client with Write on the ledger can."""
    with ControlPlane(pipeline.spec.deployment) as control:
        partition = control.ledger.partition_for(pipeline.spec.pipeline)
    key = keys.run_record_key(run_key(pipeline, run_id))
    topic = pipeline.spec.ledger.topic
    with foreign_transaction(pipeline.spec.kafka, topic, (key, None), partition=partition) as producer:
        producer.commit_transaction(30)


def test_hostile_names_are_text_and_nothing_else(embedded_kafka, page, pipeline):
    """Wherever they are: in a run's id, in a key, in notes, in the names of the task."""
    from airflow_eos.ui.history import RunHistory

    bad = "\"><script>alert(1)</script>'{{7*7}}</pre>"
    hostile = another(embedded_kafka, pipeline, task=task(MINE))
    forgeries = []
    original = RunHistory.refresh

    def refresh(self):
        original(self)
        history = self.pipelines[hostile.spec.pipeline]
        record = next(iter(history.runs.values()))
        forged = replace(
            record,
            run_id=bad,
            receipts=tuple(replace(receipt, topic=bad) for receipt in record.receipts),
            details={
                **record.details,
                "airflow": {"dag_id": MINE, "task_id": bad, "map_index": bad, "run_id": bad},
                "notes": [bad],
                "versions": {bad: bad},
            },
        )
        history.add(forged, 1)
        self.pipelines[bad] = replace(history, name=bad)
        forgeries.append(forged)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(RunHistory, "refresh", refresh)
        time.sleep(1.1)
        answers = [
            page.get("/eos/"),
            page.get("/eos/pipeline", params={"name": hostile.spec.pipeline}),
            page.get("/eos/pipeline", params={"name": bad, "find": bad}),
            page.get("/eos/run", params={"pipeline": hostile.spec.pipeline, "key": run_key(hostile, "r0")}),
            page.get("/eos/health"),
        ]
    assert forgeries
    for answer in answers:
        assert answer.status_code == 200, answer.text
        assert "alert(1)" in answer.text
        assert "<script>alert" not in answer.text
        assert "49" not in answer.text.split("alert(1)")[1][:40]
        assert "default-src 'none'" in answer.headers["content-security-policy"]


@with_browser
def test_somebody_logs_in_and_looks(app, pipeline):
    """From Airflow's view to a pipeline, a run and its verified output, in light and dark mode, and out."""
    with served(app.app) as address, browser() as seen:

        def follows(scheme, back):
            seen.prefer(scheme)
            theme = "return document.documentElement.dataset.theme"
            seen.soon(lambda: seen.run(theme) == scheme)
            assert seen.run("return getComputedStyle(document.body).backgroundColor") == back

        seen.open(f"{address}/plugin/exactly-once")
        seen.write("input[name=username]", "viewer")
        seen.write("input[name=password]", password("viewer"))
        seen.click("button[type=submit]")
        seen.soon(lambda: "/login" not in seen.address)
        seen.open(f"{address}/plugin/exactly-once")
        seen.into("iframe")
        assert seen.text("h1") == "Pipelines"
        seen.click("header nav a[href$='/health']")
        seen.soon(lambda: seen.text("h1") == "Health")
        assert "fails" in seen.text(".sentence")
        assert seen.run("return document.querySelectorAll('tbody .status.ok').length") >= 8
        seen.click("header nav a:first-child")
        seen.click(f"tbody th a[href$='{urlencode({'name': pipeline.spec.pipeline})}']")
        seen.soon(lambda: seen.text("h1") == pipeline.spec.pipeline)
        assert "runs tile offsets [0, " in seen.text(".sentence")
        assert seen.run("return document.querySelectorAll('svg rect.read').length") >= 6
        follows("light", "rgb(251, 252, 253)")
        seen.click("tbody tr:last-child th a")
        seen.click("#verify")
        seen.soon(lambda: "Every record that the run wrote is there, once" in seen.text("#verified"))
        follows("dark", "rgb(18, 23, 29)")
        seen.click("dd a[data-out]")
        seen.out()
        seen.soon(lambda: f"/dags/{MINE}/runs/manual__1" in seen.address)


def test_a_record_taken_out_of_the_ledger_turns_the_sentence_red(embedded_kafka, page, pipeline):
    """The sentence locates the gap, and the page names the missing run by its offsets."""
    pipeline = three_runs(embedded_kafka, ledger=pipeline.spec.ledger)
    shown(page, pipeline, 3)
    take_out(pipeline, "r1")
    name = pipeline.spec.pipeline
    wait_until(lambda: not page.get(f"/eos/api/v1/pipeline?name={quote(name)}").json()["whole"])
    text = page.get(f"/eos/pipeline?name={quote(name)}").text
    assert 'class="sentence broken"' in text
    assert "2 gaps in what" in text
    assert f"offsets [2, 4) of {pipeline.source}-0 were read by no run" in text
    assert f"offset 1 of {pipeline.source}-1 was read by no run" in text
    assert "hatch" in text


def shown(page, pipeline, runs):
    """Return the twin of a pipeline's page once it shows its runs: the page reads once a second at most."""
    path = f"/eos/api/v1/pipeline?name={quote(pipeline.spec.pipeline)}"
    return eventually(lambda: page.get(path).json(), lambda twin: twin.get("runs") == runs)


@pytest.fixture(scope="module")
def read_twice(embedded_kafka, pipeline):
    """A pipeline whose group was changed: the new group began again, regardless of the old one's plans."""
    regrouped = Pipeline(embedded_kafka, ledger=pipeline.spec.ledger, task=task(MINE))
    regrouped.publish(["a", "b"])
    regrouped.run("r0")
    regrouped.publish(["c"])
    regrouped.run("r1", group_id=unique("group"))
    return regrouped


def test_offsets_that_two_runs_have_read_turn_the_sentence_red(page, read_twice):
    """The sentence and the drawing locate the overlap."""
    name = read_twice.spec.pipeline
    twin = shown(page, read_twice, 2)
    wrong = f"1 overlap in what 2 runs read: offsets [0, 2) of {read_twice.source}-0 were read by 2 runs"
    assert (twin["whole"], twin["sentence"]) == (False, wrong)
    (lane,) = (lane for lane in twin["lanes"] if lane["where"] == f"{read_twice.source}-0")
    assert [(segment["start"], segment["end"], segment["kind"]) for segment in lane["segments"]] == [
        (0, 2, "overlap"),
        (2, 3, "read"),
    ]
    text = page.get(f"/eos/pipeline?name={quote(name)}").text
    assert 'class="sentence broken"' in text
    assert 'class="overlap"' in text


@pytest.fixture(scope="module")
def fenced(embedded_kafka, pipeline):
    """Three runs; one that was replaced while stopped with an open transaction; one that aborted its own."""
    contested = Pipeline(embedded_kafka, ledger=pipeline.spec.ledger, task=task(MINE))
    for number in range(3):
        contested.publish([f"a{number}"])
        contested.run(f"r{number}")
    contested.publish(["b"])
    stopped = Paused(contested, State.OPEN, "r3")
    contested.run("r3", try_number=2)
    stopped.resume()
    contested.publish(["c"])
    failed = []

    def fail_once(state):
        if state is State.WRITTEN and not failed:
            failed.append(state)
            raise RuntimeError("once")

    contested.run("r4", on_state=fail_once)
    return contested


def test_epochs_tell_who_fenced_whom(page, fenced):
    """On a real broker a run takes one epoch; an attempt that is stopped leaves a gap, and no row."""
    shown(page, fenced, 5)

    def epochs(run_id):
        params = {"pipeline": fenced.spec.pipeline, "key": run_key(fenced, run_id)}
        rows = page.get("/eos/api/v1/run", params=params).json()["epochs"]
        return [(row["whose"], row["epoch"], row["outcome"], row["run_id"]) for row in rows]

    assert epochs("r1") == [
        ("run before", "0", "committed; fenced by this run", "r0"),
        ("this run", "1", "committed; fenced by the next run", ""),
        ("next run", "2", "committed; it fenced this run", "r2"),
    ]
    assert epochs("r3") == [
        ("run before", "2", "committed; fenced by this run", "r2"),
        ("this run", "5", "committed; fenced by the next run", ""),
        ("next run", "7", "committed; it fenced this run", "r4"),
    ]
    assert epochs("r4") == [
        ("run before", "5", "committed; fenced by this run", "r3"),
        ("this run, epoch 1 of 2", "below 7", "aborted by this run itself, which took the next epoch", ""),
        ("this run, epoch 2 of 2", "7", "committed", ""),
    ]
    text = page.get("/eos/run", params={"pipeline": fenced.spec.pipeline, "key": run_key(fenced, "r4")}).text
    assert "aborted by this run itself, which took the next epoch" in text


def test_a_pipelines_page_shows_where_the_time_of_its_runs_goes(page, fenced):
    """One bar per run; what a bar shows is also in the text."""
    chart = shown(page, fenced, 5)["shares"]
    assert [row["run_id"] for row in chart["runs"]] == ["r4", "r3", "r2", "r1", "r0"]
    assert chart["states"] == [
        *("ASKED", "FENCED", "CHECKED", "PLANNED", "SEALED", "OPEN", "WRITTEN"),
        "ABORTED",
    ]
    for row in chart["runs"]:
        assert sum(part["seconds"] for part in row["parts"]) == pytest.approx(row["seconds"], abs=0.01)
        assert [part["x"] for part in row["parts"]] == sorted(part["x"] for part in row["parts"])
    assert max(sum(part["w"] for part in row["parts"]) for row in chart["runs"]) == pytest.approx(1000, abs=1)
    text = page.get("/eos/pipeline", params={"name": fenced.spec.pipeline}).text
    assert 'aria-label="r4: ASKED 0.' in text
    run = page.get("/eos/run", params={"pipeline": fenced.spec.pipeline, "key": run_key(fenced, "r4")})
    assert 'aria-label="ABORTED: 0.' in run.text
    states = page.get(run.url.path.replace("/eos/", "/eos/api/v1/") + "?" + run.url.query.decode()).json()
    was_open = [state["state"] for state in states["states"] if state["open"]]
    assert was_open == ["WRITTEN", "ABORTED", "WRITTEN"]


def test_commands_and_pages_say_the_same(page, fenced, embedded_kafka, pipeline, capsys):
    """The twins have each field that `ledger`, `status` and `verify` print, with the same names."""

    def command(name, *options):
        flags = ["--bootstrap-servers", embedded_kafka.bootstrap_servers, "--prefix", "test"]
        capsys.readouterr()
        assert (
            main([name, *flags, "--ledger-topic", fenced.spec.ledger.topic, "--output", "json", *options])
            == 0
        )
        return json.loads(capsys.readouterr().out)

    def twin(run_id):
        request = {"pipeline": fenced.spec.pipeline, "key": run_key(fenced, run_id)}
        return page.get("/eos/api/v1/run", params=request).json()

    shown(page, fenced, 5)
    fenced_name = fenced.spec.pipeline
    records = command("ledger", "--pipeline", fenced_name)["records"]
    runs = [record["value"] for record in records if record["key"].startswith("run:")]
    assert runs == [twin(run["run_id"])["record"] for run in runs]
    assert len(runs) == 5
    status = command("status")
    summary, newest = status["pipelines"][fenced_name], twin("r4")
    assert summary == {name: newest[name] for name in summary}
    verified = command("verify", "--pipeline", fenced_name, "--run-key", run_key(fenced, "r4"))
    body = {"pipeline": fenced_name, "run_key": run_key(fenced, "r4")}
    by_page = page.post("/eos/api/v1/verify", json=body).json()
    assert set(verified) - set(by_page) == {"pruned", "unreadable"}
    assert set(by_page) - set(verified) == {"ok"}
    assert {name: by_page[name] for name in verified if name in by_page} == {
        name: value for name, value in verified.items() if name in by_page
    }
    waiting = another(embedded_kafka, pipeline, task=task(MINE))
    waiting.publish(["y"])
    paused = Paused(waiting, State.WRITTEN, "r1")
    try:
        (printed,) = command("status")["open_transactions"]
        request = "/eos/api/v1/transactions"
        (row,) = eventually(lambda: page.get(request).json()["transactions"], len)
        assert 0 <= row.pop("age_seconds") - printed.pop("age_seconds") < 30
        options = printed.pop("command").removeprefix("python -m airflow_eos")
        # The page's command names no connection: the page's own may be read-only.
        assert options.startswith(row["command"].removeprefix("airflow eos"))
        assert printed == {name: row[name] for name in printed}
        assert set(printed) == {"transactional_id", "started", "timeout_seconds"}
    finally:
        paused.resume()
    checks = command("doctor")["checks"]
    assert set(checks[0]) == set(page.get("/eos/api/v1/health").json()["checks"][0])


@pytest.fixture
def robbed(embedded_kafka, pipeline):
    """A pipeline whose sink was recreated with all of the output but one record."""
    damaged = Pipeline(embedded_kafka, ledger=pipeline.spec.ledger, task=task(MINE), partitions=1)
    damaged.publish(["a", "b", "c"])
    damaged.run("r0")
    kept = damaged.output()[:-1]
    embedded_kafka.delete_topic(damaged.sink)
    embedded_kafka.create_topic(damaged.sink, partitions=1)
    producer = Producer(embedded_kafka.client_config())
    write(producer, damaged.sink, *((None, value) for value in kept))
    return damaged


def test_a_record_taken_out_of_the_output_turns_run_and_pipeline_red(page, robbed):
    """Once Verify has found the loss: it is unknown before."""
    name, key = robbed.spec.pipeline, run_key(robbed, "r0")
    assert shown(page, robbed, 1)["whole"]
    report = page.post("/eos/api/v1/verify", json={"pipeline": name, "run_key": key}).json()
    assert (report["ok"], report["matches"]) == (False, False)
    assert [(finding["outcome"], finding["recorded"]) for finding in report["findings"]] == [("mismatch", 3)]
    twin = page.get(f"/eos/api/v1/pipeline?name={quote(name)}").json()
    assert not twin["whole"]
    assert twin["sentence"].endswith("; and the output of 1 run is not there as it was written")
    assert twin["damaged"] == [{"run_key": key, "run_id": "r0"}]
    assert 'class="sentence broken"' in page.get(f"/eos/pipeline?name={quote(name)}").text
    text = page.get("/eos/run", params={"pipeline": name, "key": key}).text
    assert 'class="sentence broken"' in text
    assert "its output is not there as it was written" in text


def test_output_that_was_deleted_since_is_no_error_and_not_whole(embedded_kafka, page, pipeline):
    """Retention may have deleted it: the pipeline's sentence does not change."""
    sibling = another(embedded_kafka, pipeline, task=task(MINE))
    (receipt,) = (receipt for receipt in sibling.run("r0").receipts if receipt.records)
    cut = Position(sibling.sink, receipt.partition, receipt.last_offset + 1)
    embedded_kafka.admin().delete_records([cut])[cut].result()
    body = {"pipeline": sibling.spec.pipeline, "run_key": run_key(sibling, "r0")}
    assert shown(page, sibling, 1)["whole"]
    report = page.post("/eos/api/v1/verify", json=body).json()
    assert (report["ok"], report["matches"]) == (False, True)
    assert [finding["outcome"] for finding in report["findings"] if finding["recorded"]] == ["expired"]
    assert shown(page, sibling, 1)["whole"]


@with_browser
def test_what_is_wrong_is_seen_in_red(app, read_twice, robbed):
    """An overlap at once, a record missing in the output after Verify was pressed."""
    red = "rgb(168, 35, 27)"

    def colour(selector):
        return seen.run(f"return getComputedStyle(document.querySelector('{selector}')).color")

    with served(app.app) as address, browser() as seen:
        seen.prefer("light")
        seen.open(f"{address}/eos/style.css")
        seen.run(f"document.cookie = '_token={token('viewer')}; path=/'")
        seen.open(f"{address}/eos/pipeline?name={read_twice.spec.pipeline}")
        assert "1 overlap" in seen.text(".sentence")
        assert colour(".sentence") == red
        page = f"{address}/eos/pipeline?name={robbed.spec.pipeline}"
        time.sleep(1.1)
        seen.open(page)
        assert "without gap or overlap" in seen.text(".sentence")
        assert colour(".sentence") != red
        seen.click("tbody th a")
        seen.click("#verify")
        seen.soon(lambda: "The output is not what the run wrote" in seen.text("#verified"))
        assert colour("#verified") == red
        seen.open(page)
        assert "the output of 1 run is not there" in seen.text(".sentence")
        assert colour(".sentence") == red


@with_browser
def test_pages_can_be_used_without_a_mouse_and_without_sight(app, page, fenced, read_twice):
    """Tab reaches every control, in order and visibly; drawings have names; texts are legible."""
    shown(page, fenced, 5)
    name = fenced.spec.pipeline
    key = quote(run_key(fenced, "r4"))
    paths = {
        "pipelines": "/",
        "pipeline": f"/pipeline?name={quote(name)}",
        "overlap": f"/pipeline?name={read_twice.spec.pipeline}",
        "run": f"/run?pipeline={name}&key={key}",
        "transactions": "/transactions",
        "health": "/health",
        "refused": "/pipeline?name=absent",
    }
    named = {}
    with served(app.app) as address, browser() as seen:
        seen.open(f"{address}/eos/style.css")
        seen.run(f"document.cookie = '_token={token('viewer')}; path=/'")
        for kind, path in paths.items():
            seen.open(f"{address}/eos{path}")
            controls, wrong = reached_by_tab(seen)
            assert wrong == [], kind
            assert len(controls) >= 5, kind
            named[kind] = names(seen)
            assert [pair for pair in named[kind] if not pair[1]] == [], kind
            for scheme in ("light", "dark"):
                seen.prefer(scheme)
                texts, unreadable = faint(seen)
                assert (texts > 5, unreadable) == (True, []), (kind, scheme)
        # What only a mouse reaches in a drawing is a link of the table, too.
        seen.open(f"{address}/eos{paths['pipeline']}")
        drawn, listed = seen.run(
            "const of = (which) => [...document.querySelectorAll(which)].map((one) => "
            "one.getAttribute('href')); return [of('svg a'), of('tbody a')]"
        )
        assert set(drawn) == set(listed)
    images = [name for role, name in named["pipeline"] if role == "image"]
    assert f"{fenced.source}-0, offsets [0, 5): 5 read" in images
    assert any(label.startswith("r4: ASKED 0") and "ABORTED 0" in label for label in images)
    (twice,) = (label for role, label in named["overlap"] if label.startswith(f"{read_twice.source}-0"))
    assert twice.endswith(", offsets [0, 3): 1 overlap, 1 read")
    assert {"What was read", "What was written"} <= {label for role, label in named["run"] if role == "table"}
    bars = [label for role, label in named["run"] if role == "image"]
    assert any(re.fullmatch(r"WRITTEN: \S+ seconds, transaction open", label) for label in bars)


# -- brokers that do not answer ---------------------------------------------------------------------------


@pytest.fixture
def silent():
    """A port that accepts connections and never answers."""
    server, held = socket.create_server(("127.0.0.1", 0)), []

    def accept():
        while True:
            try:
                held.append(server.accept()[0])
            except OSError:
                return

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    yield server.getsockname()[1]
    server.shutdown(socket.SHUT_RDWR)
    thread.join(10)
    server.close()
    for connection in held:
        connection.close()


def test_a_silent_broker_costs_five_seconds_and_one_panel(app, page, silent):
    """The panel reveals neither the connection nor a stack trace."""
    kafka = {"bootstrap.servers": f"127.0.0.1:{silent}", "sasl.password": "hunter2"}

    def deployment():
        return Deployment(kafka, LedgerSettings("ledger", create=False))

    with with_desk(page, Desk(deployment)):
        began = time.monotonic()
        answer = page.get("/eos/")
        assert 4 < time.monotonic() - began < 7
    assert answer.status_code == 504
    assert "The brokers are silent" in answer.text
    texts = [answer.text]
    attempted(MINE, run_id="tonight", at=NOW, failure=FailureRecord(1, "BrokersUnavailable", "no answer"))
    with with_desk(page, Desk(deployment, answer_seconds=0.3)):
        twin = page.get("/eos/api/v1/health")
    assert (twin.status_code, twin.json()["title"]) == (504, "The brokers are silent")
    texts.append(twin.text)
    # Failures are known without brokers, and this is when they matter most.
    for path in ("pipelines", f"pipeline?name={MINE}.copy"):
        with with_desk(page, Desk(deployment, answer_seconds=0.3)):
            twin = page.get(f"/eos/api/v1/{path}")
            assert (twin.status_code, twin.json()["trouble"]["title"]) == (504, "The brokers are silent")
            rows = twin.json().get("pipelines", [twin.json()])
            assert [(row["kind"], row["attempt"]["error"]) for row in rows] == [
                ("failed", "BrokersUnavailable")
            ]
            text = page.get(f"/eos/{path.removeprefix('pipelines')}").text
            assert "The brokers are silent" in text
            assert "BrokersUnavailable" in text
            texts += [twin.text, text]
    # However many of this user's requests already wait for brokers, Airflow's own failures are shown.
    desk = Desk(deployment, answer_seconds=0.3)
    with with_desk(page, desk):
        answers = [page.get("/eos/api/v1/pipelines") for _ in range(4)]
        desk._questions._running["viewer"] += QUESTIONS_WAITING[0]
        answers.append(page.get("/eos/api/v1/pipelines"))
    assert [answer.status_code for answer in answers] == [504, 504, 504, 504, 429]
    assert {row["attempt"]["error"] for answer in answers for row in answer.json()["pipelines"]} == {
        "BrokersUnavailable"
    }
    assert answers[-1].json()["trouble"]["title"] == "Too many questions of yours wait"
    texts += [answer.text for answer in answers]
    for text in texts:
        assert not any(secret in text for secret in (str(silent), "hunter2", "Traceback", "127.0.0.1"))


def test_a_failure_of_any_kind_is_one_panel(app, page):
    """Its reason is in the log."""

    def failing(error):
        def deployment():
            raise error

        return Desk(deployment)

    for error in (BrokersUnavailable("broker.example:9092"), RuntimeError("secret-host")):
        with with_desk(page, failing(error)):
            answer = page.get("/eos/")
        assert answer.status_code == 502
        assert 'role="alert"' in answer.text
        assert "example" not in answer.text
        assert "secret-host" not in answer.text


def test_each_sees_the_records_of_the_dags_that_he_may_see(embedded_kafka, pipeline, app, page):
    """A user who runs another team's pipeline name neither hides that team's page nor reveals its topics."""
    owner = another(embedded_kafka, pipeline, task=task(MINE))
    taker = Pipeline(embedded_kafka, ledger=pipeline.spec.ledger, task=task(THEIRS))
    taker.spec = replace(taker.spec, pipeline=owner.spec.pipeline)
    taker.publish(["x"])
    taker.run("taken")
    time.sleep(1.1)
    answer = page.get("/eos/api/v1/pipeline", params={"name": owner.spec.pipeline})
    assert answer.status_code == 200
    twin = answer.json()
    assert (twin["dag_id"], twin["topics"]) == (MINE, [owner.source])
    assert [row["run_id"] for row in twin["runs_shown"]] == ["r0"]
    assert twin["runs_hidden"] == 1
    assert taker.source not in answer.text
    assert taker.sink not in answer.text


def test_every_answer_has_the_headers(page):
    """Also the answers of FastAPI itself; HEAD is answered like GET."""
    for path, status in (("/nothing", 404), ("/pipeline", 422), ("/?order=x", 422), ("/style.css", 200)):
        answer = page.get(f"/eos{path}")
        assert answer.status_code == status
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert page.head("/eos/").status_code == 200
    assert page.put("/eos/").status_code == 405


def test_nothing_is_looked_up_before_permission_is_asked(page, other, monkeypatch):
    """A request for a pipeline that the user may not see does not make the page read the ledger."""
    from airflow_eos.ui.history import RunHistory

    lookups = []
    monkeypatch.setattr(RunHistory, "record", lambda *names: lookups.append(names))
    for name in (other.spec.pipeline, "nothing"):
        answer = page.get("/eos/api/v1/run", params={"pipeline": name, "key": run_key(other, "older")})
        assert answer.status_code == 403
    assert lookups == []


def test_a_run_whose_output_spans_too_much_is_not_verified_here(pipeline):
    """The offsets that would have to be read count, not the number of records in the receipt."""
    from airflow_eos.operations.queries import run_records

    (record, *_), _ = run_records(pipeline.spec.deployment, pipeline.spec.pipeline)
    (receipt, *_) = record.receipts
    far = replace(receipt, records=1, first_offset=0, last_offset=VERIFY_OFFSETS)
    desk = Desk(lambda: pipeline.spec.deployment)
    with pytest.raises(Trouble) as refused:
        desk.verify(replace(record, receipts=(far,)))
    assert refused.value.status == 413
    assert desk.verify(record)


# -- what other clients write, remove or leave open, each in a separate ledger ----------------------------


def write_record(writer, template, **fields):
    """Write a run record as a run does, in a transaction of the producer that it names."""
    data = {**json.loads(template.to_json()), **fields}
    with ControlPlane(writer.spec) as control:
        session = control.transactions.fence(unique("test.hostile"))
        data["producer"] = session.identity.to_dict()
        session.begin()
        key = keys.run_record_key(data["run_key"])
        message = LedgerMessage(key, json.dumps(data), writer.spec.pipeline)
        session.stage("", {}, [message])
        session.commit()
        session.close()


HOSTILE = {
    "topic of 32,768 characters": {"ranges": [["x" * 32_768, 0, 0, 1]]},
    "half a surrogate pair": {"pipeline": "p\ud800"},
    "mode": {"mode": "\ud800"},
    "offsets of 400 digits": {"ranges": [["t", 0, 0, 10**400]]},
    "NaN": {"details": {"airflow": task(MINE), "x": float("nan")}},
    "dead letters": {"details": {"airflow": task(MINE), "dead_letters": "many"}},
    "rounds": {"details": {"airflow": task(MINE), "rounds": []}},
}


def test_a_record_that_no_run_writes_breaks_no_page(embedded_kafka, page):
    """It is omitted and counted; 3,000 missing topics cost one request."""
    pipeline = Pipeline(embedded_kafka, task=task(MINE))
    pipeline.publish(["a"])
    template = pipeline.run("r0")
    with own_page(page, pipeline) as client:
        for name, fields in HOSTILE.items():
            write_record(pipeline, template, run_key=f"hostile/{name}", **fields)
        many = [[f"gone-{number}", 0, 0, 1] for number in range(3_000)]
        write_record(pipeline, template, run_key="many", pipeline="many", ranges=many)

        def listed():
            return client.get("/eos/api/v1/pipelines").json().get("pipelines", [])

        rows = eventually(listed, lambda listing: len(listing) == 2, seconds=30, pause=1.0)
        assert {row["pipeline"] for row in rows} == {pipeline.spec.pipeline, "many"}
        for path in ("/", "/health", "/transactions", f"/pipeline?name={pipeline.spec.pipeline}"):
            answer = client.get(f"/eos{path}")
            assert answer.status_code == 200, (path, answer.text)
        assert f"{len(HOSTILE)} records of the ledger cannot be read" in client.get("/eos/").text


def test_an_open_transaction_of_a_first_run_has_a_row(embedded_kafka, app, page):
    """No record names its pipeline: users who may see its task's Dag see it, and so do administrators."""
    pipeline = Pipeline(embedded_kafka, task=task(MINE))
    pipeline.publish(["a"])
    first = Paused(pipeline, State.OPEN, "r0")
    name = keys.cursor_transactional_id("test", pipeline.spec.group_id)

    def rows():
        transactions = page.get("/eos/api/v1/transactions").json()["transactions"]
        return [transaction for transaction in transactions if transaction["transactional_id"] == name]

    try:
        with own_page(page, pipeline):
            assert rows() == []
            app.cookies.set("_token", token("admin", role="admin"))
            (row,) = rows()
            assert (row["pipeline"], row["state"]) == ("", "Ongoing")
            assert 0 <= row["age_seconds"] < row["timeout_seconds"]
            assert row["command"].startswith(f"airflow eos abort --transactional-id {name} --epoch ")
            assert pipeline.sink not in json.dumps(row)
            assert row["partition_count"] > 0
            assert "No pipeline is known for it" in page.get("/eos/transactions").text
            app.cookies.set("_token", token("viewer"))
            fields = {"group_id": pipeline.spec.group_id, "pipeline": pipeline.spec.pipeline}
            attempted(MINE, state="running", at=NOW, fields=fields)
            assert [transaction["pipeline"] for transaction in rows()] == [pipeline.spec.pipeline]
            (listed,) = page.get("/eos/api/v1/pipelines").json()["pipelines"]
            assert (listed["pipeline"], listed["kind"], listed["whole"]) == (
                pipeline.spec.pipeline,
                "running",
                None,
            )
            alone = page.get(f"/eos/pipeline?name={pipeline.spec.pipeline}")
            assert alone.status_code == 200
            assert "No run of a Dag that you may see is committed" in alone.text
    finally:
        first.resume()
    assert first.error is None


def test_a_ledger_that_was_deleted_is_lost_and_not_new(embedded_kafka, page):
    """As the doctor and runs report it."""
    own = Pipeline(embedded_kafka, task=task(MINE))
    own.publish(["a"])
    own.run("r0")
    with own_page(page, own) as client:
        assert client.get("/eos/").status_code == 200
        own.kafka.admin().delete_topics([own.spec.ledger.topic])[own.spec.ledger.topic].result(30)

        def title():
            return client.get("/eos/api/v1/pipelines").json().get("title")

        eventually(title, lambda text: text == "The ledger is lost or was replaced", seconds=30, pause=1.0)
        assert client.get("/eos/api/v1/health").json()["title"] == "The ledger is lost or was replaced"


@pytest.mark.parametrize("kind", ["source", "sink"])
def test_a_topic_that_was_deleted_does_not_silence_health(embedded_kafka, page, kind):
    """It is deleted, so the check does not wait for it."""
    pipeline = Pipeline(embedded_kafka, task=task(MINE))
    pipeline.publish(["a"])
    pipeline.run("r0")
    name = getattr(pipeline, kind)
    pipeline.kafka.admin().delete_topics([name])[name].result(30)
    with own_page(page, pipeline) as client:
        answer = client.get("/eos/api/v1/health")
        assert answer.status_code == 200, answer.text
        (topic,) = [check for check in answer.json()["checks"] if check["name"] == f"topic {name}"]
        assert topic["status"] == "warn"
