"""JVM options for short-lived Spark processes, such as those of tests and demonstrations.

``python -m airflow_eos_testing.spark_jvm`` writes the class-data archive, once per environment.
"""

from __future__ import annotations

import logging
import os

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.spark_host.jvm import OPTIONS_VARIABLE, SHORT_LIVED, archive_of
from airflow_eos.spark_host.jvm import write_archive as write_archive_in
from airflow_eos_testing import class_data
from airflow_eos_testing.java import find_java

log = logging.getLogger(__name__)


def quick_start() -> dict[str, str]:
    """Return environment variables for a quick start of Spark; none if the caller has set the options."""
    if os.environ.get(OPTIONS_VARIABLE):
        return {}
    archive = archive_of(class_data.folder(), find_java())
    sharing = class_data.use_options(archive) if archive.exists() else []
    return {OPTIONS_VARIABLE: " ".join((*SHORT_LIVED, *sharing))}


def write_archive() -> None:
    """Write Spark's archive if it does not exist; without one Spark starts more slowly."""
    try:
        write_archive_in(class_data.folder(), find_java())
    except ConfigurationError as error:
        log.warning("%s", error)


if __name__ == "__main__":
    write_archive()
