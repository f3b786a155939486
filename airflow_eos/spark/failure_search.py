"""Searches for the records on which a seal fails, by trying it on parts of its input."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_eos.exceptions import EosError, ProcessFailed, RunFailed
from airflow_eos.model.ranges import OffsetRange
from airflow_eos.spark.dead_letters import may_be_records
from airflow_eos.spark.errors import ErrorMark, process_error, root_cause
from airflow_eos.spark.failing_records import SEARCH_SECONDS, failing_part, failing_records, named
from airflow_eos.spark.sealing import throw_away
from airflow_eos.spark.session import cancelled_after
from airflow_eos.spark.set_aside import SECONDS as SET_ASIDE_SECONDS
from airflow_eos.spark.set_aside import SetAside
from airflow_eos.spark.spark_failure import is_of_jvm

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from airflow_eos.spark.dead_letters import DeadLetterRule
    from airflow_eos.spark.sealing import Sealing

log = logging.getLogger(__name__)
_MORE = 0.1
"""Seconds added to the time limit of cancellation: a cancelled try then certainly ends too late to count."""
_ROWS = 1024


def _unchanged(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


@dataclass(eq=False)
class FailureSearch:
    """Tries failed seals of one session again, part by part; writes nothing.

    :param tag: tag of the jobs, which are cancelled when the time is up.
    :param mark: marks the errors that tasks have named.
    :param check_cancelled: raises :class:`RunFailed` if the run was cancelled.
    """

    spark: SparkSession
    tag: str
    mark: ErrorMark
    check_cancelled: Callable[[], None]

    def refuse_broken_spark(self, error: Exception) -> None:
        """Check whether Spark fails even without the author's function, if no Python worker sent the error.

        :raises RunFailed: it does, for any records: because of a setting, or a missing folder.
        """
        if not is_of_jvm(error):
            return
        self.check_cancelled()
        end = time.monotonic() + SEARCH_SECONDS
        try:
            with cancelled_after(self.spark, self.tag, SEARCH_SECONDS + _MORE):
                # Like a seal: on all cores, through Python workers and a shuffle.
                throw_away(self.spark.range(_ROWS).mapInArrow(_unchanged, "id long").repartition(2))
        except Exception as again:  # noqa: BLE001 - of whatever is broken
            self.check_cancelled()
            failure = process_error(again, self.mark)
            if time.monotonic() >= end:
                return
            if type(failure) is not ProcessFailed:
                raise failure from None
            raise RunFailed(
                f"Spark fails without process, too, nothing was written: {root_cause(again)}; see its "
                "settings, its local folders (spark.local.dir) and the executors' logs, or restart it"
            ) from None

    def of_refusal(self, sealing: Sealing, error: Exception) -> EosError:
        """Return the error of a refused record, with its topic, partition and offset if known."""
        smallest, place, way = self.smallest_failure(sealing, error)
        failure = process_error(smallest, self.mark)
        if not place:
            return failure
        return type(failure)(f"{failure.message}. The record was read{place}{way}")

    def more_set_aside(self, sealing: Sealing, rule: DeadLetterRule, error: Exception) -> SetAside:
        """Return the records on which the process raises, including those that were set aside before."""
        set_aside = sealing.set_aside
        seconds = max(0.0, SET_ASIDE_SECONDS - set_aside.seconds)
        log.info(
            "Sealing failed; looking for the records that go to topic %s, for up to %.0f s: parts of what "
            "was read are processed again, nothing is written",
            rule.topic,
            seconds,
        )

        def failure_on(part: Sequence[OffsetRange]) -> str | None:
            self.check_cancelled()
            try:
                sealing.try_on(part)
            except Exception as again:  # noqa: BLE001 - whatever the author's function raises
                failure = process_error(again, self.mark)
                if (
                    not isinstance(failure, ProcessFailed)
                    or self.mark.error_in(again) is not None
                    or not may_be_records(failure.raised)
                ):
                    raise failure from None
                return root_cause(again)
            return None

        started = time.monotonic()
        with cancelled_after(self.spark, self.tag, seconds + _MORE):
            may_be_more = rule.at_most - len(set_aside.records)
            search = failing_records(sealing.ranges, failure_on, may_be_more, seconds)
        return set_aside.and_more(search, time.monotonic() - started, rule, root_cause(error))

    def smallest_failure(self, sealing: Sealing, error: Exception) -> tuple[Exception, str, str]:
        """Return the error of the fewest records that raise the same kind of error, and texts of their place.

        :param error: error of the seal; returned without a place if no records are known.
        """
        kind = self._kind(error)
        failures = [error]

        def raises(part: Sequence[OffsetRange]) -> bool:
            self.check_cancelled()
            try:
                sealing.try_on(part, writes=kind[0] is not ProcessFailed)
            except Exception as again:  # noqa: BLE001 - another failure names no record
                if self._kind(again) != kind:
                    return False
                failures.append(again)
                return True
            return False

        try:
            self.check_cancelled()
            log.info(
                "Sealing failed; looking for the records that it fails on, for up to %.0f s: parts of what "
                "was read are processed again, nothing is written",
                SEARCH_SECONDS,
            )
            with cancelled_after(self.spark, self.tag, SEARCH_SECONDS + _MORE):
                part = failing_part(sealing.ranges, raises, SEARCH_SECONDS)
        except RunFailed:  # cancelled: the error of the process is known
            return error, "", ""
        return failures[-1] if part.ranges else error, *named(part)

    def _kind(self, error: Exception) -> tuple[type[EosError], bool]:
        """Return an error's class, and whether a task has named it; if not, the author's function raised."""
        return type(process_error(error, self.mark)), self.mark.error_in(error) is not None
