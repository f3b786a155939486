"""Warns about, or refuses, a run whose credentials would travel to Spark unencrypted."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from airflow_eos import settings
from airflow_eos.exceptions import ConfigurationError
from airflow_eos.model.sink_table import SinkTable
from airflow_eos.spark.encryption import ADVICE, way_in_clear
from airflow_eos.wire.client_config import ClientConfig

log = logging.getLogger(__name__)


def check_encryption(
    spark: Mapping[str, str], kafka: ClientConfig, advice: str = ADVICE, *, sink: SinkTable | None = None
) -> None:
    """Warn if credentials travel in clear, or refuse if ``[eos] require_encrypted_spark`` is set.

    :param spark: the session's effective settings, as far as they are known.
    :param sink: the table that tasks write to, with the properties of its connection.
    :raises ConfigurationError: credentials would travel in clear, and the option is set.
    """
    owners = ["the Kafka connection"] if kafka.has_secrets else []
    if sink is not None and sink.has_secrets:
        owners.append(f"the table's connection {sink.connection_id!r}")
    way = way_in_clear(spark) if owners else None
    if way is None:
        return
    message = f"the credentials of {' and '.join(owners)} travel in clear over {way}; {advice}"
    if settings.require_encrypted_spark():
        raise ConfigurationError(f"[eos] require_encrypted_spark is set, and {message}")
    log.warning("%s", message)
