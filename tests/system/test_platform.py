"""Two schedulers on PostgreSQL, with Celery workers or the LocalExecutor: killed, frozen or lost parts.

Rows of docs/retries.md. One Airflow of each kind is started for all of them.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_eos.ledger import keys
from airflow_eos.model.spec import DEFAULT_PREFIX, Deployment
from airflow_eos.operations.open_transactions import abort_transaction
from airflow_eos_testing import EmbeddedKafka
from airflow_eos_testing.airflow_api import AirflowApi
from airflow_eos_testing.airflow_platform import AirflowPlatform
from airflow_eos_testing.airflow_processes import parent_of, signal_all, stopped
from airflow_eos_testing.exceptions import EmbeddedAirflowError
from airflow_eos_testing.spark_connect import SparkConnectServer
from tests.support.patience import eventually
from tests.system.backfills import backfill
from tests.system.gate import Gate
from tests.system.platform_fixtures import big_airflow
from tests.system.platform_run import begin_run, ends_once, hold_run
from tests.system.retries_table import Columns, Pipeline, added, grown

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]  # processes start cold, on whatever machine

on_celery = pytest.mark.parametrize("platform", ["CeleryExecutor"], indirect=True)
on_local_executor = pytest.mark.parametrize("platform", ["LocalExecutor"], indirect=True)
on_both = pytest.mark.parametrize("platform", ["CeleryExecutor", "LocalExecutor"], indirect=True)
killed_alone_or_not = pytest.mark.parametrize("tree", [False, True], ids=["alone", "with-its-tasks"])


@pytest.fixture(scope="module")
def platform(
    kafka: EmbeddedKafka,
    spark_connect: SparkConnectServer,
    folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[AirflowPlatform]:
    deployed = tmp_path_factory.mktemp("deployed")
    with big_airflow(kafka, spark_connect, folder, deployed, executor=request.param) as running:
        yield running


@pytest.fixture(autouse=True)
def whole(platform: AirflowPlatform, request: pytest.FixtureRequest) -> None:
    """Restart components killed by earlier tests; ``make test`` continues without them, to save time."""
    dead = [name for name in platform.components if not platform.is_running(name)]
    if dead and request.node.get_closest_marker("chaos") is not None:
        platform.start_components(*dead)


@pytest.fixture
def gate(folder: Path, request: pytest.FixtureRequest) -> Iterator[Gate]:
    gate = Gate(folder, request.param)
    yield gate
    gate.open()


at_open = pytest.mark.parametrize("gate", ["open"], indirect=True)
at_committed = pytest.mark.parametrize("gate", ["committed"], indirect=True)


@pytest.fixture
def held_open(kafka: EmbeddedKafka) -> Pipeline:
    """The pipeline of the Dag whose task waits at a gate while its transaction is open."""
    return Pipeline(kafka, "open", "stays_open.copy")


@pytest.fixture
def late(kafka: EmbeddedKafka) -> Pipeline:
    """The pipeline of the Dag whose task waits at a gate after its commit."""
    return Pipeline(kafka, "late", "reports_late.copy")


def has_open_transaction(kafka: EmbeddedKafka, group: str) -> bool:
    name = keys.cursor_transactional_id(DEFAULT_PREFIX, group)
    transaction = abort_transaction(Deployment(kafka.client_config()), name, execute=False)
    return transaction.state == "Ongoing"


@on_celery
@at_open
def test_worker_killed_with_its_transaction_open(
    platform: AirflowPlatform, kafka: EmbeddedKafka, held_open: Pipeline, gate: Gate
) -> None:
    """A worker dies with its descendants: the other one runs the next try, which writes everything once."""
    held = hold_run(platform, held_open, gate, "stays_open", "worker")
    assert has_open_transaction(kafka, "open")
    dead = platform.owner_of(held.process)
    assert held.process in platform.kill_component(dead, tree=True)
    # The next try waits at the gate: the dead one has left nothing visible by then.
    (_, second) = gate.wait(2)
    assert platform.owner_of(second) != dead
    assert held_open.look() == held.before
    gate.open()
    ends_once(platform, held, committed_by=2, tries=["failed", "success"])


@on_celery
@at_open
def test_scheduler_killed_while_a_transaction_is_open(
    platform: AirflowPlatform, kafka: EmbeddedKafka, held_open: Pipeline, gate: Gate
) -> None:
    """The worker goes on, and the other scheduler handles its end: one try, everything once."""
    held = hold_run(platform, held_open, gate, "stays_open", "scheduler")
    assert has_open_transaction(kafka, "open")
    platform.kill_component(platform.scheduler_of("stays_open", held.run_id, "copy"))
    gate.open()
    ends_once(platform, held, committed_by=1, tries=["success"])


@on_celery
def test_scheduler_killed_while_its_task_is_queued(platform: AirflowPlatform, held_open: Pipeline) -> None:
    """No worker has taken the task: the other scheduler adopts it, and it runs once."""
    with stopped(platform.task_runners()):
        held = begin_run(platform, held_open, "stays_open", "queued")
        platform.wait_for_task("stays_open", held.run_id, "copy", ["queued"])
        dead = platform.scheduler_of("stays_open", held.run_id, "copy")
        # A task that it has queued but not sent stays queued until [scheduler] task_queued_timeout.
        sent = re.compile(f"Setting external_executor_id for .*{held.run_id}")
        eventually((platform.home / f"{dead}.log").read_text, sent.search)
        platform.kill_component(dead)
    ends_once(platform, held, committed_by=1, tries=["success"])


@on_celery
@at_committed
def test_scheduler_killed_after_the_commit(platform: AirflowPlatform, late: Pipeline, gate: Gate) -> None:
    """The task ends later: the other scheduler handles it."""
    held = hold_run(platform, late, gate, "reports_late", "finishing")
    committed = late.look()
    platform.kill_component(platform.scheduler_of("reports_late", held.run_id, "copy"))
    gate.open()
    ends_once(platform, held, committed_by=1, tries=["success"])
    assert late.look() == committed


@on_celery
@at_committed
def test_api_server_away_after_the_commit(platform: AirflowPlatform, late: Pipeline, gate: Gate) -> None:
    """The try cannot report its end, and the next one cannot start; a clear succeeds from the record."""
    held = hold_run(platform, late, gate, "reports_late", "unheard")
    committed = late.look()
    platform.kill_component("api-server", tree=True)
    gate.open()
    eventually(platform.processes, lambda seen: held.process not in seen, seconds=150)
    platform.start_components("api-server")
    if platform.wait_for_run("reports_late", held.run_id) == "failed":
        platform.clear("reports_late", held.run_id, ["copy"])
        assert platform.wait_for_run("reports_late", held.run_id) == "success"
    assert platform.xcom("reports_late", held.run_id, "copy")["found"] is True
    assert late.look() == committed == grown(held.before, held.sent, runs=committed.runs)


@on_local_executor
@killed_alone_or_not
@at_open
def test_scheduler_killed_with_a_queued_task(
    platform: AirflowPlatform, held_open: Pipeline, gate: Gate, tree: bool
) -> None:
    """The other one queues it again. A late start from the dead one's executor pipe is refused."""
    gate.shut()
    gate.open()  # an open gate only counts processes
    runners = platform.task_runners()
    with stopped(runners):
        held = begin_run(platform, held_open, "stays_open", "queued")
        platform.wait_for_task("stays_open", held.run_id, "copy", ["queued"])
        dead = platform.scheduler_of("stays_open", held.run_id, "copy")
        orphans = platform.component(dead, tree=True)[1:]
        assert set(orphans) <= set(runners)
        platform.kill_component(dead, tree=tree)
        log = platform.home / f"{dead}.log"
        so_far = log.stat().st_size
        with stopped(orphans):
            signal_all([pid for pid in runners if pid not in orphans], signal.SIGCONT)
            ends_once(platform, held, committed_by=2, tries=["failed", "success"])
    if not tree:
        eventually(lambda: log.read_text()[so_far:], lambda text: "Task Instance not found" in text)
    assert len(gate.wait()) == 1


