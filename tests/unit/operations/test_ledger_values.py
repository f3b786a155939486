"""Values that other clients wrote to the ledger: `airflow eos ledger` prints JSON, whatever they are."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from airflow_eos.cli.commands import record_row
from airflow_eos.cli.outcome import Outcome
from airflow_eos.operations.queries import LedgerRecord, _parsed


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


@pytest.mark.parametrize(
    ("value", "parsed"),
    [
        ('{"x": [1.5, {"y": "NaN [[["}]}', {"x": [1.5, {"y": "NaN [[["}]}),
        ('{"x": NaN}', None),
        ("[-Infinity]", None),
        ('{"x": 1e999}', None),
        ("9" * 5000, None),
        ("[" * 99 + "1" + "]" * 99, ...),
        ("[" * 100 + "1" + "]" * 100, None),
        ('{"x":' * 600 + "1" + "}" * 600, None),
        ("[" * 100_000, None),
    ],
    ids=["JSON", "NaN", "constant", "too large", "digits", "99 levels", "100 levels", "600 levels", "no end"],
)
def test_what_json_cannot_say_is_text(value: str, parsed: Any) -> None:
    """A number that is not finite, nesting too deep for a printer; all others are parsed."""
    record = LedgerRecord("run:x", 3, 7, _parsed(value))
    if parsed is ...:
        parsed = json.loads(value)
    document = {"key": "run:x", "partition": 3, "offset": 7, "value": value if parsed is None else parsed}
    assert record.to_dict() == document
    outcome = Outcome(record.to_dict(), {"records": [record_row(record)]})
    assert json.loads(outcome.render("json"), parse_constant=refuse) == document
    assert yaml.safe_load(outcome.render("yaml")) == document
    assert outcome.render("table")
