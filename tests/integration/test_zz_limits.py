import datetime as dt, uuid
import pyarrow as pa, pytest
import tests.support.airflow_home  # noqa: F401
from airflow_eos import arrow_process, read_process_write
from tests.integration.test_failure_classes import spec_of, values
from airflow_eos_testing import read_topic

L = (2**63 - 1) // 1000
Y = 253402300800000
CASES = {}


def same(df):
    return df


@arrow_process
def same_arrow(b):
    return b.select(["value", "timestamp"])


def udf(df):
    from pyspark.sql import functions as F

    f = F.udf(lambda t: str(t), "string")
    return df.select(f("timestamp").alias("value"))


def pandas(df):
    return df.select("value", "timestamp").mapInPandas(lambda it: it, "value binary, timestamp timestamp")


def arrow_in(df):
    return df.select("value", "timestamp").mapInArrow(lambda it: it, "value binary, timestamp timestamp")


def as_string(df):
    from pyspark.sql import functions as F

    return df.select(F.col("timestamp").cast("string").alias("value"), "timestamp")


def plus(df):
    from pyspark.sql import functions as F

    return df.select("value", F.expr("timestamp + interval 400000 years").alias("timestamp"))


def plus_days(df):
    from pyspark.sql import functions as F

    return df.select("value", F.expr("timestamp + interval 300 days").alias("timestamp"))


@arrow_process
def to_pandas(b):
    p = b.select(["value", "timestamp"]).to_pandas()
    return p


@arrow_process
def pylist(b):
    return pa.table({"value": [str(t) for t in b["timestamp"].to_pylist()]})


@arrow_process
def seconds(b):
    return pa.table(
        {
            "value": b["value"],
            "timestamp": pa.array([2**62] * len(b), pa.int64()).cast(pa.timestamp("s", "UTC")),
        }
    )


@arrow_process
def lowest(b):
    return pa.table(
        {
            "value": b["value"],
            "timestamp": pa.array([-(2**63) + 5] * len(b), pa.int64()).cast(pa.timestamp("us", "UTC")),
        }
    )


@arrow_process
def part(b):
    return pa.table(
        {
            "value": b["value"],
            "partition": pa.array([2**40 if v.as_py() == b"far" else 0 for v in b["value"]]),
        }
    )


@pytest.mark.parametrize("at", [Y, L, -L, L + 1, -62135596800001], ids=["y10000", "L", "-L", "L+1", "y0"])
def test_x(broker, spark, at):
    for p in (
        same,
        same_arrow,
        udf,
        pandas,
        arrow_in,
        as_string,
        plus,
        plus_days,
        to_pandas,
        pylist,
        seconds,
        lowest,
        part,
    ):
        source = (
            broker.topic("src", 1, **{"message.timestamp.after.max.ms": str(2**63 - 1), "retention.ms": "-1"})
            if True
            else None
        )
        sink = broker.topic(
            "out", 1, **{"message.timestamp.after.max.ms": str(2**63 - 1), "retention.ms": "-1"}
        )
        broker.produce(
            source, [{"key": b"k", "value": b"ok", "partition": 0, "timestamp": 1_700_000_000_000}]
        )
        from airflow_eos.wire.connection import BrokerConnections
        from airflow_eos.wire.client_config import ClientConfig
        from airflow_eos.model.ranges import TopicPartition
        from tests.support.record_batches import Record, write
        from tests.support.wire_requests import append

        with BrokerConnections(ClientConfig.of({"bootstrap.servers": broker.bootstrap})) as c:
            append(c, TopicPartition(source, 0), write([Record(0, at, b"k", b"far")]))
        import time

        t0 = time.time()
        try:
            r = read_process_write(spark, spec_of(broker, source, sink), p)
            out = "OK " + str([(x.timestamp, x.value) for x in read_topic(broker.bootstrap, sink)])
        except Exception as e:
            out = f"{type(e).__name__} PLACE={source + '-0' in str(e) or f'{source}-0' in str(e)}: " + str(e)[
                :330
            ].replace("\n", " / ")
        print("RES", at, getattr(p, "__name__", p), f"{time.time() - t0:.1f}s", out, flush=True)
