"""Groups, pipelines and run ids that Kafka and Airflow allow, through runs and commands on a real broker."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest

from airflow_eos.broker.cluster import KafkaCluster
from airflow_eos.broker.shared_connections import Link
from airflow_eos.cli.main import main
from airflow_eos.engine import find_committed
from airflow_eos.ledger import keys
from airflow_eos.model.ranges import Cursor, Explicit, Interval, OffsetRange, PartitionInterval
from airflow_eos.operations.queries import ledger_records
from tests.support.cases import rest_in_chaos
from tests.support.group_offsets import commit_offset
from tests.support.local_runs import Pipeline

NOON = dt.datetime(2026, 11, 1, 12, tzinfo=dt.timezone.utc)
HOUR = dt.timedelta(hours=1)
NAMES = {
    "another script": ("한국어_집계.그룹", "한국어_집계.task_1"),
    "long": ("g" * 2_000, "d" * 250 + "." + "t" * 250),
    "marks of quoting": ("50%#/%2F", "a%25#1"),
    "spaces and quotes": ("my 'group' \"x\"\t", "my pipeline\n{{ x }}"),
    "the names of kinds": ("mapped-cursor.g/t-0", "interval.p.2026-11-20T00:00:00.000Z"),
    "a path": ("shop:orders/1", "shop/daily"),
    "an emoji": ("🛒" * 300, "🛒"),
}


@pytest.fixture(params=rest_in_chaos(5, NAMES))
def pipeline(request: Any, embedded_kafka: Any) -> Pipeline:
    group, name = NAMES[request.param]
    unnamed = Pipeline(embedded_kafka, partitions=1)
    tag = unnamed.source.removeprefix("src-")
    # All tests share the broker: each has its own group and pipeline.
    return Pipeline(embedded_kafka, partitions=1, group_id=f"{group}{tag}", pipeline=f"{name}{tag}")


def command(pipeline: Pipeline, capsys: Any, *arguments: str) -> Any:
    capsys.readouterr()
    options = ["--bootstrap-servers", pipeline.kafka.bootstrap_servers, "--ledger-topic", pipeline.ledger]
    code = main([arguments[0], *options, "--prefix", "test", "--output", "json", *arguments[1:]])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    return json.loads(printed.out)


def test_any_name_works_in_every_mode_and_command(pipeline: Pipeline, capsys: Any) -> None:
    """Runs are read, found again, listed and reset by hand; ids belong to this pipeline and to no other."""
    spec = pipeline.spec
    pipeline.publish(["a", "b"], timestamp=int((NOON - HOUR / 2).timestamp() * 1000))
    run_id = "manual__2026-11-20T00:00:00+00:00 %2F/1"
    assert pipeline.run(run_id).records_read == 2
    assert pipeline.run(run_id, try_number=2).found
    assert pipeline.run(run_id, clear_number=1, on_committed="reprocess").records_read == 2
    ids = {keys.transactional_id(spec)}
    for number, changes in enumerate(
        (
            {"ranges": Interval(NOON - HOUR, NOON)},
            {"ranges": PartitionInterval("shop/1", Interval(NOON - HOUR, NOON))},
            {"ranges": Explicit((OffsetRange(pipeline.source, 0, 0, 1),))},
        )
    ):
        record = pipeline.run(f"r{number}", **changes)
        assert record.records_read == (1 if number == 2 else 2)
        assert find_committed(pipeline.changed(f"r{number}", **changes)) is not None
        ids.add(record.producer.transactional_id)
    with Link(spec.kafka) as link:
        cluster = KafkaCluster(link)
        for name in ids:
            assert cluster.describe_transaction(name) is not None, name
            assert keys.belongs_to(name, spec.prefix, spec.pipeline, spec.group_id)
            assert not keys.belongs_to(name, spec.prefix, spec.pipeline + "x", spec.group_id + "x")

    named = keys.run_name(spec.pipeline, run_id)
    status = command(pipeline, capsys, "status", "--group", spec.group_id, "--run", named, "--max-lag", "0")
    assert status["cursors"][spec.group_id]["pipeline"] == spec.pipeline
    assert status["runs"][named]["run_id"] == run_id
    assert spec.pipeline in command(pipeline, capsys, "status")["pipelines"]
    runs = command(pipeline, capsys, "ledger", "--pipeline", spec.pipeline)["records"]
    assert len(runs) == 5
    assert ledger_records(spec.deployment, key=keys.cursor_key(spec.group_id))
    assert command(pipeline, capsys, "verify", "--pipeline", spec.pipeline)
    checks = command(pipeline, capsys, "doctor", "--group", spec.group_id)["checks"]
    assert {c["name"]: c["status"] for c in checks}[f"group {spec.group_id}"] == "ok"
    command(pipeline, capsys, "reset-offsets", "--group", spec.group_id, "--to", "earliest", "--yes")
    assert pipeline.run("after").records_read == 2


def test_the_offsets_of_a_group_of_any_name_are_taken_over(pipeline: Pipeline) -> None:
    """The run goes on where a consumer has committed; a mapped cursor works under such a name, too."""
    pipeline.publish(["a", "b", "c"])
    commit_offset(pipeline.spec.kafka, pipeline.spec.group_id, pipeline.source, 1)
    assert pipeline.run(ranges=Cursor(start="fail")).records_read == 2
    mapped = {"group_id": f"{pipeline.spec.group_id}.m", "source_partition": 0}
    assert pipeline.run("mapped", **mapped).records_read == 3
    assert pipeline.run("mapped again", **mapped).records_read == 0
    assert keys.belongs_to(
        keys.transactional_id(pipeline.changed("x", **mapped)), "test", "", pipeline.spec.group_id + ".m"
    )
