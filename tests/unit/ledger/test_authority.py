"""What counts above the last stable offset of a ledger partition, where the broker has not decided yet."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_eos.exceptions import OutcomeUnknown
from airflow_eos.ledger.authority import UNDECIDED_WAIT_SECONDS, Authority, answer_of
from airflow_eos.model.ledger import LedgerEntry, LedgerValue, LedgerView

FIRST = 10
"""The last stable offset."""


def value(offset: int) -> LedgerValue:
    return LedgerValue(f"written at {offset}", 0, offset)


def entry(offset: int, producer: int, written: str) -> LedgerEntry:
    """Return a marker, or a record of the key: ``key-`` is a tombstone."""
    if written in ("commit", "abort"):
        return LedgerEntry(offset, producer, written)  # type: ignore[arg-type]
    key = written.removesuffix("-")
    return LedgerEntry(offset, producer, "record", key, value(offset) if key == written else None)


def view(*entries: tuple[int, str], committed: str = "") -> LedgerView:
    """Return a view of entries, each with its producer, above committed values of the keys."""
    tail = [entry(FIRST + number, *pair) for number, pair in enumerate(entries)]
    below = {key: value(at) for at, key in enumerate(committed)}
    return LedgerView(FIRST, FIRST + len(tail), below, tuple(tail))


@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.sampled_from(["a", "b", "a-", "b-", "commit", "abort"])), max_size=12
    ),
    st.sampled_from(["", "a", "ab"]),
)
def test_each_record_is_decided_by_the_next_marker_of_its_producer(
    entries: list[tuple[int, str]], committed: str
) -> None:
    """By that alone; of what is committed the highest offset of a key is its value."""
    wanted = view(*entries, committed=committed)
    expected, undecided = dict(wanted.committed), set()
    for at, (producer, written) in enumerate(entries):
        if written in ("commit", "abort"):
            continue
        later = [kind for owner, kind in entries[at + 1 :] if owner == producer]
        fate = next((kind for kind in later if kind in ("commit", "abort")), None)
        if fate is None:
            undecided.add(FIRST + at)
        elif fate == "commit":
            expected.pop(written.removesuffix("-"), None)
            if not written.endswith("-"):
                expected[written] = value(FIRST + at)
    answer = answer_of(wanted)
    assert answer.committed == expected
    assert {record.offset for record in answer.open_records} == undecided


def test_of_two_transactions_the_later_record_counts_whichever_ends_first() -> None:
    """As for a reader below the last stable offset, and for compaction."""
    both = view((1, "a"), (2, "a"), (2, "commit"), (1, "commit"))
    assert answer_of(both).committed == {"a": value(FIRST + 1)}


def test_a_tombstone_takes_a_committed_value_back() -> None:
    """When its transaction has committed."""
    assert answer_of(view((1, "a-"), (1, "commit"), committed="a")).committed == {}
    assert answer_of(view((1, "a-"), (1, "abort"), committed="a")).committed == {"a": value(0)}


class Looks:
    """A ledger of one partition that says something else at each look; the last answer stays."""

    topic = "ledger"

    def __init__(self, *views: LedgerView) -> None:
        self.views, self.looks = list(views), 0

    def partition_for(self, _routing: str) -> int:
        return 0

    def view(self, _partition: int, _keys: object, _prefixes: object = ()) -> LedgerView:
        self.looks += 1
        return self.views[min(self.looks, len(self.views)) - 1]


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_an_open_record_is_waited_for_and_not_denied(end: str) -> None:
    """A look without waiting says that nothing is known of it, which proves nothing."""
    ledger = Looks(view((1, "a")), view((1, "a")), view((1, "a"), (1, end)))
    assert Authority(Looks(view((1, "a")))).peek(["a"], routing="") == {}  # type: ignore[arg-type]
    settled = Authority(ledger, sleep=lambda _: None).settle(["a"], routing="")  # type: ignore[arg-type]
    assert settled == ({"a": value(FIRST)} if end == "commit" else {})
    assert ledger.looks == 3


def test_a_record_that_stays_open_is_an_unknown_outcome() -> None:
    """Neither a yes nor a no."""
    seconds = [0.0]

    def sleep(wanted: float) -> None:
        seconds[0] += wanted

    authority = Authority(Looks(view((1, "a"))), sleep, lambda: seconds[0])  # type: ignore[arg-type]
    with pytest.raises(OutcomeUnknown, match=r"\['a'\] in a transaction that has been open for 60 s"):
        authority.settle(["a"], routing="")
    assert seconds[0] == pytest.approx(UNDECIDED_WAIT_SECONDS, abs=1)
