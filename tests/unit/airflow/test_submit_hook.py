"""What the provider's hook learns from a submission, with the real hook."""

from __future__ import annotations

import json

import pytest
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

from airflow_eos.operators.submit_hook import call_when_started

# As Spark 4.2 writes it when spark.kubernetes.submission.waitAppCompletion is false.
SUBMITTED = (
    "26/11/26 18:28:15 INFO Client: Deployed Spark application copy with application ID spark-b7065e29 "
    "and submission ID {namespace}:copy-59af19a2-driver into Kubernetes\n"
)


@pytest.mark.parametrize("namespace", ["default", "jobs", "spark"])
def test_the_pod_of_a_driver_is_known_in_each_namespace(namespace, monkeypatch):
    """The provider's pattern has the namespace ``spark`` in it: without its pod a driver is not tracked."""
    extra = {"deploy-mode": "cluster", "namespace": namespace}
    connection = {"conn_type": "spark", "host": "k8s://https://127.0.0.1:6443", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    hook = SparkSubmitHook(conn_id="spark_default", track_driver_via_k8s_api=True)
    calls = []
    call_when_started(hook, lambda: calls.append("started"))
    hook._process_spark_submit_log(iter(["Some line\n", SUBMITTED.format(namespace=namespace)]))
    assert hook._kubernetes_driver_pod == "copy-59af19a2-driver"
    assert calls == ["started"]
