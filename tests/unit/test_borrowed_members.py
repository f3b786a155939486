"""Private members of other packages that we use: each exists, and its package has an upper bound."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
import textwrap
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
KAFKA, SPARK_PROVIDER, KAFKA_PROVIDER, SPARK, AIRFLOW, ICEBERG = (
    "kafka-python",
    "apache-airflow-providers-apache-spark",
    "apache-airflow-providers-apache-kafka",
    "pyspark-client",
    "apache-airflow",
    "pyiceberg",
)
_HOOK = "airflow.providers.apache.spark.hooks.spark_submit:SparkSubmitHook"
_OPERATOR = "airflow.providers.apache.spark.operators.spark_submit:SparkSubmitOperator"

# A method, an attribute that a method of the class sets, or a function of a module.
BORROWED = [
    (AIRFLOW, "airflow.sdk:StartOfDayMapper", "_timezone"),
    (KAFKA, "kafka.net.connection:KafkaConnection", "_throttle_time"),
    (KAFKA, "kafka.net.manager:KafkaConnectionManager", "_build_transport"),
    (KAFKA, "kafka.net.manager:KafkaConnectionManager", "_conns"),
    (KAFKA, "kafka.net.manager:KafkaConnectionManager", "_net"),
    (KAFKA, "kafka.net.transport:KafkaTCPTransport", "_sock_recv"),
    (KAFKA, "kafka.net.transport:KafkaTCPTransport", "_sock"),
    (KAFKA, "kafka.net.transport:KafkaSSLTransport", "_sock_recv"),
    (KAFKA_PROVIDER, "airflow.providers.apache.kafka.hooks.base:KafkaBaseHook", "_build_config"),
    *[
        (SPARK_PROVIDER, _HOOK, member)
        for member in (
            "_conf",
            "_connection",
            "_env",
            "_get_yarn_rm_base_url",
            "_is_kubernetes",
            "_is_yarn_cluster_mode",
            "_kubernetes_driver_pod",
            "_last_submit_log_lines",
            "_process_spark_submit_log",
            "_proxy_user",
            "_resolved_yarn_rm_auth",
            "_should_track_driver_status",
            "_should_track_driver_via_k8s_api",
            "_submit_sp",
            "_yarn_application_id",
            "_yarn_rm_auth",
            "_yarn_track_via_rm_api",
        )
    ],
    (SPARK_PROVIDER, _OPERATOR, "_conn_id"),
    (SPARK_PROVIDER, _OPERATOR, "_deploy_mode"),
    (SPARK_PROVIDER, _OPERATOR, "_hook"),
    (SPARK, "pyspark.sql.connect.client:SparkConnectClient", "_use_reattachable_execute"),
    (SPARK, "pyspark.sql.connect.client:SparkConnectClient", "_stub"),
    (SPARK, "pyspark.sql.connect.dataframe:DataFrame", "_plan"),
    (SPARK, "pyspark.sql.connect.dataframe:DataFrame", "_explain_string"),
    (SPARK, "pyspark.core.context:SparkContext", "_active_spark_context"),
    (SPARK, "pyspark.core.context:SparkContext", "_accumulatorServer"),
    (SPARK, "pyspark.core.context:SparkContext", "_ensure_initialized"),
    (SPARK, "pyspark.core.context:SparkContext", "_jsc"),
    (SPARK, "pyspark.core.context:SparkContext", "_jvm"),
    (SPARK, "pyspark.sql.connect.session:SparkSession", "_active_session"),
    (SPARK, "pyspark.sql.session:SparkSession", "_jsparkSession"),
    (SPARK, "pyspark.core.rdd:PipelinedRDD", "_bypass_serializer"),
    (SPARK, "pyspark.core.rdd:RDD", "_jrdd"),
    (AIRFLOW, "airflow.sdk.bases.operator:BaseOperatorMeta", "_apply_defaults"),
    (AIRFLOW, "airflow.sdk.definitions.taskgroup:MappedTaskGroup", "_expand_input"),
    (AIRFLOW, "airflow.sdk.execution_time.context:AssetStateStoreAccessors", "_by_name"),
    (ICEBERG, "pyiceberg.catalog.rest:RestCatalog", "_session"),
    (ICEBERG, "pyiceberg.io.pyarrow", "_determine_partitions"),
    (ICEBERG, "pyiceberg.table:Transaction", "_requirements"),
    (ICEBERG, "pyiceberg.table:Transaction", "_updates"),
    (ICEBERG, "pyiceberg.table.update.snapshot:_SnapshotProducer", "_compression"),
]


@pytest.mark.parametrize(("package", "owner", "member"), BORROWED, ids=lambda value: value.rpartition(":")[2])
def test_a_borrowed_member_is_there(package, owner, member):
    """An update that removes it fails here, by name, and not in a task."""
    module, _, name = owner.partition(":")
    borrowed_from = importlib.import_module(module)
    if name:
        borrowed_from = getattr(borrowed_from, name)

    assert hasattr(borrowed_from, member) or _is_set(borrowed_from, member), (
        f"{package} {version(package)} has no {name}.{member} any more; "
        f"bound it in pyproject.toml, or change what uses it"
    )


@pytest.mark.parametrize("package", sorted({package for package, _, _ in BORROWED}))
def test_its_package_has_an_upper_bound(package):
    """No user gets a version that was never tested."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    every = [*project["dependencies"], *project["optional-dependencies"]["iceberg"]]
    (declared,) = [r for r in map(Requirement, every) if r.name == package]

    assert any(part.operator in ("<", "<=", "==", "~=") for part in declared.specifier), str(declared)


def test_every_private_member_that_a_line_excuses_is_listed():
    """A new one is listed above, or here: codes of librdkafka, JVM objects of Spark."""
    listed = {member for _, _, member in BORROWED}
    # Codes of librdkafka's public enumeration; members of classic frames that hold JVM objects.
    listed |= {"_FATAL", "_TIMED_OUT", "_PURGE_QUEUE", "_PURGE_INFLIGHT", "_jdf", "_spark_session"}
    excused = set()
    for file in (ROOT / "airflow_eos").rglob("*.py"):
        for line in file.read_text().splitlines():
            if re.search(r"noqa: .*SLF001", line) and not line.startswith("# ruff"):
                excused |= set(re.findall(r"(?<!self)\.(_[a-zA-Z]\w*)", line.partition("# noqa")[0]))

    assert excused
    assert excused - listed == set()


def _is_set(owner, member):
    """Whether some method of the class, or of one of its bases, sets the attribute."""
    for base in owner.__mro__[:-1]:
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr == member and isinstance(node.ctx, ast.Store):
                return True
    return False
