"""Dead letters of functions on DataFrames: records that make them raise, however Spark runs them."""

from __future__ import annotations

import zipfile

import pytest
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from airflow_eos.engine import RunAttempt
from airflow_eos.exceptions import ProcessFailed, RunFailed
from airflow_eos.model.ranges import Cursor
from airflow_eos.operations.verification import verify_output
from airflow_eos.run.states import State
from airflow_eos_testing import EmbeddedKafka, read_topic
from spark_apps import orders_amounts
from tests.support.local_runs import Pipeline

BAD = {
    "a3": "ValueError: not an order: a3",
    "a6": "ValueError: not an order: a6",
    "b0": "[CAST_INVALID_INPUT]",
}
GOOD = sorted({f"{x}{n}" for x in "ab" for n in range(8)} - BAD.keys())

ALL_BUT_ONE = sorted({f"{x}{n}" for x in "ab" for n in range(8)} - {"a3"})


@pytest.fixture
def pipeline(embedded_kafka: EmbeddedKafka) -> Pipeline:
    """Sixteen records in two partitions, three of them bad, and a topic for those."""
    filled = Pipeline(embedded_kafka)
    for partition, letter in enumerate("ab"):
        filled.publish([f"{letter}{n}" for n in range(8)], partition=partition)
    filled.spec = filled.changed(dead_letter_topic=embedded_kafka.create_topic(f"dead-{filled.source}"))
    return filled


def dead_letters(pipeline, isolation="read_committed"):
    return read_topic(pipeline.kafka.client_config(), pipeline.spec.dead_letter_topic, isolation)


def raising_on(*values):
    """Return a function that raises on some records, as one does that was not written for them."""

    def checked(value):
        if value in values:
            raise ValueError(f"not an order: {value}")
        return value

    return checked


def by_each_kind(df):
    """A row function, a column function, and a Spark expression: each raises on another record."""
    rows = F.udf(raising_on("a3"))
    columns = F.pandas_udf(lambda column: column.map(raising_on("a6")), T.StringType())
    of_rows = df.select("headers", "timestamp", rows(F.col("value").cast("string")).alias("value"))
    of_columns = of_rows.withColumn("value", columns("value"))
    cast = F.when(F.col("value") == "b0", F.col("value")).otherwise(F.lit("1")).cast("int")
    return of_columns.withColumn("value", F.when(cast == 1, F.col("value")))


def by_udf(df, bad=tuple(BAD)):
    return df.select(F.udf(raising_on(*bad))(F.col("value").cast("string")).alias("value"))


def of_one(df):
    return by_udf(df, ["a3"])


def in_groups(df):
    """After a shuffle, the failing task has not read the record that it fails on."""
    value = F.udf(raising_on("a3"))(F.col("value").cast("string"))
    counts = df.repartition(3, "offset").groupBy(value.alias("value")).agg(F.count("*").alias("n"))
    return counts.select("value").where("n = 1")


def test_records_on_which_a_frame_function_raises_are_dead_letters_of_the_run(spark, pipeline):
    """Each once, with the headers of an Arrow function's; all others are written in the same transaction."""
    record = RunAttempt(spark, pipeline.changed("r1"), by_each_kind).execute()
    again = RunAttempt(spark, pipeline.changed("r1"), by_each_kind).execute()
    following = RunAttempt(spark, pipeline.changed("r2"), by_each_kind).execute()
    assert (again.found, following.records_read) == (True, 0)
    assert pipeline.output() == GOOD
    letters = dead_letters(pipeline)
    assert sorted(letter.value.decode() for letter in letters) == sorted(BAD)
    for letter in letters:
        value = letter.value.decode()
        headers = {key: text.decode() for key, text in letter.headers}
        assert headers.pop("error").startswith(BAD[value])
        assert headers == {
            "source.topic": pipeline.source,
            "source.partition": str("ab".index(value[0])),
            "source.offset": value[1],
        }
        assert letter.key == letter.value
    assert (record.records_read, record.records_written, record.dead_letters) == (16, 16, 3)
    assert {finding.outcome for finding in verify_output(pipeline.spec.kafka, record)} == {"ok"}


def test_a_dead_letter_is_no_input_of_an_aggregate(spark, pipeline):
    """The output is that of the function over all other records."""
    record = RunAttempt(spark, pipeline.changed("r1"), in_groups).execute()
    assert (pipeline.output(), record.dead_letters) == (ALL_BUT_ONE, 1)


def test_the_example_sends_what_is_no_order_to_its_topic(spark, embedded_kafka):
    """spark_apps/orders_amounts.py, on a record without an amount, too."""
    orders = Pipeline(embedded_kafka, partitions=1)
    orders.publish(['{"amount": "12.50"}', '{"amount": "twelve"}', "{}"])
    orders.spec = orders.changed(dead_letter_topic=embedded_kafka.create_topic(f"dead-{orders.source}"))
    RunAttempt(spark, orders.spec, orders_amounts.process).execute()
    assert [record.value for record in dead_letters(orders)] == [b'{"amount": "twelve"}']
    written = read_topic(orders.kafka.client_config(), orders.sink)
    assert [(record.key, record.value) for record in written] == [
        (b'{"amount": "12.50"}', b"12.50"),
        (b"{}", None),
    ]


