"""The main function of an application started by ``spark-submit``: one run, specified by the submitting task.

Each start of the application (by a task's try, YARN's second application master, or ``--supervise``) is a new
attempt at the same work: it reads the ledger, fences the other attempts, and reads the ledger again.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from airflow_eos.engine.run import RunAttempt
from airflow_eos.exceptions import ConfigurationError, EosError, ProcessFailed, is_mistake
from airflow_eos.model.spec_json import spec_from_json
from airflow_eos.spark.distributions import import_session_class
from airflow_eos.task_signals import signal_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_eos.ledger.records.run_record import RunRecord
    from airflow_eos.model.spec import RunSpec

log = logging.getLogger(__name__)

SPEC_OPTION = "--airflow-eos-spec"
PROCESS_OPTION = "--airflow-eos-process"
FAILED_CODE, _TERMINATED_CODE = 3, 143


def main(process: Callable[..., Any], arguments: Sequence[str] | None = None) -> RunRecord:
    """Run ``process`` as specified by the submitting task; call it as the last statement of an application.

    ::

        # app.py, submitted by ReadProcessWriteSubmitOperator(application="app.py", ...)
        from airflow_eos.spark import main

        def process(df):
            return df.select("key", "value")

        if __name__ == "__main__":
            main(process)

    It uses the application's session, or creates one as configured by ``spark-submit``, and removes this
    package's options from ``sys.argv``. It exits with code 3 if the run did not commit, 143 on SIGTERM.

    :param process: ``process(df)`` or ``process(df, run)``.
    :param arguments: default: ``sys.argv[1:]``.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    name = _take(given, SPEC_OPTION)
    if arguments is None:
        sys.argv[1:] = given
    if name is None:
        raise SystemExit(f"{SPEC_OPTION} is missing: submit this by ReadProcessWriteSubmitOperator")
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    log.info("airflow-eos %s from %s", sys.modules["airflow_eos"].__version__, Path(__file__).parent.parent)
    termination = _Termination()
    signal.signal(signal.SIGTERM, termination)
    try:
        spark = _session()
        return _carry_out(_read_spec(name), process, spark, termination)
    except EosError as error:
        raise _failure_exit(name, error) from error


def _failure_exit(specification: str, error: EosError) -> SystemExit:
    """Print an error for the submitting task; return the exit of the application."""
    text = " ".join(str(error).split())
    print(f"{failure_mark(specification)} {_kind(error)}: {text}", file=sys.stderr, flush=True)  # noqa: T201
    return SystemExit(FAILED_CODE)


def _kind(error: EosError) -> str:
    """Return the class of an error, and the exception of ``process`` if it is a signal to Airflow."""
    raised = error.raised if isinstance(error, ProcessFailed) else ()
    signal = next((name for name in raised if signal_of([name]) is not None), None)
    return type(error).__name__ + ("" if signal is None else f" [{signal}]")


def failure_mark(specification: str) -> str:
    """Return the start of the output line by which the submitting task learns the application's error.

    Other code writes to the same output and may quote records; the random name of the specification makes the
    line unforgeable.
    """
    return f"airflow-eos failed ({Path(specification).stem}):"


def with_specification(source: bytes, name: str, text: str) -> bytes:
    """Return an application's source with the specification in a comment at its end.

    Spark sends the application's own file only to the driver, other submitted files also to executors.

    :param name: random name of the specification's file; passed to the driver.
    :param text: one line of JSON.
    """
    return source + f"\n# {name} {text}\n".encode("ascii")


def find_specification(application: Path, name: str) -> bytes | None:
    """Return the specification that :func:`with_specification` added; None if there is none of that name."""
    begin = f"# {name} ".encode()
    lines = application.read_bytes().splitlines()
    return next((line.removeprefix(begin) for line in reversed(lines) if line.startswith(begin)), None)


def _forget_specification(application: Path, name: str) -> None:
    """Remove the specification from YARN's cache of this user's files, which outlives the application.

    YARN fetches a missing file again for a second application master. The container keeps the code.
    """
    cached = application.resolve()
    if "CONTAINER_ID" not in os.environ or "filecache" not in cached.parts:
        return
    code = cached.read_bytes().partition(f"\n# {name} ".encode())[0]
    try:
        cached.unlink()
        application.unlink(missing_ok=True)  # a link to it in the container's folder
        application.write_bytes(code)
    except OSError as error:
        log.warning("Cannot remove %s, which contains the Kafka credentials: %s", cached, error)


def command_line() -> None:
    """Run a function named on the command line: ``submit.py --airflow-eos-process module:function ...``."""
    given = sys.argv[1:]
    name = _take(given, PROCESS_OPTION)
    sys.argv[1:] = given
    module, _, function = (name or "").rpartition(":")
    if not module or not function:
        raise SystemExit(f"{PROCESS_OPTION} must be module:function, got {name!r}")
    from importlib import import_module

    try:
        process = getattr(import_module(module), function)
    except (Exception, SystemExit) as error:  # with code 0 it would look like a run that committed
        log.exception("Spark's driver cannot load %s", name)
        kind = ConfigurationError if is_mistake(error) else ProcessFailed
        is_missing = isinstance(error, ModuleNotFoundError)
        way = "; py_files takes modules that are not installed" if is_missing else ""
        text = f"Spark's driver cannot load process {name!r}: {type(error).__name__}: {error}{way}"
        raise _failure_exit(_take(given, SPEC_OPTION) or "", kind(text)) from error
    main(process)


class _Termination:
    """The SIGTERM handler, from before the session exists until the end of the run.

    Processes forked by the author's function, such as a pool's, inherit it; it ends only themselves.
    """

    def __init__(self) -> None:
        self.run: RunAttempt | None = None
        self._process_id = os.getpid()

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        if self.run is not None and os.getpid() == self._process_id:
            self.run.kill()
        os._exit(_TERMINATED_CODE)  # the JVM may be gone, so a regular exit could hang


def _carry_out(
    spec: RunSpec, process: Callable[..., Any], spark: SparkSession, termination: _Termination
) -> RunRecord:
    termination.run = run = RunAttempt(spark, spec, process)
    before = threading.enumerate()
    try:
        record = run.execute()
        log.info("%s: %s", "found in the ledger" if record.found else "committed", record.summary())
        return record
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        spark.stop()
        begun = [thread for thread in threading.enumerate() if thread not in before]
        if left := [thread.name for thread in begun if not thread.daemon]:
            log.warning("the run has ended; the driver ends once these threads have: %s", ", ".join(left))


def _session() -> SparkSession:
    return import_session_class().builder.getOrCreate()


def _read_spec(name: str) -> RunSpec:
    """Read the specification from the application's own file, or from a file among ``--files``."""
    from pyspark import SparkFiles

    application = Path(getattr(sys.modules["__main__"], "__file__", None) or "")
    carried = find_specification(application, Path(name).name) if application.is_file() else None
    if carried is not None:
        _forget_specification(application, Path(name).name)
        return spec_from_json(carried)
    for path in (Path(name), Path(SparkFiles.get(Path(name).name))):
        if path.is_file():
            return spec_from_json(path.read_bytes())
    raise ConfigurationError(f"the run's specification {name!r} did not come with the application")


def _take(arguments: list[str], option: str) -> str | None:
    """Remove an option and its value from the arguments; return the value, None without the option."""
    if option not in arguments:
        return None
    place = arguments.index(option)
    _, value = arguments[place : place + 2]
    del arguments[place : place + 2]
    return value
