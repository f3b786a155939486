"""Errors of the test equipment: embedded processes that could not be started or used, or died."""

from __future__ import annotations

from airflow_eos.exceptions import EosError


class EmbeddedKafkaError(EosError):
    """A broker of ``airflow_eos_testing`` could not be fetched, started or used; with the end of its log."""


class EmbeddedYarnError(EosError):
    """A YARN of ``airflow_eos_testing`` could not be fetched, started or used; with the end of its log."""


class EmbeddedSparkError(EosError):
    """A Spark server of ``airflow_eos_testing`` could not be started; with the end of its log."""


class EmbeddedAirflowError(EosError):
    """A test Airflow could not be started, or refused a call; with the end of its log."""


class EmbeddedDriverError(EosError):
    """A Spark process of a test could not be started, or did not reach a point; with the end of its log."""


class DriverDied(EmbeddedDriverError):
    """A test's driver process ended before its run did; the message names the states it had reached."""


class EmbeddedServerError(EosError):
    """A database or queue of ``airflow_eos_testing`` is missing or did not start; with the end of its log."""
