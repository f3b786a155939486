"""Alerts and dashboard of docs/monitoring use metrics that are sent, with the exporters' names."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from airflow_eos.cli import airflow_commands, status
from airflow_eos.cli.main import main
from airflow_eos.compat import stats
from airflow_eos.engine.lag import Unread
from airflow_eos.exceptions import LedgerUnreadable
from airflow_eos.ledger.records.cursor_record import CursorRecord
from airflow_eos.model.ledger import LedgerId
from airflow_eos.model.ranges import OffsetRange
from airflow_eos.operations.deployment_status import DeploymentStatus, exceeded
from airflow_eos.operations.gaps import Gap, gaps
from airflow_eos.operations.group_progress import GroupProgress
from airflow_eos.operations.open_transactions import OpenTransaction
from airflow_eos.operations.queries import LedgerNames
from airflow_eos.run.undecided import Undecided
from tests.support.airflow_parser import get_parser
from tests.unit.airflow.fakes import a_record

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "docs" / "monitoring"
AIRFLOWS_PREFIX = "airflow."
"""Section [metrics], statsd_prefix and otel_prefix: test_observed sees it sent."""

CURSOR = CursorRecord("g", "daily", "p", "whole", {}, {}, {}, "run", "id", 1)
UNREADABLE = LedgerUnreadable("garbage")
WAITING = Undecided(OffsetRange("src", 0, 2, 7), since=dt.datetime.fromtimestamp(0, dt.timezone.utc))


def transaction(name: str, age: float) -> OpenTransaction:
    return OpenTransaction(name, "2026-01-01T00:00:00.000Z", age, 60.0, "abort it")


OF_ORDERS = transaction("p.cursor.orders", 12.5)
STATE = DeploymentStatus(
    "ledger",
    LedgerId("id", 1, "p"),
    {**dict.fromkeys(["orders", "idle", "gone"], CURSOR), "unreadable": UNREADABLE},
    {},
    {
        "orders": GroupProgress(
            "whole",
            Unread((OffsetRange("src", 0, 1, 8),), {}, undecided=(WAITING,)),
            open_transaction=OF_ORDERS,
            asked_at=dt.datetime.fromtimestamp(7, dt.timezone.utc),
        ),
        "idle": GroupProgress("whole", Unread((), {})),
        "gone": GroupProgress("whole", None, "no such topic"),
    },
    (transaction("p.interval.x", 99.0), OF_ORDERS),
    LedgerNames(
        {"daily": a_record(), "hourly": a_record()},
        ("orders", "idle", "gone"),
        gaps=(Gap("daily", "1", "2", ("src",)), Gap("daily", "3", "4", ("src",))),
    ),
)


def sent_names() -> set[str]:
    """Return the names of all metrics, from the code that sends them."""
    code = [ROOT / "airflow_eos" / "operators" / "telemetry.py", ROOT / "airflow_eos" / "cli" / "status.py"]
    calls = r"(?:stats\.\w+|sent\.append\(?)\(\"(eos\.[\w.]+)\""
    return {name for file in code for name in re.findall(calls, file.read_text())}


def exported(name: str) -> re.Pattern[str]:
    """Return the Prometheus name of a metric from the StatsD exporter, or from OpenTelemetry's."""
    base = re.escape((AIRFLOWS_PREFIX + name).replace(".", "_"))
    return re.compile(rf"{base}(\(_total\)\?)?(\(_milliseconds\)\?_(sum|count))?")


def names_in(expression: str) -> set[str]:
    """Return the metrics that an expression asks for: selectors by name, and by a regular expression."""
    matched = set(re.findall(r'__name__=~"([^"]+)"', expression))
    return matched | set(re.findall(r"\bairflow_\w+", re.sub(r'"[^"]*"', "", expression)))


def alerts() -> dict[str, str]:
    rules = yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"][0]["rules"]
    return {rule["alert"]: rule["expr"] for rule in rules}


def panels() -> dict[str, str]:
    shown = json.loads((FOLDER / "dashboard.json").read_text())["panels"]
    return {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in shown
        for target in panel["targets"]
    }


def expressions() -> dict[str, str]:
    return alerts() | panels()


def test_alerts_and_dashboard_ask_for_metrics_that_are_sent() -> None:
    """Together they use all of them."""
    queried = {name for expression in expressions().values() for name in names_in(expression)}
    sent = sent_names()
    assert len(sent) == 14
    assert [name for name in queried if not any(exported(metric).fullmatch(name) for metric in sent)] == []
    assert {
        metric for metric in sent if not any(exported(metric).fullmatch(name) for name in queried)
    } == set()


