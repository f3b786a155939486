"""The record of an INTENT: reading gives what was written, or one error for anything else."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest

from airflow_eos.exceptions import ConfigurationError, DifferentWork, LedgerUnreadable
from airflow_eos.ledger import keys
from airflow_eos.ledger.records.intent import Intent
from airflow_eos.ledger.records.run_record import named_writer
from airflow_eos.model.dead_letter import MOST_BESIDE_TABLE, DueLetters, FailingRecord
from airflow_eos.model.ledger import LedgerMessage
from airflow_eos.model.ranges import OffsetRange
from airflow_eos.model.table import EarlierRows, PublishedRun, PublishedRuns, TableLayout, TableReceipt
from airflow_eos.run import laws
from tests.support.run_records import run_record

INTENT = Intent(
    sink="iceberg:lake/db.t",
    layout=TableLayout("4c1b", 0, 2),
    token=41,
    record=run_record(ranges=(OffsetRange("src", 0, 1, 5),)),
    offsets_group="g",
    messages=(LedgerMessage("cursor:g", "{}", "g"),),
)


def test_what_was_written_is_read():
    """Together with the transaction that it counts in."""
    value = INTENT.to_json((7, 3))
    assert Intent.from_json(value) == INTENT
    assert named_writer(value) == (7, 3)


def test_what_is_replaced_is_named():
    """An INTENT that replaces nothing has the form from before the option existed."""
    earlier = (EarlierRows(TableReceipt(5, 1, 3), "a"), EarlierRows(TableReceipt(6, 2, 4), "b"))
    replacing = replace(INTENT, replaces=earlier)
    assert Intent.from_json(replacing.to_json((7, 3))) == replacing
    assert "replaces" not in json.loads(INTENT.to_json((7, 3)))


def test_rows_that_an_older_version_replaces_have_no_label():
    """It replaces rows of Iceberg tables only, which are found without a label."""
    data = json.loads(replace(INTENT, replaces=(EarlierRows(TableReceipt(5, 1, 3), "a"),)).to_json((7, 3)))
    del data["replaces"][0]["label"]
    assert Intent.from_json(json.dumps(data)).replaces == (EarlierRows(TableReceipt(5, 1, 3), ""),)


def test_dead_letters_are_named_in_a_version_of_their_own():
    """A reader that does not know them must not commit the run without them; errors are cut to fit."""
    records = [FailingRecord("src", 0, 3, "no"), FailingRecord("src", 1, 9, "é" * 400)]
    intent = replace(INTENT, letters=DueLetters.of("dead", records))
    value = intent.to_json((7, 3))
    assert Intent.from_json(value) == intent
    assert (json.loads(value)["v"], json.loads(INTENT.to_json((7, 3)))["v"]) == (2, 1)
    assert intent.letters.records == (records[0], FailingRecord("src", 1, 9, "é" * 83))


def test_as_many_dead_letters_as_a_run_may_have_fit_into_one_record_of_the_ledger():
    """1 MB is the brokers' default limit: with errors that JSON escapes, and long topic names."""
    records = [FailingRecord("t" * 249, 0, 2**40 + n, "\u4e00" * 400) for n in range(MOST_BESIDE_TABLE)]
    value = replace(INTENT, letters=DueLetters.of("dead", records)).to_json((7, 3))
    assert len(value.encode()) < 1_000_000


@pytest.mark.parametrize("field", ["sink", "layout", "token", "record", "offsets_group", "messages"])
def test_what_lacks_something_is_unreadable(field):
    """The error names the missing key."""
    data = json.loads(INTENT.to_json((7, 3)))
    del data[field]
    with pytest.raises(LedgerUnreadable, match="intent:x"):
        Intent.from_json(json.dumps(data), "intent:x")


def test_an_open_intent_keeps_the_cursor_from_moving_on():
    """Law 7: the error names run and table."""
    laws.no_open_intent("g", "intent:id", None)
    with pytest.raises(DifferentWork, match=r"run/p/r of group 'g'.*iceberg:lake/db\.t"):
        laws.no_open_intent("g", "intent:id", INTENT.to_json((7, 3)))


def test_scopes_and_properties_are_of_one_id_one_branch_and_one_ledger():
    """Tokens of different scopes are never compared."""
    scopes = {
        keys.table_scope(name, branch) for name in ("p.cursor.g", "p.cursor.h") for branch in (None, "b")
    }
    assert len(scopes) == 4
    owners = itertools.product("ab", "gh", [None, "audit"])
    assert len({keys.table_property(*owner) for owner in owners}) == 8


def test_what_a_table_says_of_runs_is_read_again():
    """A run's entry is removed once the ledger has the run; a cursor's entry stays."""
    lasting = PublishedRun("run/p/1", 5, TableReceipt(9, 1, 2), lasting=True)
    barred = PublishedRun("interval/p/1", 8, None, lasting=False)
    runs = PublishedRuns().with_run("cursor", lasting).with_run("interval", barred)
    assert PublishedRuns.from_json(runs.to_json()) == runs
    assert [run.state for run in runs.runs.values()] == ["published", "barred"]
    over = frozenset({"run/p/1", "interval/p/1"})
    assert set(runs.with_run("other", lasting, over).runs) == {"cursor", "other"}


@pytest.mark.parametrize("value", ["", "[]", '{"v":2,"runs":{}}', '{"v":1,"runs":{"s":{"key":"k"}}}'])
def test_a_property_that_is_not_ours_is_refused(value):
    """Overwriting it could duplicate a run."""
    with pytest.raises(ConfigurationError, match="cannot be read"):
        PublishedRuns.from_json(value)
