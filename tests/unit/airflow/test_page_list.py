"""The list of pipelines: failures first, whether they ever committed or not; searched and filtered."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from jinja2 import Environment

from airflow_eos.operators.failure_record import FailureRecord
from airflow_eos.ui.answers import templates
from airflow_eos.ui.attempt_rows import MEANING
from airflow_eos.ui.attempts import Attempt
from airflow_eos.ui.pipeline_rows import LedgerRows, Order, pipelines_view, row_without_record
from tests.support.calls import with_calls

NOW = dt.datetime(2026, 11, 21, tzinfo=dt.timezone.utc)


def committed(name: str, *, whole: bool = True, hours: int = 1, unread: int | None = 0) -> dict[str, Any]:
    at = (NOW - dt.timedelta(hours=hours)).isoformat().replace("+00:00", "Z")
    sentence = "1 run tiles offsets 0 to 9" if whole else "1 gap"
    return {
        **row_without_record(name, sentence),
        "dag_id": f"dag-{name}",
        "mode": "cursor",
        "last_commit": at,
        "last_commit_ago": f"{hours} h ago",
        "runs": 1,
        "records_of_7_days": 10,
        "unread": unread,
        "whole": whole,
    }


def attempt(pipeline: str, state: str, *, minutes: int = 5, **changes: Any) -> Attempt:
    fields: dict[str, Any] = {
        "group": "g",
        "dag_id": f"dag-{pipeline}",
        "task_id": "copy",
        "run_id": "r",
        "map_index": -1,
        "try_number": 1,
        "max_tries": 2,
        "at": NOW - dt.timedelta(minutes=minutes),
    }
    return Attempt(pipeline=pipeline, state=state, **{**fields, **changes})


FAILURE = FailureRecord(1, "GroupNotEmpty", "group 'g' has 1 live member: <script>")
LEDGER = LedgerRows(
    [
        committed("fine", hours=5),
        committed("gap", whole=False, hours=9, unread=70),
        committed("late", hours=3, unread=None),
        committed("was-fine", hours=2, unread=5),
    ],
    {},
    (),
)
ATTEMPTS = [
    attempt("fine", "success"),
    attempt("was-fine", "failed", minutes=7, failure=FAILURE),
    attempt("first", "failed", minutes=3),
    attempt("again", "up_for_retry"),
    attempt("now", "running"),
    attempt("planned", "", try_number=0),
]


def view(**options: Any) -> dict[str, Any]:
    return pipelines_view(LEDGER, ATTEMPTS, NOW, **options)


def names(**options: Any) -> list[str]:
    return [row["pipeline"] for row in view(**options)["pipelines"]]


def test_what_failed_comes_first() -> None:
    """Also pipelines that never committed, or committed before they failed: once missing, or green."""
    assert names() == ["first", "was-fine", "gap", "again", "now", "planned", "fine", "late"]
    page = view()
    assert (page["total"], page["wrong"]) == (8, 1)
    assert page["states"] == {
        "failed": 2,
        "retrying": 1,
        "running": 1,
        "never ran": 1,
        "succeeded": 1,
        "unknown": 2,
    }
    was_fine = page["pipelines"][1]
    assert (was_fine["kind"], was_fine["whole"]) == ("failed", True)
    assert (was_fine["attempt"]["error"], was_fine["attempt"]["sentence"]) == (
        "GroupNotEmpty",
        FAILURE.sentence,
    )
    assert (page["pipelines"][0]["whole"], page["pipelines"][0]["last_commit"]) == (None, "")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"find": "FINE"}, ["was-fine", "fine"]),
        ({"find": "groupnot"}, ["was-fine"]),
        ({"find": "dag-now"}, ["now"]),
        ({"state": "failed"}, ["first", "was-fine"]),
        ({"state": "not whole"}, ["gap"]),
        ({"state": "never ran"}, ["planned"]),
        ({"state": "failed", "find": "first"}, ["first"]),
        ({"state": "no such state"}, []),
        ({"find": "%"}, []),
    ],
)
def test_search_and_filter(options: dict[str, str], expected: list[str]) -> None:
    """The counts cover all pipelines, whatever is shown."""
    assert names(**options) == expected
    assert view(**options)["total"] == 8


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("name", ["again", "fine", "first", "gap", "late", "now", "planned", "was-fine"]),
        ("commit", ["was-fine", "late", "fine", "gap"]),
        ("unread", ["gap", "was-fine", "fine"]),
        ("attempt", ["first", "again", "fine", "now", "planned", "was-fine"]),
    ],
)
def test_orders(order: Order, expected: list[str]) -> None:
    assert names(order=order)[: len(expected)] == expected


def test_an_open_transaction_stands_in_the_row_of_its_pipeline() -> None:
    """One that belongs to none of them is counted below."""

    def open_now(pipeline: str, seconds: float) -> dict[str, Any]:
        return {"pipeline": pipeline, "age_seconds": seconds, "timeout_seconds": 300.0}

    transactions = [open_now("first", 9.5), open_now("first", 2.0), open_now("", 1.0)]
    page = pipelines_view(LEDGER, ATTEMPTS, NOW, transactions)
    rows = {row["pipeline"]: row["open_transaction"] for row in page["pipelines"]}
    assert rows.pop("first") == transactions[0]
    assert set(rows.values()) == {None}
    assert page["open_elsewhere"] == [transactions[2]]
    text = rendered(page)
    assert "Transaction open for 9.5 s of 300.0 s" in text
    assert "1 open transaction belongs to none of these pipelines" in text


def test_attempts_that_cannot_be_read_are_said_to_be() -> None:
    """Then the page does not claim that nothing failed."""
    page = pipelines_view(LEDGER, None, NOW)
    assert page["states"] == {"unknown": 4}
    assert "cannot be read" in page["warnings"][0]
    assert pipelines_view(LEDGER, [], NOW)["warnings"] == []


def test_airflow_answers_where_the_ledger_does_not() -> None:
    """If brokers are down, everything fails, and attempts matter most."""
    page = pipelines_view(None, ATTEMPTS, NOW)
    assert len(page["pipelines"]) == 6
    assert {row["sentence"] for row in page["pipelines"]} == {"The ledger cannot be read now"}


def rendered(values: dict[str, Any], name: str = "pipelines.html") -> str:
    environment: Environment = templates
    common = {"base": "/eos", "site": "", "version": "1", "trouble": None}
    return environment.get_template(name).render(**common, **values)


def test_an_error_is_text_and_nothing_else() -> None:
    """Writers of records decide what an error quotes."""
    text = rendered(view())
    assert "live member: &lt;script&gt;" in text
    assert "<script>" not in text.replace('<script src="/eos/page.js" defer></script>', "")


def test_states_are_explained_where_they_stand() -> None:
    text = rendered(view())
    for kind in ("failed", "retrying", "running", "never ran", "succeeded"):
        assert f'title="{MEANING[kind]}"' in text  # type: ignore[index]


def page_of(pipelines: int) -> tuple[dict[str, Any], str]:
    """Return the page for this many pipelines, the last one failed, as values and rendered."""
    rows = [committed(f"p{number:03}") for number in range(pipelines)]
    last = pipelines - 1
    tried = [attempt(f"p{number:03}", "success", run_id=f"r{n}") for number in range(last) for n in range(10)]
    tried.append(attempt(f"p{last:03}", "failed", failure=FAILURE))
    page = pipelines_view(LedgerRows(rows, {}, ()), tried, NOW)
    return page, rendered(page)


def test_three_hundred_pipelines_are_one_page_whose_cost_grows_with_them() -> None:
    """Once it had seven pages in alphabetical order; `python -m benchmarks page` measures the seconds."""
    page_of(1)  # loads the templates
    _, of_a_hundred = with_calls(lambda: page_of(100))
    (page, text), calls = with_calls(lambda: page_of(300))
    assert calls < 3.5 * of_a_hundred
    assert len(page["pipelines"]) == 300
    assert page["pipelines"][0]["pipeline"] == "p299"
    assert text.count("<tr>") == 301
    assert len(text) < 600_000


def test_more_than_a_page_is_counted() -> None:
    rows = [committed(f"p{number:04}") for number in range(1_003)]
    page = pipelines_view(LedgerRows(rows, {}, ()), [], NOW)
    assert (len(page["pipelines"]), page["left_out"], page["total"]) == (1_000, 3, 1_003)
