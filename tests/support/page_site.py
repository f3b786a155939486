"""The pages over HTTP without Airflow and brokers: the product's views and templates for given records."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import airflow_eos
from airflow_eos.coverage.coverage import Coverage, coverage_of
from airflow_eos.coverage.lanes import LogBounds
from airflow_eos.ledger.records.intent import Intent
from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.model.kafka import TransactionDescription
from airflow_eos.model.ranges import TopicPartition
from airflow_eos.operations.checks import Check
from airflow_eos.ui import views
from airflow_eos.ui.answers import templates
from airflow_eos.ui.attempt_rows import attempts_view
from airflow_eos.ui.attempts import Attempt
from airflow_eos.ui.known_runs import PipelineHistory
from airflow_eos.ui.pipeline_rows import UNCOMMITTED, ledger_rows, pipelines_view, row_without_record
from airflow_eos.ui.transaction_rows import OpenNow, check_of
from airflow_eos.ui.viewer import Viewer

STATIC = Path(airflow_eos.__file__).parent / "ui" / "static"
KINDS = {"style.css": "text/css", "page.js": "text/javascript"}
PREFIX = "airflow-eos"


class HandHistory:
    """A run history in memory that records look-ups.

    :param logs: current bounds of the source partitions.
    :param topic_ids: ids of the source topics.
    """

    def __init__(
        self, *records: RunRecord, logs: Mapping[TopicPartition, LogBounds], topic_ids: Mapping[str, str]
    ) -> None:
        self.pipelines: dict[str, PipelineHistory] = {}
        self.intents: dict[str, Intent] = {}
        self.looked_up: list[tuple[str, str]] = []
        self.unreadable: list[str] = []
        self.open_now: dict[str, TransactionDescription] = {}
        self.damaged: list[tuple[str, str]] = []
        self.reader = SimpleNamespace(behind=(), begins_at={}, ignored={})
        self._logs, self._topic_ids = logs, topic_ids
        for record in records:
            kept = self.pipelines.setdefault(record.pipeline, PipelineHistory(record.pipeline))
            kept.add(record, 1)

    def coverage(self, pipeline: PipelineHistory) -> Coverage:
        """Return the coverage of the pipeline's runs."""
        topics = set(pipeline.topics)
        logs = {tp: bounds for tp, bounds in self._logs.items() if tp.topic in topics}
        return coverage_of(pipeline.runs.values(), logs, self._topic_ids)

    def summaries(self, pipelines: Iterable[PipelineHistory]) -> list[Coverage]:
        """Return the coverage of each pipeline."""
        return [self.coverage(pipeline) for pipeline in pipelines]

    def open_transactions(self, *, seconds: float | None = None) -> dict[str, TransactionDescription]:
        """Return the transactions in ``open_now``."""
        return self.open_now

    def health(self, *, sources: Iterable[str], sinks: Iterable[str]) -> list[Check]:
        """Return one check per topic."""
        return [Check(f"topic {name}", "ok", "4 partitions") for name in sorted({*sources, *sinks})]

    def record(self, pipeline: str, run_key: str) -> RunRecord | None:
        """Return a record in memory, and note the look-up of any other."""
        history = self.pipelines.get(pipeline)
        if history is not None and run_key in history.runs:
            return history.runs[run_key]
        self.looked_up.append((pipeline, run_key))
        return None


class Site:
    """All pages, for a user who may see every Dag.

    :param now: current time of every answer.
    """

    def __init__(self, history: HandHistory, attempts: Sequence[Attempt], now: dt.datetime) -> None:
        self.history, self.attempts, self.now = history, attempts, now
        dags = {record.dag_id for kept in history.pipelines.values() for record in kept.runs.values()}
        self._viewer = Viewer(dags | {attempt.dag_id for attempt in attempts}, is_admin=True)

    def page(self, address: str) -> str:
        """Return a page.

        :param address: path and query, as in links of the pages.
        """
        parts = urlsplit(address)
        pages: Mapping[str, Callable[..., tuple[str, dict[str, Any]]]] = {
            "/": self._pipelines,
            "/pipeline": self._pipeline,
            "/run": self._run,
            "/transactions": self._transactions,
            "/health": self._health,
        }
        template, values = pages[parts.path](**dict(parse_qsl(parts.query)))
        common = {"base": "", "site": "", "version": airflow_eos.__version__, "trouble": None}
        return templates.get_template(template).render(**{**common, **values})

    def _open_now(self) -> list[dict[str, Any]]:
        open_now = OpenNow.of(self.history, self._viewer, PREFIX)
        return open_now.rows(self._viewer, self.attempts, PREFIX, self.now)

    def _pipelines(self, **options: Any) -> tuple[str, dict[str, Any]]:
        ledger = ledger_rows(self.history, self._viewer, self.now)
        values = pipelines_view(ledger, self.attempts, self.now, self._open_now(), **options)
        return "pipelines.html", values

    def _pipeline(self, name: str, **options: Any) -> tuple[str, dict[str, Any]]:
        own = attempts_view([attempt for attempt in self.attempts if attempt.pipeline == name], self.now)
        if name not in self.history.pipelines:
            return "pipeline.html", {**row_without_record(name, UNCOMMITTED), **own}
        values = views.pipeline_view(self.history, self._viewer, name, self.now, **options)
        return "pipeline.html", {**values, **own}

    def _run(self, pipeline: str, key: str) -> tuple[str, dict[str, Any]]:
        return "run.html", views.run_view(self.history, self._viewer, pipeline, key)

    def _transactions(self) -> tuple[str, dict[str, Any]]:
        return "transactions.html", {"transactions": self._open_now()}

    def _health(self) -> tuple[str, dict[str, Any]]:
        rows = self._open_now()
        values = views.health_view(self.history, self._viewer, check_of(rows))
        return "health.html", {**values, "transactions": rows}


class Served:
    """A site served to a browser; ``site`` may be replaced meanwhile.

    :param address: base URL.
    """

    def __init__(self, site: Site, address: str) -> None:
        self.site, self.address = site, address


@contextmanager
def site_served(site: Site) -> Iterator[Served]:
    """Serve a site on loopback."""
    served = Served(site, "")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.partition("?")[0].lstrip("/")
            if name == "favicon.ico":
                self.send_error(404)
                return
            text = (STATIC / name).read_text() if name in KINDS else served.site.page(self.path)
            self.send_response(200)
            self.send_header("Content-Type", f"{KINDS.get(name, 'text/html')}; charset=utf-8")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()
