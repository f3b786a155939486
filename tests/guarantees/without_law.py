"""Takes one law away and shows which tests fail: ``python -m tests.guarantees.without_law [NAME ...]``.

Each law of :mod:`airflow_eos.run.laws` is replaced by one that lets everything pass, then the tests named
here are run; they must fail by their own judgement, not in their set-up. The table it prints is the one in
``docs/guarantees/laws.md``.

It works as a pytest plugin too: ``EOS_WITHOUT_LAW=NAME pytest -p tests.guarantees.without_law TESTS`` shows
the failure, for the interleavings with a shortest counterexample.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import ANY

from airflow_eos.exceptions import EosError
from airflow_eos.ledger.witnesses import Testimony
from airflow_eos.recordbatch.header import ATTRIBUTES_AT, CRC_AT, TRANSACTIONAL_BIT, crc32c
from airflow_eos_testing.exceptions import (
    EmbeddedAirflowError,
    EmbeddedDriverError,
    EmbeddedKafkaError,
    EmbeddedSparkError,
)

ROOT = Path(__file__).resolve().parents[2]
SWITCH = "EOS_WITHOUT_LAW"
JUDGED, PASSED = "failed", "passed"
_VERDICT = f"{SWITCH}: "
_ENVIRONMENT = (EmbeddedAirflowError, EmbeddedDriverError, EmbeddedKafkaError, EmbeddedSparkError)
_RANGES = "tests/integration/test_unaccountable_ranges.py::"
SEARCH = "tests/protocol/test_interleavings.py::test_every_interleaving_is_exactly_once"
_SEARCHES = "tests/protocol/test_interleavings.py::"
_SEND_TASK = "tests/unit/spark/test_spark_send_task.py"
_EXPERIMENTS = "tests/guarantees/test_laws.py::"
_OFFSETS = "tests/guarantees/test_consumer_offsets.py::"
_DELIVERY = "tests/guarantees/test_delivery.py::"
_TRANSACTIONS = "tests/guarantees/test_transactions.py::"
_LOST = "tests/integration/test_lost_ledger.py::"
_FORGED = "tests/integration/test_forged_ledger.py::"
_HANGING = "tests/integration/test_hanging_transactions.py::"
_LEDGER = "tests/protocol/test_ledger_identity.py::"
_ZOMBIES = "tests/guarantees/test_transactions_zombies.py::"


@dataclass(frozen=True)
class Removal:
    """A law, its replacement, and the tests that must fail with it.

    :param target: ``module:name`` or ``module:Class.name``.
    :param instead: the replacement; if ``wraps``, a function that makes it from the original.
    """

    law: str
    says: str
    target: str
    instead: Callable[..., Any]
    tests: tuple[str, ...]
    wraps: bool = False


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _asks_late(original: Any) -> Any:
    def only_after_the_fence(self: Any, work: Any, *, fenced: bool) -> Any:
        return original(self, work, fenced=fenced) if fenced else None

    return only_after_the_fence


def _asks_early(original: Any) -> Any:
    def only_before_the_fence(self: Any, work: Any, *, fenced: bool) -> Any:
        return None if fenced else original(self, work, fenced=False)

    return only_before_the_fence


def _only_with_input(original: Any) -> Any:
    """Report a success without a commit if there was nothing to read."""

    def commit(self: Any, work: Any, entry: Any, session: Any, **more: Any) -> Any:
        if entry.planned.plan.offsets:
            return original(self, work, entry, session, **more)
        return entry.record((), session.identity, self._trace.steps)

    return commit


def _id_per_try(original: Any) -> Any:
    return lambda spec: f"{original(spec)}.{spec.try_number}"


def _id_without_kind(prefix: str, kind: str, work: str) -> str:
    return f"{prefix}.{work}"


def _blind_to_the_past(original: Any) -> Any:
    def accept(lane: Any, batch: Any, now: float) -> None:
        lane.end_before = 0
        original(lane, batch, now)

    return accept


def _plain_batch(original: Any) -> Any:
    def stamp(*arguments: Any) -> bytes:
        data = bytearray(original(*arguments))
        data[ATTRIBUTES_AT + 1] &= ~TRANSACTIONAL_BIT & 0xFF
        data[CRC_AT:ATTRIBUTES_AT] = crc32c(bytes(data[ATTRIBUTES_AT:])).to_bytes(4, "big")
        return bytes(data)

    return stamp


def _to_the_high_watermark(original: Any) -> Any:
    def bounds(self: Any, partitions: Any, **more: Any) -> Any:
        return replace(original(self, partitions, **more), stable=self.log_ends(partitions))

    return bounds


def _any_attempt(original: Any) -> Any:
    def add(self: Any, row: Any) -> None:
        task, topic, partition, seal_partition, attempt, *rest = row
        first = self.attempts.get(seal_partition, attempt)
        original(self, (task, topic, partition, seal_partition, first, *rest))

    return add


def _whatever_was_counted(original: Any) -> Any:
    return lambda batches, attempts: original(batches, dict.fromkeys(attempts, ANY))


def _whole_time(transaction: Any, open_for: float) -> float:
    del open_for
    return float(transaction.total_seconds())


_TABLES = "tests/integration/test_table_runs.py::"
_LAWS = "airflow_eos.run.laws:"
_PROTOCOL = "airflow_eos.run.protocol:RunProtocol."
_ACCOUNTABLE = "airflow_eos.run.log_coverage:"

REMOVALS: dict[str, Removal] = {
    "second-attempt": Removal(
        "1",
        "a send task's second attempt writes nothing",
        "tests.protocol.model.ports:refuse_second_attempt",
        lambda attempt: False,
        (f"{_SEARCHES}test_law_1_a_second_attempt_of_a_send_task_would_mix_two_outputs",),
    ),
    "second-attempt-task": Removal(
        "1",
        "the same, in the task that executors run",
        "airflow_eos.spark.send_task:refuse_second_attempt",
        _nothing,
        (
            f"{_EXPERIMENTS}test_a_second_attempt_of_a_send_task_writes_nothing",
            _SEND_TASK,
        ),
    ),
    "end-before": Removal(
        "1",
        "an acknowledgement with old offsets belongs to another attempt",
        "airflow_eos.wire.partition_queue:PartitionQueue._accept",
        _blind_to_the_past,
        (
            f"{_EXPERIMENTS}test_without_law_1_the_second_attempt_is_found_out_by_its_offsets",
            "tests/integration/test_produce.py::test_the_same_batches_in_the_same_epoch_are_found",
        ),
        wraps=True,
    ),
    "exactly_one_receipt": Removal(
        "1",
        "two receipts for one partition abort",
        f"{_LAWS}exactly_one_receipt",
        _nothing,
        (
            f"{_SEARCHES}test_law_1_guard_two_receipts_for_one_partition_abort_the_run",
            f"{_EXPERIMENTS}test_two_receipts_for_one_partition_abort_the_run",
        ),
    ),
    "may_take_epoch": Removal(
        "2",
        "only a proved owner takes another epoch",
        f"{_LAWS}may_take_epoch",
        lambda answer: True,
        (
            f"{SEARCH}[twins]",
            f"{_ZOMBIES}test_a_zombie_cannot_touch_the_open_transaction_of_its_successor",
        ),
    ),
    "ask-again": Removal(
        "3",
        "a no counts only after the fence",
        f"{_PROTOCOL}_ask",
        _asks_early,
        (
            f"{SEARCH}[explicit]",
            f"{_EXPERIMENTS}test_a_commit_before_the_fence_is_found_behind_it",
            f"{_TRANSACTIONS}test_given_ranges_whose_commit_has_lost_its_answer_are_written_once",
        ),
        wraps=True,
    ),
    "may_speak_for": Removal(
        "3",
        "an index covers only decided records",
        "airflow_eos.ledger.records.ledger_index:may_speak_for",
        lambda stable, high: high,
        (f"{SEARCH}[indexed]",),
    ),
    "not_pruned": Removal(
        "3",
        "a pruned record is not a no",
        "airflow_eos.run.laws:not_pruned",
        _nothing,
        (
            f"{SEARCH}[pruned]",
            "tests/integration/test_pruned_ledger.py::test_a_pruned_run_is_refused_and_new_ones_go_on",
        ),
    ),
    "nothing_is_forged": Removal(
        "3",
        "a no does not count where foreign records are",
        "airflow_eos.ledger.authority:nothing_is_forged",
        _nothing,
        (
            f"{_FORGED}test_a_forged_record_is_no_commit",
            f"{_FORGED}test_a_record_in_the_transaction_of_another_producer_is_no_commit",
        ),
    ),
    "written-by-its-producer": Removal(
        "3",
        "a record outside its producer's transactions does not count",
        "airflow_eos.broker.ledger_log.evidence:is_evidence",
        lambda header, value: True,
        (
            f"{_FORGED}test_a_forged_record_is_no_commit",
            f"{_FORGED}test_a_commit_is_not_unmade",
            f"{_FORGED}test_a_forged_identity_stops_nobody",
            f"{_FORGED}test_a_record_in_the_transaction_of_another_producer_is_no_commit",
        ),
    ),
    "signed": Removal(
        "3",
        "in a ledger with a key only signed records count",
        "airflow_eos.model.signature:LedgerKey.verifies",
        lambda self, *_, **__: True,
        (
            f"{_FORGED}test_what_is_not_signed_is_no_commit",
            f"{_FORGED}test_what_is_signed_is_not_unmade",
            f"{_FORGED}test_a_signed_record_cannot_be_written_again",
            f"{_FORGED}test_another_key_is_none_and_a_key_can_be_changed",
            f"{_FORGED}test_a_ledger_in_use_gets_a_key",
        ),
    ),
    "nothing_is_missing": Removal(
        "3",
        "a no counts only from a complete partition",
        "airflow_eos.ledger.authority:nothing_is_missing",
        _nothing,
        (
            f"{_LOST}test_a_cut_ledger_partition_says_no_to_nothing",
            f"{_LEDGER}test_what_a_cut_partition_lacks_is_not_denied",
        ),
    ),
    "witnesses": Removal(
        "3",
        "an empty ledger of which there is a witness is not a new one",
        "airflow_eos.ledger.witnesses:Witnesses.testify",
        lambda self: Testimony(),
        (
            f"{_LOST}test_a_deleted_ledger_is_not_made_again",
            f"{_LEDGER}test_a_ledger_that_somebody_remembers_is_lost_when_it_is_empty",
        ),
    ),
    "ledger-of-offsets": Removal(
        "3",
        "offsets name the ledger in use",
        "airflow_eos.ledger.witnesses:Witnesses.agree",
        _nothing,
        (f"{_LOST}test_a_ledger_that_another_environment_made_again_is_refused",),
    ),
    "ask-first": Removal(
        "3",
        "a yes counts before the fence",
        f"{_PROTOCOL}_ask",
        _asks_late,
        (
            f"{SEARCH}[cleared]",
            f"{_EXPERIMENTS}test_the_clear_of_an_old_run_leaves_the_live_one_alone",
        ),
        wraps=True,
    ),
    "receipts_match": Removal(
        "4",
        "receipts equal the manifest",
        f"{_LAWS}receipts_match",
        _nothing,
        ("tests/integration/test_run_twins.py::test_lost_batches_never_commit",),
    ),
    "proof_holds": Removal(
        "4",
        "the brokers hold what the receipts claim",
        f"{_LAWS}proof_holds",
        _nothing,
        (f"{_EXPERIMENTS}test_receipts_that_lie_are_found_out",),
    ),
    "nothing_open": Removal(
        "12",
        "nothing is written after an open transaction of our own",
        f"{_LAWS}nothing_open",
        lambda begins: True,
        (f"{_HANGING}test_what_an_abort_left_open_is_ended_before_the_next_attempt_writes",),
    ),
    "begins_with_receipts": Removal(
        "12",
        "the proof detects an earlier open transaction",
        f"{_LAWS}begins_with_receipts",
        _nothing,
        (f"{_SEARCHES}test_law_12_the_proof_finds_what_was_left_open",),
    ),
    "over_everywhere": Removal(
        "12",
        "success waits until every leader shows the commit",
        f"{_LAWS}over_everywhere",
        lambda missing: True,
        (f"{SEARCH}[leader_away_out-0]",),
    ),
    "ledger_is_no_target": Removal(
        "4",
        "the ledger is written by the driver alone",
        f"{_LAWS}ledger_is_no_target",
        _nothing,
        (
            "tests/protocol/test_sealed_batches.py::test_rows_for_the_ledger_are_refused_before_anything_is_sent",
        ),
    ),
    "transactional-bit": Removal(
        "4",
        "every batch belongs to the transaction",
        "airflow_eos.wire.partition_queue:stamp",
        _plain_batch,
        (f"{_TRANSACTIONS}test_aborted_output_stays_hidden_for_ever",),
        wraps=True,
    ),
    "within_log": Removal(
        "5",
        "ranges lie inside the log",
        f"{_LAWS}within_log",
        _nothing,
        (f"{_OFFSETS}test_a_deleted_head_is_refused_with_both_offsets_and_both_ways_on",),
    ),
    "refuse_deleted": Removal(
        "5",
        "an interval whose records may be deleted is refused",
        f"{_ACCOUNTABLE}refuse_deleted",
        _nothing,
        (
            f"{_RANGES}test_an_interval_over_deleted_records_is_refused_and_nothing_is_pinned",
            f"{_RANGES}test_deleted_records_before_a_later_interval_that_has_run_are_no_empty_interval",
            f"{_RANGES}test_a_boundary_that_one_run_accepted_is_believed_by_none_that_does_not",
            f"{_RANGES}test_a_sensor_says_what_the_run_would_say",
        ),
    ),
    "refuse_future": Removal(
        "5",
        "a record of the far future fixes no boundary",
        f"{_ACCOUNTABLE}refuse_future",
        _nothing,
        (f"{_RANGES}test_a_record_of_the_far_future_is_refused_and_nothing_is_pinned",),
    ),
    "max_timestamps": Removal(
        "5",
        "a broker that finds nothing at a time is not believed if its newest record is later",
        "airflow_eos.wire.first_record:max_timestamps",
        lambda *_: {},
        (f"{_RANGES}test_a_segment_without_records_hides_no_later_one",),
    ),
    "is_decided": Removal(
        "5",
        "given ranges hold no open transaction",
        f"{_LAWS}is_decided",
        _nothing,
        (
            "tests/protocol/test_given_ranges.py::test_a_range_that_holds_an_open_transaction_is_worth_another_try",
        ),
    ),
    "last-stable-offset": Removal(
        "5",
        "ranges end at the last stable offset",
        "tests.protocol.model.ports:ModelCluster.last_stable_offsets",
        lambda original: lambda self, partitions: self.log_ends(partitions),
        (f"{SEARCH}[upstream_open]",),
        wraps=True,
    ),
    "last-stable-offset-broker": Removal(
        "5",
        "the same, asked from real brokers",
        "airflow_eos.broker.cluster:KafkaCluster.log_bounds",
        _to_the_high_watermark,
        (f"{_EXPERIMENTS}test_a_range_ends_below_an_open_transaction",),
        wraps=True,
    ),
    "topics_unchanged": Removal(
        "5",
        "topics are still those of the plan",
        f"{_LAWS}topics_unchanged",
        _nothing,
        (f"{_OFFSETS}test_a_topic_made_again_is_never_read_from_the_old_position",),
    ),
    "group_is_empty": Removal(
        "6",
        "the cursor's group has no live members",
        f"{_LAWS}group_is_empty",
        _nothing,
        (
            f"{_SEARCHES}test_law_6_live_members_are_refused",
            f"{_OFFSETS}test_a_member_that_joins_while_a_run_is_under_way_stops_its_commit",
        ),
    ),
    "cursor_unmoved": Removal(
        "6",
        "offsets move from the plan's start only",
        f"{_LAWS}cursor_unmoved",
        _nothing,
        (
            f"{SEARCH}[foreign_consumer]",
            f"{_EXPERIMENTS}test_offsets_moved_during_a_run_stop_its_commit",
        ),
    ),
    "transactional_id": Removal(
        "7",
        "ids name the work, not the worker",
        "airflow_eos.ledger.keys:transactional_id",
        _id_per_try,
        (
            f"{SEARCH}[explicit]",
            f"{_ZOMBIES}test_a_driver_that_was_replaced_by_its_retry_changes_nothing",
        ),
        wraps=True,
    ),
    "kind-of-id": Removal(
        "7",
        "different works have different ids, whatever their names",
        "airflow_eos.ledger.keys:_id",
        _id_without_kind,
        (
            "tests/unit/ledger/test_keys.py::test_different_works_have_different_transactional_ids",
            "tests/integration/test_transactional_ids.py::test_doctor_does_not_fence_a_run_of_the_group_doctor",
        ),
    ),
    "group_is_ours": Removal(
        "7",
        "a group has one pipeline",
        f"{_LAWS}group_is_ours",
        _nothing,
        (f"{SEARCH}[other_dag]", "tests/integration/test_run_cursor.py::test_a_group_has_one_owner"),
    ),
    "no_open_intent": Removal(
        "7",
        "what may be in a table is settled before the cursor moves on",
        f"{_LAWS}no_open_intent",
        _nothing,
        (f"{_TABLES}test_what_is_open_in_one_table_is_not_read_on_into_another_sink",),
    ),
    "same_work": Removal(
        "7",
        "a record counts for its own work only",
        f"{_LAWS}same_work",
        _nothing,
        (
            "tests/protocol/test_found_records.py::test_a_commit_of_another_environment_is_not_this_ones_success",
            "tests/integration/test_same_work.py::test_two_airflows_are_told_apart",
            "tests/integration/test_same_work.py::test_another_sink_is_refused",
            "tests/integration/test_same_work.py::test_a_topic_that_was_not_read_is_not_reported_as_read",
            "tests/integration/test_same_work.py::test_given_ranges_that_were_edited_are_refused",
        ),
    ),
    "commit-empty": Removal(
        "8",
        "a run with nothing to do commits too",
        f"{_PROTOCOL}_commit",
        _only_with_input,
        (
            f"{SEARCH}[empty]",
            "tests/integration/test_run_cursor.py::test_an_empty_run_is_a_success_that_is_recorded",
        ),
        wraps=True,
    ),
    "broker_verifies": Removal(
        "9",
        "brokers without verification are refused",
        f"{_LAWS}broker_verifies",
        _nothing,
        (f"{_SEARCHES}test_law_9_brokers_without_verification_are_refused",),
    ),
    "timeouts_fit": Removal(
        "10",
        "a batch gives up before its transaction",
        f"{_LAWS}timeouts_fit",
        _nothing,
        (
            f"{_SEARCHES}test_law_10_writers_give_up_before_the_transaction_does",
            f"{_EXPERIMENTS}test_time_outs_that_do_not_fit_are_refused",
        ),
    ),
    "send_timeout": Removal(
        "10",
        "a send ends before its transaction",
        f"{_LAWS}send_timeout",
        _whole_time,
        (f"{_EXPERIMENTS}test_a_send_has_what_is_left_of_its_transaction_less_a_margin",),
    ),
    "sealed-once": Removal(
        "S5",
        "sent batches were evaluated once and kept",
        "airflow_eos.spark.blocks:checkpointed",
        lambda frame, level: frame,
        (f"{_DELIVERY}test_rand_on_spark_survives_a_lost_send_as_one_result_set",),
    ),
    "one-attempt": Removal(
        "S5",
        "the blocks hold one attempt of each seal task",
        "airflow_eos.spark.sealed_blocks:_Blocks.add",
        _any_attempt,
        (f"{_DELIVERY}test_blocks_of_two_attempts_are_never_sent",),
        wraps=True,
    ),
    "counted-attempts": Removal(
        "S5",
        "a send writes only the counted attempts",
        "airflow_eos.spark.send_task:_pieces",
        _whatever_was_counted,
        (
            f"{_SEND_TASK}::test_rows_of_another_seal_attempt_are_not_written",
            f"{_SEND_TASK}::test_a_streamed_task_ends_at_rows_of_another_seal_attempt",
        ),
        wraps=True,
    ),
}


def remove(name: str, set_attribute: Callable[[Any, str, Any], None] = setattr) -> None:
    """Remove the law in this process.

    :param set_attribute: as ``setattr``; a test passes one that is undone later.
    """
    removal = REMOVALS[name]
    module, _, path = removal.target.partition(":")
    *owners, attribute = path.split(".")
    owner: Any = import_module(module)
    for each in owners:
        owner = getattr(owner, each)
    instead = removal.instead(getattr(owner, attribute)) if removal.wraps else removal.instead
    set_attribute(owner, attribute, instead)


def remove_from_environment() -> None:
    """Remove the law that the environment names; driver processes call it, too."""
    name = os.environ.get(SWITCH)
    if name:
        remove(name)


def pytest_configure() -> None:
    """Pytest hook: remove the law that the environment names."""
    remove_from_environment()


_judged: list[str] = []


def pytest_exception_interact(call: Any) -> None:
    """Pytest hook: record the kind of failure."""
    _judged.append(kind_of_failure(call.when, call.excinfo.value))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Pytest hook: print the verdict for :func:`what_fails_without`."""
    for kind in _judged[:1]:
        terminalreporter.write_line(f"{_VERDICT}{kind}")


