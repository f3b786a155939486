"""The fault table says of every cell whether it can be reached, and the report shows every cell."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_eos.run.states import State
from airflow_eos_testing.faults import TABLE_STATES
from airflow_eos_testing.oracle import judge
from chaos.playground import java_hash
from chaos.report import Outcome, Report, last_line
from chaos.table import CELLS, SHORT, UNREACHABLE, Cell, Fault, cell_of


def test_every_cell_is_reachable_or_has_a_reason():
    """Eight faults, eight states."""
    every = {Cell(fault, state) for fault in Fault for state in TABLE_STATES}
    assert len(every) == 80
    assert set(CELLS) | set(UNREACHABLE) == every
    assert not set(CELLS) & set(UNREACHABLE)
    assert all(UNREACHABLE.values())
    assert set(SHORT) <= set(CELLS)


def test_the_reasons_stand_in_the_documents():
    """A cell that is left out is explained in the documentation."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "fault-campaign.md").read_text()
    for cell, reason in UNREACHABLE.items():
        rows = [
            row for row in page.splitlines() if row.startswith(f"| {cell.fault.value} |") and reason in row
        ]
        assert any(cell.state.value in row for row in rows), cell
    assert all(f"| {fault.value} |" in page for fault in Fault)


def test_cells_are_read_from_the_command_line():
    """An impossible cell is refused with its reason."""
    assert cell_of("ZOMBIE:WRITTEN") == (Fault.ZOMBIE, State.WRITTEN)
    with pytest.raises(ValueError, match="EndTxn was answered before"):
        cell_of("END_TXN_ACK:COMMITTED")
    with pytest.raises(ValueError, match="not FAULT:STATE"):
        cell_of("ZOMBIE")


def test_the_table_has_a_line_for_every_cell():
    """What was injected, what was not, and what is impossible."""
    report = Report()
    cell = Cell(Fault.DRIVER, State.OPEN)
    report.add(cell, Outcome("next try committed", 1.25))
    report.add(cell, Outcome("next try committed", 3.5))
    lines = report.table().splitlines()
    assert len(lines) == 81
    (line,) = [line for line in lines if line.startswith("driver SIGKILL ") and "OPEN" in line]
    assert line.split()[3:] == ["2", "1.2-3.5", "next", "try", "committed"]
    assert sum("n/a: " in line for line in lines) == len(UNREACHABLE)
    assert report.faults == 2


def test_the_last_line_counts_what_the_oracle_found():
    """They are measured numbers, whatever they are."""
    verdict = judge(["0:0", "0:1"], [])
    assert last_line(3, 2, verdict) == (
        "chaos: 3 runs, 2 faults, 2 records in, 0 records out, 2 lost, 0 duplicated"
    )


def test_names_are_hashed_as_java_does():
    """The coordinator of an id leads the partition of its hash."""
    assert java_hash("") == 0
    assert java_hash("abc") == 96354
    assert java_hash("polygenelubricants") == 0
