"""Buttons on a task: its record in the ledger, and its Spark application.

Airflow requests a link at the end of the task, in its process, and stores the result.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import attrs
from airflow.sdk import BaseOperatorLink

from airflow_eos import settings
from airflow_eos.ledger.keys import run_record_key
from airflow_eos.ledger.records.run_record import RunRecord


@attrs.define()
class LedgerRecordLink(BaseOperatorLink):
    """The run's record in a viewer of topics (``[eos] ledger_record_url``), else on its page in Airflow.

    Empty if there is neither.
    """

    name = "Ledger record"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:  # noqa: ARG002 - the interface
        """Return the address."""
        record: RunRecord | None = getattr(operator, "run_record", None)
        template = settings.ledger_record_url()
        if record is None:
            return ""
        if not template:
            return settings.run_page(record.pipeline, record.run_key)
        topic = operator.ledger.topic if operator.ledger else settings.default_ledger_topic()
        return template.format(
            topic=quote(topic, safe=""),
            key=quote(run_record_key(record.run_key), safe=""),
            pipeline=quote(record.pipeline, safe=""),
        )


@attrs.define()
class SparkUiLink(BaseOperatorLink):
    """The run's Spark application in the history server: ``[eos] spark_history_url``.

    Spark's own UI cannot be linked: it ends with the session of the task.
    """

    name = "Spark UI"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:  # noqa: ARG002 - the interface
        """Return the address; empty where no Spark was started."""
        record: RunRecord | None = getattr(operator, "run_record", None)
        versions = record.details.get("versions") if record is not None else None
        application = (versions or {}).get("application_id")
        template = settings.spark_history_url()
        return (
            template.format(application_id=quote(str(application), safe=""))
            if application and template
            else ""
        )


class ConfiguredLinks:
    """An operator's links that have an address; without any, Airflow's UI shows no heading for them.

    A descriptor: for a mapped operator Airflow reads the class attribute, where a property yields no links.
    """

    def __get__(self, operator: Any, kind: type | None = None) -> tuple[BaseOperatorLink, ...]:
        """Return the links that ``[eos]`` has an address for."""
        links: list[BaseOperatorLink] = []
        if settings.ledger_record_url() or settings.ui_kafka_config_id():
            links.append(LedgerRecordLink())
        if settings.spark_history_url():
            links.append(SparkUiLink())
        return tuple(links)
