"""``make test AIRFLOW=3.2``: tests of features that an older Airflow lacks are not collected on it.

docs/airflow-versions.md says the same to users.
"""

from __future__ import annotations

from functools import cached_property
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

_OF_STORED_JOBS = (
    "test_a_driver_on_the_cluster_gets_the_specification_in_its_application",  # durable=True
    "test_an_application_that_is_not_here_needs_the_specification_as_a_file",
    "test_clear_ends_the_job_of_an_earlier_life",
    "test_deferred_wait_frees_the_worker_and_ends_with_the_ledger",
    "test_on_kill_ends_an_application_that_an_earlier_try_submitted",
    "test_retry_takes_up_the_job_of_the_same_life",
    "test_wait_that_cannot_be_deferred_is_refused",
    "test_wait_that_fails_forgets_only_a_driver_that_ended",
)
_OF_DAG_FILES = (
    "test_example_dag_parses_in_under_a_second",
    "test_example_dag_parses_without_spark_arrow_or_kafka",
    "test_operators_sensors_and_triggers_load_no_spark_arrow_or_kafka",
)
SINCE: dict[tuple[int, int], tuple[str, ...]] = {
    # Partitions with a date, state of tasks and assets, the kill of a deferred driver.
    (3, 3): (
        "tests/integration/test_run_intervals.py",
        "tests/system/test_backfill.py::test_partitions_are_found_though_a_backfill_names_new_runs",
        "tests/system/test_deferred_on_yarn.py",
        "tests/system/test_deferred_submit.py",
        *(f"tests/unit/airflow/test_submit.py::{name}" for name in _OF_STORED_JOBS),
        "tests/unit/airflow/test_offset_range_trigger.py::test_watcher_of_two_assets_has_one_memory",
        "tests/unit/airflow/test_partition_interval.py",
        "tests/unit/airflow/test_tiling_schedules.py",
        "tests/unit/test_borrowed_members.py::test_a_borrowed_member_is_there[apache-airflow-StartOfDayMapper-_timezone]",
        "tests/unit/test_borrowed_members.py::test_a_borrowed_member_is_there[apache-airflow-AssetStateStoreAccessors-_by_name]",
    ),
    # The timetables of airflow.sdk, which the example Dags import, `airflow eos`, what tests use, and
    # connections whose extra is a list, which 3.1 does not find.
    (3, 2): (
        "tests/system/test_demo.py",
        "tests/system/test_example_dags.py",
        "tests/system/test_flights_table.py",
        "tests/system/test_tutorial_tables.py",
        *(f"tests/unit/airflow/test_import_weight.py::{name}" for name in _OF_DAG_FILES),
        "tests/unit/airflow/test_kafka_eos_hook.py::test_an_extra_that_is_a_list_is_a_mistake",
        "tests/unit/airflow/test_monitoring.py::test_gauges_go_the_way_of_airflows_own",
        "tests/unit/airflow/test_page_failures.py::test_airflow_calls_the_listener",
        "tests/unit/airflow/test_page_plugin.py::test_tabs_of_dags_runs_and_task_instances_lead_here",
        "tests/unit/airflow/test_task_decorator.py::test_context_variables_come_from_the_context",
    ),
}
"""Files, tests and test cases by the first Airflow version that supports them."""


class AirflowVersions:
    """Leaves out tests that the installed Airflow does not support."""

    @cached_property
    def _left_out(self) -> tuple[str, ...]:
        major, minor = (int(part) for part in version("apache-airflow-core").split(".")[:2])
        return tuple(name for since, names in SINCE.items() if (major, minor) < since for name in names)

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Do not import files that would fail to import."""
        return True if str(collection_path.relative_to(ROOT)) in self._left_out else None

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Deselect single tests, so that pytest counts them."""
        left_out = [
            item for item in items if {item.nodeid, item.nodeid.partition("[")[0]} & {*self._left_out}
        ]
        if left_out:
            items[:] = [item for item in items if item not in left_out]
            config.hook.pytest_deselected(items=left_out)
