"""A process function gets what its signature asks for."""

from __future__ import annotations

import datetime as dt
import functools

import pytest

from airflow_eos.exceptions import ProcessFailed
from airflow_eos.model.plan import RunPlan
from airflow_eos.model.ranges import Interval, OffsetRange, PartitionInterval
from airflow_eos.model.spec import RunSpec
from airflow_eos.spark.process import RunContext, call_process

RUN = RunContext("p", "r", "cursor", (), ("src",), "out")


class Callable:
    def __call__(self, df, run):
        return df, run


@pytest.mark.parametrize(
    "process",
    [
        lambda df, run: (df, run),
        lambda df, context: (df, context),
        lambda df, *, run: (df, run),
        lambda df, factor=2, run=None: (df, run),
        lambda df, run=None, **_: (df, run),
        functools.partial(lambda factor, df, run: (df, run), 2),
        Callable(),
    ],
)
def test_a_function_that_asks_for_the_run_gets_it(process):
    """By a second parameter, or by one named run."""
    assert call_process(process, "df", RUN) == ("df", RUN)


@pytest.mark.parametrize(
    "process",
    [
        lambda df: df,
        lambda df, factor=2: df,
        lambda *frames: frames[0],
        lambda df, **options: df,
        lambda run: run,
        functools.partial(lambda df, factor: df, factor=3),
    ],
)
def test_a_function_of_one_argument_gets_the_data_frame_only(process):
    """Parameters with defaults and variadic ones are ignored; the first one is the DataFrame, in any name."""
    assert call_process(process, "df", RUN) == "df"


@pytest.mark.parametrize("process", [lambda a, b, c: a, lambda df, *, option: df])
def test_a_function_with_other_needs_is_refused_with_its_signature(process):
    """The error shows the expected signatures."""
    with pytest.raises(ProcessFailed, match=r"process\(df, run\)"):
        call_process(process, "df", RUN)


def test_an_error_inside_the_function_is_not_taken_for_a_wrong_signature():
    """The author's own TypeError is raised unchanged."""

    def process(df):
        return len(5)

    with pytest.raises(TypeError, match="has no len"):
        call_process(process, "df", RUN)


def test_the_context_carries_the_interval_and_no_client_configuration():
    """Process functions, and what they print, must not have secrets."""
    start = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
    interval = Interval(start, start + dt.timedelta(hours=1))
    spec = RunSpec(
        kafka={"bootstrap.servers": "b:1", "sasl.password": "TOPSECRET"},
        pipeline="p",
        run_id="r",
        source_topics=("src",),
        group_id="g",
        ranges=PartitionInterval("2026-01-01", interval),
    )
    plan = RunPlan("partition", (OffsetRange("src", 0, 1, 2),), {}, "g.runs", advances=False)
    context = RunContext.of(spec, plan)
    assert context.interval == interval
    assert context.partition_key == "2026-01-01"
    assert context.ranges == plan.ranges
    assert "TOPSECRET" not in repr(context)
