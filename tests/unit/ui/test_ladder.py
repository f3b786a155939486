"""What epochs prove of attempts of which there is no record, and what they do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_eos.ledger.records.run import RunRecord
from airflow_eos.model.kafka import ProducerIdentity
from airflow_eos.ui.ladder import is_fenced, ladder_of
from tests.unit.airflow.fakes import a_record

PLAIN = ("ASKED", "FENCED", "CHECKED", "PLANNED", "SEALED", "OPEN", "WRITTEN")
AGAIN = (*PLAIN, "ABORTED", "FENCED", "CHECKED", "PLANNED", "OPEN", "WRITTEN")


def run(epoch: int, *, producer_id: int = 1, name: str = "t", states: tuple[str, ...] = PLAIN) -> RunRecord:
    """Return a run that committed under an epoch."""
    return a_record(
        run_key=f"run/p/{producer_id}.{epoch}",
        producer=ProducerIdentity(name, producer_id, epoch),
        trace=tuple((state, float(number)) for number, state in enumerate(states)),
    )


def unrecorded(runs: list[RunRecord], at: int, *, complete: bool = True) -> int:
    return ladder_of(runs[at], runs, complete=complete).unrecorded


def test_runs_that_follow_each_other_leave_nothing_out() -> None:
    """Each has fenced the one before it."""
    runs = [run(epoch) for epoch in range(4)]
    found = ladder_of(runs[2], runs, complete=True)
    assert (found.before, found.after) == (runs[1], runs[3])
    assert (found.unrecorded, found.attempts) == (0, ("committed",))
    assert is_fenced(runs[1], runs[2])
    assert not is_fenced(runs[2], runs[1])


def test_what_exceeds_the_usual_step_was_somebodys() -> None:
    """Of one that had a transaction open, two: its own, and that of its end."""
    runs = [run(epoch) for epoch in (0, 1, 2, 5)]
    assert [unrecorded(runs, at) for at in range(4)] == [0, 0, 0, 2]


def test_where_each_end_takes_an_epoch_the_usual_step_is_two() -> None:
    """Transactions of version 2: nothing is claimed of them."""
    runs = [run(epoch) for epoch in (0, 2, 4, 8)]
    assert [unrecorded(runs, at) for at in range(4)] == [0, 0, 0, 2]


def test_one_step_alone_tells_nothing() -> None:
    """There is no usual one to compare it with."""
    assert unrecorded([run(0), run(7)], 1) == 0


def test_the_first_epoch_of_an_id_is_0() -> None:
    """The first run, under another one, was not the first to take it; unless older runs are gone."""
    assert unrecorded([run(2), run(3)], 0) == 2
    assert unrecorded([run(2), run(3)], 0, complete=False) == 0


def test_a_new_producer_id_starts_at_0() -> None:
    """It is no step back, and fences by another means."""
    runs = [run(0), run(1), run(0, producer_id=9), run(3, producer_id=9), run(4, producer_id=9)]
    assert [unrecorded(runs, at) for at in range(5)] == [0, 0, 0, 2, 0]
    assert not is_fenced(runs[1], runs[2])
    assert unrecorded([run(0), run(1), run(2, producer_id=9), run(3, producer_id=9)], 2) == 2


def test_records_of_one_epoch_prove_nothing() -> None:
    """No run writes such: each takes an epoch."""
    runs = [run(5), replace(run(5), run_key="run/p/other")]
    assert unrecorded(runs, 1) == 0
    assert not is_fenced(*runs)


def test_a_runs_own_epochs_are_its_attempts() -> None:
    """They count as steps of its own."""
    runs = [run(0), run(1), run(3, states=AGAIN)]
    found = ladder_of(runs[2], runs, complete=True)
    assert (found.attempts, found.unrecorded) == (("aborted", "committed"), 0)


@pytest.mark.parametrize(
    ("states", "attempts"),
    [
        ((), ("committed",)),
        ((*PLAIN, "STAGED", "PROVEN", "UNKNOWN", *PLAIN[1:]), ("not answered", "committed")),
        (("ASKED", "FENCED", "FENCED", "CHECKED", "PLANNED"), ("spent", "committed")),
        (("ASKED", "FENCED", "CHECKED", "FENCED", "CHECKED"), ("committed",)),
    ],
    ids=["no trace", "lost answer", "something left open", "reprocessed under another id"],
)
def test_attempts_are_told_by_states(states: tuple[str, ...], attempts: tuple[str, ...]) -> None:
    """The last one has committed."""
    one = run(5, states=states)
    assert ladder_of(one, [one], complete=False).attempts == attempts


def test_runs_under_other_ids_are_on_no_ladder() -> None:
    """Each interval has its own."""
    runs = [run(0, name="a"), run(0, name="b"), run(1, name="a")]
    found = ladder_of(runs[2], runs, complete=True)
    assert (found.before, found.after) == (runs[0], None)


def test_a_run_that_is_not_in_memory_has_no_neighbours() -> None:
    """Its own attempts are in its record."""
    runs = [run(epoch) for epoch in range(3)]
    older = replace(run(9, states=AGAIN), run_key="run/p/older")
    found = ladder_of(older, runs, complete=True)
    assert (found.before, found.unrecorded, found.after) == (None, 0, None)
    assert found.attempts == ("aborted", "committed")
