"""A data plane that starts Spark when the first batch is sealed: a committed run needs no JVM."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.wire.client_config import ClientConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_eos.model.dead_letter import DueLetters
    from airflow_eos.model.kafka import ProducerIdentity
    from airflow_eos.model.output import PartitionReceipt
    from airflow_eos.model.plan import RunPlan
    from airflow_eos.model.spec import RunSpec
    from airflow_eos.spark.data_plane import SparkDataPlane
    from airflow_eos.table_ports import TableWriter


@dataclass(eq=False)
class LazyDataPlane:
    """Implements :class:`airflow_eos.ports.SealAndSend` on a session made on first use.

    :param spark: a session, or a function that makes one for a plan.
    :param check: raises if the run should end.
    :ivar cluster_id: id of the driver's Kafka cluster; tasks refuse brokers of another one, to which the same
        host name may resolve on an executor.
    """

    spark: SparkSession | Callable[[RunPlan], SparkSession]
    spec: RunSpec
    process: Callable[..., Any]
    check: Callable[[], None]
    cluster_id: str | None = None
    _plane: SparkDataPlane | None = None

    def _started(self, plan: RunPlan) -> SparkDataPlane:
        if self._plane is None:
            from airflow_eos.spark.data_plane import SparkDataPlane
            from airflow_eos.spark.session import is_stopped

            session: Any = self.spark
            if not hasattr(session, "createDataFrame"):
                session = session(plan)
            elif is_stopped(session):
                raise ConfigurationError(
                    "the Spark session given to the run was stopped before, nothing was written: build it "
                    "behind the stop(), or give a function that builds it"
                )
            self._plane = SparkDataPlane(session, self.spec, self.process, self.cluster_id)
        # Last: a kill while the session was being created had nothing to cancel.
        self.check()
        return self._plane

    def seal(self, plan: RunPlan, writer: TableWriter | None = None) -> Any:
        """Start Spark for this plan; read, transform, encode and materialise, or write data files."""
        try:
            return self._started(plan).seal(plan, writer)
        except Exception as error:
            from airflow_eos.spark.errors import ErrorMark, process_error
            from airflow_eos.spark.spark_failure import is_server_gone

            if is_server_gone(error):  # between two jobs
                raise process_error(error, ErrorMark()) from error
            raise

    def seal_letters(self, due: DueLetters) -> Any:
        """Make dead letters of records that were processed before, without Spark."""
        from airflow_eos.spark.letter_batches import seal_letters

        self.check()
        return seal_letters(ClientConfig.of(self.spec.kafka), self.spec.compression, due)

    def send(self, sealed: Any, identity: ProducerIdentity, timeout: float) -> Sequence[PartitionReceipt]:
        """Write all sealed batches."""
        from airflow_eos.spark.letter_batches import LetterBatches, send_letters

        if isinstance(sealed, LetterBatches):
            return send_letters(self.spec, sealed, identity, timeout)
        assert self._plane is not None, "sealed batches come from the data plane"
        self.check()
        return self._plane.send(sealed, identity, timeout)

    def release(self, sealed: Any) -> None:
        """Free the materialised blocks."""
        if self._plane is not None:
            self._plane.release(sealed)

    def cancel(self, timeout: float) -> None:
        """Cancel running jobs, if anything was started.

        :param timeout: seconds to wait for Spark's answer.
        """
        if self._plane is not None:
            self._plane.cancel(timeout)