@on_local_executor
@killed_alone_or_not
@at_open
def test_scheduler_killed_with_a_running_task(
    platform: AirflowPlatform, kafka: EmbeddedKafka, held_open: Pipeline, gate: Gate, tree: bool
) -> None:
    """Its task dies with it, or as an orphan that the API server ends: the other scheduler retries it."""
    held = hold_run(platform, held_open, gate, "stays_open", "running")
    assert has_open_transaction(kafka, "open")
    dead = platform.scheduler_of("stays_open", held.run_id, "copy")
    assert platform.owner_of(held.process) == dead
    assert (held.process in platform.kill_component(dead, tree=tree)) == tree
    gate.wait(2)
    eventually(platform.processes, lambda seen: held.process not in seen, seconds=90)
    assert held_open.look() == held.before
    gate.open()
    ends_once(platform, held, committed_by=2, tries=["failed", "success"])


@on_local_executor
@killed_alone_or_not
@at_committed
def test_scheduler_killed_with_a_committed_task(
    platform: AirflowPlatform, late: Pipeline, gate: Gate, tree: bool
) -> None:
    """The next try, by the other scheduler, succeeds from the record."""
    held = hold_run(platform, late, gate, "reports_late", "finishing")
    committed = late.look()
    dead = platform.scheduler_of("reports_late", held.run_id, "copy")
    assert platform.owner_of(held.process) == dead
    platform.kill_component(dead, tree=tree)
    gate.wait(2)
    gate.open()
    ends_once(platform, held, committed_by=1, tries=["failed", "success"])
    assert platform.xcom("reports_late", held.run_id, "copy")["found"] is True
    assert late.look() == committed


