"""Pauses between retries."""

from __future__ import annotations

import kafka.errors as kafka_errors
import pytest

from airflow_eos.wire.backoff import Backoff, NotYet, describe, pause_after


@pytest.mark.parametrize("tries", [0, 1, 2, 5, 6, 50, 5000])
def test_pauses_double_up_to_a_second_with_half_of_it_by_chance(tries):
    """Between half and all of 20 ms x 2^tries, at most 1 s, however many tries there were."""
    full = min(1.0, 0.02 * 2.0 ** min(tries, 30))
    pauses = {pause_after(tries) for _ in range(50)}
    assert all(full / 2 <= pause <= full for pause in pauses)
    assert len(pauses) > 1


def test_a_pause_never_reaches_beyond_the_deadline():
    """The last pause is shortened, so that the deadline is noticed in time."""
    backoff = Backoff(0.001)
    assert backoff.next_pause() <= 0.001


def test_the_deadline_expires():
    """A time-out of zero is over at once, with nothing left."""
    backoff = Backoff(0.0)
    assert backoff.expired
    assert backoff.left == 0.0


def test_time_left_counts_from_the_beginning(clock):
    """The deadline counts from the start, not from the last try."""
    begun = clock.now
    backoff = Backoff(60.0)
    clock.now += 1.5
    backoff.next_pause()
    assert backoff.left == 58.5
    assert backoff.deadline == begun + 60.0


def test_a_deadline_can_be_given_again(clock):
    """The whole time counts from the renewal."""
    backoff = Backoff(60.0)
    clock.now += 60.0
    assert backoff.expired
    backoff.extend()
    assert backoff.left == 60.0


def test_a_long_wait_is_told_once(clock, caplog):
    """A task that waits silently for a minute seems to hang; short waits are not logged."""
    backoff = Backoff(60.0)
    for _ in range(3):
        backoff.tell("offsets of src-0", NotYet("LEADER_NOT_AVAILABLE"))
        clock.now += 5.0
    assert caplog.messages == ["offsets of src-0: still waiting (LEADER_NOT_AVAILABLE), for up to 50 s more"]
    clock.now += 60.0
    backoff = Backoff(1.0)
    clock.now += 10.0
    backoff.tell("what is over", NotYet("raises its error"))
    assert len(caplog.messages) == 1


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (kafka_errors.NodeNotReadyError(2), "broker 2 could not be reached a moment ago"),
        (
            kafka_errors.NodeNotReadyError("Node paused: {'throttle'}"),
            "a broker throttles this client: see the quotas of its user and 'client.id'",
        ),
        (kafka_errors.NodeNotReadyError(), "NodeNotReadyError"),
        (OSError("refused"), "OSError: refused"),
    ],
)
def test_an_error_is_one_line_for_whoever_runs_the_brokers(error, text):
    """A client that may not send yet has the reason in an argument, or in none."""
    assert describe(error).startswith(text)
