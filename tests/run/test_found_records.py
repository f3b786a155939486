"""What the ledger's record of a run answers, and to whom: the real protocol on a model cluster."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.model.ranges import Cursor, Explicit, OffsetRange
from airflow_eos.model.spec import RunSpec
from airflow_eos.run import laws
from tests.run.model.broker import ModelBroker
from tests.run.model.scenes import Scene, before, spec

EXPLICIT = Explicit((OffsetRange("src", 0, 0, 2),))
ROUNDS = Cursor(max_records=1, until_caught_up=True)


def a_cluster(records: int = 2) -> Scene:
    """A source of two partitions with so many records each, and a sink."""
    scene = Scene(ModelBroker({"src": 2, "out": 2}))
    for number in range(records):
        for partition in range(2):
            scene.broker.write_input("src", partition, f"p{partition}r{number}")
    return scene


def of(environment: str, **changes: Any) -> RunSpec:
    """The same run in one of the environments that share cluster and ledger."""
    return spec(prefix=environment, group_id=environment, **changes)


@pytest.mark.parametrize("ranges", [Cursor(), EXPLICIT, ROUNDS], ids=["cursor", "explicit", "rounds"])
@pytest.mark.parametrize("changes", [{}, {"clear_number": 1}], ids=["first life", "cleared"])
def test_a_commit_of_another_environment_is_not_this_ones_success(
    ranges: Any, changes: dict[str, Any]
) -> None:
    """A run that was committed under another prefix is refused by name: its own work was never done."""
    scene = a_cluster()
    before(scene, of("staging", ranges=ranges))
    written = scene._visible("out")
    with pytest.raises(ConfigurationError, match=r"'staging\..*'prod\..*own pipeline.*own ledger topic"):
        before(scene, of("prod", ranges=ranges, **changes))
    assert scene._visible("out") == written
    assert before(scene, of("staging", ranges=ranges)).found


def test_rounds_of_another_environment_are_not_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round that another environment committed is not counted as read by this one."""
    scene = a_cluster()

    class Stops(Exception):
        """The first environment's task ends after its first round."""

    receipts_match, rounds = laws.receipts_match, []

    def once(*arguments: Any) -> None:
        rounds.append(arguments)
        if len(rounds) > 1:
            raise Stops
        receipts_match(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(laws, "receipts_match", once)
        with pytest.raises(Exception, match="aborted"):
            before(scene, of("staging", ranges=ROUNDS, max_send_attempts=1))
    assert len(scene._visible("out")) == 1
    with pytest.raises(ConfigurationError, match="was committed under transactional id 'staging"):
        before(scene, of("prod", ranges=ROUNDS))
    assert before(scene, of("staging", ranges=ROUNDS)).details["rounds"] == 4


def test_a_reprocessing_of_this_very_work_is_found_under_its_own_id() -> None:
    """A reprocessing that is asked for again answers; another environment's is never taken for it."""
    scene = a_cluster()
    before(scene, spec())
    again = spec(clear_number=1, on_committed="reprocess")
    done = before(scene, again)
    assert (done.mode, done.found) == ("reprocess", False)
    assert before(scene, again).found
    assert len(scene._visible("out")) == 8
