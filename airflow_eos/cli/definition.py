"""The commands: names, options, help. argparse and Airflow's own parser read it; imports nothing heavy."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

DONE, REFUSED, USAGE, FOUND = 0, 1, 2, 3
EXIT_CODES: Mapping[int, str] = {
    DONE: "done",
    REFUSED: "the cluster or the ledger says no, or cannot be asked: one line on standard error",
    USAGE: "wrong usage",
    FOUND: "the command worked and found something wrong",
}


@dataclass(frozen=True)
class Option:
    """One option.

    :param settings: arguments of ``ArgumentParser.add_argument``.
    """

    flag: str
    help: str
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Command:
    """One command.

    :param function: its name, see :func:`airflow_eos.cli.execution.call`.
    :param finds: whether it may end with exit code 3.
    :param cluster: whether it asks brokers, and so takes a connection.
    """

    name: str
    help: str
    description: str
    function: str
    options: tuple[Option, ...] = ()
    finds: bool = False
    cluster: bool = True

    @property
    def all_options(self) -> tuple[Option, ...]:
        """Its own options and those of all commands, without the connection's."""
        return (*self.options, *(COMMON if self.cluster else COMMON[:1]))


def positive(text: str) -> int:
    """Read a positive number."""
    value = int(text) if text.isdigit() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return value


def not_negative(text: str) -> int:
    """Read a number that may be 0."""
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is no number of 0 or more")
    return int(text)


def port(text: str) -> int:
    """Read a TCP port."""
    value = positive(text)
    if value > 65_535:  # noqa: PLR2004 - what 16 bits hold
        raise argparse.ArgumentTypeError(f"{text!r} is not a port")
    return value


