"""One exactly-once run as a separate Spark application, submitted to a cluster by spark-submit."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

from airflow_eos.compat import repeat_time_out
from airflow_eos.compat.retry_policy import asks_retry_policy
from airflow_eos.exceptions import ConfigurationError, EosError, OutputLost, RunFailed
from airflow_eos.hooks.masked_connection import find_connection
from airflow_eos.hooks.spark_driver import SparkDriver, name_yarn_user
from airflow_eos.model.ranges import utc_now
from airflow_eos.operators import submit_hook
from airflow_eos.operators.last_answer import outcome
from airflow_eos.operators.run_parameters import RunParameters
from airflow_eos.operators.spark_encryption import check_encryption
from airflow_eos.operators.stored_job import StoredJob
from airflow_eos.operators.submit_hook import terminate_children
from airflow_eos.operators.submitted_files import SubmittedFiles, joined, split_process
from airflow_eos.operators.telemetry import RunTelemetry
from airflow_eos.run.kill import KILL_SECONDS, KillBudget
from airflow_eos.spark.encryption import ADVICE, local_defaults
from airflow_eos.triggers.spark_driver import SparkDriverTrigger
from airflow_eos.wire.client_config import ClientConfig

if TYPE_CHECKING:
    import datetime as dt

    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.sdk import Context

    from airflow_eos.compat.retry_policy import RetryPolicy
    from airflow_eos.ledger.records.run_record import RunRecord
    from airflow_eos.model.sink_table import SinkTable
    from airflow_eos.model.spec import Compression, LedgerSettings, MarkOutput, OnCommitted, RunSpec
    from airflow_eos.operators.partition_interval import PartitionDuration
    from airflow_eos.operators.rendered import GivenRanges
    from airflow_eos.operators.run_parameters import OnEmpty
    from airflow_eos.operators.task_identity import Ranges

# Reserved of a kill's time after the wait for a driver that runs here: enough for a signal and a request.
_PROVIDERS_SECONDS = 0.5
_DEFAULT_CONNECTION = "spark_default"
_ONLY_CONF = "settings of a spark-defaults.conf are not seen before the driver runs: give them in conf"


class ReadProcessWriteSubmitOperator(RunParameters, SparkSubmitOperator):
    """Submit an application that carries out one exactly-once run; Spark's driver runs on its own.

    **Guarantee:** as :class:`~airflow_eos.operators.read_process_write.ReadProcessWriteOperator`. The
    *application* takes the producer epoch, each time it starts: a second application master or
    ``--supervise`` restart is a new attempt. This task never does.

    **How it works:** the ledger is asked before anything is submitted. A Spark job that an earlier try of the
    same life of this task submitted is taken up again (``durable``, cluster mode); one from before a clear is
    not. However the job ended, the **ledger** has the outcome of the run, and gives XCom and outlet events:
    a job that reports success without a commit fails the try, one that failed after its commit does not.

    **What it ships:** this package, kafka-python and the file of ``process``, by ``--py-files``; the
    specification of the run with the Kafka connection in it, in a file only this user can read: a driver in
    client mode reads it where it is, one on the cluster finds it in a copy of the application, which Spark
    gives to no executor. Nothing secret is on a command line. Driver and executors need pyarrow, numpy and
    google-crc32c, the driver confluent-kafka too.

    Example::

        ReadProcessWriteSubmitOperator(
            task_id="classify", process="../spark_apps/flights.py:process", conn_id="spark_yarn",
            deploy_mode="cluster", yarn_track_via_rm_api=True,
            topics=["flights"], sink_topic="flights-classified", group_id="flights-classifier", retries=2,
        )

    :param process: ``"path/to/file.py:function"`` relative to the Dag file, or ``"package.module:function"``
        that the driver can import. Not templated: the user who triggers a Dag must not choose the code.
    :param application: instead of ``process``: an application whose last statement is
        ``airflow_eos.spark.main(process)``; relative to the Dag file. (templated) If it is not a file here
        (``local:///...``, ``s3a://...``), executors also get the specification, by ``--files``.
    :param deferrable: in cluster mode, wait in the triggerer and free the worker
        (:class:`~airflow_eos.triggers.spark_driver.SparkDriverTrigger`); needs ``yarn_track_via_rm_api`` on
        YARN, ``track_driver_via_k8s_api`` on Kubernetes, and ``durable`` to take a driver up again.
    :param kwargs: see :class:`~airflow_eos.operators.run_parameters.RunParameters` and
        ``SparkSubmitOperator``.
    """

    template_fields: Sequence[str] = (*RunParameters.run_fields, *SparkSubmitOperator.template_fields)
    ui_color = "#f4e3ff"

    if TYPE_CHECKING:
        application: str
        files: str | None
        py_files: str | None
        application_args: list[Any] | None
        conf: dict[Any, Any] | None
        process: str | None
        deferrable: bool
        _submitted: SubmittedFiles | None
        _killed: bool
        _module: str | None

        # For editors and type checkers; at run time each class takes its own parameters.
        def __init__(
            self,
            *,
            topics: Sequence[str] | str,
            group_id: str,
            process: str | None = None,
            application: str = "",
            deferrable: bool = False,
            sink_topic: str | None = None,
            sink: SinkTable | None = None,
            dead_letter_topic: str | None = None,
            max_dead_letters: int = 100,
            allow_loop: bool = False,
            kafka_config_id: str = "kafka_default",
            ranges: Ranges | None = None,
            allowed_lateness: dt.timedelta = ...,
            partition_duration: PartitionDuration | None = None,
            accept_deleted: bool | str = False,
            skip_offsets: GivenRanges = (),
            pipeline: str | None = None,
            prefix: str | None = None,
            source_partition: int | str | None = None,
            on_committed: OnCommitted = "skip",
            mark_output: MarkOutput = "never",
            on_empty: OnEmpty = "succeed",
            transaction_timeout: dt.timedelta = ...,
            delivery_timeout: dt.timedelta = ...,
            max_send_attempts: int = 3,
            compression: Compression = "zstd",
            ledger: LedgerSettings | None = None,
            max_active_tis_per_dag: int | None = ...,
            retry_policy: RetryPolicy | None = ...,
            **kwargs: Any,
        ) -> None: ...

    else:

        def __init__(
            self,
            *,
            process: str | None = None,
            application: str = "",
            deferrable: bool = False,
            **kwargs: Any,
        ) -> None:
            self.process = process
            self.deferrable = deferrable
            super().__init__(application=application, **kwargs)
            ignored = {"yarn_rm_auth": self._yarn_rm_auth, "post_submit_commands": self.post_submit_commands}
            given = [name for name, value in ignored.items() if value]
            if deferrable and given:
                raise ConfigurationError(
                    f"{' and '.join(given)} would be ignored with deferrable=True, where the triggerer waits "
                    "for the driver; leave one of them out"
                )
            self._submitted = None
            self._killed = False
            self._module = None

    @asks_retry_policy
    def execute(self, context: Context) -> dict[str, Any]:
        """Ask the ledger, submit or take up a job, ask the ledger; return the summary for XCom.

        :raises EosError: the run did not commit; the retry policy says whether another try may help.
        """
        from airflow_eos.engine import answer

        repeat_time_out()
        spec = self.build_spec(context)
        record = answer(spec, may_create=spec.may_create_ledger)
        if record is None:
            record = self._counted(context, lambda: self._submit(context, spec))
        return self.finish(context, record)

    def poll_until_complete(self, external_id: Any, context: Context) -> None:
        """Wait for a driver in cluster mode: in the triggerer where ``deferrable``, else here."""
        hook: Any = self._hook
        on_yarn = submit_hook.cluster_manager(hook) == "yarn"
        if on_yarn:  # the provider does not set the id of an application that an earlier try submitted
            hook._yarn_application_id = str(external_id)  # noqa: SLF001
        if not self.deferrable:
            super().poll_until_complete(external_id, context)
            return
        # Airflow's own time-out ends with the deferring process; the trigger's also kills the driver.
        limit = self.execution_timeout
        self.defer(
            trigger=SparkDriverTrigger(
                backend=submit_hook.cluster_manager(hook),
                driver_id=str(external_id),
                conn_id=self._conn_id,
                poll_interval=max(1.0, self._status_poll_interval),
                user=name_yarn_user(hook) if on_yarn else None,
                deadline=None if limit is None else (utc_now() + limit).isoformat(),
            ),
            method_name="resume",
        )

    @asks_retry_policy
    def resume(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Ask the ledger once the driver has ended: the event does not contain the outcome.

        :raises EosError: the run did not commit.
        """
        repeat_time_out()
        spec = self.build_spec(context)
        ending = f"Spark driver {event['driver_id']}: {event['status']}"
        if event["status"] == "TIMED_OUT":
            ending = f"{ending} (execution_timeout is {self.execution_timeout})"
        failure = None if event["succeeded"] else RunFailed(ending)
        # An unreachable cluster may still run the driver: the next try takes it up again.
        ended = event["status"] != "UNREACHABLE"
        record = self._counted(context, lambda: self._conclude(context, spec, failure, ended=ended))
        return self.finish(context, record)

    @staticmethod
    def _counted(context: Context, work: Callable[[], RunRecord]) -> RunRecord:
        telemetry = RunTelemetry(context)
        with telemetry.counting_failure():
            record = work()
        telemetry.committed(record, elsewhere=True)
        return record

    def on_kill(self) -> None:
        """Terminate a driver that runs here, so that it aborts under its own identity; then kill the job.

        This process has no transaction of its own and never takes an epoch. Airflow goes on with the task
        when this returns, within :data:`~airflow_eos.run.kill.KILL_SECONDS`: nothing may be submitted
        afterwards.
        """
        budget = KillBudget(KILL_SECONDS)
        self._killed = True
        if self._hook is not None:
            process = getattr(self._hook, "_submit_sp", None)
            if process is not None and process.poll() is None:
                terminate_children(process.pid, budget.left(keep=_PROVIDERS_SECONDS))
            provider = super().on_kill  # calls a cluster manager or runs a command, without a time-out
            budget.spend(
                lambda seconds: submit_hook.kill_on_yarn(self._hook, self._conn_id, seconds) or provider()
            )
        if self._submitted is not None:
            self._submitted.close()

    def _submit(self, context: Context, spec: RunSpec) -> RunRecord:
        folder = Path(context["dag"].fileloc).parent
        process_file: Path | None = None
        if self.process:
            process_file, self._module = split_process(self.process, folder)
        self._stored_job(context, spec).begin_life()
        failure: Exception | None = None
        named = self.application
        with SubmittedFiles(spec, process_file) as self._submitted:
            try:
                self._resolve_application(folder)
                super().execute(context)
            except Exception as error:  # noqa: BLE001 - the ledger says whether the run failed
                failure = error
            finally:
                self.application = named
        return self._conclude(context, spec, failure)

    def _conclude(
        self, context: Context, spec: RunSpec, failure: Exception | None, *, ended: bool | None = None
    ) -> RunRecord:
        """Return the ledger's record after the wait for the job, or raise.

        :param ended: whether the job has ended, too; None: if the wait failed, ask its cluster.
        """
        try:
            record = outcome(spec)
        except EosError as error:
            raise error from failure
        if record is not None:
            reported = self._error_of_the_application()
            if isinstance(reported, OutputLost):
                raise reported from failure
            if failure is not None:
                self.log.warning("The Spark job failed after its commit, which remains valid: %s", failure)
            return record
        why = "does the application call airflow_eos.spark.main(process)?"
        job = self._stored_job(context, spec)
        try:
            if job.is_of_another_life():
                why = "the task was changed after it was submitted, and the next try submits it as it is now"
            if ended is None:
                ended = failure is None or job.running_driver() is None
            if ended:
                job.forget()
        except Exception as error:  # noqa: BLE001 - of the cluster, or of Airflow; the job's own is raised
            self.log.warning("It is not known whether the job still runs; the next try asks again: %s", error)
        if failure is not None:
            raise self._error_of_the_application() or failure
        raise RunFailed(
            f"the Spark job ended well, but the ledger does not hold run {spec.run_id!r} of {spec.pipeline}; "
            f"{why}"
        )

    def _resolve_application(self, folder: Path) -> None:
        if self._module is not None:
            script = find_spec("airflow_eos.spark.submit_main")
            assert script is not None
            self.application = str(script.origin)
        elif (folder / self.application).is_file():
            self.application = str((folder / self.application).resolve())

    def _get_hook(self) -> SparkSubmitHook:
        """Return the provider's hook with our files added; the rendered fields keep the author's values."""
        files = self._submitted
        if files is None:  # on_kill before anything was submitted
            return super()._get_hook()
        if self.deferrable or self._deploy_mode or self._conn_id != _DEFAULT_CONNECTION:
            # Without it, as while the API server is away, the provider assumes YARN and client mode.
            find_connection(self._conn_id)
        before = (self.files, self.py_files, self.application_args, self.conf)
        arguments = [] if self._module is None else ["--airflow-eos-process", self._module]
        provided = super()._get_hook()
        in_cluster = submit_hook.is_in_cluster(provided)
        if in_cluster:
            self._embed_specification(files)
        self.conf = {**local_defaults(submit_hook.master_of(provided)), **(self.conf or {})}
        self.py_files = joined(self.py_files, *map(str, files.py_files))
        self.application_args = [
            *(self.application_args or []),
            *arguments,
            "--airflow-eos-spec",
            files.spec.name if in_cluster else str(files.spec),
        ]
        try:
            hook = super()._get_hook()
        finally:
            self.files, self.py_files, self.application_args, self.conf = before
        if self._killed:
            raise RunFailed("the task was killed before it had submitted its application")
        if submit_hook.cluster_manager(hook) == "yarn":
            name_yarn_user(hook)
        # An earlier kill had no process to terminate.
        submit_hook.call_when_started(hook, lambda: self.on_kill() if self._killed else None)
        if self.deferrable:
            submit_hook.check_deferrable(hook, self.task_id)
        advice = f"{ADVICE}; {_ONLY_CONF}"
        check_encryption(submit_hook.settings_of(hook), ClientConfig.of(files.kafka), advice, sink=files.sink)
        if not in_cluster:
            # The driver runs here and must use this Python; a python3 on PATH may be another one.
            os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
            if submit_hook.master_of(hook).startswith("local"):
                os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        return hook

    def _embed_specification(self, files: SubmittedFiles) -> None:
        """Put the specification into the application: Spark copies ``--files`` to every executor's folder."""
        application = Path(self.application)
        if application.is_file():
            self.application = str(files.with_specification(application))
            return
        self.files = joined(self.files, str(files.spec))
        if ClientConfig.of(files.kafka).has_secrets or (files.sink is not None and files.sink.has_secrets):
            self.log.warning(
                "Application %s is not a file here: the specification with the credentials goes by "
                "--files, to the folder of every executor; use process, or an application beside the Dag",
                self.application,
            )

    def _stored_job(self, context: Context, spec: RunSpec) -> StoredJob:
        return StoredJob(
            store=context.get("task_state_store"),
            id_key=self.external_id_key,
            status_key=self._K8S_DRIVER_STATUS_KEY,
            life=f"{self._run_key} {spec.clear_number} {context['ti'].max_tries} {self._conn_id}",
            driver_of=self._driver_of,
        )

    def _driver_of(self, job_id: str) -> SparkDriver:
        hook = self._hook or super()._get_hook()
        return SparkDriver(submit_hook.cluster_manager(hook), job_id, self._conn_id, hook=hook)

    def _error_of_the_application(self) -> EosError | None:
        """Return the error that the application printed (client mode)."""
        from airflow_eos.engine.application import failure_mark

        if self._submitted is None:
            return None
        return submit_hook.error_in_output(self._hook, failure_mark(self._submitted.spec.name))
