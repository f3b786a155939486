"""Session settings that several runs, in threads of one process, change at the same time."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

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
