"""The commands: names, options, help, for argparse and Airflow's own parser; imports nothing heavy."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from airflow_eos.model.versioned import is_topic_name

DONE, REFUSED, USAGE, FOUND, INTERRUPTED = 0, 1, 2, 3, 130
EXIT_CODES: Mapping[int, str] = {
    DONE: "done",
    REFUSED: "the cluster or the ledger says no, or cannot be asked: one line on standard error",
    USAGE: "wrong usage",
    FOUND: "the command worked and found something wrong",
    INTERRUPTED: "interrupted (Ctrl-C)",
}
_LONGEST_TEXT = 8000
"""Bytes of a text: Kafka's protocol limits strings to 32,767, and names are quoted inside longer keys."""
_SHOWN = 60


@dataclass(frozen=True)
class Option:
    """One option.

    :param settings: arguments of ``ArgumentParser.add_argument``.
    """

    flag: str
    help: str
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Command:
    """One command.

    :param cluster: whether it sends requests to brokers, and so takes a connection.
    """

    name: str
    help: str
    description: str
    options: tuple[Option, ...] = ()
    cluster: bool = True

    @property
    def all_options(self) -> tuple[Option, ...]:
        """Its own options and those of all commands, without the connection's."""
        return (*self.options, *(COMMON if self.cluster else COMMON[:1]))


def text(value: str) -> str:
    """Read a text that fits into requests to brokers; an empty one, as of an unset variable, is refused."""
    if not value:
        raise argparse.ArgumentTypeError("it is empty")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{value[:_SHOWN]!r} is not valid UTF-8") from None
    if size > _LONGEST_TEXT:
        raise argparse.ArgumentTypeError(f"{value[:_SHOWN]!r}... is longer than {_LONGEST_TEXT} bytes")
    return value


def routing(value: str) -> str:
    """Read the routing text that determines a key's partition; empty for the ledger's own records."""
    return value and text(value)


def topic(value: str) -> str:
    """Read the name of a topic."""
    if not is_topic_name(text(value)):
        raise argparse.ArgumentTypeError(f"{value!r} is not the name of a topic")
    return value


def number(minimum: int, maximum: int = 2**63 - 1) -> Callable[[str], int]:
    """Return a parser of numbers in a range, both ends included."""

    def read(text: str) -> int:
        value = int(text) if re.fullmatch("[0-9]{1,19}", text) else -1
        if not minimum <= value <= maximum:
            limit = f"{minimum} to {maximum}" if maximum < 2**63 - 1 else f"{minimum} on"
            raise argparse.ArgumentTypeError(f"{text[:_SHOWN]!r} is not a number from {limit}")
        return value

    return read


