"""A submitted run on a standalone cluster whose Kafka has TLS, SCRAM and permissions."""

from __future__ import annotations

import pytest

from airflow_eos.ledger import keys
from airflow_eos.operations.queries import create_ledger
from airflow_eos.operators.submitted_files import SubmittedFiles
from airflow_eos_testing import EmbeddedKafka
from airflow_eos_testing.faults.spark_cluster import SparkCluster
from tests.support.local_runs import Pipeline
from tests.support.submitting import submit

pytestmark = pytest.mark.chaos


def test_the_least_permissions_are_enough_for_a_submitted_run(tmp_path):
    """Nothing is written while a grant is missing; then once, however often it is submitted."""
    (tmp_path / "copy_app.py").write_text("def process(df):\n    return df.select('key', 'value')\n")
    with (
        EmbeddedKafka(security="SASL_SSL", acls=True) as kafka,
        SparkCluster(home=tmp_path) as spark,
    ):
        pipeline = Pipeline(kafka, partitions=2)
        pipeline.publish([f"r{n}" for n in range(50)])
        create_ledger(pipeline.spec.deployment)
        principal = f"user-{pipeline.ledger}"
        spec = pipeline.changed("r1", kafka=kafka.user(principal))
        kafka.grant(principal, "READ", topic=pipeline.source)
        kafka.grant(principal, "WRITE", topic=pipeline.sink)
        kafka.grant(principal, "READ", "WRITE", topic=pipeline.ledger)
        kafka.grant(principal, "DESCRIBE", topic="__consumer_offsets")
        kafka.grant(principal, "READ", group=keys.offsets_group(spec))
        kafka.grant(principal, "WRITE", transactional_id=keys.ids_prefix(spec.prefix), prefixed=True)

        def run():
            log = tmp_path / "driver.log"
            with SubmittedFiles(spec, tmp_path / "copy_app.py") as files, log.open("wb") as file:
                driver = submit(files, "copy_app:process", spark.master, file, carried=True)
                try:
                    return driver.wait(180), log.read_text(errors="replace")
                finally:
                    driver.kill()
                    driver.wait(30)

        code, text = run()
        assert code != 0
        assert f"READ on topic '{pipeline.sink}'" in text, text[-3000:]
        assert pipeline.output("read_uncommitted") == []
        kafka.grant(principal, "READ", topic=pipeline.sink)
        for _ in range(2):
            code, text = run()
            assert code == 0, text[-3000:]
            assert pipeline.output() == sorted(f"r{n}" for n in range(50))
        assert spec.kafka["sasl.password"] not in text