def kind_of_failure(phase: str, error: BaseException) -> str:
    """Return :data:`JUDGED` if the test itself found the result wrong, else what broke instead.

    An error of this package counts: the run ended as the test does not expect it to. Errors of test clusters
    do not, nor time-outs, nor whatever else a broken set-up or a removal that does not fit raises.
    """
    import pytest

    found_wrong = isinstance(error, (AssertionError, EosError, pytest.fail.Exception))
    broken = isinstance(error, _ENVIRONMENT) or "pytest-timeout" in str(error)
    if phase == "call" and found_wrong and not broken:
        return JUDGED
    return f"{type(error).__name__} in {phase}"


def what_fails_without(name: str, test: str) -> str:
    """Run one test without one law; return :data:`JUDGED` if it fails by its own judgement.

    Otherwise return what happened: it passed, or broke before it could judge. The suite shows that it passes
    with the law. Nothing else changed, so the test's verdict on a wrong result is due to the removed law.
    """
    # Drop the variables of a pytest that runs this one.
    others = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "tests.guarantees.without_law", test],
        cwd=ROOT,
        env={**others, SWITCH: name},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return PASSED
    verdicts = [line.removeprefix(_VERDICT) for line in done.stdout.splitlines() if line.startswith(_VERDICT)]
    if verdicts[:1] != [JUDGED]:
        print(done.stdout[-2000:], done.stderr[-2000:], file=sys.stderr)
    return verdicts[0] if verdicts else f"pytest ended with {done.returncode}"


def row(name: str, result: str = "") -> str:
    """Return a law's row of the table."""
    removal = REMOVALS[name]
    tests = ", ".join(f"`{test}`" for test in removal.tests)
    return f"| {removal.law} | {removal.says} | `{name}` | {tests} |{result}"


def main(names: list[str]) -> int:
    """Run the named tests without each law; return 0 when every one of them failed by its own judgement."""
    listed = "--list" in names
    wanted = [name for name in names if name != "--list"] or list(REMOVALS)
    print("| law | rule | name | fails without it |\n|---|---|---|---|")
    surviving = 0
    for name in wanted:
        result = ""
        if not listed:
            started = time.monotonic()
            ends = {test: what_fails_without(name, test) for test in REMOVALS[name].tests}
            seconds = time.monotonic() - started
            passed = [test for test, end in ends.items() if end == PASSED]
            broken = [f"{test}: {end}" for test, end in ends.items() if end not in (PASSED, JUDGED)]
            surviving += len(passed) + len(broken)
            result = f" {seconds:.0f} s" + (f" SURVIVED by {', '.join(passed)}" if passed else "")
            result += f" BROKE {', '.join(broken)}" if broken else ""
        print(row(name, result), flush=True)
    return int(surviving > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