positive = number(1)
not_negative = number(0)
seconds = number(1, 2**31 // 1000)  # the protocol has milliseconds in 32 bits
port = number(1, 65_535)
lateness = number(0, 36_500 * 86_400)


def memory(text: str) -> str:
    """Read an amount of memory in Spark's notation."""
    if not re.fullmatch(r"[1-9][0-9]*[mgt]", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not an amount such as 512m or 4g")
    return text


def option(
    flag: str, meaning: str, kind: Callable[[str], Any] = text, metavar: Any = None, **settings: Any
) -> Option:
    """Return an option with a value."""
    named = {} if metavar is None else {"metavar": metavar}
    return Option(flag, meaning, {"type": kind, **named, **settings})


def repeatable(
    flag: str, meaning: str, kind: Callable[[str], Any] = text, metavar: str | None = None
) -> Option:
    """Return an option that may be given several times; its value is a list."""
    return option(flag, meaning, kind, metavar, action="append", default=[])


def switch(flag: str, meaning: str) -> Option:
    """Return an option without a value."""
    return Option(flag, meaning, {"action": "store_true"})


COMMON = (
    option("--output", "default: table", choices=("table", "json", "yaml", "plain"), default="table"),
    option("--ledger-topic", "default: [eos] ledger_topic, or airflow-eos-ledger", metavar="TOPIC"),
    option("--prefix", "first part of transactional ids, default: [eos] prefix, or airflow-eos"),
)
_YES = switch("--yes", "do it, instead of only showing it")
_TIMEZONE = option("--timezone", "of days and times that name none, such as Europe/Berlin", metavar="ZONE")
_interval = partial(option, "--interval", metavar=("START", "END"), nargs=2)
_GROUP = option("--group", "consumer group that holds the cursor", required=True)
_SERVER_FOLDER = option("--folder", "of the server, default: eos-spark-server in AIRFLOW_HOME")
NO_CONNECTION = "none"
"""Value of ``--storage`` for ``DeltaTable(connection=None)``."""
_STORAGE = option(
    "--storage",
    f"connection of the object store of Delta Lake tables, {NO_CONNECTION!r} for this host's own "
    "credentials; default: delta_default",
    metavar="ID",
    default="delta_default",
)
_PIPELINE = option("--pipeline", "name of the pipeline, <dag_id>.<task_id> by default", required=True)

COMMANDS = (
    Command(
        "init",
        "Create the ledger topic and fix its identity",
        "Create the ledger topic and fix its identity, unless both exist. Refused if the brokers remember "
        "an earlier ledger of this name and prefix, which was lost.",
        (
            option("--partitions", "of a new ledger, default: 32", number(1, 100_000), "N", default=32),
            option("--replication-factor", "of a new ledger, default: the brokers'", number(1, 10_000), "N"),
            switch(
                "--adopt-new",
                "replace a lost ledger: a clear, a retry or a backfill of its runs writes them again",
            ),
        ),
    ),
    Command(
        "doctor",
        "Check brokers, permissions, ledger, topics and group",
        "Check what runs need: brokers, time-outs, this principal's permissions, the ledger, the topics, "
        "the group's cursor; with --table a table, with --spark the executors' versions. Exit code 3 if a "
        "check fails.",
        (
            option("--group", "consumer group to look at"),
            repeatable("--source", "topic that is read; repeatable", topic, "TOPIC"),
            repeatable("--sink", "topic that is written; repeatable", topic, "TOPIC"),
            repeatable(
                "--table",
                "table that is written: of Iceberg, namespace and name; of Delta Lake, delta:URI; of "
                "PostgreSQL, postgres:CONNECTION/SCHEMA.NAME; repeatable",
            ),
            option(
                "--catalog",
                "connection of type iceberg for --table; without Airflow: a catalog of pyiceberg's "
                "configuration; default: iceberg_default",
                metavar="ID",
                default="iceberg_default",
            ),
            _STORAGE,
            _interval("check that the topics keep this data interval, ISO days or times"),
            _TIMEZONE,
            option("--transaction-timeout", "default: 300", seconds, "SECONDS", default=300),
            option("--delivery-timeout", "default: 120", seconds, "SECONDS", default=120),
            option("--spark", "master or sc:// address whose executors are checked too", metavar="ADDRESS"),
        ),
    ),
    Command(
        "plan",
        "Show what a run would read",
        "Show run key, transactional id and offset ranges of a run that would start now; change nothing.",
        (
            _PIPELINE,
            _GROUP,
            option("--topic", "source topic; repeatable", topic, action="append", required=True),
            option("--run-id", "default: preview", default="preview"),
            _interval("data interval, ISO days or times; default: from the cursor"),
            _TIMEZONE,
            option("--allowed-lateness", "as in Interval(allowed_lateness=...)", lateness, "SECONDS"),
            switch("--accept-deleted", "as in Interval(accept_deleted=True)"),
            option("--max-records", "as in Cursor(max_records=...)", positive, "N"),
            option(
                "--start",
                "as in Cursor(start=...)",
                choices=("earliest", "latest", "fail"),
                default="earliest",
            ),
            option("--source-partition", "of a mapped task", number(0, 2**31 - 1), "N"),
        ),
    ),
    Command(
        "status",
        "Show the ledger, cursors with their lag, and runs",
        "Show the ledger's identity, cursors of groups with lag and open transaction, and runs; without "
        "names all groups and pipelines, with tables, open INTENTs and gaps between committed intervals, and "
        "all open transactions of the prefix. Exit code 3 if the ledger has no record of a name, or a limit "
        "is passed.",
        (
            repeatable("--group", "a group's cursor; repeatable"),
            repeatable("--run", "a run, named as in run keys; repeatable", metavar="PIPELINE/RUN_ID"),
            option(
                "--max-lag",
                "maximum lag of a group, with offsets behind open transactions",
                not_negative,
                "OFFSETS",
            ),
            option(
                "--max-open",
                "maximum age of a group's open transaction, or of one that it waits behind; without names, "
                "of any of the prefix that the principal may describe",
                not_negative,
                "SECONDS",
            ),
            option(
                "--max-gaps",
                "maximum number of a pipeline's gaps",
                not_negative,
                "N",
            ),
            switch("--send-metrics", "also send the results as gauges of this Airflow's metrics"),
        ),
    ),
    Command(
        "ledger",
        "List the records of the ledger",
        "List the ledger's latest committed records: runs, cursors, pinned boundaries, resets. Exit code 1 "
        "if it has none of the named pipeline or key.",
        (
            option("--pipeline", "only the runs of this pipeline"),
            option("--key", "only this key, such as cursor:<group>"),
            option("--limit", "maximum number, the latest runs last", positive, "N"),
        ),
    ),
    Command(
        "verify",
        "Compare the output of runs with the ledger",
        "Read the output of committed runs again, as a read_committed consumer would, and compare it with "
        "the ledger's receipts: checksums, sequence, number of records; of a table the number of rows. "
        "Output that was deleted or compacted since is not a mismatch. Exit code 3 for a mismatch or a "
        "partition without a leader, 1 if the ledger has no run of the pipeline.",
        (
            _PIPELINE,
            option("--run-key", "only this run, as `ledger` shows it; repeatable", action="append"),
            option("--last", "only the latest N runs", positive, "N"),
            _STORAGE,
        ),
    ),
    Command(
        "abort",
        "End a transaction that hangs",
        "Show an open transaction: its owner's epoch, start and time-out. With --yes end it. Takes no epoch: "
        "an owner that is still alive gets an error and starts over.",
        (
            option("--transactional-id", "the id", metavar="ID"),
            option("--group", "instead of the id: the consumer group of a whole cursor"),
            option(
                "--epoch",
                "with --yes: the epoch that was shown without it; another epoch's transaction is left alone",
                not_negative,
                "N",
            ),
            switch("--foreign", "also an id outside the prefix, of another environment or application"),
            _YES,
        ),
    ),
    Command(
        "repair",
        "End transactions that brokers forgot to end",
        "List transactions of the prefix that partition leaders hold open although their coordinator has "
        "ended them, and end them as decided, by markers, which need ClusterAction on the cluster.",
        (
            repeatable(
                "--topic",
                "beside ledger and offsets; repeatable; default: all that runs wrote to",
                topic,
            ),
            option(
                "--assume", "the decision of a transaction, if nothing shows it", choices=("commit", "abort")
            ),
            _YES,
        ),
    ),
    Command(
        "dismiss",
        "Make a key of the ledger unused that somebody else wrote, or an INTENT whose table is gone",
        "Write a tombstone over a ledger record that no run wrote. First check the sink for the output of a "
        "run of that name, which is then done (again). Refused if the key has a record of a run. An INTENT "
        "(intent:...) is taken back if its table no longer exists: the next run reads the same records "
        "again. If no run wrote the INTENT, first delete rows of the pipeline's next run in the table.",
        (
            option("--key", "as `LedgerTampered` names it, such as run:<run key>"),
            option(
                "--routing",
                "pipeline of a run, group of a cursor, topic of a boundary; '' for ledger:identity",
                routing,
            ),
            switch(
                "--table-gone",
                "of an INTENT: do not ask whether the table is gone",
            ),
            _STORAGE,
            _YES,
        ),
    ),
    Command(
        "sign",
        "Let what a ledger holds count without a signature",
        "For a ledger that was used before it had a key: write a signed record that everything below the "
        "present end of each partition needs no signature, and everything after it does. First check the "
        "ledger (`doctor`, `ledger`), and give the key to all its users.",
        (_YES,),
    ),
    Command(
        "index",
        "Index the ledger",
        "Update the index of every ledger partition, which keeps look-ups quick. Runs do this themselves: "
        "use it after `sign`, or for a ledger that was used for long without an index.",
    ),
    Command(
        "prune",
        "Remove old run records from the ledger",
        "Write tombstones over the records of runs that were committed before a date, and keep a digest of "
        "each: such a run is refused as `LedgerPruned`. What later runs need stays. Without --yes it shows "
        "their number.",
        (
            option("--before", "date or time, UTC; at least a day ago", metavar="DATE", required=True),
            option("--pipeline", "only the runs of this pipeline", metavar="NAME"),
            _YES,
        ),
    ),
    Command(
        "reset-offsets",
        "Move a group's offsets and its cursor",
        "Move a group's offsets and its cursor in the ledger in one transaction, which fences live runs and "
        "is recorded in the ledger.",
        (
            _GROUP,
            option(
                "--to",
                "start or end of the log, the ledger's cursor, or the committed offsets",
                choices=("earliest", "latest", "cursor", "committed"),
            ),
            repeatable("--offset", "instead of --to; repeatable", metavar="TOPIC:PARTITION=OFFSET"),
            repeatable(
                "--topic",
                "only this topic; repeatable; required with --to while the group has no cursor",
                topic,
            ),
            option("--pipeline", "owner of a group that has no cursor yet"),
            switch(
                "--mapped", "a group that has no cursor yet is that of tasks mapped over source_partition"
            ),
            _YES,
        ),
    ),
    Command(
        "warm-spark",
        "Make local Spark sessions of tasks start sooner",
        "Start Spark once and keep an archive of the classes it loads (150 MB), with which local sessions of "
        "tasks start in about half the time. Once per worker or image, and again when Spark or Java has "
        "changed.",
        (option("--folder", "of the archive, default: [eos] class_data_folder"),),
        cluster=False,
    ),
    Command(
        "spark-server",
        "Run a Spark Connect server for the tasks of this host",
        "Print the server's address and the command that imports its Airflow connection with the token, then "
        "become the installed Spark's Connect server, on loopback, in the foreground. SIGTERM ends it; let a "
        "service manager restart it. Linux only.",
        (
            _SERVER_FOLDER,
            option("--port", "default: that of the last start, at first a free one", port),
            option(
                "--memory",
                "of its JVM, default: 1g; Python workers come on top",
                memory,
                "SIZE",
                default="1g",
            ),
            option("--master", "where it computes, default: local[*]", default="local[*]"),
        ),
        cluster=False,
    ),
)
