"""A search of runs whose sink is a table: in all orders, with commits that are late or lose their answer.

Each protection has its counter-test: without it the search finds duplicate rows. ``EOS_SEED`` repeats the
draw of a deeper search by ``make chaos``.
"""

from __future__ import annotations

import logging
import os
import random
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from airflow_eos.run import publishing
from airflow_eos.run.publishing import Publisher, published_by
from airflow_eos.run.table_steps import TableSteps
from tests.protocol.model import table_scenes
from tests.protocol.model.explorer import Report, Run, explore
from tests.protocol.model.table_scenes import TableScene

EXECUTIONS = 600
DEEPER = 8_000

# Each of these fails a task for good, and no scene gives cause for one.
FINAL = ("CursorMoved", "DifferentWork", "TableChanged", "TableReplaced")

Make = Callable[[Run], TableScene]


def no_final_failure(report: Report) -> bool:
    return not [outcome for outcome in report.outcomes if outcome.endswith(FINAL)]


@pytest.mark.search
@pytest.mark.parametrize("scene", table_scenes.SCENES, ids=lambda s: s.__name__)
def test_every_interleaving_with_a_table_is_exactly_once(scene: Make) -> None:
    """Whatever dies, pauses or is answered late: each input is one row, and the ledger has its run."""
    report = explore(scene, deviations=2, executions=EXECUTIONS)
    print(f"{scene.__name__}: {report.executions} schedules, {report.states} states, {report.outcomes}")
    assert report.counter_example is None, f"\n{report.counter_example}"
    assert report.exhausted or report.executions == EXECUTIONS
    assert [outcome for outcome in report.outcomes if outcome.endswith(": COMMITTED")]
    assert no_final_failure(report), report.outcomes


@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scene", table_scenes.SCENES, ids=lambda s: s.__name__)
def test_interleavings_with_a_table_at_random_are_exactly_once(scene: Make) -> None:
    """With up to three faults or switches, random ones after the first: each seed draws others."""
    seed = int(os.environ.get("EOS_SEED") or random.randrange(1_000_000))
    print(f"EOS_SEED={seed}")
    report = explore(scene, deviations=3, executions=DEEPER, seed=seed)
    assert report.counter_example is None, f"\nEOS_SEED={seed}\n{report.counter_example}"
    assert no_final_failure(report), report.outcomes


def violation(scene: Make, *, faults: bool = True) -> str:
    report = explore(scene, deviations=2, executions=4_000, faults=faults)
    assert report.counter_example is not None, f"no counter-example in {report.executions} schedules"
    print(f"after {report.executions} schedules: {report.counter_example}")
    return report.counter_example.violation


def test_without_the_compare_and_set_two_attempts_publish() -> None:
    """Both find no earlier commit, and the later one commits on top of the other."""
    assert "duplicated" in violation(partial(table_scenes.twins, compares=False))


def test_without_the_token_a_zombie_publishes_beside_its_successor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its stale base is refused; it loads the table again, and finds no row of its own."""
    monkeypatch.setattr(publishing, "token_is_stale", lambda *_: False)
    assert "duplicated" in violation(table_scenes.successive)


def test_without_the_intent_a_retry_writes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first attempt died after its commit to the table: nothing tells whose rows these are."""
    monkeypatch.setattr(TableSteps, "intent_of_others", lambda *_: None)
    assert "duplicated" in violation(partial(table_scenes.twins))


def test_without_the_letters_in_the_intent_they_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attempt that processed the record died after its commit to the table."""
    intent = TableSteps.intent

    def without_letters(self: TableSteps, *arguments: Any) -> Any:
        return replace(intent(self, *arguments), letters=None)

    monkeypatch.setattr(TableSteps, "intent", without_letters)
    assert "lost" in violation(table_scenes.with_letters)


def test_without_the_rule_of_bars_a_reprocessing_removes_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that settles the INTENT of a dead reprocessing removes the rows: none are left to replace."""
    monkeypatch.setattr(publishing, "rows_taken_out", lambda claim, _: claim.replaces)
    assert "TableRewritten" in violation(table_scenes.replaced)


def test_without_the_replacement_in_the_commit_both_rows_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reprocessing only appends."""
    monkeypatch.setattr(publishing, "rows_taken_out", lambda *_: ())
    assert "duplicated" in violation(table_scenes.replaced, faults=False)


@pytest.mark.search
def test_an_intent_that_is_taken_back_without_a_bar_is_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its attempt pauses before the table commit and resumes when the next one has read the same records."""

    def settle(self: Publisher, claim: Any) -> Any:
        return published_by(self.table.load(), claim)

    monkeypatch.setattr(Publisher, "settle", settle)
    assert "duplicated" in violation(table_scenes.successive, faults=False)


def test_a_claim_that_the_property_no_longer_names_is_asked_of_the_ledger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A zombie of an interval wakes up after its run is committed and its claim was removed as obsolete."""
    committed = TableSteps._committed

    def but_for_its_own(self: TableSteps, run_keys: Any) -> frozenset[str]:
        return committed(self, run_keys) - {run_keys[0]}

    monkeypatch.setattr(TableSteps, "_committed", but_for_its_own)
    assert "duplicated" in violation(table_scenes.side_by_side)


def test_the_log_counts_the_rows_that_are_sealed_for_a_table(caplog: pytest.LogCaptureFixture) -> None:
    """It does not count records for partitions: no topic gets any."""
    with caplog.at_level(logging.INFO, logger="airflow_eos.run.protocol"):
        explore(table_scenes.twins, deviations=0, executions=1)
    sealed = [text for text in caplog.messages if text.startswith("sealed")]
    assert sealed
    line = re.compile(r"sealed [1-9]\d* data files, [1-9]\d* rows, \d+ bytes")
    assert [text for text in sealed if not line.fullmatch(text)] == []
