"""Airflow 3.1, 3.2 and 3.3 under the names of 3.3: no other module checks the version or for missing names.

A name that an older Airflow has elsewhere is imported from there; a missing one gets a replacement that does
as much as possible, or nothing. docs/airflow-versions.md lists what an older Airflow cannot do.
"""

from __future__ import annotations

import asyncio
import contextvars
import datetime as dt
import functools
import re
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any, ParamSpec, TypeVar, cast

from airflow import __version__ as _installed
from airflow.sdk import Asset


def supported_version(text: str) -> tuple[int, int]:
    """Return major and minor version of an Airflow that this package runs on.

    :param text: the whole version.
    :raises ImportError: Airflow is older, which it shows as an import error of the Dag.
    """
    major, minor = (int(part) for part in re.findall(r"\d+", text)[:2])
    if (major, minor) < (3, 1):
        raise ImportError(
            f"airflow-eos needs Airflow 3.1 or later, and this is Airflow {text}: its scheduler does not "
            "start a task again that was cleared while it ran. Upgrade Airflow"
        )
    return major, minor


AIRFLOW_VERSION = supported_version(_installed)
"""Major and minor version of Airflow in this environment."""

from airflow.providers.common.compat.sdk import (  # noqa: E402 - after the refusal, which says why
    AirflowConfigException,
    AirflowException,
    AirflowFailException,
    AirflowNotFoundException,
    AirflowSkipException,
    DagRunTriggerException,
    DownstreamTasksSkipped,
    TaskDeferred,
    conf,
)

Read = TypeVar("Read", bound=Callable[..., Any])
Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")

try:
    from airflow.sdk.exceptions import (
        AirflowRescheduleException,
        AirflowSensorTimeout,
        TaskDeferralTimeout,
    )
except ImportError:  # 3.1
    from airflow.exceptions import AirflowRescheduleException, AirflowSensorTimeout, TaskDeferralTimeout

TASK_SIGNALS = (
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSkipException,
    DagRunTriggerException,
    DownstreamTasksSkipped,
)
"""Exceptions by which a task sets its end state; those that are not an ``Exception`` need not be listed."""

TIME_OUT_AGAIN = 30.0
"""Seconds after which a task that still runs gets its time-out again: until then it can clean up."""


def with_options_of_providers(reads: Read) -> Read:
    """Decorate a function that reads an option which a command or a secrets backend may provide.

    Airflow 3.1 knows such options of a provider only after the providers' configuration was loaded.
    """
    try:
        import airflow.sdk.configuration  # loads it itself
    except ImportError:
        from airflow.utils.providers_configuration_loader import providers_configuration_loaded

        return cast("Read", providers_configuration_loaded(reads))
    return reads


def also(error: Exception, another: type[Exception]) -> Exception:
    """Return the error as an instance of its own class and of another one, by which Airflow handles it.

    The new class has the name of the error's: callbacks, logs and the page see the same error.
    """
    kind = type(error)
    both = type(kind.__name__, (kind, another), {"__module__": kind.__module__})
    same: Exception = both.__new__(both, *error.args)
    same.__dict__.update(vars(error))
    return same.with_traceback(error.__traceback__)


def repeat_time_out() -> None:
    """Let Airflow raise the time-out of the running task repeatedly, as long as the task goes on.

    Airflow raises it once, wherever the task is. Python drops an exception in a callback of a weak reference
    or of the garbage collector, and a library may catch it as its own.
    """
    left, _ = signal.getitimer(signal.ITIMER_REAL)
    if left:
        signal.setitimer(signal.ITIMER_REAL, left, TIME_OUT_AGAIN)


@functools.cache
def _threads(system: str) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(8, thread_name_prefix=f"airflow-eos {system}")


async def to_thread(
    system: str, function: Callable[Arguments, Answer], /, *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Answer:
    """Run a blocking function of a trigger in a thread, as :func:`asyncio.to_thread`.

    The triggerer has few threads, which all triggers share: one system that hangs would block them all. So
    each system has its own eight threads.

    The function may read connections and variables, and mask secrets. Airflow 3.1 sends such a request on the
    triggerer's event loop only from a thread that asgiref has started. From any other thread it reads the
    answer in another loop: the request fails, or takes the answer to another one and the triggerer stops.

    :param system: the system that the function calls.
    """
    if AIRFLOW_VERSION < (3, 2):
        from asgiref.sync import sync_to_async

        in_thread = sync_to_async(function, thread_sensitive=False, executor=_threads(system))
        return await in_thread(*args, **kwargs)
    call = functools.partial(contextvars.copy_context().run, function, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_threads(system), call)


# -- schedules --------------------------------------------------------------------------------------------

INTERVAL_TIMETABLES = "airflow.sdk" if AIRFLOW_VERSION >= (3, 2) else "airflow.timetables.interval"
"""The module from which Dags import timetables."""

TRIGGER_TIMETABLES = ("CronTriggerTimetable", "DeltaTriggerTimetable", "MultipleCronTriggerTimetable")
"""Timetables whose data intervals only have a configured length, by default 0."""


def is_kind(schedule: Any, *names: str) -> bool:
    """Return whether the class of a timetable or a partition mapper is Airflow's of one of these names.

    From Airflow 3.2 on there are two classes of each name, and a Dag may use either: that of ``airflow.sdk``,
    and the scheduler's in ``airflow.timetables`` or ``airflow.partition_mappers``.
    """
    return type(schedule).__name__ in names and type(schedule).__module__.startswith("airflow.")


def timetable_field(timetable: Any, name: str) -> Any:
    """Return an argument of a timetable, such as ``interval``; the scheduler's classes have ``_interval``."""
    return getattr(timetable, name if hasattr(timetable, name) else f"_{name}")


def partition_key(dag_run: Any) -> str | None:
    """Return the partition key of a Dag run; None if it has none, as in Airflow 3.1."""
    key: str | None = getattr(dag_run, "partition_key", None)
    return key


def partition_date(dag_run: Any) -> dt.datetime | None:
    """Return the date of a Dag run's partition; None if it has none, as before Airflow 3.3."""
    date: dt.datetime | None = getattr(dag_run, "partition_date", None)
    return date


# -- metrics and state ------------------------------------------------------------------------------------

try:
    from airflow.sdk.observability.stats import gauge as _gauge  # functions, from 3.3 on

    from airflow.sdk.observability import stats  # isort: skip
except ImportError:  # before: a class with the same methods
    from airflow.providers.common.compat.sdk import Stats as stats  # noqa: N813


def initialize_stats() -> None:
    """Initialise :data:`stats` from ``[metrics]``, for ``airflow eos``, which 3.1 does not have."""
    from airflow.sdk.observability.metrics.stats_utils import get_stats_factory

    if isinstance(stats, ModuleType):
        legacy = conf.getboolean("metrics", "legacy_names_on", fallback=True)
        stats.initialize(factory=get_stats_factory(), export_legacy_names=legacy)
    else:
        stats.initialize(factory=get_stats_factory(stats))


def asset_state_store(trigger: Any) -> Any:
    """Return the store of a watcher's state across triggerers; None if there is none, as before Airflow 3.3.

    Airflow runs equal triggers of several assets as one: the first asset's store has its state.
    """
    store = getattr(trigger, "asset_state_store", None)
    names = sorted(getattr(store, "_by_name", ()))
    return store if store is None or len(names) < 2 else store[Asset.ref(name=names[0])]  # noqa: PLR2004
