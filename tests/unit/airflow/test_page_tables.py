"""Tables that pipelines write, on the page and in `airflow eos status`."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

import pytest
from jinja2 import Environment

from airflow_eos.coverage.lanes import LogBounds
from airflow_eos.ledger import keys
from airflow_eos.ledger.records.intent import Intent
from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.model.ranges import OffsetRange, TopicPartition
from airflow_eos.model.table import TableLayout
from airflow_eos.operations.queries import open_intents
from airflow_eos.ui import views
from airflow_eos.ui.answers import templates
from airflow_eos.ui.attempt_rows import attempts_view
from airflow_eos.ui.viewer import Viewer
from tests.support.page_site import HandHistory
from tests.unit.airflow.fakes import a_record

NOW = dt.datetime(2026, 11, 21, tzinfo=dt.timezone.utc)
PIPELINE = "pipelines.copy"
TABLE = {"sink": "iceberg:lake/db.t", "uuid": "4c1b", "snapshot": 7123, "files": 2, "rows": 1234}


def record(run: str, dag: str = "mine", start: int = 0, **details: Any) -> RunRecord:
    return a_record(
        run_key=f"p/{run}",
        run_id=run,
        receipts=(),
        ranges=(OffsetRange("src", 0, start, start + 10),),
        details={"airflow": {"dag_id": dag}, **details},
    )


def intent_of(of_run: RunRecord) -> Intent:
    layout = TableLayout("4c1b", 0, 0)
    return Intent("iceberg:lake/db.t", layout, 41, of_run, "g", ())


@pytest.fixture
def history() -> HandHistory:
    """A run that wrote a table, a later one without rows, and another Dag's with an open INTENT."""
    by_hand = HandHistory(
        record("m1", table=TABLE),
        record("m2", start=10),
        logs={TopicPartition("src", 0): LogBounds(0, 30)},
        topic_ids={"src": "1"},
    )
    by_hand.intents = {"intent:a": intent_of(record("m3")), "intent:b": intent_of(record("t1", "theirs"))}
    return by_hand


def rendered(template: str, values: dict[str, Any]) -> str:
    environment: Environment = templates
    common = {"base": "/eos", "site": "", "version": "1", "trouble": None, **attempts_view([], NOW)}
    return environment.get_template(template).render(**{**common, **values})


def test_a_pipeline_names_its_table_and_last_snapshot(history: HandHistory) -> None:
    """Also if its last run had no rows; with the run of the open INTENT, if the viewer may see its Dag."""
    view = views.pipeline_view(history, Viewer(["mine"]), PIPELINE, NOW)
    assert view["table"] == {
        **{name: TABLE[name] for name in ("sink", "snapshot", "files", "rows")},
        "run_id": "m1",
        "run_key": "p/m1",
    }
    assert [intent["run_id"] for intent in view["intents"]] == ["m3"]
    page = rendered("pipeline.html", view)
    assert "iceberg:lake/db.t" in page
    assert "7123" in page
    assert "Run m3 has been about to publish in iceberg:lake/db.t" in page
    assert "Run t1" not in page


def test_a_run_names_what_it_put_into_its_table(history: HandHistory) -> None:
    """A run without rows names no table."""
    page = rendered("run.html", views.run_view(history, Viewer(["mine"]), PIPELINE, "p/m1"))
    assert "1,234" in page
    assert "iceberg:lake/db.t" in page
    assert views.run_view(history, Viewer(["mine"]), PIPELINE, "p/m2")["table"] is None


def test_open_intents_are_listed_by_age() -> None:
    """Unreadable records are omitted, and so are other kinds of record."""
    young, old = record("young"), replace(record("old"), staged_at="2001-01-01T00:00:00.000Z")
    values = [
        (keys.intent_key(f"p.cursor.{run.run_id}"), intent_of(run).to_json((1, 2))) for run in (young, old)
    ]
    intents = open_intents([*values, ("intent:broken", "{}"), ("run:p/young", young.to_json())])
    assert [intent.run_key for intent in intents] == ["p/old", "p/young"]
    assert intents[0].to_dict() == {
        "pipeline": PIPELINE,
        "run_key": "p/old",
        "table": "iceberg:lake/db.t",
        "transactional_id": "p.cursor.old",
        "since": "2001-01-01T00:00:00.000Z",
    }
