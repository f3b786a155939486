"""The judge of the campaign with a table: what it says of each kind of wrong table, and of an empty one."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from airflow_eos_testing.oracle import InputLog
from chaos import table_campaign
from tests.support.tables import new_catalog

ALL = ["0:0", "0:1", "foreign:0"]


@pytest.mark.parametrize(
    ("tags", "written", "acts", "complaints"),
    [
        (ALL, 2, "append rewrite expire", []),
        ([], 2, "append rewrite expire", [f"3 rows lost: {ALL}"]),
        (ALL[:2], 2, "append rewrite expire", ["1 rows lost: ['foreign:0']"]),
        ([*ALL, "0:1"], 2, "append rewrite expire", ["1 rows more than once: ['0:1']"]),
        ([*ALL, "9:9"], 2, "append rewrite expire", ["1 rows that nobody wrote: ['9:9']"]),
        (ALL, 1, "append rewrite expire", ["the ledger counts 1 rows of 2"]),
        (ALL, 2, "append unanswered", ["others at the table never did ['expire', 'rewrite']"]),
    ],
)
def test_only_a_table_with_each_record_once_is_exact(tmp_path, monkeypatch, tags, written, acts, complaints):
    """The rows are counted; ledger and offsets are checked where topics are the sink, too."""
    inputs = InputLog(1)
    for _ in range(2):
        inputs.next_tag(0)
    records = [SimpleNamespace(records_written=written)]
    monkeypatch.setattr(table_campaign, "ledger_records", lambda *_: records)
    monkeypatch.setattr(table_campaign, "offsets_complaints", lambda *_: [])
    kafka: Any = SimpleNamespace(client_config=dict)
    upkeep: Any = SimpleNamespace(done=Counter(acts.split()), appended={"foreign:0"})
    with closing(load_catalog("c", **new_catalog(tmp_path))) as catalog:
        table = catalog.create_table("db.t", schema=pa.schema([("tag", pa.string())]))
        if tags:
            table.append(pa.table({"tag": tags}))
        assert table_campaign._complaints(kafka, table, inputs, upkeep) == complaints
