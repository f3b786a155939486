"""Small runs interpret their plan without generated code, and return the same rows."""

from __future__ import annotations

import itertools

import pytest

from airflow_eos.spark import sealing
from airflow_eos.spark.blocks import GENERATED_CODE, INTERPRETED, interpreted
from airflow_eos.spark.session import settings
from airflow_eos.spark.source import source_frame
from airflow_eos.wire.client_config import ClientConfig
from airflow_eos_testing import read_topic
from tests.support.cases import rest_in_chaos
from tests.support.spark_sessions import run

_never_used = itertools.count(1_000_003)
"""Numbers for plans that are new to this process: Spark caches compiled code."""


def functions():
    """Return pyspark.sql.functions, which need a session."""
    from pyspark.sql import functions

    return functions


def compiled(spark):
    """Return how many pieces of code the driver's JVM has compiled."""
    metrics = spark.sparkContext._jvm.org.apache.spark.metrics.source.CodegenMetrics
    return metrics.METRIC_COMPILATION_TIME().getCount()


def some_transform():
    """Return a function whose plan has not been compiled yet."""
    numbers = [next(_never_used) for _ in range(4)]

    def process(df):
        kept = df.where(" and ".join(f"offset * {number} + partition >= 0" for number in numbers))
        return kept.selectExpr("key", f"cast(cast(offset % {numbers[0]} as string) as binary) as value")

    return process


@pytest.mark.parametrize(
    ("least_of_large", "switch", "compiles"),
    [(None, "false", False), (None, "true", True), (10, "false", True)],
)
def test_a_small_run_compiles_nothing(broker, spark, monkeypatch, least_of_large, switch, compiles):
    """Neither seal, count nor send compiles; a large run does, and one whose author asks for it."""
    if least_of_large is not None:
        monkeypatch.setattr(sealing, "LARGE_RUN", least_of_large)
    source, sink = broker.numbered("src", 2, 50), broker.topic("out", 2)
    before = compiled(spark)
    with settings(spark, {GENERATED_CODE: switch}):
        run(broker, spark, broker.spec(source, sink), some_transform())
    assert (compiled(spark) > before) is compiles
    assert len(read_topic(broker.bootstrap, sink)) == 100


def _joined(df, spark):
    return df.join(spark.range(10).withColumnRenamed("id", "offset"), "offset")


@pytest.mark.parametrize(
    ("transform", "is_interpreted"),
    [
        (lambda df, _: df, True),
        (lambda df, _: df.groupBy("key").count(), True),
        (lambda df, _: df.where("offset > 1").mapInArrow(lambda batches: batches, df.schema), True),
        (_joined, False),
        (lambda df, _: df.union(df), False),
        (lambda df, _: df.where("offset > (select max(id) from range(10))"), False),
        (lambda df, _: df.where("exists (select * from range(10) where id = offset)"), False),
    ],
    ids=["source", "aggregate", "function", "join", "twice", "subquery", "exists"],
)
def test_only_plans_of_the_source_alone_are_interpreted(broker, spark, transform, is_interpreted):
    """Data that a transform joins may be large, and worth compiling for."""
    source = source_frame(spark, ClientConfig.of(broker.config), [])
    conf = interpreted(spark, transform(source, spark))
    assert conf == (INTERPRETED if is_interpreted else {})