@pytest.mark.parametrize(
    "metric",
    [
        "eos.group.lag",
        "eos.group.undecided",
        "eos.open_transaction",
        "eos.run.fenced",
        "eos.run.resolved",
        "eos.pipeline.gaps",
    ],
)
@pytest.mark.parametrize("place", [alerts, panels])
def test_what_calls_somebody_is_also_seen(metric: str, place: Callable[[], dict[str, str]]) -> None:
    """What requires action is in an alert and in a panel: lag, waiting input, open transactions, gaps.

    An alert that only checks whether metrics arrive does not count.
    """
    queried = {
        name
        for expression in place().values()
        if "absent(" not in expression
        for name in names_in(expression)
    }
    assert any(exported(metric).fullmatch(name) for name in queried)


def test_alerts_and_dashboard_group_by_tags_that_are_sent() -> None:
    """In labels of templates, and in sums."""
    labels = {"dag_id", "task_id"} | {tag for _, _, tags in status.gauges(STATE, "p") for tag in tags}
    for file in ("alerts.yaml", "dashboard.json"):
        text = (FOLDER / file).read_text()
        used = set(re.findall(r"\{\{ *(?:\$labels\.)?(\w+) *\}\}", text))
        used |= {label for by in re.findall(r" by \(([^)]*)\)", text) for label in by.split(", ")}
        assert used, file
        assert used <= labels


@pytest.mark.parametrize("name", expressions())
def test_expressions_are_whole(name: str) -> None:
    """Brackets match."""
    left = re.sub(r'"[^"]*"|[^()\[\]{}]', "", expressions()[name])
    while (shorter := re.sub(r"\(\)|\[\]|\{\}", "", left)) != left:
        left = shorter
    assert left == ""


def test_every_gauge_is_in_the_documentation() -> None:
    """The metrics of tasks have their own test."""
    rows = re.findall(
        r"^\| `(eos\.[\w.]+)` \| `\w+` \|", (ROOT / "docs" / "observing.md").read_text(), re.MULTILINE
    )
    assert set(rows) == {name for name in sent_names() if not name.startswith("eos.run.")}


def test_what_status_found_becomes_gauges() -> None:
    """Unknown values are omitted, missing ones are 0."""
    assert status.gauges(STATE, "p") == [
        ("eos.group.lag", 7, {"group": "orders"}),
        ("eos.group.undecided", 5, {"group": "orders"}),
        ("eos.group.open_transaction", 12.5, {"group": "orders"}),
        ("eos.group.lag", 0, {"group": "idle"}),
        ("eos.group.undecided", 0, {"group": "idle"}),
        ("eos.group.open_transaction", 0, {"group": "idle"}),
        ("eos.group.open_transaction", 0, {"group": "gone"}),
        ("eos.pipeline.gaps", 2, {"pipeline": "daily"}),
        ("eos.pipeline.gaps", 0, {"pipeline": "hourly"}),
        ("eos.open_transaction", 99.0, {"prefix": "p"}),
    ]


def test_gauges_go_the_way_of_airflows_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """If Airflow's command line asks for it."""
    sent: list[tuple[Any, ...]] = []
    monkeypatch.setattr(stats, "initialize", lambda **_: sent.append(("initialized",)))
    monkeypatch.setattr(stats, "gauge", lambda *args, tags: sent.append((*args, tags)))
    monkeypatch.setattr(
        "airflow_eos.operations.deployment_status.ledger_names", lambda *_, **__: LedgerNames({}, ())
    )
    control = SimpleNamespace(verify_ledger=lambda: LedgerId("id", 1, "p"))
    monkeypatch.setattr(
        "airflow_eos.operations.deployment_status.ControlPlane", lambda _: nullcontext(control)
    )
    monkeypatch.setattr("airflow_eos.operations.deployment_status.open_transactions", lambda *_: [])
    given = get_parser().parse_args(["eos", "status", "--send-metrics", "--prefix", "p"])
    given.func(given)
    assert sent == [("initialized",), ("eos.open_transaction", 0, {"prefix": "p"})]
    assert airflow_commands.__name__ in given.func.func.__module__


NAMES = ["shop.orders-eu", "shop:orders", "shop,orders", "shop=orders", "shop|orders", "Shop orders", "süd"]


