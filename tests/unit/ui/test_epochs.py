"""The epochs around a run: exactly what run records prove."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_eos.ledger.records.run_record import RunRecord
from airflow_eos.model.kafka import ProducerIdentity
from airflow_eos.ui.epochs import attempt_ends, epoch_rows, is_fenced
from tests.unit.airflow.fakes import a_record

PLAIN = ("ASKED", "FENCED", "CHECKED", "PLANNED", "SEALED", "OPEN", "WRITTEN")
AGAIN = (*PLAIN, "ABORTED", "FENCED", "CHECKED", "PLANNED", "OPEN", "WRITTEN")
ABORTED = "aborted by this run itself, which took the next epoch"
NOT_ANSWERED = "its commit was not answered; not committed"
SPENT = "spent on ending what an earlier attempt had left open"


def run(epoch: int, *, producer_id: int = 1, name: str = "t", states: tuple[str, ...] = PLAIN) -> RunRecord:
    """Return a run that committed under an epoch."""
    return a_record(
        run_key=f"run/p/{producer_id}.{epoch}",
        producer=ProducerIdentity(name, producer_id, epoch),
        trace=tuple((state, float(number)) for number, state in enumerate(states)),
    )


def rows(runs: list[RunRecord], at: int) -> list[tuple[str, str, str]]:
    """Return the contents of the rows, without names."""
    shown = epoch_rows(runs[at], runs, lambda _: True)
    return [(row["whose"], row["epoch"], row["outcome"]) for row in shown]


def test_runs_that_follow_each_other_fence_each_other() -> None:
    """Each has fenced the one before it."""
    runs = [run(epoch) for epoch in range(4)]
    assert rows(runs, 2) == [
        ("run before", "1", "committed; fenced by this run"),
        ("this run", "2", "committed; fenced by the next run"),
        ("next run", "3", "committed; it fenced this run"),
    ]
    assert rows(runs, 0)[0][0] == "this run"
    assert rows(runs, 3)[-1] == ("this run", "3", "committed")


def test_a_gap_between_epochs_is_no_row() -> None:
    """Attempts take epochs, and so does the coordinator: their number proves nothing."""
    assert [whose for whose, _, _ in rows([run(0), run(7)], 1)] == ["run before", "this run"]
    assert [whose for whose, _, _ in rows([run(2), run(3)], 0)] == ["this run", "next run"]


def test_epochs_of_another_producer_id_fence_nobody() -> None:
    """A new producer id starts at 0: that is not a step back."""
    runs = [run(1), run(0, producer_id=9)]
    assert not is_fenced(*runs)
    assert not is_fenced(*reversed(runs))
    assert rows(runs, 1)[0] == ("run before", "1", "committed; the id has another producer id since")


def test_records_of_one_epoch_prove_nothing() -> None:
    """No run writes such records: each takes its own epoch."""
    runs = [run(5), replace(run(5), run_key="run/p/other")]
    assert rows(runs, 1)[0] == ("run before", "5", "committed")


def test_a_runs_own_epochs_are_its_attempts() -> None:
    """The record names the last one's number."""
    assert rows([run(0), run(3, states=AGAIN)], 1)[1:] == [
        ("this run, epoch 1 of 2", "below 3", ABORTED),
        ("this run, epoch 2 of 2", "3", "committed"),
    ]


@pytest.mark.parametrize(
    ("states", "ends"),
    [
        ((), ("committed",)),
        ((*PLAIN, "STAGED", "PROVEN", "UNKNOWN", *PLAIN[1:]), (NOT_ANSWERED, "committed")),
        (("ASKED", "FENCED", "FENCED", "CHECKED", "PLANNED"), (SPENT, "committed")),
        (("ASKED", "FENCED", "CHECKED", "FENCED", "CHECKED"), ("committed",)),
    ],
    ids=["no trace", "lost answer", "something left open", "reprocessed under another id"],
)
def test_attempts_are_told_by_states(states: tuple[str, ...], ends: tuple[str, ...]) -> None:
    """The last one has committed."""
    assert attempt_ends(run(5, states=states)) == ends


def test_runs_under_other_ids_are_not_among_the_rows() -> None:
    """Each interval has its own."""
    runs = [run(0, name="a"), run(0, name="b"), run(1, name="a")]
    assert [(whose, epoch) for whose, epoch, _ in rows(runs, 2)] == [("run before", "0"), ("this run", "1")]


def test_a_run_that_is_not_in_memory_has_no_neighbours() -> None:
    """Its own attempts are in its record."""
    older = replace(run(9, states=AGAIN), run_key="run/p/older")
    shown = epoch_rows(older, [run(epoch) for epoch in range(3)], lambda _: True)
    assert [row["whose"] for row in shown] == ["this run, epoch 1 of 2", "this run, epoch 2 of 2"]


def test_a_run_that_may_not_be_seen_has_no_name() -> None:
    """Its epoch is not a secret: the runs around it reveal it."""
    runs = [run(0), run(1), run(2)]
    shown = epoch_rows(runs[1], runs, lambda record: record is runs[0])
    assert [row["run_key"] for row in shown] == [runs[0].run_key, "", ""]