ROWS = """
    SELECT * FROM VALUES
    (1, 0.0D, 'a', X'00ff', TIMESTAMP '2026-03-29 01:30:00', 12.345, array(1, null, 3), map('x', 1)),
    (2, -0.0D, '', X'', TIMESTAMP '1582-10-15 00:00:00', -99999.999, array(), map()),
    (3, double('NaN'), 'ß€😀', X'61', TIMESTAMP '9999-06-30 23:59:59.999999', 0.001, null, null),
    (null, null, null, null, null, null, array(null), map('x', null)),
    (-2147483648, double('-Infinity'), 'A b', X'62', TIMESTAMP '0001-03-01 00:00:00', 99999.999, array(9),
     map('y', 2))
    AS t(i, d, s, b, t, n, a, m)
"""
EXPRESSIONS = [
    """from_json(format_string('{"u": %s, "w": ["%s"]}', i, s), 'u long, w array<string>') AS j""",
    "to_json(struct(i, s, n, t, a)) AS j, to_json(m) AS k",
    "concat(b, X'21') AS c, encode(s, 'utf-8') AS e, hex(b) AS f, base64(b) AS g",
    "upper(s) AS u, initcap(s) AS i, regexp_replace(s, '[ab]', '$0$0') AS r, split(s, ' ') AS p",
    "substring(s, -2) AS q, lpad(s, 5, 'é') AS l, translate(s, 'aA', 'bB') AS t, length(s) AS n",
    "n * 1.19 AS n1, n / 3 AS n2, round(n, 1) AS n3, try_cast(n AS decimal(5, 2)) AS n4, n % 7 AS n5",
    "d = 0.0 AS z, d <=> -0.0D AS y, greatest(d, 1.0D) AS x, isnan(d) AS w, cast(d AS string) AS v",
    "try_cast(d AS int) AS c, try_add(i, -1) AS o, hash(i, d, s) AS h, xxhash64(b, t, n) AS x",
    "date_trunc('month', t) AS m, cast(t AS date) AS d, unix_micros(t) AS u, t - INTERVAL '1' MONTH AS n",
    "date_format(t, 'yyyy-MM-dd HH:mm:ss.SSS') AS f, from_utc_timestamp(t, 'Europe/Berlin') AS z",
    "transform(a, x -> x * 2) AS t, aggregate(a, 0, (s, x) -> s + coalesce(x, 0)) AS s, get(a, 0) AS f",
    "map_filter(m, (k, v) -> v > 1) AS f, element_at(m, 'x') AS x, map_entries(m) AS e, size(m) AS s",
    "CASE WHEN i > 1 THEN s WHEN i IS NULL THEN 'null' END AS c, coalesce(s, 'none') AS n, nullif(i, 1) AS x",
    "s IN ('a', '') AS n, s LIKE 'A%' AS l, s RLIKE '^[a-z]$' AS r, i BETWEEN 1 AND 2 AS b",
    "explode_outer(a) AS x, i",
    "inline_outer(array(struct(i, s), struct(bit_count(i) AS i, s))) AS (p, q)",
    "sha2(s, 256) AS h, md5(b) AS m, crc32(b) AS c, bin(i) AS n, conv(s, 16, 10) AS v",
    "rand(7) AS r, monotonically_increasing_id() AS m, spark_partition_id() AS p",
]
"""Transforms over the columns above."""
QUERIES = [
    "SELECT i % 2, count(*), sum(n), avg(d), collect_list(s), max(t), max_by(s, i) FROM t GROUP BY i % 2",
    "SELECT i, sum(n) OVER (PARTITION BY i % 2 ORDER BY i), rank() OVER (ORDER BY d) FROM t",
    "SELECT lag(s) OVER (ORDER BY i), max(t) OVER (ORDER BY i ROWS 1 PRECEDING) FROM t",
    "SELECT DISTINCT d FROM t ORDER BY d NULLS LAST",
    "SELECT i, d, s FROM t ORDER BY d DESC, s LIMIT 3",
    "SELECT count(DISTINCT d), stddev(n), percentile(n, 0.5), approx_count_distinct(s) FROM t",
    "SELECT i, sum(n), grouping_id() FROM t GROUP BY CUBE (i, s)",
]


@pytest.fixture(scope="module")
def rows(spark):
    # From a table: Spark's optimiser evaluates a plan over literals alone.
    spark.sql(ROWS).coalesce(1).localCheckpoint().createOrReplaceTempView("t")
    assert spark.table("t").count() == 5


def same_rows(spark, query):
    """Check that both ways have the same rows; return whether the first one compiled nothing."""
    before = compiled(spark)
    with settings(spark, INTERPRETED):
        table = spark.sql(query).toArrow()
    compiled_nothing = compiled(spark) == before
    generated = spark.sql(query).toArrow()
    assert table.schema == generated.schema
    assert sorted(map(repr, table.to_pylist())) == sorted(map(repr, generated.to_pylist()))
    return compiled_nothing


@pytest.mark.usefixtures("rows")
@pytest.mark.parametrize("columns", rest_in_chaos(6, EXPRESSIONS))
def test_interpreted_expressions_have_the_values_of_generated_code(spark, columns):
    """Over values at the edge of their types."""
    assert same_rows(spark, f"SELECT {columns} FROM t")


@pytest.mark.usefixtures("rows")
@pytest.mark.parametrize("query", rest_in_chaos(2, QUERIES))
def test_interpreted_queries_have_the_rows_of_generated_code(spark, query):
    """Spark still compiles the ordering of some queries."""
    same_rows(spark, query)