def test_statsd_carries_gauges_of_every_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has its own series; a name that StatsD accepts is unchanged."""
    statsd = pytest.importorskip("airflow.sdk._shared.observability.metrics.statsd_logger")
    series: list[str] = []
    client = SimpleNamespace(gauge=lambda name, *_: series.append(name))
    logger = statsd.SafeStatsdLogger(client, influxdb_tags_enabled=True, statsd_influxdb_enabled=True)
    monkeypatch.setattr("airflow_eos.compat.initialize_stats", lambda: None)
    monkeypatch.setattr(stats, "gauge", logger.gauge)
    monkeypatch.setenv("AIRFLOW__METRICS__STATSD_ON", "True")
    names = [*NAMES, "long" * 100, "long" * 101]
    airflow_commands._send_gauges([("eos.pipeline.gaps", 1, {"pipeline": name}) for name in names])
    assert len(set(series)) == len(names)
    assert series[0] == "eos.pipeline.gaps,pipeline=shop.orders-eu"
    assert all(
        re.fullmatch(r"eos\.pipeline\.gaps,pipeline=[\w./-]{1,209}", stat, re.ASCII) for stat in series
    )


def test_opentelemetry_carries_names_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    series: list[dict[str, str]] = []
    monkeypatch.setattr("airflow_eos.compat.initialize_stats", lambda: None)
    monkeypatch.setattr(stats, "gauge", lambda *_, tags: series.append(tags))
    monkeypatch.setenv("AIRFLOW__METRICS__STATSD_ON", "False")
    airflow_commands._send_gauges([("eos.pipeline.gaps", 1, {"pipeline": name}) for name in NAMES])
    assert series == [{"pipeline": name} for name in NAMES]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--send-metrics",), "airflow eos status"),
        (("--max-gaps", "0", "--group", "g"), "leave --group and --run out"),
    ],
)
def test_what_cannot_be_is_wrong_usage(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without Airflow there are no Airflow metrics; a group has no gaps."""
    assert main(["status", "--bootstrap-servers", "nowhere:1", *arguments]) == 2
    assert message in capsys.readouterr().err


def interval(start: int, end: int, **changes: Any) -> Any:
    """Return the record of a run over some days of January."""
    work = {
        "topics": changes.pop("topics", ["src"]),
        "mode": "interval",
        "interval": [f"2026-01-{day:02}T00:00:00.000Z" for day in (start, end)],
        **({"partition": changes.pop("partition")} if "partition" in changes else {}),
    }
    return a_record(details={"work": work}, **changes)


def days(holes: list[Gap]) -> list[tuple[int, int]]:
    return [(int(hole.start[8:10]), int(hole.end[8:10])) for hole in holes]


@pytest.mark.parametrize(
    ("spans", "wanted"),
    [
        ([], []),
        ([(1, 2)], []),
        ([(1, 2), (2, 3), (3, 4)], []),
        ([(3, 4), (1, 2)], [(2, 3)]),
        ([(1, 2), (1, 2), (4, 5), (8, 9)], [(2, 4), (5, 8)]),
        ([(1, 9), (2, 3), (10, 11)], [(9, 10)]),
        ([(1, 3), (2, 5), (5, 6)], []),
    ],
)
def test_gaps_are_the_time_between_intervals_that_none_covers(
    spans: list[tuple[int, int]], wanted: list[tuple[int, int]]
) -> None:
    """In any order of their commits, also if they overlap or one ran again."""
    assert days(gaps(interval(*span) for span in spans)) == wanted


def test_runs_over_other_topics_or_partitions_are_no_neighbours() -> None:
    """Neither do runs of another pipeline, or without an interval."""
    records = [
        interval(1, 2),
        interval(3, 4, topics=["other"]),
        interval(5, 6, partition=0),
        interval(7, 8, pipeline="else"),
        a_record(details={}),
    ]
    assert gaps(records) == []


def of_limits(**limits: Any) -> list[tuple[str, str, Any]]:
    return [(entry.name, entry.limit, entry.value) for entry in exceeded(STATE, **limits)]


def test_limits_are_exceeded_by_what_is_above_them_or_unknown() -> None:
    """A cursor's transaction is reported once, with its group; its age is not the only limit there."""
    assert of_limits() == []
    assert of_limits(max_lag=11) == [
        ("orders", "max-lag", 12),
        ("gone", "max-lag", None),
        ("unreadable", "max-lag", None),
    ]
    assert of_limits(max_open=10, max_gaps=1) == [
        ("orders", "max-open", 12.5),
        ("unreadable", "max-open", None),
        ("daily", "max-gaps", 2),
        ("p.interval.x", "max-open", 99.0),
    ]
    assert of_limits(max_lag=12, max_open=99, max_gaps=2) == [
        ("gone", "max-lag", None),
        ("unreadable", "max-lag", None),
        ("unreadable", "max-open", None),
    ]


@pytest.mark.parametrize(("asked_at", "age"), [(7, 12.5), (20, 20.0)])
def test_the_oldest_of_own_and_others_transactions_counts(asked_at: int, age: float) -> None:
    """A group with unknown transactions has no such age."""
    progress = replace(
        STATE.progress["orders"], asked_at=dt.datetime.fromtimestamp(asked_at, dt.timezone.utc)
    )
    assert progress.oldest_open_seconds == age
    assert replace(progress, is_complete=False).oldest_open_seconds is None
    unread = Unread((), {}, undecided=(replace(WAITING, since=None),))
    assert replace(progress, unread=unread).oldest_open_seconds is None