@on_both
@at_open
def test_twin_works_while_the_heartbeat_of_the_first_is_lost(
    platform: AirflowPlatform, held_open: Pipeline, gate: Gate
) -> None:
    """The supervisor is frozen, its task is not: two processes work on one run, which is committed once."""
    held = hold_run(platform, held_open, gate, "stays_open", "twin")
    with stopped([parent_of(held.process)]):
        gate.wait(2)
        gate.open()
        ends_once(platform, held, committed_by=2, tries=["failed", "success"])
        assert held.process in platform.processes()
    eventually(platform.processes, lambda seen: held.process not in seen, seconds=90)
    # Its first write was fenced by the epoch of the second.
    assert "a newer attempt exists" in platform.task_log("stays_open", held.run_id, "copy", 1)
    ends_once(platform, held, committed_by=2, tries=["failed", "success"])


@on_both
def test_whole_run_is_cleared_by_a_user(platform: AirflowPlatform, kafka: EmbeddedKafka) -> None:
    """Over REST with a signed-in user's token, in both ways of the UI; requests without one are refused."""
    mapped = Pipeline(kafka, "mapped", "mapped.copy")
    before = mapped.look()
    held = begin_run(platform, mapped, "mapped", f"cleared-{platform.executor}")
    run_id = held.run_id
    assert platform.wait_for_run("mapped", run_id) == "success"
    after = mapped.look()
    assert after == grown(before, held.sent, runs=after.runs)
    assert added(before, after) == [(run_id, 1), (run_id, 1)]
    for number, clear in enumerate(("dagRuns/{run_id}/clear", "clearTaskInstances"), 2):
        path = f"/dags/mapped/{clear.format(run_id=run_id)}"
        body = {"dry_run": False, "only_failed": False}
        if clear == "clearTaskInstances":
            body |= {"dag_run_id": run_id, "reset_dag_runs": True}
        with pytest.raises(EmbeddedAirflowError, match="refused with 401"):
            AirflowApi(platform.api.base_url).call("POST", path, body)
        platform.api.call("POST", path, body)
        for index in (0, 1):
            platform.wait_for_task("mapped", run_id, "copy", ["success"], try_number=number, map_index=index)
            assert platform.xcom("mapped", run_id, "copy", map_index=index)["found"] is True
        assert platform.wait_for_run("mapped", run_id) == "success"
        assert mapped.look() == after


@on_celery
@pytest.mark.timeout(900)
def test_metadata_database_is_restored_from_before_the_runs(
    platform: AirflowPlatform, kafka: EmbeddedKafka
) -> None:
    """Airflow has lost its last runs and repeats them: the ledger answers, and nothing is written twice."""
    unlimited = Pipeline(kafka, "unlimited", "unlimited.copy")
    for dag_id in ("unlimited", "restored"):
        platform.wait_for_dag(dag_id)
    dump = platform.postgres.back_up()
    held = begin_run(platform, unlimited, "unlimited", "forgotten")
    ends_once(platform, held, committed_by=1, tries=["success"])
    first = platform.xcom("unlimited", held.run_id, "copy")
    columns = unlimited.look()
    again = backfill(platform, kafka, "restored", days=2)

    for name in platform.components:
        platform.kill_component(name, tree=True)
    platform.postgres.restore(dump)
    platform.start_components(*platform.components)
    with pytest.raises(EmbeddedAirflowError, match="refused with 404"):
        platform.run_state("unlimited", held.run_id)

    platform.trigger("unlimited", held.run_id)
    assert platform.wait_for_run("unlimited", held.run_id) == "success"
    assert platform.xcom("unlimited", held.run_id, "copy") == {**first, "found": True}
    other = platform.trigger("unlimited")
    assert platform.wait_for_run("unlimited", other) == "success"
    assert platform.xcom("unlimited", other, "copy")["records_read"] == 0
    after = unlimited.look()
    assert after == Columns(columns.output, columns.offset, after.runs)
    assert added(columns, after) == [(other, 1)]
    platform.api.unpause("restored")
    again(1, forgotten=True)