def memory(text: str) -> str:
    """Read an amount of memory in Spark's notation."""
    if not re.fullmatch(r"[1-9][0-9]*[mgt]", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no amount such as 512m or 4g")
    return text


def epoch(text: str) -> int:
    """Read a producer epoch."""
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a producer epoch")
    return int(text)


COMMON = (
    Option("--output", "default: table", {"choices": ("table", "json", "yaml", "plain"), "default": "table"}),
    Option("--ledger-topic", "default: [eos] ledger_topic, or airflow-eos-ledger", {"metavar": "TOPIC"}),
    Option("--prefix", "first part of transactional ids, default: [eos] prefix, or airflow-eos", {}),
)
_YES = Option("--yes", "do it; without, only show what would be done", {"action": "store_true"})
_TIMEZONE = Option(
    "--timezone", "of days and times that name none, such as Europe/Berlin", {"metavar": "ZONE"}
)
_GROUP = Option("--group", "consumer group that holds the cursor", {"required": True})
_SERVER_FOLDER = Option(
    "--folder", "of the server, default: eos-spark-server in AIRFLOW_HOME", {"metavar": "FOLDER"}
)
_STORAGE = Option(
    "--storage",
    "connection of the object store of Delta Lake tables; default: delta_default",
    {"default": "delta_default", "metavar": "ID"},
)
_PIPELINE = Option("--pipeline", "name of the pipeline, <dag_id>.<task_id> by default", {"required": True})

COMMANDS = (
    Command(
        "init",
        "Create the ledger topic and fix its identity",
        "Create the ledger topic and fix its identity. Does nothing when both are there. Refused where the "
        "brokers still remember that runs have used a ledger of this name and prefix: it was lost.",
        "init",
        (
            Option(
                "--partitions",
                "of a new ledger, default: 32",
                {"type": positive, "default": 32, "metavar": "N"},
            ),
            Option(
                "--replication-factor",
                "of a new ledger, default: the brokers'",
                {"type": positive, "metavar": "N"},
            ),
            Option(
                "--adopt-new",
                "make a lost ledger anew: what it held counts as not committed, and is written again when "
                "it is cleared, retried or backfilled",
                {"action": "store_true"},
            ),
        ),
    ),
    Command(
        "doctor",
        "Check brokers, permissions, ledger, topics and group",
        "Check what runs need: brokers and their partition verification, time-outs, permissions of this "
        "principal, the ledger's settings, replicas and min.insync.replicas, retention and timestamps of the "
        "topics, the group's cursor, with --table catalog, format and rights of a table and the data files "
        "that no snapshot names, and with --spark the versions on the executors. Exit code 3 when a check "
        "fails.",
        "doctor",
        (
            Option("--group", "consumer group to look at"),
            Option(
                "--source",
                "topic that is read; repeatable",
                {"action": "append", "default": [], "metavar": "TOPIC"},
            ),
            Option(
                "--sink",
                "topic that is written; repeatable",
                {"action": "append", "default": [], "metavar": "TOPIC"},
            ),
            Option(
                "--table",
                "table that is written: of Iceberg, namespace and name; of Delta Lake, delta:URI; of "
                "PostgreSQL, postgres:CONNECTION/SCHEMA.NAME; repeatable",
                {"action": "append", "default": [], "metavar": "TABLE"},
            ),
            Option(
                "--catalog",
                "connection of type iceberg for --table; without Airflow: a catalog of pyiceberg's "
                "configuration; default: iceberg_default",
                {"default": "iceberg_default", "metavar": "ID"},
            ),
            _STORAGE,
            Option(
                "--interval",
                "data interval that is to be read, ISO days or times: is it kept so long?",
                {"nargs": 2, "metavar": ("START", "END")},
            ),
            _TIMEZONE,
            Option(
                "--transaction-timeout",
                "default: 300",
                {"type": positive, "default": 300, "metavar": "SECONDS"},
            ),
            Option(
                "--delivery-timeout", "default: 120", {"type": positive, "default": 120, "metavar": "SECONDS"}
            ),
            Option(
                "--spark", "master or sc:// address whose executors are checked too", {"metavar": "ADDRESS"}
            ),
        ),
        finds=True,
    ),
    Command(
        "plan",
        "Show what a run would read",
        "Show run key, transactional id and offset ranges of a run that would start now. Nothing is fenced, "
        "pinned or committed.",
        "plan",
        (
            _PIPELINE,
            _GROUP,
            Option("--topic", "source topic; repeatable", {"action": "append", "required": True}),
            Option("--run-id", "default: preview", {"default": "preview"}),
            Option(
                "--interval",
                "data interval, ISO days or times; default: from the cursor",
                {"nargs": 2, "metavar": ("START", "END")},
            ),
            _TIMEZONE,
            Option("--max-records", "as in Cursor(max_records=...)", {"type": positive, "metavar": "N"}),
            Option(
                "--start",
                "as in Cursor(start=...)",
                {"choices": ("earliest", "latest", "fail"), "default": "earliest"},
            ),
            Option("--source-partition", "of a mapped task", {"type": int, "metavar": "N"}),
        ),
    ),
    Command(
        "status",
        "Show the ledger, cursors with their lag, and runs",
        "Show the ledger's identity, cursors of groups with what they have not read yet and the transaction "
        "they have open, and runs; without names all groups, the latest run of each pipeline, the table that "
        "it writes with the last snapshot, what a run is about to publish in a table, or was when it died, "
        "gaps between the committed intervals of pipelines, and all open transactions of the prefix. Exit "
        "code 3 when the ledger has no record of what was named, or a limit is passed.",
        "status",
        (
            Option("--group", "a group's cursor; repeatable", {"action": "append", "default": []}),
            Option(
                "--run",
                "a run, its names as in run keys; repeatable",
                {"action": "append", "default": [], "metavar": "PIPELINE/RUN_ID"},
            ),
            Option(
                "--max-lag",
                "a group may have so many offsets to read, those behind open transactions included",
                {"type": not_negative, "metavar": "OFFSETS"},
            ),
            Option(
                "--max-open",
                "a group's transaction, or one that it waits behind, may be open so long; without names any "
                "of the prefix",
                {"type": not_negative, "metavar": "SECONDS"},
            ),
            Option(
                "--max-gaps",
                "a pipeline may have so many gaps between its committed intervals",
                {"type": not_negative, "metavar": "N"},
            ),
            Option(
                "--send-metrics",
                "also send what is found as gauges, by the metrics of the Airflow that this is",
                {"action": "store_true"},
            ),
        ),
        finds=True,
    ),
    Command(
        "ledger",
        "List the records of the ledger",
        "List the latest committed records of the ledger: runs, cursors, pinned boundaries, resets. Exit "
        "code 1 when it has none of the pipeline, or of the key, that was named.",
        "ledger",
        (
            Option("--pipeline", "only the runs of this pipeline"),
            Option("--key", "only this key, such as cursor:<group>"),
            Option("--limit", "at most so many, the latest runs last", {"type": positive, "metavar": "N"}),
        ),
    ),
    Command(
        "verify",
        "Compare the output of runs with the ledger",
        "Read the output of committed runs again, as a read_committed consumer would, and compare it with "
        "the receipts in the ledger: checksums, sequence, number of records; of a table the rows in the data "
        "files of the run's snapshot, or of its transaction. What retention, or the expiry of snapshots, has "
        "deleted since is reported as expired, what the cleaner of a compacted topic may have taken as "
        "compacted. Exit code 3 when something does not match, 1 when the ledger has no run of the pipeline.",
        "verify",
        (
            _PIPELINE,
            Option("--run-key", "only this run, as `ledger` shows it; repeatable", {"action": "append"}),
            Option("--last", "only the latest so many runs", {"type": positive, "metavar": "N"}),
            _STORAGE,
        ),
        finds=True,
    ),
    Command(
        "abort",
        "End a transaction that hangs",
        "Show an open transaction: its owner's epoch, when it began, what time-out it has. With --yes end it "
        "before its time-out does. Takes no epoch: an owner that is alive after all gets an error and starts "
        "over.",
        "abort",
        (
            Option("--transactional-id", "the id", {"metavar": "ID"}),
            Option("--group", "instead of the id: the consumer group of a whole cursor"),
            Option(
                "--epoch",
                "with --yes: the producer epoch that was shown without; any other is left alone",
                {"type": epoch, "metavar": "N"},
            ),
            Option(
                "--foreign",
                "also an id that is not of the prefix: another environment's, or another application's",
                {"action": "store_true"},
            ),
            _YES,
        ),
    ),
    Command(
        "repair",
        "End transactions that brokers forgot to end",
        "List transactions of the prefix that partition leaders hold for open although their coordinator has "
        "ended them, and end them as they were decided: by markers, which take ClusterAction on the cluster.",
        "repair",
        (
            Option(
                "--topic",
                "where to look, beside ledger and offsets; repeatable; default: all that runs wrote to",
                {"action": "append", "default": [], "metavar": "TOPIC"},
            ),
            Option(
                "--assume",
                "for a transaction of which nobody can tell how it was decided",
                {"choices": ("commit", "abort")},
            ),
            _YES,
        ),
        finds=True,
    ),
    Command(
        "dismiss",
        "Make a key of the ledger unused that somebody else wrote, or an INTENT whose table is gone",
        "Write a tombstone over a ledger record that no run wrote or that is garbage, where there is none of "
        "ours. A run of "
        "that name is done (again) then: first find out from the sink whether it was. Refused where a run at "
        "work has written a record of the key. The key of an INTENT (intent:...) is that of a run that was "
        "about to publish in a table: it is taken back where that table does not exist any more, and the "
        "next run reads the same records again.",
        "dismiss",
        (
            Option("--key", "as `LedgerTampered` names it, such as run:<run key>"),
            Option(
                "--routing",
                "pipeline of a run, group of a cursor, topic of a boundary; '' for ledger:identity",
            ),
            Option(
                "--table-gone",
                "of an INTENT: do not ask the catalog whether the table is gone",
                {"action": "store_true"},
            ),
            _YES,
        ),
    ),
    Command(
        "sign",
        "Let what a ledger holds count without a signature",
        "For a ledger that was used before it had a key: a signed record says that everything below the "
        "present end of each partition needs no signature, and all that follows does. First look at what is "
        "there (`doctor`, `ledger`), and give the key to all that use the ledger.",
        "sign",
        (_YES,),
    ),
    Command(
        "index",
        "Index the ledger",
        "Bring the index of every ledger partition up to date, by which look-ups stay as quick behind a "
        "million runs as behind none. Runs do so themselves; this is for a ledger that was used for long "
        "without one, and after `sign`.",
        "index",
        (),
    ),
    Command(
        "prune",
        "Remove old run records from the ledger",
        "Write tombstones over the records of runs that were committed before a date, and keep a digest of "
        "each with what they have read: such a run is refused as `LedgerPruned` when it is asked for again, "
        "and never done again. The last run of each pipeline and cursor, runs whose rounds have not ended, "
        "cursors and boundaries stay. Without --yes it says how many there are.",
        "prune",
        (
            Option(
                "--before", "a date or time, UTC; at least a day ago", {"required": True, "metavar": "DATE"}
            ),
            Option("--pipeline", "only the runs of this one", {"metavar": "NAME"}),
            _YES,
        ),
    ),
    Command(
        "reset-offsets",
        "Move a group's offsets and its cursor",
        "Move the offsets of a group and its cursor in the ledger together, in one transaction that fences "
        "live runs and is recorded in the ledger.",
        "reset_offsets",
        (
            _GROUP,
            Option(
                "--to",
                "start or end of the log, the ledger's cursor, or the committed offsets",
                {"choices": ("earliest", "latest", "cursor", "committed")},
            ),
            Option(
                "--offset",
                "instead of --to; repeatable",
                {"action": "append", "default": [], "metavar": "TOPIC:PARTITION=OFFSET"},
            ),
            Option("--topic", "only this topic; repeatable", {"action": "append", "default": []}),
            Option("--pipeline", "owner of a group that has no cursor yet"),
            _YES,
        ),
    ),
    Command(
        "warm-spark",
        "Make local Spark sessions of tasks start sooner",
        "Start Spark once and keep an archive of the classes it loads (150 MB): local sessions of tasks "
        "map it and start in about half the time. Once per worker or image, and again when Spark or Java has "
        "changed.",
        "warm_spark",
        (Option("--folder", "of the archive, default: [eos] class_data_folder", {"metavar": "FOLDER"}),),
        cluster=False,
    ),
    Command(
        "spark-server",
        "Run a Spark Connect server for the tasks of this host",
        "Print the server's address and the command that imports its Airflow connection, token included, and "
        "become the installed Spark's Connect server, on loopback, in the foreground: SIGTERM ends it, and a "
        "service manager such as systemd starts it again when it dies. Linux only.",
        "spark_server",
        (
            _SERVER_FOLDER,
            Option("--port", "default: that of the last start, at first a free one", {"type": port}),
            Option(
                "--memory",
                "of its JVM, default: 1g; Python workers come on top",
                {"type": memory, "default": "1g", "metavar": "SIZE"},
            ),
            Option("--master", "where it computes, default: local[*]", {"default": "local[*]"}),
        ),
        cluster=False,
    ),
)