def test_without_a_topic_for_them_the_run_fails_and_names_one(spark, pipeline):
    """Counter-test: only the author may decide that bad records are left out."""
    with pytest.raises(ProcessFailed, match=r"process failed at src-\w+-0, offset 3, nothing was written"):
        RunAttempt(spark, pipeline.changed("r1", dead_letter_topic=None), by_udf).execute()
    assert pipeline.output("read_uncommitted") == []


def test_beyond_the_bound_of_a_frame_function_nothing_is_written(spark, pipeline):
    """Also if every record makes it raise: the search stops at the first record above the bound."""
    tried = []

    def always(df):
        tried.append(1)
        broken = F.udf(lambda _: 1 // 0)
        return df.select(broken("value").alias("value"))

    for process in (by_udf, always):
        with pytest.raises(
            ProcessFailed, match=r"failed on 3 records or more, and max_dead_letters is 2.* offset "
        ):
            RunAttempt(spark, pipeline.changed("r1", max_dead_letters=2), process).execute()
    assert len(tried) < 20
    assert pipeline.output("read_uncommitted") == dead_letters(pipeline, "read_uncommitted") == []


def test_an_attempt_that_dies_after_its_search_leaves_no_letter_twice(spark, pipeline):
    """Its transaction holds letters and output; the next attempt aborts it, and searches again."""

    def dies(state):
        if state is State.STAGED:
            raise SystemExit("killed")

    with pytest.raises(SystemExit):
        RunAttempt(spark, pipeline.changed("r1"), of_one, on_state=dies).execute()
    assert [letter.value for letter in dead_letters(pipeline, "read_uncommitted")] == [b"a3"]
    assert dead_letters(pipeline) == []
    record = RunAttempt(spark, pipeline.changed("r1"), of_one).execute()
    assert (record.dead_letters, record.found) == (1, False)
    assert pipeline.output() == ALL_BUT_ONE
    assert [letter.value for letter in dead_letters(pipeline)] == [b"a3"]


@pytest.mark.chaos
def test_rounds_of_a_frame_function_have_their_own_dead_letters(spark, pipeline):
    """The bound applies to each round."""
    ranges = Cursor(max_records=4, until_caught_up=True)
    record = RunAttempt(spark, pipeline.changed("r1", ranges=ranges, max_dead_letters=2), by_udf).execute()
    assert (record.dead_letters, pipeline.output()) == (3, GOOD)
    assert sorted(letter.value.decode() for letter in dead_letters(pipeline)) == sorted(BAD)


def sums_overflow(df):
    """Raises on two records together, and on neither of them alone."""
    number = F.when(F.col("value").cast("string").isin("a1", "b7"), F.lit(2**62)).otherwise(F.lit(0))
    return df.agg(F.sum(number).cast("string").alias("value"))


def without_records(df):
    """Raises on missing records."""
    missing = F.expr("1 / (count(*) - count(*))")
    return df.agg(missing.cast("string").alias("value"))


def no_worker_imports_it(df):
    def imports(_):
        import no_such_package

        return no_such_package

    return df.select(F.udf(imports)("value").alias("value"))


@pytest.mark.parametrize(
    ("process", "message"),
    [
        (sums_overflow, "ARITHMETIC_OVERFLOW.*does not fail on any one record alone"),
        pytest.param(
            without_records,
            "DIVIDE_BY_ZERO.*does not fail on any one record alone",
            marks=pytest.mark.chaos,
        ),
        (no_worker_imports_it, "process failed at .*no_such_package"),
    ],
)
def test_what_is_no_records_fault_fails_the_run_of_a_frame_function(spark, pipeline, process, message):
    """No record is left out unless the search finds which one made the function raise."""
    with pytest.raises(ProcessFailed, match=message):
        RunAttempt(spark, pipeline.changed("r1"), process).execute()
    assert pipeline.output("read_uncommitted") == dead_letters(pipeline, "read_uncommitted") == []


JAVA = """
public class Orders { public static Object read(Object value) { return value; } }
public class OrdersFunction implements org.apache.spark.sql.api.java.UDF1 {
    public OrdersFunction() {}
    public Object call(Object value) { return Orders.read(value); }
}
"""


def test_a_class_that_the_jars_of_a_function_lack_is_no_records_fault(spark, pipeline, tmp_path):
    """As with a missing Python module: each record raises alone, and once all became dead letters."""
    compiler = spark._jvm.org.codehaus.janino.SimpleCompiler()
    compiler.cook(JAVA)
    with zipfile.ZipFile(tmp_path / "functions.jar", "w") as jar:
        jar.writestr("OrdersFunction.class", bytes(compiler.getBytecodes()["OrdersFunction"]))
    spark.sql(f"ADD JAR '{tmp_path}/functions.jar'")
    kind = spark._jsparkSession.artifactManager().classloader().loadClass("OrdersFunction")
    text = spark._jvm.org.apache.spark.sql.types.DataTypes.StringType
    spark._jsparkSession.udf().register("read_order", kind.newInstance(), text)

    def process(df):
        return df.selectExpr("read_order(cast(value as string)) AS value")

    with pytest.raises(RunFailed, match="NoClassDefFoundError: Orders"):
        RunAttempt(spark, pipeline.changed("r1"), process).execute()
    assert pipeline.output("read_uncommitted") == dead_letters(pipeline, "read_uncommitted") == []
