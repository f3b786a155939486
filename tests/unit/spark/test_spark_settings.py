"""Session settings that several runs, in threads of one process, change at the same time."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from pyspark.errors.exceptions.connect import SparkConnectException

from airflow_eos.exceptions import SparkUnavailable
from airflow_eos.spark.session import settings


class Conf(dict):
    """The settings of a session, as ``spark.conf``."""

    set = dict.__setitem__
    unset = dict.pop


class Session:
    def __init__(self, **before):
        self.conf = Conf(before)


@pytest.mark.parametrize("before", [{}, {"rows": "10"}], ids=["unset", "set"])
@pytest.mark.parametrize("second", ["64", "512"], ids=["the same value", "another value"])
@pytest.mark.parametrize("first_ends_first", [True, False])
def test_the_last_of_two_runs_restores_the_session(before, second, first_ends_first):
    """Until then, the other one keeps its settings."""
    spark = Session(**before)
    first_run, second_run = ExitStack(), ExitStack()
    first_run.enter_context(settings(spark, {"rows": "64"}))
    second_run.enter_context(settings(spark, {"rows": second}))
    (first_run if first_ends_first else second_run).close()
    assert spark.conf == {"rows": second if first_ends_first else "64"}
    (second_run if first_ends_first else first_run).close()
    assert spark.conf == before


@pytest.mark.parametrize("before", [{}, {"rows": "10"}], ids=["unset", "set"])
def test_a_run_beside_another_has_the_original_values(before):
    """And sets none for itself alone, until the other one has ended."""
    spark = Session(**before)
    with settings(spark, {"rows": None}), settings(spark, {"rows": "2048"}, alone=True):
        with settings(spark, {"rows": None}):
            assert spark.conf == before
            with settings(spark, {"rows": "4096"}, alone=True):
                assert spark.conf == before
        assert spark.conf == {"rows": "2048"}
    assert spark.conf == before


def test_a_value_that_is_set_inside_stays_where_nothing_was_changed():
    """The author's function may set it for the session."""
    spark = Session()
    with settings(spark, {"rows": None}):
        spark.conf.set("rows", "500")
    assert spark.conf == {"rows": "500"}


@pytest.mark.parametrize("is_translated", [False, True])
def test_a_server_that_is_gone_is_not_asked_to_restore_settings(is_translated):
    """Spark's client would repeat each request for ten minutes, without a line in the log."""
    spark, lost = Session(), SparkConnectException(errorClass="NO_ACTIVE_SESSION", messageParameters={})
    error = SparkUnavailable("x") if is_translated else lost
    with pytest.raises(type(error)), settings(spark, {"rows": "64"}):
        raise error from (lost if is_translated else None)
    assert spark.conf == {"rows": "64"}
    with settings(spark, {"rows": "512"}):
        assert spark.conf == {"rows": "512"}
