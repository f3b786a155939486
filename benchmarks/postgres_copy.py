"""Rows into PostgreSQL: a task's COPY compared with psycopg's of the same rows, and their publication."""

from __future__ import annotations

import datetime as dt
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa

from airflow_eos.model.postgres_table import PostgresTable
from airflow_eos.model.table import PublishedRun, PublishedRuns, TableCommit, TableReceipt
from airflow_eos.sinks.postgres_sink import PostgresSink
from airflow_eos_testing.postgres import PostgresServer

ROWS = 500_000
_START = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
_COLUMNS = "id bigint PRIMARY KEY, name text, amount double precision, at timestamptz, note text"


def postgres_copy(out: Path, rounds: int) -> int:
    """Measure wall-clock seconds and CPU seconds of client and server, in interleaved rounds."""
    ids = range(ROWS)
    rows = pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "name": pa.array([f"customer {i % 5000}" for i in ids]),
            "amount": pa.array([i / 7 for i in ids]),
            "at": pa.array([_START + dt.timedelta(seconds=i) for i in ids], pa.timestamp("us", "UTC")),
            "note": pa.array(["a note of some sixty characters, as a record may well have one"] * ROWS),
        }
    )
    tuples = list(zip(*(column.to_pylist() for column in rows.columns), strict=True))
    seconds: dict[str, list[float]] = {}
    clients: dict[str, list[float]] = {}
    servers: dict[str, list[float]] = {}

    with PostgresServer() as server:

        def timed(name: str, act: Callable[[], Any]) -> Any:
            served, begun, used = _served(server), time.perf_counter(), time.process_time()
            result = act()
            seconds.setdefault(name, []).append(time.perf_counter() - begun)
            clients.setdefault(name, []).append(time.process_time() - used)
            servers.setdefault(name, []).append(_served(server) - served)
            return result

        properties = {"host": str(server.home), "user": "postgres", "dbname": "postgres"}
        for number in range(rounds):
            for table in ("plain", "appended"):
                server.query(f"DROP TABLE IF EXISTS {table}; CREATE TABLE {table} ({_COLUMNS})")
            server.query(
                f"DROP TABLE IF EXISTS updated; CREATE TABLE updated ({_COLUMNS}); "
                f"INSERT INTO updated SELECT generate_series(0, {ROWS - 1})"
            )
            timed("psycopg's COPY, row by row", lambda: _plain(properties, tuples))
            for table, sink in (
                ("appended", PostgresTable("public.appended", properties=properties)),
                (
                    "updated",
                    PostgresTable("public.updated", mode="upsert", key=["id"], properties=properties),
                ),
            ):
                opened = PostgresSink(sink, "eos.0123456789")
                version = opened.load()
                writer = opened.writer(version, f"{number:020x}")
                staged = timed(f"staged, {sink.mode}", lambda w=writer: w.write(w.columns(rows)))  # type: ignore[misc]
                runs = PublishedRuns({"s": PublishedRun("k", number, TableReceipt(0, 0, 0), lasting=True)})
                change = TableCommit("s", runs, tuple(staged))
                timed(
                    f"published, {table}",
                    lambda o=opened, v=version, c=change: o.commit(v, c),  # type: ignore[misc]
                )
    report = {
        name: {
            "seconds": statistics.median(times),
            "rows_per_second": round(ROWS / statistics.median(times)),
            "client_cpu_seconds": statistics.median(clients[name]),
            "server_cpu_seconds": statistics.median(servers[name]),
        }
        for name, times in seconds.items()
    }
    (out / "postgres_copy.json").write_text(json.dumps(report, indent=2))
    for name, figures in report.items():
        print(
            f"{name:28} {figures['seconds']:6.2f} s {figures['rows_per_second']:>9,} rows/s, CPU: "
            f"client {figures['client_cpu_seconds']:.2f} s, server {figures['server_cpu_seconds']:.2f} s"
        )
    return 0


def _plain(properties: dict[str, str], tuples: list[tuple[Any, ...]]) -> None:
    with (
        psycopg.connect(**properties) as connection,  # type: ignore[arg-type]
        connection.cursor() as cursor,
        cursor.copy("COPY plain FROM STDIN") as copy,
    ):
        for row in tuples:
            copy.write_row(row)


def _served(server: PostgresServer) -> float:
    """Return CPU seconds of ended sessions, once all have ended."""
    while server.query(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name <> 'psql' AND query <> ''"
    ) != [["0"]]:
        time.sleep(0.01)
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[13:15])) / os.sysconf("SC_CLK_TCK")
